//! The one binary of a cell's roles: parses flags, starts telemetry, runs the role until SIGTERM. It decides nothing.

mod flags;
mod migrate;
mod migrate_place;

use std::process::ExitCode;

use cell_runtime::{CancellationToken, telemetry};
use clap::Parser;

use crate::flags::{Arguments, Role};

fn main() -> ExitCode {
    telemetry::install_tls_provider();
    let arguments = Arguments::parse();
    telemetry::init_at(arguments.log_format(), arguments.log_level());
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "failed to start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the role failed");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let shutdown = CancellationToken::new();
    tokio::spawn(telemetry::cancel_on_signal(shutdown.clone()));
    match arguments.role {
        Role::Gateway(flags) => cell_gateway::run(flags.config()?, shutdown).await?,
        Role::Guild(flags) => cell_guild::run(flags.config()?, shutdown).await?,
        Role::Data(flags) => cell_data::run(flags.config()?, shutdown).await?,
        Role::Store(flags) => cell_store::run(flags.config()?, shutdown).await?,
        Role::Migrate(command) => return migrate::run(command, shutdown).await,
    }
    Ok(ExitCode::SUCCESS)
}
