//! One folder a noun, one file a verb. Each file holds its flags and its `run`.

pub mod automation;
pub mod cell;
pub mod completion;
pub mod confirm;
pub mod demo;
pub mod edit;
pub mod guild;
pub mod migrate;
pub mod migration;
pub mod read;
pub mod sandbox;
pub mod storage;
pub mod token;
pub mod version;

use crate::args::{Cli, Command};
use crate::exit::{CommandError, Exit};

/// Runs a parsed command line. Ctrl-C ends what only waits; commands with something to clean up listen for it themselves.
///
/// # Errors
/// [`CommandError`].
pub async fn run(cli: Cli) -> Result<Exit, CommandError> {
    let Cli { global, command } = cli;
    match command {
        Command::Demo(args) => demo::run(args, &global).await,
        Command::Sandbox(command) => sandbox::run(command, &global).await,
        Command::Migrate(args) => migrate::run(args, &global).await,
        Command::Completion(args) => completion::run(&args),
        Command::Version(args) => version::run(&args, &global),
        other => interruptible(reads_and_actions(other, &global)).await,
    }
}

async fn reads_and_actions(command: Command, global: &crate::args::Global) -> Result<Exit, CommandError> {
    match command {
        Command::Get(args) => read::get::run(args, global).await,
        Command::Describe(args) => read::describe::run(args, global).await,
        Command::Events(args) => read::events::run(args, global).await,
        Command::Logs(args) => read::logs::run(args, global).await,
        Command::Status(args) => read::status::run(args, global).await,
        Command::Locate(args) => read::locate::run(args, global).await,
        Command::Guild(command) => guild::run(command, global).await,
        Command::Cell(command) => cell::run(command, global).await,
        Command::Storage(command) => storage::run(command, global).await,
        Command::Migration(command) => migration::run(command, global).await,
        Command::Automation(command) => automation::run(command, global).await,
        Command::Token(command) => token::run(command, global).await,
        Command::Demo(_) | Command::Sandbox(_) | Command::Migrate(_) | Command::Completion(_) | Command::Version(_) => {
            Err(CommandError::Usage("not a read or an action".to_owned()))
        }
    }
}

/// Stops waiting at Ctrl-C or SIGTERM. Nothing that runs in the cluster is touched by it.
///
/// # Errors
/// What the work says, or that it was interrupted.
pub async fn interruptible<T>(work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    tokio::select! {
        // What the work itself has to say about the interruption goes first.
        biased;
        outcome = work => outcome,
        () = interrupted() => Err(CommandError::Failed(anyhow::anyhow!("interrupted"))),
    }
}

/// Returns at Ctrl-C, SIGTERM, or when the terminal goes away.
pub async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        // Without handlers the signals end the process at once, as they would have anyway.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}
