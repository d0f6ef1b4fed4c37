//! Tries one probe: exec, httpGet, tcpSocket or grpc (health v1), each with its own timeout. It decides success as Kubernetes does
//! (exit 0; status 200–399; a connection; SERVING) and remembers nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{Container, GRPCAction, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::process::Command;

/// Why a try failed.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// No answer in time.
    #[error("timeout after {0:?}")]
    Late(Duration),
    /// The connection.
    #[error("connect {0}: {1}")]
    Connect(String, String),
    /// The answer's status.
    #[error("HTTP probe failed with statuscode: {0}")]
    Status(u16),
    /// The command's exit.
    #[error("command exited with {0}")]
    Exit(String),
    /// The service's health.
    #[error("service unhealthy (responded with {0})")]
    Health(String),
    /// A probe this agent cannot make.
    #[error("{0}")]
    Unsupported(&'static str),
    /// A port that is no number and no container port's name.
    #[error("port {0} is not one of the container's")]
    Port(String),
}

/// Where and how a container is probed.
#[derive(Debug, Clone)]
pub struct Target {
    /// The container, for its port names.
    pub container: Container,
    /// The Pod's address.
    pub pod_ip: String,
    /// Environment of exec probes.
    pub env: BTreeMap<String, String>,
    /// Directory of exec probes.
    pub directory: PathBuf,
}

/// Tries `probe` once.
///
/// # Errors
/// [`ProbeError`] says why it failed.
pub async fn attempt(probe: &Probe, target: &Target) -> Result<(), ProbeError> {
    let limit = Duration::from_secs(u64::from(probe.timeout_seconds.unwrap_or(1).max(1).unsigned_abs()));
    if let Some(exec) = &probe.exec {
        return run(exec.command.as_deref().unwrap_or(&[]), target, limit).await;
    }
    let probing = async {
        if let Some(action) = &probe.http_get {
            http_get(action, target).await
        } else if let Some(action) = &probe.tcp_socket {
            let host = action.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| target.pod_ip.clone());
            connect(&host, port(&action.port, &target.container)?).await.map(|_| ())
        } else if let Some(action) = &probe.grpc {
            grpc(action, target).await
        } else {
            Err(ProbeError::Unsupported("the probe has none of exec, httpGet, tcpSocket and grpc"))
        }
    };
    tokio::time::timeout(limit, probing).await.unwrap_or(Err(ProbeError::Late(limit)))
}

/// Runs a command beside the container, as exec probes and exec hooks do; its process group is killed when time is up.
///
/// # Errors
/// [`ProbeError`] when it fails or is late.
pub async fn run(command: &[String], target: &Target, limit: Duration) -> Result<(), ProbeError> {
    let Some((program, args)) = command.split_first() else {
        return Err(ProbeError::Unsupported("exec has an empty command"));
    };
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .envs(&target.env)
        .current_dir(&target.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| ProbeError::Exit(format!("{program}: {error}")))?;
    let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
    let ended = tokio::time::timeout(limit, child.wait()).await;
    drop(group);
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(ProbeError::Exit(status.to_string())),
        Ok(Err(error)) => Err(ProbeError::Exit(error.to_string())),
        Err(_) => {
            let _ = child.wait().await;
            Err(ProbeError::Late(limit))
        }
    }
}

/// A command's process group: what is left of it ends with the try, also when the try itself is given up.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn port(port: &IntOrString, container: &Container) -> Result<u16, ProbeError> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let ports = container.ports.as_deref().unwrap_or(&[]);
            let named = ports.iter().find(|port| port.name.as_deref() == Some(name)).map(|port| port.container_port);
            named.or_else(|| name.parse().ok())
        }
    };
    number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0).ok_or_else(|| {
        ProbeError::Port(match port {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(name) => name.clone(),
        })
    })
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, ProbeError> {
    TcpStream::connect((host, port))
        .await
        .map_err(|error| ProbeError::Connect(format!("{host}:{port}"), error.to_string()))
}

/// A GET by the probe's or hook's description.
///
/// # Errors
/// [`ProbeError`] for anything but a status from 200 to 399.
pub async fn http_get(action: &HTTPGetAction, target: &Target) -> Result<(), ProbeError> {
    if action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")) {
        return Err(ProbeError::Unsupported(
            "httpGet scheme HTTPS is not supported by this node: use HTTP or tcpSocket",
        ));
    }
    let host = action.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| target.pod_ip.clone());
    let port = port(&action.port, &target.container)?;
    let failed = |error: &dyn std::fmt::Display| ProbeError::Connect(format!("{host}:{port}"), error.to_string());
    let stream = connect(&host, port).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    let driver = tokio::spawn(connection);
    let path = action.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let mut request = Request::get(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
        .header("host", format!("{host}:{port}"))
        .header("user-agent", "cell-node-probe")
        .header("connection", "close");
    for header in action.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| failed(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| failed(&error));
    driver.abort();
    let status = answer?.status().as_u16();
    if (200..400).contains(&status) { Ok(()) } else { Err(ProbeError::Status(status)) }
}

/// `grpc.health.v1.Health/Check` with hand-made messages: one string in, one enumeration out.
async fn grpc(action: &GRPCAction, target: &Target) -> Result<(), ProbeError> {
    let port = u16::try_from(action.port).map_err(|_| ProbeError::Port(action.port.to_string()))?;
    let authority = format!("{}:{port}", target.pod_ip);
    let failed = |error: &dyn std::fmt::Display| ProbeError::Connect(authority.clone(), error.to_string());
    let stream = connect(&target.pod_ip, port).await?;
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let driver = tokio::spawn(connection);
    let request = Request::post(format!("http://{authority}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(health_request(action.service.as_deref().unwrap_or(""))))
        .map_err(|error| failed(&error))?;
    let answer = match sender.send_request(request).await {
        Ok(answer) => answer,
        Err(error) => {
            driver.abort();
            return Err(failed(&error));
        }
    };
    let in_head = answer.headers().get("grpc-status").cloned();
    let body = answer.into_body().collect().await.map_err(|error| failed(&error));
    driver.abort();
    let body = body?;
    let code = in_head.or_else(|| body.trailers().and_then(|trailers| trailers.get("grpc-status").cloned()));
    match code.as_ref().and_then(|code| code.to_str().ok()) {
        Some("0") => {}
        Some(code) => return Err(ProbeError::Health(format!("grpc-status {code}"))),
        None => return Err(ProbeError::Health("no grpc-status".into())),
    }
    match health_answer(&body.to_bytes()) {
        Some(1) => Ok(()),
        other => Err(ProbeError::Health(format!("{other:?}"))),
    }
}

fn health_request(service: &str) -> Bytes {
    let service = &service.as_bytes()[..service.len().min(100)];
    let mut message = Vec::new();
    if !service.is_empty() {
        message.extend([0x0a, service.len() as u8]);
        message.extend(service);
    }
    let mut frame = vec![0, 0, 0, 0, message.len() as u8];
    frame.extend(message);
    Bytes::from(frame)
}

/// Field 1 of the answer; 1 is SERVING. An empty message is UNKNOWN (0).
fn health_answer(frame: &[u8]) -> Option<u8> {
    match frame.get(5..)? {
        [] => Some(0),
        [0x08, status, ..] => Some(*status),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
