//! `cellctl guild move watch MOVE`: follows a run to its end. Exits 0 when it ended as it was last asked to: completed, or undone because
//! somebody asked for that; 1 when it undid itself, 3 when it was refused. Interrupting it changes nothing about the run.

use std::time::Duration;

use cell_api::Run;
use clap::Args;
use tokio::time::Instant;

use super::{blocked_by, held, view};
use crate::args::Global;
use crate::commands::interrupted;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::progress::Progress;

const EVERY: Duration = Duration::from_millis(500);
/// The API may be away this long (an operator taking over) before the watch gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Flags of `watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// The Move, by its name or run id
    #[arg(value_name = "MOVE")]
    pub name: String,
}

/// Follows the run.
///
/// # Errors
/// [`CommandError::TimedOut`] after `--timeout`.
pub async fn run(args: WatchArgs, global: &Global) -> Result<Exit, CommandError> {
    let api = Connection::open(global).await?.control_plane().await?;
    follow(&api, &args.name, global, Awaited::AnyEnd).await
}

/// What whoever follows a run waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaited {
    /// That it does what it was last asked to, be it to undo itself.
    AnyEnd,
    /// That the guild is moved.
    Moved,
}

/// Follows a run by name.
pub(super) async fn follow(
    api: &cell_api::Client,
    name: &str,
    global: &Global,
    awaited: Awaited,
) -> Result<Exit, CommandError> {
    let run = tokio::select! {
        run = to_the_end(api, name, global.timeout) => run?,
        () = interrupted() => return Err(CommandError::Ended {
            message: format!("interrupted; move {name} goes on without this watch"),
            next: format!("cellctl guild move watch {name}, or cellctl guild move abort {name}"),
        }),
    };
    view(&run)?.print(global.output)?;
    if awaited == Awaited::AnyEnd && undone_as_asked(&run) {
        Progress::to_stderr().say(&format!("move {} was undone, as asked: {} serves the guild", run.name, run.from));
        return Ok(Exit::Done);
    }
    verdict(&run)
}

/// Whether somebody asked for the undo that the run ended with: a run that undoes itself says why in its reason.
fn undone_as_asked(run: &Run) -> bool {
    let result = run.result.as_deref();
    matches!(result, Some("Aborted" | "RolledBack")) && result == Some(run.reason.as_str())
}

/// Polls until the run has a result.
async fn to_the_end(api: &cell_api::Client, name: &str, timeout: Option<Duration>) -> Result<Run, CommandError> {
    let progress = Progress::to_stderr();
    let phase = progress.phase(name, None);
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut answered = Instant::now();
    let mut last = "nothing known of it yet".to_owned();
    loop {
        match api.run(name).await {
            Ok(run) => {
                answered = Instant::now();
                let (step, why) = (if run.step.is_empty() { "not begun" } else { &run.step }, blocked_by(&run));
                last = format!("{step}: {why}");
                if run.result.is_none() {
                    // Mere progress has no more to say than the step's name.
                    phase.note(if why.ends_with(&format!("step {step}")) { step } else { &last });
                }
                if run.result.is_some() {
                    let held = held(run.held_microseconds);
                    let outcome = run.result.clone().unwrap_or_default();
                    phase.finish(&if held.is_empty() { outcome } else { format!("{outcome}, commands held {held}") });
                    return Ok(run);
                }
            }
            Err(error @ cell_api::ClientError::Problem(_)) => return Err(from_api(error)),
            Err(error) if answered.elapsed() > PATIENCE => return Err(from_api(error)),
            Err(error) => phase.note(&error.to_string()),
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(CommandError::TimedOut {
                waited_for: format!("move {name}"),
                blocked_by: last,
                next: format!("cellctl describe move {name}"),
            });
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// The exit of a finished run for whom it should have moved the guild.
pub(super) fn verdict(run: &Run) -> Result<Exit, CommandError> {
    let why = match run.message.trim() {
        "" => run.reason.clone(),
        message => message.to_owned(),
    };
    match run.result.as_deref() {
        Some("Completed") => Ok(Exit::Done),
        Some("Refused") => {
            Err(CommandError::refused(run.reason.clone(), why, format!("cellctl describe move {}", run.name)))
        }
        Some(other) => Err(CommandError::Ended {
            message: format!("the move was undone ({other}): {why}"),
            next: format!("cellctl describe move {}", run.name),
        }),
        None => Err(CommandError::Failed(anyhow::anyhow!("the move has no result yet"))),
    }
}
