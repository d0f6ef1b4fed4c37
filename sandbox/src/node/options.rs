//! The flags of `cell-node`. It checks what can be checked without touching anything.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use k8s_openapi::api::core::v1::Taint;

/// A node agent: runs the Pods bound to its node as local processes.
#[derive(Debug, Parser)]
#[command(name = "cell-node", version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Another mode than the agent.
    #[command(subcommand)]
    pub mode: Option<Mode>,
    /// The agent's flags.
    #[command(flatten)]
    pub agent: Option<Options>,
}

/// Modes beside the agent.
#[derive(Debug, Subcommand)]
pub enum Mode {
    /// Keep one container's process (started by the agent itself; its standard input is the run's lock).
    #[command(hide = true)]
    Shim {
        /// The run's folder.
        folder: PathBuf,
    },
}

/// The agent's flags.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The node's name: a Node of this name is registered.
    #[arg(long)]
    pub node_name: String,
    /// The node's zone (label topology.kubernetes.io/zone).
    #[arg(long, default_value = "zone-1")]
    pub zone: String,
    /// The node's own address: log server and entry ports listen here.
    #[arg(long)]
    pub address: IpAddr,
    /// Pods get their addresses from this range, for example 127.9.1.0/24.
    #[arg(long)]
    pub pod_cidr: String,
    /// How to reach the API server; its token also guards the log server, and Pods are given it unless they have their own.
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Where Pods, volumes, logs and addresses are kept.
    #[arg(long)]
    pub state_dir: PathBuf,
    /// An image and the program it means, as REF=PATH; repeatable.
    #[arg(long = "image", value_name = "REF=PATH")]
    pub images: Vec<String>,
    /// A further label of the node, as KEY=VALUE; repeatable.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// A taint the Node is registered with, as KEY[=VALUE]:EFFECT; repeatable.
    #[arg(long = "taint", value_name = "KEY[=VALUE]:EFFECT", value_parser = taint)]
    pub taints: Vec<Taint>,
    /// Who shows a certificate of this authority (PEM) may read logs if the API server says so: the API server's --kubelet-client-certificate.
    #[arg(long, value_name = "FILE")]
    pub client_ca: Option<PathBuf>,
    /// The log server's certificate (PEM); one of its own otherwise.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Processes a container may have at once, or it is killed; 0 is no bound.
    #[arg(long, default_value_t = 4096)]
    pub max_processes: u32,
    /// Port of the log server on the node's address; 0 takes a free one.
    #[arg(long, default_value_t = 10250)]
    pub port: u16,
    /// CPU the node offers, as a quantity; the machine's by default.
    #[arg(long)]
    pub cpu: Option<String>,
    /// Memory the node offers, as a quantity; the machine's by default.
    #[arg(long)]
    pub memory: Option<String>,
    /// Pods the node offers to run.
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Forward Service node ports (true) or leave them to others (false).
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub entry: bool,
    /// Open entry connections at most; each takes two files.
    #[arg(long, default_value_t = 8192)]
    pub entry_connections: u32,
    /// Between heartbeats.
    #[arg(long, default_value = "10", value_parser = seconds, value_name = "SECONDS")]
    pub heartbeat: Duration,
    /// The first wait between a container's restarts; doubled up to thirty times it.
    #[arg(long, default_value = "10", value_parser = seconds, value_name = "SECONDS")]
    pub restart_backoff: Duration,
    /// Rotate a container's log at this size, in bytes.
    #[arg(long, default_value_t = 10 * 1024 * 1024)]
    pub log_bytes: u64,
    /// Log files kept per container run.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub log_files: u32,
    /// Processes found at the start whose Pod is gone get this long after SIGTERM.
    #[arg(long, default_value = "10", value_parser = seconds, value_name = "SECONDS")]
    pub orphan_grace: Duration,
}

fn taint(text: &str) -> Result<Taint, String> {
    let (named, effect) = text.rsplit_once(':').ok_or_else(|| format!("{text} is not KEY[=VALUE]:EFFECT"))?;
    let (key, value) = named.split_once('=').map_or((named, None), |(key, value)| (key, Some(value.to_owned())));
    if key.is_empty() || !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) {
        return Err(format!(
            "{text}: the effect is NoSchedule, PreferNoSchedule or NoExecute, and the key is not empty"
        ));
    }
    Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), ..Taint::default() })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text} is not a number of seconds"))?;
    if (0.05..=86_400.0).contains(&value) {
        Ok(Duration::from_secs_f64(value))
    } else {
        Err(format!("{text} is not between 0.05 and 86400 seconds"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent_and_bad_ones_are_refused() {
        Cli::command().debug_assert();
        let base = ["cell-node", "--node-name", "n1", "--address", "127.9.1.1", "--pod-cidr", "127.9.1.0/24"];
        let rest = ["--kubeconfig", "k", "--state-dir", "s"];
        let parse = |more: &[&'static str]| Cli::try_parse_from(base.iter().chain(&rest).chain(more));
        assert!(parse(&[]).unwrap().agent.unwrap().entry);
        assert!(parse(&["--heartbeat", "never"]).is_err());
        assert!(parse(&["--log-files", "0"]).is_err());
        assert!(parse(&["--tls-cert", "c"]).is_err(), "a certificate needs its key");
        assert!(parse(&["--taint", "a"]).is_err() && parse(&["--taint", "a:Never"]).is_err());
        let tainted = parse(&["--taint", "a=b:NoExecute", "--taint", "c:NoSchedule"]).unwrap().agent.unwrap().taints;
        assert_eq!((tainted[0].value.as_deref(), tainted[1].value.as_deref()), (Some("b"), None));
        let shim = Cli::try_parse_from(["cell-node", "shim", "/run"]).unwrap();
        assert!(shim.mode.is_some() && shim.agent.is_none());
    }
}
