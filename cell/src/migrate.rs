//! `cell migrate …`: what is run beside the roles. Here only what each subcommand is told; what it does lives in its crate.

use std::path::PathBuf;
use std::process::ExitCode;

use cell_data::cql::probe::{ProbeReport, probe};
use cell_migrate::standalone::{self, RunFlags};
use cell_runtime::CancellationToken;
use clap::{Args, Subcommand};

use crate::migrate_place::{CoordinatorFlags, WorkerFlags, run_coordinator, run_worker};

#[derive(Subcommand)]
pub enum Migrate {
    /// Say whether a CQL StorageCell can be used: a report, then a summary, each one line of JSON; exit code 0 or 1.
    Probe(ProbeFlags),
    /// Copy CQL tables from one cluster to another, verify and mend the copy; goes on where it stopped.
    Run(Box<RunFlags>),
    /// Lease the ranges of a StorageMigration to its workers, and remember what is done.
    Coordinator(CoordinatorFlags),
    /// Copy, verify and mend ranges that the coordinator leases.
    Worker(WorkerFlags),
}

#[derive(Args)]
pub struct ProbeFlags {
    /// Folder with one file for each CQL StorageCell, `<name>.json`.
    #[arg(long)]
    storage_dir: PathBuf,
    /// The StorageCell.
    #[arg(long)]
    name: String,
    /// Bring the platform's schema forward first.
    #[arg(long)]
    apply_schema: bool,
    /// Leave the summary in this file too: a container's termination message.
    #[arg(long)]
    report: Option<PathBuf>,
}

/// Runs a subcommand.
///
/// # Errors
/// When it found that something stands against going on.
pub async fn run(command: Migrate, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    match command {
        Migrate::Probe(flags) => return Ok(run_probe(flags).await),
        Migrate::Coordinator(flags) => run_coordinator(flags, shutdown).await?,
        Migrate::Worker(flags) => run_worker(flags, shutdown).await?,
        Migrate::Run(flags) => return run_standalone(*flags, shutdown).await,
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_standalone(flags: RunFlags, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    let output = flags.output;
    let outcome = standalone::run(flags, shutdown).await;
    match output {
        standalone::Output::Json => println!("{}", serde_json::to_string(&outcome)?),
        standalone::Output::Text => print!("{}", outcome.text()),
    }
    Ok(ExitCode::from(outcome.ending.code()))
}

/// What decides is the last line, also of a log that has standard error in it: nothing is logged after it.
async fn run_probe(flags: ProbeFlags) -> ExitCode {
    let file = flags.storage_dir.join(format!("{}.json", flags.name));
    let report = match tokio::fs::read_to_string(&file).await {
        Ok(text) => probe(&flags.name, &text, flags.apply_schema).await,
        Err(error) => ProbeReport::failed(&flags.name, format!("failed to read {}: {error}", file.display())),
    };
    println!("{}", report.to_json());
    let summary = report.summary().to_json();
    println!("{summary}");
    if let Some(file) = flags.report
        && let Err(error) = tokio::fs::write(&file, &summary).await
    {
        eprintln!("failed to write {}: {error}", file.display());
    }
    if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
