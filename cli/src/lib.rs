//! The command line of Cellplane. Reads are `cellctl get|describe|events|logs KIND [NAME]`, actions `cellctl NOUN VERB`. It asks the
//! Kubernetes API and the control-plane API; it plans nothing and reaches no database.

pub mod args;
pub mod blocked;
pub mod commands;
pub mod connect;
pub mod demo;
pub mod exit;
pub mod kinds;
pub mod output;
pub mod ownership;
pub mod progress;
pub mod sandbox;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::exit::{CommandError, Exit};

/// Parses the command line, runs it, reports on stderr and gives the exit code.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are data and exit 0; everything else is a usage error and exits 2.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { Exit::Usage } else { Exit::Done }.code());
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ended(Err(anyhow::Error::from(error).context("start the runtime").into())),
    };
    let outcome = runtime.block_on(commands::run(cli));
    // Readers of what nobody waits for any more are not waited for.
    runtime.shutdown_background();
    ended(outcome)
}

fn ended(outcome: Result<Exit, CommandError>) -> ExitCode {
    let exit = match outcome {
        Ok(exit) => exit,
        Err(error) => {
            let mut stderr = std::io::stderr();
            let coloured = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let report = error.report();
            let _ = match report.split_once(':') {
                Some((word, rest)) if coloured => writeln!(stderr, "\u{1b}[1;31m{word}:\u{1b}[0m{rest}"),
                _ => writeln!(stderr, "{report}"),
            };
            error.exit()
        }
    };
    ExitCode::from(exit.code())
}
