//! `cellctl migration plan --from A --to B`: shows what a migration would do. Changes nothing. Exits 3 when starting would be refused.

use cell_api::MigrationPlan;
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
    /// What goes where.
    #[command(flatten)]
    pub what: WhatArgs,
}

/// Plans.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: PlanArgs, global: &Global) -> Result<Exit, CommandError> {
    let api = Connection::open(global).await?.control_plane().await?;
    let plan = api.plan_migration(&args.what.request(None)).await.map_err(from_api)?;
    view(&plan)?.print(global.output)?;
    if let Some(check) = plan.refusal() {
        let reason = check.reason.clone().unwrap_or_else(|| check.name.clone());
        return Err(CommandError::refused(reason, check.message.clone(), "remove the cause, then plan again"));
    }
    if global.output == Format::Table {
        let next = format!("next: cellctl migration start {} --plan-hash {}", args.what.flags(), plan.hash);
        Progress::to_stderr().say(&next);
    }
    Ok(Exit::Done)
}

/// A plan in every format.
pub(super) fn view(plan: &MigrationPlan) -> Result<View, CommandError> {
    let units = if plan.units.is_empty() { "everything".to_owned() } else { plan.units.join(", ") };
    let mut table = Table::fields([
        ("Migration", plan.name.clone()),
        ("Source", plan.source.clone()),
        ("Target", plan.target.clone()),
        ("Scope", format!("{units} ({} logs)", plan.logs)),
        ("Cells", plan.cells.join(", ")),
        ("Stages", plan.stages.join(" → ")),
        ("Goes to", format!("{}, then waits for: cellctl migration advance", plan.target_stage)),
        ("Rollback", format!("{} s after the last cutover", plan.rollback_window_seconds)),
        ("Hash", plan.hash.clone()),
    ]);
    for check in &plan.checks {
        let mark = if check.ok { "ok" } else { "REFUSED" };
        table.rows.push(vec!["Check:".to_owned(), format!("{mark}: {}: {}", check.name, check.message)]);
    }
    View::of(plan, table, vec![plan.hash.clone()])
}
