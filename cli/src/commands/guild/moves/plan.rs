//! `cellctl guild move plan GUILD --to CELL`: shows what a move would do. Changes nothing. Exits 3 when starting would be refused.

use cell_api::MovePlan;
use clap::Args;

use super::WhatArgs;
use crate::args::Global;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::output::{Format, Table, View};
use crate::progress::Progress;

/// Flags of `plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Which guild goes where.
    #[command(flatten)]
    pub what: WhatArgs,
}

/// Plans.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: PlanArgs, global: &Global) -> Result<Exit, CommandError> {
    let api = Connection::open(global).await?.control_plane().await?;
    let plan = api.plan_move(&args.what.request(None)).await.map_err(from_api)?;
    view(&plan)?.print(global.output)?;
    if let Some(check) = plan.refusal() {
        let reason = check.reason.clone().unwrap_or_else(|| check.name.clone());
        let next = check.next.clone().unwrap_or_else(|| look(&check.name, &plan.guild_id));
        return Err(CommandError::refused(reason, check.message.clone(), next));
    }
    if global.output == Format::Table {
        Progress::to_stderr().say(&format!(
            "next: cellctl guild move start {} --plan-hash {}",
            args.what.flags(),
            plan.hash
        ));
    }
    Ok(Exit::Done)
}

/// Where the cause of a refused check is seen.
fn look(check: &str, guild_id: &str) -> String {
    match check {
        "target" => "cellctl get cells".to_owned(),
        "automation" => "cellctl status".to_owned(),
        "free" => "cellctl get moves".to_owned(),
        _ => format!("cellctl locate {guild_id}"),
    }
}

/// A plan in every format.
pub(super) fn view(plan: &MovePlan) -> Result<View, CommandError> {
    let mut table = Table::fields([
        ("Guild", plan.guild_id.clone()),
        ("Unit", plan.unit.clone()),
        ("From", format!("{} (term {})", plan.from, plan.term)),
        ("To", plan.to.clone()),
        ("Steps", plan.steps.join(" → ")),
        ("Sessions", plan.sessions.map_or_else(|| "not known".to_owned(), |sessions| sessions.to_string())),
        ("Deadline", format!("{} s to the commit point", plan.deadline_seconds)),
        ("Rollback", format!("{} s after it", plan.rollback_window_seconds)),
        ("Hash", plan.hash.clone()),
    ]);
    for check in &plan.checks {
        let mark = if check.ok { "ok" } else { "REFUSED" };
        table.rows.push(vec!["Check:".to_owned(), format!("{mark}: {}: {}", check.name, check.message)]);
    }
    View::of(plan, table, vec![plan.hash.clone()])
}
