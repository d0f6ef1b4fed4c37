//! `cellctl sandbox faults …`: a proxy in front of the sandbox's Kubernetes API that misbehaves by rule. It runs `cell-sandbox faults`
//! and knows its words only; a client meets the faults by using the proxy's kubeconfig.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::copy::{answer_of, program};
use super::{WhichArgs, from_state};
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::output::{Table, View};
use crate::sandbox::process::{self, Launch};
use crate::sandbox::state::StateDir;
use crate::sandbox::status::absent;

const COMPONENT: &str = "faults";
const START_DEADLINE: Duration = Duration::from_secs(20);
const STOP_GRACE: Duration = Duration::from_secs(5);

/// The verbs of `faults`. A rule reads FAULT[,KEY=VALUE…]: a fault is refuse=CODE, lose=CODE, cut, cut-after, delay=TIME, freeze, stale,
/// event-drop, event-duplicate, event-delay=TIME or event-cut; keys are verb, group, resource, namespace, name, agent, share, after, limit.
#[derive(Subcommand, Debug)]
pub enum FaultsCommand {
    /// Start the proxy and print the kubeconfig that leads through it
    Start(StartArgs),
    /// Add rules, such as `refuse=409,verb=update,resource=pods,share=0.2,limit=3`
    Add(AddArgs),
    /// List the rules and how often each struck
    List(PlainArgs),
    /// Remove a rule, or all
    Clear(ClearArgs),
    /// Stop the proxy
    Stop(PlainArgs),
}

/// Flags of `start`.
#[derive(Args, Debug)]
pub struct StartArgs {
    /// Rules to begin with
    #[arg(value_name = "RULE")]
    pub rules: Vec<String>,
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
    /// The same seed gives the same faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Flags of `add`.
#[derive(Args, Debug)]
pub struct AddArgs {
    /// Rules
    #[arg(value_name = "RULE", required = true)]
    pub rules: Vec<String>,
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
}

/// Flags of `clear`.
#[derive(Args, Debug)]
pub struct ClearArgs {
    /// Number of the rule, as `list` shows it; all without
    #[arg(value_name = "ID")]
    pub id: Option<u64>,
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
}

/// Flags of verbs that take nothing else.
#[derive(Args, Debug)]
pub struct PlainArgs {
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
}

/// Runs a verb.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: FaultsCommand, global: &Global) -> Result<Exit, CommandError> {
    match command {
        FaultsCommand::Start(args) => start(&args, global).await,
        FaultsCommand::Add(args) => tell(&args.which, "add", args.rules.iter().map(OsString::from), global).await,
        FaultsCommand::List(args) => tell(&args.which, "list", [], global).await,
        FaultsCommand::Clear(args) => {
            let id = args.id.map(|id| OsString::from(format!("--id={id}")));
            tell(&args.which, "clear", id, global).await
        }
        FaultsCommand::Stop(args) => stop(&args.which, global).await,
    }
}

fn folder(state: &StateDir) -> PathBuf {
    state.root().join(COMPONENT)
}

async fn start(args: &StartArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = args.which.state()?;
    if !state.kubeconfig().exists() {
        return Err(absent(&state));
    }
    let _lock = state.lock().map_err(from_state)?;
    if let Some(running) = state.process(COMPONENT).filter(process::ProcessRecord::is_alive) {
        let next = "cellctl sandbox faults add RULE, or cellctl sandbox faults stop";
        return Err(CommandError::refused("faults", format!("the proxy runs already (pid {})", running.pid), next));
    }
    let path = folder(&state);
    let mut arguments = vec![
        "faults".to_owned(),
        "serve".to_owned(),
        format!("--state-dir={}", path.display()),
        format!("--kubeconfig={}", state.control().join("kubeconfig").display()),
        format!("--seed={}", args.seed),
    ];
    arguments.extend(args.rules.iter().map(|rule| format!("--rule={rule}")));
    // What an earlier proxy left behind must not be taken for this one's.
    let _ = std::fs::remove_file(path.join("kubeconfig"));
    let (program, log) = (program(&state)?, state.log(COMPONENT));
    let record = process::start(Launch { component: COMPONENT, program: &program, arguments, log: &log })
        .map_err(anyhow::Error::from)?;
    state.write_process(&record).map_err(anyhow::Error::from)?;
    let until = Instant::now() + START_DEADLINE;
    let rules = loop {
        let listed = ask(&state, "list", []).await;
        match listed {
            Ok(rules) => break rules,
            Err(error) if !record.is_alive() || Instant::now() > until => {
                return Err(error_of(&state).unwrap_or(error));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let kubeconfig = path.join("kubeconfig").display().to_string();
    let table = Table::fields([
        ("Kubeconfig", kubeconfig.clone()),
        ("Seed", args.seed.to_string()),
        ("Rules", rules["rules"].as_array().map_or(0, Vec::len).to_string()),
    ]);
    let whole = json!({"kubeconfig": kubeconfig, "seed": args.seed, "rules": rules["rules"]});
    View::of(&whole, table, vec![kubeconfig])?.print(global.output)?;
    Ok(Exit::Done)
}

/// What the proxy said before it ended.
fn error_of(state: &StateDir) -> Option<CommandError> {
    let log = std::fs::read_to_string(state.log(COMPONENT)).ok()?;
    let last = log.lines().rev().find(|line| !line.trim().is_empty())?.trim_start_matches("cell-sandbox: ").to_owned();
    Some(anyhow::anyhow!("the fault proxy ended by itself: {last}").into())
}

async fn tell(
    which: &WhichArgs,
    verb: &str,
    words: impl IntoIterator<Item = OsString>,
    global: &Global,
) -> Result<Exit, CommandError> {
    let state = which.state()?;
    if !state.process(COMPONENT).is_some_and(|record| record.is_alive()) {
        let next = "cellctl sandbox faults start";
        return Err(CommandError::refused("faults", "the proxy does not run".to_owned(), next));
    }
    let report = ask(&state, verb, words).await?;
    let mut table = Table::new(&["ID", "RULE", "MATCHED", "STRUCK"]);
    let mut names = Vec::new();
    for rule in report["rules"].as_array().into_iter().flatten() {
        let shown = |key: &str| rule[key].as_str().map_or_else(|| rule[key].to_string(), str::to_owned);
        names.push(shown("id"));
        table.row([shown("id"), shown("rule"), shown("matched"), shown("struck")]);
    }
    View::of(&report, table, names)?.print(global.output)?;
    Ok(Exit::Done)
}

async fn ask(state: &StateDir, verb: &str, words: impl IntoIterator<Item = OsString>) -> Result<Value, CommandError> {
    let mut all: Vec<OsString> =
        vec!["faults".into(), verb.into(), "--state-dir".into(), folder(state).into_os_string()];
    all.extend(words);
    answer_of(&program(state)?, &all).await
}

async fn stop(which: &WhichArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = which.state()?;
    let _lock = state.lock().map_err(from_state)?;
    let running = state.process(COMPONENT);
    let was = running.as_ref().is_some_and(process::ProcessRecord::is_alive);
    if let Some(record) = running {
        record.stop(STOP_GRACE).await.map_err(anyhow::Error::from)?;
        state.forget_process(COMPONENT);
    }
    let outcome = if was { "stopped" } else { "absent" };
    let table = Table::fields([("Outcome", outcome.to_owned())]);
    View::of(&json!({"outcome": outcome}), table, vec![outcome.to_owned()])?.print(global.output)?;
    Ok(Exit::Done)
}
