//! `cellctl sandbox …`: a whole fleet on this machine.

pub mod copy;
pub mod down;
pub mod faults;
pub mod kubeconfig;
pub mod logs;
pub mod status;
pub mod up;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::interruptible;
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::sandbox::state::{DEFAULT_NAME, StateDir, StateError};

/// The verbs of `sandbox`.
#[derive(Subcommand, Debug)]
pub enum SandboxCommand {
    /// Start the sandbox, or what of it does not run; returns once its fleet is Ready
    Up(up::UpArgs),
    /// Stop the sandbox and its Pods; keeps its state
    Down(down::DownArgs),
    /// Show processes, endpoints, nodes and Pods; exits 3 while it is not ready
    Status(status::StatusArgs),
    /// Show the log of a process of the sandbox, or of a Pod
    Logs(logs::LogsArgs),
    /// Print the path of the sandbox's kubeconfig
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// Write every object and etcd key of the sandbox to a file, while it runs or not
    Backup(copy::CopyArgs),
    /// Make a stopped or new sandbox hold what a backup does
    Restore(copy::CopyArgs),
    /// Put a proxy in front of the sandbox's Kubernetes API that delays, refuses, cuts, freezes, forgets and repeats by rule
    #[command(subcommand)]
    Faults(faults::FaultsCommand),
}

/// Which sandbox.
#[derive(Args, Debug, Clone)]
pub struct WhichArgs {
    /// Name of the sandbox
    #[arg(long, default_value = DEFAULT_NAME, env = "CELLPLANE_SANDBOX")]
    pub name: String,
    /// Where it keeps itself (default: $XDG_STATE_HOME/cellplane/sandbox/NAME)
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl WhichArgs {
    /// Its state directory.
    ///
    /// # Errors
    /// [`CommandError::Usage`].
    pub fn state(&self) -> Result<StateDir, CommandError> {
        StateDir::find(&self.name, self.state_dir.as_deref()).map_err(|error| CommandError::Usage(error.to_string()))
    }
}

/// How an unusable state directory ends a command: a busy or newer one is refused.
pub fn from_state(error: StateError) -> CommandError {
    match error {
        StateError::Busy(_) | StateError::Newer { .. } => CommandError::refused("--state-dir", error.to_string(), ""),
        StateError::Name(_) | StateError::NoHome => CommandError::Usage(error.to_string()),
        // Only what the sandbox was made with is in there; what it holds is elsewhere and stays.
        StateError::Corrupt { ref path, .. } => CommandError::Ended {
            message: error.to_string(),
            next: format!(
                "rm {}, then cellctl sandbox up with the same --nodes: what the sandbox holds stays",
                path.display()
            ),
        },
        other => CommandError::Failed(anyhow::Error::from(other)),
    }
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: SandboxCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        SandboxCommand::Up(args) => interruptible(up::run(args, global)).await,
        // Half a stop helps nobody: it is bounded by its own grace times.
        SandboxCommand::Down(args) => down::run(args, global).await,
        SandboxCommand::Status(args) => interruptible(status::run(args, global)).await,
        SandboxCommand::Logs(args) => interruptible(logs::run(args, global)).await,
        SandboxCommand::Kubeconfig(args) => kubeconfig::run(&args, global),
        SandboxCommand::Backup(args) => interruptible(copy::backup(args, global)).await,
        SandboxCommand::Faults(command) => interruptible(faults::run(command, global)).await,
        // Its parts are put in place at once; half of it is as good as nothing.
        SandboxCommand::Restore(args) => copy::restore(args, global).await,
    }
}
