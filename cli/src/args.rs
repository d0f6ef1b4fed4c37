//! The command line's shape: global flags and the tree of commands. What a command's own flags are, its file says.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::commands;
use crate::output::Format;

/// Operate a Cellplane fleet.
#[derive(Parser, Debug)]
#[command(name = "cellctl", version, about, max_term_width = 120, arg_required_else_help = true, after_help = AFTER)]
pub struct Cli {
    /// For every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER: &str = "\
Exit codes: 0 done, 1 failed, 2 usage, 3 blocked or refused, 4 timed out, 5 partly done.
Data goes to stdout, everything else to stderr.
Which cluster: --kubeconfig, else $KUBECONFIG, else (without --context) the sandbox of $CELLPLANE_SANDBOX (`default`) if there is one, else ~/.kube/config.
cellctl never writes a kubeconfig of yours.";

/// Flags that every command takes.
#[derive(Args, Debug, Clone, Default)]
pub struct Global {
    /// How data is printed
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Format,
    /// Namespace of the fleet (default: the context's)
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Path of the kubeconfig
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long, global = true)]
    pub yes: bool,
    /// Send the kubeconfig's token over plain http to a control-plane API that is not on this machine
    #[arg(long, global = true)]
    pub plaintext: bool,
    /// How long to wait at most, such as 90s, 5m or 1h
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub timeout: Option<Duration>,
}

/// Every command.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// List resources, or show one
    Get(commands::read::get::GetArgs),
    /// Show everything about a resource, what it waits for, and its events
    Describe(commands::read::describe::DescribeArgs),
    /// Show the events of resources
    Events(commands::read::events::EventsArgs),
    /// Show the logs of the Pods behind a resource
    Logs(commands::read::logs::LogsArgs),
    /// Show the fleet at a glance; exits 3 while something is blocked
    Status(commands::read::status::StatusArgs),
    /// Say where a guild is
    Locate(commands::read::locate::LocateArgs),
    /// Move guilds, say where they should live
    #[command(subcommand)]
    Guild(commands::guild::GuildCommand),
    /// Take cells out of use and back
    #[command(subcommand)]
    Cell(commands::cell::CellCommand),
    /// Look at databases and what they need
    #[command(subcommand)]
    Storage(commands::storage::StorageCommand),
    /// Bring data to another StorageCell under live traffic, and back
    #[command(subcommand)]
    Migration(commands::migration::MigrationCommand),
    /// Pause and resume what the operator starts by itself
    #[command(subcommand)]
    Automation(commands::automation::AutomationCommand),
    /// Issue tokens for bots and users
    #[command(subcommand)]
    Token(commands::token::TokenCommand),
    /// Copy CQL tables from one cluster to another, verify and mend the copy; needs no Kubernetes
    Migrate(commands::migrate::MigrateArgs),
    /// A whole fleet on this machine
    #[command(subcommand)]
    Sandbox(commands::sandbox::SandboxCommand),
    /// Watch a huge guild move between cells while thousands talk in it, and check that nothing was lost
    Demo(commands::demo::DemoArgs),
    /// Print the completion script of a shell
    Completion(commands::completion::CompletionArgs),
    /// Print the version
    Version(commands::version::VersionArgs),
}

/// Reads `90s`, `5m`, `1h`, `250ms`, or bare seconds.
///
/// # Errors
/// What is wrong with the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let wrong = || format!("{text:?} is not a duration such as 90s, 5m or 1h");
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let milliseconds = match unit {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err(wrong()),
    };
    let longest = 7 * 24 * 3_600_000;
    milliseconds
        .filter(|milliseconds| (1..=longest).contains(milliseconds))
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is not between 1ms and 168h"))
}

#[cfg(test)]
mod tests;
