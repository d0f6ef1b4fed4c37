//! Probes against small servers of our own.

use std::collections::BTreeMap;

use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{Container, ExecAction, Probe};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{ProbeError, Target, attempt, health_answer, health_request};

fn target(port: u16) -> Target {
    let container: Container =
        serde_json::from_value(json!({ "name": "c", "ports": [{ "name": "admin", "containerPort": port }] })).unwrap();
    Target {
        container,
        pod_ip: "127.0.0.1".into(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        directory: std::env::temp_dir(),
    }
}

fn probe(json: serde_json::Value) -> Probe {
    serde_json::from_value(json).unwrap()
}

async fn answering(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 1024];
            let _ = stream.read(&mut buffer).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

#[tokio::test]
async fn http_succeeds_from_200_to_399_by_port_name_and_fails_otherwise() {
    let http = probe(json!({ "httpGet": { "path": "/readyz", "port": "admin" }, "timeoutSeconds": 5 }));
    let fine = answering("HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n").await;
    attempt(&http, &target(fine)).await.unwrap();
    let ill = answering("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(attempt(&http, &target(ill)).await, Err(ProbeError::Status(503))));
}

#[tokio::test]
async fn tcp_needs_a_listener_and_an_unknown_port_name_is_refused() {
    let port = answering("").await;
    attempt(&probe(json!({ "tcpSocket": { "port": port } })), &target(port)).await.unwrap();
    let unknown = attempt(&probe(json!({ "tcpSocket": { "port": "nowhere" } })), &target(port)).await;
    assert!(matches!(unknown, Err(ProbeError::Port(_))));
}

#[tokio::test]
async fn exec_fails_by_exit_code_and_by_time() {
    let exec = |script: &str| Probe {
        exec: Some(ExecAction { command: Some(vec!["/bin/sh".into(), "-c".into(), script.into()]) }),
        ..Probe::default()
    };
    attempt(&exec("exit 0"), &target(1)).await.unwrap();
    assert!(matches!(attempt(&exec("exit 3"), &target(1)).await, Err(ProbeError::Exit(_))));
    assert!(matches!(attempt(&exec("sleep 60"), &target(1)).await, Err(ProbeError::Late(_))));
}

#[tokio::test]
async fn https_is_refused_with_a_remedy() {
    let error = attempt(&probe(json!({ "httpGet": { "port": 1, "scheme": "HTTPS" } })), &target(1)).await.unwrap_err();
    assert!(error.to_string().contains("use HTTP"), "{error}");
}

/// A gRPC health server that answers every check with one status.
async fn health_server(status: u8) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service =
                hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().unwrap());
                    let message = Frame::data(bytes::Bytes::from(vec![0, 0, 0, 0, 2, 8, status]));
                    let frames = futures::stream::iter([
                        Ok::<_, std::convert::Infallible>(message),
                        Ok(Frame::trailers(trailers)),
                    ]);
                    let answer = hyper::Response::builder().header("content-type", "application/grpc");
                    Ok::<_, std::convert::Infallible>(answer.body(StreamBody::new(frames)).unwrap())
                });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

#[tokio::test]
async fn grpc_is_healthy_only_when_serving() {
    let check = |port: u16| probe(json!({ "grpc": { "port": port, "service": "cell" }, "timeoutSeconds": 10 }));
    let serving = health_server(1).await;
    attempt(&check(serving), &target(serving)).await.unwrap();
    let draining = health_server(2).await;
    assert!(matches!(attempt(&check(draining), &target(draining)).await, Err(ProbeError::Health(_))));
}

#[test]
fn health_messages_are_framed_as_grpc_frames_them() {
    assert_eq!(&health_request("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
    assert_eq!(&health_request("")[..], [0, 0, 0, 0, 0]);
    assert_eq!(health_answer(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
    assert_eq!(health_answer(&[0, 0, 0, 0, 2, 8, 2]), Some(2));
    assert_eq!(health_answer(&[0, 0, 0, 0, 0]), Some(0));
}
