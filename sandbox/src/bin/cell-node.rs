//! One node agent, or (`shim`) the keeper of one container's process. It parses flags, sets up logging and signals, and decides
//! nothing.

use std::process::ExitCode;

use cell_sandbox::node::options::{Cli, Mode, Options};
use cell_sandbox::node::{agent, process};
use clap::{CommandFactory, Parser};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Mode::Shim { folder }) = &cli.mode {
        return finish(process::shim::run(folder).map_err(anyhow::Error::from));
    }
    let Some(options) = cli.agent else {
        let _ = Cli::command().print_help();
        return ExitCode::from(2);
    };
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // The client library calls an absent API server an error; here it is expected, and said once by whoever asked.
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,kube_client::client::builder=off,kube_client::client::tls=error"));
    // Standard error is a file on a disk that may be full: a line that cannot be written is lost, and must not end whoever wrote it.
    let logs = tracing_subscriber::fmt().json().with_env_filter(filter).log_internal_errors(false);
    logs.with_writer(std::io::stderr).init();
    finish(serve(options))
}

fn finish(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cell-node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        agent::run(options, async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
        .await?;
        anyhow::Ok(())
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    outcome
}
