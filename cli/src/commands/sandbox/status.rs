//! `cellctl sandbox status`. Exits 0 when the sandbox is ready, 3 while it is not.

use clap::Args;

use super::WhichArgs;
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::output::{Format, Table, View, write_out};
use crate::sandbox::state::StateDir;
use crate::sandbox::status::{Status, of};

/// Flags of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
}

/// Shows the sandbox.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: StatusArgs, global: &Global) -> Result<Exit, CommandError> {
    print(&args.which.state()?, global.output).await
}

/// Prints how a sandbox stands; an error while it is not ready.
///
/// # Errors
/// [`CommandError::Refused`] while it is not ready.
pub async fn print(state: &StateDir, format: Format) -> Result<Exit, CommandError> {
    let status = of(state).await?;
    if format == Format::Table {
        write_out(&text(&status)?)?;
    } else {
        View::of(&status, Table::default(), vec![status.name.clone()])?.print(format)?;
    }
    if status.ready {
        return Ok(Exit::Done);
    }
    let next = if status.running { "cellctl sandbox up (it waits and says for what)" } else { "cellctl sandbox up" };
    // Its process not running is nothing that passes by itself.
    let stalled = !status.running;
    Err(CommandError::Waiting { stalled, what: "sandbox".to_owned(), why: status.blocked_by, next: next.to_owned() })
}

fn text(status: &Status) -> Result<String, CommandError> {
    let endpoints = &status.endpoints;
    let fields = Table::fields([
        ("Sandbox", status.name.clone()),
        ("Ready", if status.ready { "yes".to_owned() } else { format!("no: {}", status.blocked_by) }),
        ("REST", endpoints.rest.clone()),
        ("Gateway", endpoints.gateway.clone()),
        ("etcd", endpoints.etcd.clone()),
        ("Kubernetes", endpoints.kubernetes.clone()),
        ("Kubeconfig", endpoints.kubeconfig.clone()),
        ("State", status.state_dir.clone()),
    ]);
    let mut processes = Table::new(&["PROCESS", "PID", "NODE-READY", "ZONE"]);
    for process in &status.processes {
        let node = status.nodes.iter().find(|node| node.name == process.component);
        processes.row([
            process.component.clone(),
            if process.running { process.pid.to_string() } else { "not running".to_owned() },
            node.map(|node| node.ready.to_string()).unwrap_or_default(),
            node.map(|node| node.zone.clone()).unwrap_or_default(),
        ]);
    }
    let mut pods = Table::new(&["POD", "READY", "NODE", "ADDRESS", "BLOCKED-BY"]);
    for pod in &status.pods {
        pods.row([
            pod.name.clone(),
            pod.ready.to_string(),
            pod.node.clone(),
            pod.address.clone(),
            pod.blocked_by.clone(),
        ]);
    }
    let mut text = String::new();
    for table in [fields, processes, pods] {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&View { table, ..View::default() }.render(Format::Table)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::status::{Endpoints, Node, Pod, Process};

    fn status() -> Status {
        Status {
            name: "default".into(),
            state_dir: "/s".into(),
            running: true,
            ready: false,
            blocked_by: "1 of 1 nodes".into(),
            endpoints: Endpoints {
                rest: "http://127.70.1.1:30080/api/v10".into(),
                gateway: "ws://127.70.1.1:30080".into(),
                etcd: "http://127.70.0.1:2379".into(),
                kubernetes: "https://127.70.0.1:6443".into(),
                kubeconfig: "/s/kubeconfig".into(),
            },
            processes: vec![Process { component: "node-1".into(), pid: 7, running: true }],
            nodes: vec![Node { name: "node-1".into(), zone: "a".into(), ready: true, schedulable: true }],
            pods: vec![Pod {
                name: "p".into(),
                node: "node-1".into(),
                address: "127.70.1.2".into(),
                ready: true,
                blocked_by: "-".into(),
            }],
        }
    }

    #[test]
    fn the_json_has_the_endpoints_that_scripts_read() {
        let value = serde_json::to_value(status()).unwrap();
        for endpoint in ["rest", "gateway", "etcd", "kubernetes", "kubeconfig"] {
            assert!(value["endpoints"][endpoint].is_string(), "{endpoint}");
        }
        assert_eq!(value["ready"], false);
        assert_eq!(value["blockedBy"], "1 of 1 nodes");
    }

    #[test]
    fn the_text_looks_as_it_did() {
        assert_eq!(
            text(&status()).unwrap(),
            "\
Sandbox:      default
Ready:        no: 1 of 1 nodes
REST:         http://127.70.1.1:30080/api/v10
Gateway:      ws://127.70.1.1:30080
etcd:         http://127.70.0.1:2379
Kubernetes:   https://127.70.0.1:6443
Kubeconfig:   /s/kubeconfig
State:        /s

PROCESS   PID   NODE-READY   ZONE
node-1    7     true         a

POD   READY   NODE     ADDRESS      BLOCKED-BY
p     true    node-1   127.70.1.2   -
"
        );
    }
}
