//! `cellctl sandbox logs COMPONENT|POD`: the log file of a process of the sandbox, or, through the API, of a Pod.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::WhichArgs;
use crate::args::Global;
use crate::commands::read;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::write_out;
use crate::sandbox::launch::components;
use crate::sandbox::state::StateDir;
use crate::sandbox::status::absent;

/// Flags of `logs`.
#[derive(Args, Debug)]
pub struct LogsArgs {
    /// `sandbox`, `node-1`, …, or a Pod's name
    #[arg(value_name = "COMPONENT|POD")]
    pub what: String,
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
    /// Follow
    #[arg(short, long)]
    pub follow: bool,
    /// Lines from the end
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    pub tail: Option<i64>,
}

/// Shows a log.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: LogsArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = args.which.state()?;
    let settings = state.settings().map_err(super::from_state)?.ok_or_else(|| absent(&state))?;
    if components(settings.nodes).contains(&args.what) {
        return of_component(&state, &args).await;
    }
    let global = Global { kubeconfig: Some(state.kubeconfig()), ..global.clone() };
    let pod = read::logs::LogsArgs {
        kind: Kind::Pods,
        name: Some(args.what),
        follow: args.follow,
        tail: args.tail,
        previous: false,
    };
    read::logs::run(pod, &global).await
}

async fn of_component(state: &StateDir, args: &LogsArgs) -> Result<Exit, CommandError> {
    let path = state.log(&args.what);
    let text = read_from(&path, 0)?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let tail = args.tail.and_then(|lines| usize::try_from(lines).ok()).unwrap_or(usize::MAX);
    write_out(&lines[lines.len().saturating_sub(tail)..].concat())?;
    if !args.follow {
        return Ok(Exit::Done);
    }
    let mut position = text.len() as u64;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let more = read_from(&path, position)?;
        position += more.len() as u64;
        write_out(&more)?;
    }
}

fn read_from(path: &Path, position: u64) -> Result<String, CommandError> {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(position))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map_err(|error| anyhow::Error::from(error).context(format!("read {}", path.display())).into())
}
