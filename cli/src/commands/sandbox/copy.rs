//! `cellctl sandbox backup FILE` and `restore FILE`: run `cell-sandbox`, which knows how. It decides only what may be restored into:
//! a sandbox that does not run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::Args;
use serde_json::Value;
use tokio::process::Command;

use super::{WhichArgs, from_state};
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::output::{Table, View};
use crate::sandbox::launch::CONTROL;
use crate::sandbox::programs;
use crate::sandbox::state::StateDir;
use crate::sandbox::status::absent;

/// Flags of `backup` and `restore`.
#[derive(Args, Debug)]
pub struct CopyArgs {
    /// The backup; it holds Secrets. Volumes of Pods are not in it
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
    /// Replace what is there
    #[arg(long)]
    pub overwrite: bool,
}

/// Writes a backup.
///
/// # Errors
/// [`CommandError`].
pub async fn backup(args: CopyArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = args.which.state()?;
    if !state.control().exists() {
        return Err(absent(&state));
    }
    if args.file.exists() && !args.overwrite {
        let reason = format!("{} exists", args.file.display());
        return Err(CommandError::refused("FILE", reason, "give another file, or --overwrite"));
    }
    run("backup", "written", &state, &args, global).await
}

/// Restores a backup.
///
/// # Errors
/// [`CommandError`].
pub async fn restore(args: CopyArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = args.which.state()?;
    let _lock = state.lock().map_err(from_state)?;
    if state.processes().iter().any(crate::sandbox::process::ProcessRecord::is_alive) {
        let next = "cellctl sandbox down";
        return Err(CommandError::refused("sandbox", "it runs: its clients would not notice".to_owned(), next));
    }
    if state.control().join("store").exists() && !args.overwrite {
        let reason = format!("{} holds a sandbox", state.root().display());
        return Err(CommandError::refused(
            "sandbox",
            reason,
            "give --overwrite to replace everything in it, or another --name",
        ));
    }
    run("restore", "restored", &state, &args, global).await
}

async fn run(
    verb: &str,
    outcome: &str,
    state: &StateDir,
    args: &CopyArgs,
    global: &Global,
) -> Result<Exit, CommandError> {
    let told = ask(verb, state, args).await?;
    let number = |key: &str| told[key].as_i64().unwrap_or_default();
    let file = args.file.display().to_string();
    let table = Table::fields([
        ("Sandbox", args.which.name.clone()),
        ("Outcome", outcome.to_owned()),
        ("File", file.clone()),
        ("Keys", number("keys").to_string()),
        ("Revision", number("revision").to_string()),
    ]);
    let mut whole = told.clone();
    whole["outcome"] = outcome.into();
    whole["file"] = file.clone().into();
    View::of(&whole, table, vec![file])?.print(global.output)?;
    Ok(Exit::Done)
}

/// Runs the program and reads the line it answers with.
async fn ask(verb: &str, state: &StateDir, args: &CopyArgs) -> Result<Value, CommandError> {
    let mut words = vec![verb.into(), "--state-dir".into(), state.control().into_os_string()];
    words.extend(args.overwrite.then(|| "--overwrite".into()));
    words.push(args.file.clone().into_os_string());
    answer_of(&program(state)?, &words).await
}

/// Runs `cell-sandbox` and reads the line of JSON it answers with.
///
/// # Errors
/// [`CommandError::Failed`] with its own words.
pub async fn answer_of(program: &Path, words: &[OsString]) -> Result<Value, CommandError> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let ended = command.output().await.map_err(|error| anyhow::Error::from(error).context("run cell-sandbox"))?;
    if ended.status.success() {
        let line = String::from_utf8_lossy(&ended.stdout).into_owned();
        return serde_json::from_str(&line).map_err(|error| anyhow::anyhow!("read its answer: {error}").into());
    }
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let words = ["cell-sandbox: ", "error: "];
    let last = said.lines().rev().find_map(|line| words.iter().find_map(|word| line.strip_prefix(word)));
    let why = last.unwrap_or("it ended without a word").to_owned();
    // Its exit for a command line it does not understand.
    Err(if ended.status.code() == Some(2) { CommandError::Usage(why) } else { anyhow::anyhow!(why).into() })
}

/// The program that made the sandbox, or the one beside this one.
///
/// # Errors
/// [`CommandError::Failed`] when there is none.
pub fn program(state: &StateDir) -> Result<PathBuf, CommandError> {
    let made = state.process(CONTROL).map(|record| record.program).filter(|path| path.is_file());
    match made {
        Some(path) => Ok(path),
        None => Ok(programs::find_sandbox().map_err(anyhow::Error::from)?),
    }
}
