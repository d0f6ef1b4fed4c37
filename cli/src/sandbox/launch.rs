//! Starts the processes of a sandbox that do not run yet, and leaves those alone that do. A process with other arguments than wanted
//! is replaced: Pods outlive their agent and the API's process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::network::Network;
use super::objects::NAMESPACE;
use super::process::{self, Launch, ProcessRecord};
use super::programs::{CELL_IMAGE, OPERATOR_IMAGE, Programs};
use super::state::{Settings, StateDir, write_private};
use crate::args::Global;
use crate::connect::{Connection, innermost};
use crate::exit::CommandError;
use crate::progress::{Phase, Progress};

/// Component that serves etcd and Kubernetes.
pub const CONTROL: &str = "sandbox";
const CONTROL_DEADLINE: Duration = Duration::from_secs(60);
const ZONES: [&str; 3] = ["a", "b", "c"];

/// Everything needed to start a sandbox.
#[derive(Debug)]
pub struct Launcher<'a> {
    /// Where it keeps itself.
    pub state: &'a StateDir,
    /// Its network.
    pub network: Network,
    /// Its settings.
    pub settings: &'a Settings,
    /// Its programs.
    pub programs: &'a Programs,
    /// Where progress goes.
    pub progress: &'a Progress,
}

impl Launcher<'_> {
    /// Starts what is missing and returns once the Kubernetes API answers.
    ///
    /// # Errors
    /// [`CommandError::Failed`] when a program ends at once; [`CommandError::TimedOut`].
    pub async fn start(&self) -> Result<Connection, CommandError> {
        let phase = self.progress.phase("apis", None);
        let control = self.ensure(CONTROL, &self.programs.sandbox, self.control_arguments()).await?;
        let kubeconfig = self.state.control().join("kubeconfig");
        let connection = self.api(&control, &kubeconfig, &phase).await?;
        self.write_kubeconfig(&kubeconfig)?;
        phase.finish(&format!("etcd and Kubernetes on {}", self.network.control_address()));
        for number in 1..=self.settings.nodes {
            let component = node_name(number);
            let arguments = self.node_arguments(number, &kubeconfig);
            self.ensure(&component, &self.programs.node, arguments).await?;
        }
        Ok(connection)
    }

    fn control_arguments(&self) -> Vec<String> {
        vec![
            "serve".to_owned(),
            format!("--state-dir={}", self.state.control().display()),
            format!("--listen-address={}", self.network.control_address()),
            format!("--etcd-port={}", self.settings.etcd_port),
            format!("--kubernetes-port={}", self.settings.kubernetes_port),
        ]
    }

    fn node_arguments(&self, number: u8, kubeconfig: &Path) -> Vec<String> {
        let zone = ZONES[usize::from(number - 1) % ZONES.len()];
        vec![
            format!("--node-name={}", node_name(number)),
            format!("--zone={zone}"),
            format!("--address={}", self.network.node_address(number)),
            format!("--pod-cidr={}", self.network.pod_cidr(number)),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--state-dir={}", self.state.node(&node_name(number)).display()),
            format!("--image={CELL_IMAGE}={}", self.programs.cell.display()),
            format!("--image={OPERATOR_IMAGE}={}", self.programs.operator.display()),
            // A laptop has nobody to protect from a Pod that restarts quickly.
            "--restart-backoff=1".to_owned(),
        ]
    }

    async fn ensure(
        &self,
        component: &str,
        program: &PathBuf,
        arguments: Vec<String>,
    ) -> Result<ProcessRecord, CommandError> {
        if let Some(record) = self.state.process(component) {
            let same = record.program == *program && record.arguments == arguments;
            let rebuilt = record.program_written_ms != process::written_ms(program);
            if record.is_alive() && same && !rebuilt {
                return Ok(record);
            }
            if record.is_alive() && rebuilt {
                self.progress
                    .say(&format!("{component}: its program was rebuilt; it is started anew, its Pods run on"));
            }
            record.stop(Duration::from_secs(15)).await.map_err(anyhow::Error::from)?;
        }
        let log = self.state.log(component);
        let launch = Launch { component, program, arguments, log: &log };
        let record = process::start(launch).map_err(anyhow::Error::from)?;
        self.state.write_process(&record).map_err(anyhow::Error::from)?;
        Ok(record)
    }

    async fn api(&self, control: &ProcessRecord, kubeconfig: &Path, phase: &Phase) -> Result<Connection, CommandError> {
        let deadline = Instant::now() + CONTROL_DEADLINE;
        let global = Global { namespace: Some(NAMESPACE.to_owned()), ..Global::default() };
        loop {
            let why = match Connection::from_file(kubeconfig, &global).await {
                Ok(connection) => match connection.client.apiserver_version().await {
                    Ok(_) => return Ok(connection),
                    Err(error) => innermost(&error),
                },
                Err(_) => "its kubeconfig is not written yet".to_owned(),
            };
            phase.note(&format!("waiting for the Kubernetes API: {why}"));
            if !control.is_alive() {
                return Err(died(self.state, CONTROL));
            }
            if Instant::now() > deadline {
                return Err(CommandError::TimedOut {
                    waited_for: "the sandbox's Kubernetes API".to_owned(),
                    blocked_by: why,
                    next: "cellctl sandbox logs sandbox".to_owned(),
                });
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// The sandbox's kubeconfig for people: its own context name, and the fleet's namespace.
    fn write_kubeconfig(&self, control: &Path) -> Result<(), CommandError> {
        let read =
            std::fs::read_to_string(control).map_err(|error| anyhow::Error::from(error).context("read kubeconfig"))?;
        let value: Value =
            serde_saphyr::from_str(&read).map_err(|error| anyhow::anyhow!("read kubeconfig: {error}"))?;
        let value = for_people(value, &self.settings.name);
        let text = serde_json::to_vec_pretty(&value)
            .map_err(|error| anyhow::Error::from(error).context("write kubeconfig"))?;
        write_private(&self.state.kubeconfig(), &text).map_err(anyhow::Error::from)?;
        Ok(())
    }
}

/// Name of node `number`, and of its agent.
pub fn node_name(number: u8) -> String {
    format!("node-{number}")
}

/// Every component of a sandbox that has this many nodes, in the order in which they start.
pub fn components(nodes: u8) -> Vec<String> {
    std::iter::once(CONTROL.to_owned()).chain((1..=nodes).map(node_name)).collect()
}

/// JSON is YAML, so it stays readable by kubectl.
fn for_people(mut kubeconfig: Value, name: &str) -> Value {
    let context = format!("cellplane-{name}");
    if let Some(first) = kubeconfig["contexts"].get_mut(0) {
        first["name"] = context.clone().into();
        first["context"]["namespace"] = NAMESPACE.into();
    }
    kubeconfig["current-context"] = context.into();
    kubeconfig
}

/// The error of a component that ended by itself, with the end of its log.
pub fn died(state: &StateDir, component: &str) -> CommandError {
    let text = std::fs::read_to_string(state.log(component)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(5)..].join("\n");
    CommandError::Failed(anyhow::anyhow!("{component} ended by itself; the end of its log:\n{tail}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sandbox::state::Ports;

    #[test]
    fn the_kubeconfig_for_people_names_sandbox_and_namespace() {
        let read =
            json!({"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]});
        let value = for_people(read, "default");
        assert_eq!(value["current-context"], "cellplane-default");
        assert_eq!(
            value["contexts"],
            json!([{"name": "cellplane-default", "context": {"cluster": "c", "user": "u", "namespace": "cellplane"}}])
        );
    }

    #[test]
    fn zones_go_round() {
        let (state, settings) =
            (StateDir::find("default", Some(Path::new("/s"))).unwrap(), Settings::new("default", 4, Ports::default()));
        let programs = Programs { sandbox: "s".into(), node: "n".into(), operator: "o".into(), cell: "c".into() };
        let progress = Progress::silent();
        let launcher = Launcher {
            state: &state,
            network: Network::of_octet(70).unwrap(),
            settings: &settings,
            programs: &programs,
            progress: &progress,
        };
        let zones: Vec<String> =
            (1..=4).map(|number| launcher.node_arguments(number, Path::new("/k"))[1].clone()).collect();
        assert_eq!(zones, ["--zone=a", "--zone=b", "--zone=c", "--zone=a"]);
        assert_eq!(components(2), ["sandbox", "node-1", "node-2"]);
    }
}
