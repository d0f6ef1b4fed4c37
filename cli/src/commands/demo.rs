//! `cellctl demo`: runs the demo on a temporary sandbox of its own. Exits 1 when the ledger has a fault. Interrupted, it cleans up.

use std::time::Duration;

use clap::Args;

use super::interrupted;
use crate::args::{Global, duration};
use crate::demo::own::{Own, clear_abandoned};
use crate::demo::run::{Order, run as run_phases};
use crate::exit::{CommandError, Exit};
use crate::progress::Progress;
use crate::sandbox::preflight::{FileLimit, check_files, raise_file_limit};

const BOOT_WITHIN: Duration = Duration::from_secs(240);
/// Files of the demo itself beside its sessions, and of the node that forwards the entry.
const OTHER_FILES: u64 = 1000;
/// Connections that one node forwards; each takes two files there.
const ENTRY_CONNECTIONS: u64 = 8000;

/// Flags of `demo`.
#[derive(Args, Debug, Clone)]
pub struct DemoArgs {
    /// Websocket sessions
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub sessions: u32,
    /// Messages a second, over all senders
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// How long the clients talk at least
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub duration: Duration,
    /// Seed of everything random; printed, so that a run can be repeated
    #[arg(long)]
    pub seed: Option<u64>,
    /// Leave the sandbox running afterwards
    #[arg(long)]
    pub keep: bool,
    /// Keep the data in real databases: two Cassandra nodes, fetched by Maven into the user's cache (needs Java 17 and mvn)
    #[arg(long)]
    pub real: bool,
    /// Use the programs as they are, although this is a checkout
    #[arg(long)]
    pub no_build: bool,
}

/// Runs the demo.
///
/// # Errors
/// [`CommandError::Failed`] when the ledger has a fault.
pub async fn run(args: DemoArgs, global: &Global) -> Result<Exit, CommandError> {
    let progress = Progress::to_stderr();
    let limit = raise_file_limit();
    check_files(limit)?;
    let sessions = fitting(u64::from(args.sessions), limit);
    if sessions < u64::from(args.sessions) {
        progress.say(&format!(
            "preflight: {} open files allow {sessions} sessions instead of {}",
            limit.now, args.sessions
        ));
    }
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let order = Order { sessions: sessions as usize, rate: args.rate, duration: args.duration, seed };
    progress.say(&format!("seed {seed}: {sessions} sessions, {} messages a second", args.rate));
    clear_abandoned(&progress).await;
    let mut own = Own::make(args.keep)?;
    let outcome = tokio::select! {
        outcome = all(&mut own, &args, order, global, &progress) => outcome,
        () = interrupted() => Err(CommandError::Failed(anyhow::anyhow!("interrupted; seed {seed}"))),
    };
    let ended = own.end(&progress).await;
    let report = outcome?;
    report.view()?.print(global.output)?;
    ended?;
    match report.fault() {
        None => Ok(Exit::Done),
        Some(fault) => Err(CommandError::Failed(anyhow::anyhow!("{fault}"))),
    }
}

async fn all(
    own: &mut Own,
    args: &DemoArgs,
    order: Order,
    global: &Global,
    progress: &Progress,
) -> Result<crate::demo::report::Report, CommandError> {
    let work = async {
        own.up(!args.no_build, args.real, BOOT_WITHIN, progress).await?;
        run_phases(own, order, progress).await
    };
    let Some(timeout) = global.timeout else { return work.await };
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        Err(CommandError::TimedOut {
            waited_for: "the demo".to_owned(),
            blocked_by: "the phase shown last".to_owned(),
            next: "give a longer --timeout, or fewer --sessions".to_owned(),
        })
    })
}

/// How many sessions the file limit allows: one file each here, two each at the node that forwards the entry.
fn fitting(wanted: u64, limit: FileLimit) -> u64 {
    let room = limit.now.saturating_sub(OTHER_FILES) / 2;
    wanted.min(room.max(2)).min(ENTRY_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_scaled_down_to_the_file_limit() {
        let limit = |now| FileLimit { now, before: now };
        assert_eq!(fitting(2000, limit(20_000)), 2000);
        assert_eq!(fitting(2000, limit(4096)), 1548);
        assert_eq!(fitting(50_000, limit(1 << 20)), ENTRY_CONNECTIONS);
        assert_eq!(fitting(2000, limit(1024)), 12);
    }
}
