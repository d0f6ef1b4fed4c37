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
        let look = if check.name == "free" { "cellctl get storagemigrations" } else { "cellctl get storagecells" };
        return Err(CommandError::refused(reason, check.message.clone(), look));
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
        ("Shadow reads", shadow(plan)),
        ("Work", workers(plan)),
        ("Hash", plan.hash.clone()),
    ]);
    for check in &plan.checks {
        let mark = if check.ok { "ok" } else { "REFUSED" };
        table.rows.push(vec!["Check:".to_owned(), format!("{mark}: {}: {}", check.name, check.message)]);
    }
    View::of(plan, table, vec![plan.hash.clone()])
}

fn shadow(plan: &MigrationPlan) -> String {
    let number = |number: Option<i32>| number.unwrap_or_default();
    let (share, least) = (number(plan.shadow.per_ten_thousand), number(plan.shadow.min_samples));
    format!("{share} of 10,000 reads are also asked of the copy; at least {least} must have been compared")
}

fn workers(plan: &MigrationPlan) -> String {
    let wish = &plan.workers;
    let class = wish.storage_class_name.as_ref().map(|class| format!(" of StorageClass {class}")).unwrap_or_default();
    let size = wish.volume_size.as_deref().unwrap_or("?");
    format!("{} workers, and a coordinator with a volume of {size}{class}", wish.replicas.unwrap_or_default())
}
