//! Reconciles a `Guild`: turns its wish, or its heat, into a dedicated cell and a `Move`, and says where it is and why. It never
//! touches a head; the move does.

mod observe;
mod wish;

use std::time::Duration;

use cell_crds::{Guild, GuildStatus, Hotness, Move, MoveCause, MoveSpec, Reason};
use cell_plan::intent::{Blocked, Intent, Wish, decide};
use cell_plan::promotion;
use kube::ResourceExt;
use serde_json::json;

use super::Outcome;
use crate::build;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::{GUILD_LABEL, labels, manager};
use crate::report::{Standing, announce, is_transition, time_of};

/// How often a guild that may be promoted is looked at: several times within its hold time.
const HEAT_PERIOD: std::ops::RangeInclusive<u64> = 1..=5;
const SOON: Duration = Duration::from_secs(2);

/// One pass.
///
/// # Errors
/// [`ReconcileError`], retried with back-off.
pub async fn reconcile(guild: &Guild, context: &Context) -> Result<Outcome, ReconcileError> {
    if guild.metadata.deletion_timestamp.is_some() {
        // Its rules go; the unit and its data stay.
        return Ok(Outcome::Settled);
    }
    // observe (client required for heat only)
    let seen = observe::observe(guild, context).await?;
    if seen.fleet.is_some() && !seen.is_known {
        // Nothing is concluded, and nothing written, from a directory that was not read.
        return Ok(Outcome::Waiting(SOON));
    }
    // validate and plan (pure)
    let heat = wish::heat(guild, &seen);
    let wanted = wish::wish(guild, &seen, heat);
    let intent = wish::refusal(guild, &seen).map_or_else(|| Ok(decide(&wanted, &seen.situation(&wanted, guild))), Err);
    // build (pure), apply (client required)
    let standing = match intent {
        Err(refused) => refused,
        Ok(intent) => apply(guild, context, &seen, &wanted, intent).await?,
    };
    // report (client required)
    report(guild, context, &seen, (wanted, heat), standing).await
}

async fn apply(
    guild: &Guild,
    context: &Context,
    seen: &observe::Seen,
    wanted: &Wish,
    intent: Intent,
) -> Result<Standing, ReconcileError> {
    Ok(match intent {
        Intent::Satisfied => {
            let place = seen.current.clone().unwrap_or_else(|| "no cell yet".into());
            Standing::Ready(Reason::AsDesired, format!("the guild is in {place}"))
        }
        Intent::Moving { name } => Standing::Reconciling(Reason::Moving, format!("Move {name} is under way")),
        Intent::MakeCell { name } => {
            let storage = seen.storage_cell.clone().unwrap_or_default();
            let cell = build::fleet::dedicated(&guild.spec.guild_id, &storage, &wish::roles(guild, seen));
            context.applier.create(&manager("guild", "dedicated"), &cell).await?;
            Standing::Reconciling(Reason::Progressing, format!("cell {name} is being made"))
        }
        Intent::Move { from, to } => {
            let one = build_move(guild, wanted, from, to);
            let name = one.name_any();
            context.applier.create(&manager("guild", "move"), &one).await?;
            Standing::Reconciling(Reason::MoveWanted, format!("Move {name} is being started"))
        }
        Intent::Blocked(blocked) => standing_of(&blocked),
    })
}

fn standing_of(blocked: &Blocked) -> Standing {
    let message = blocked.to_string();
    match blocked {
        Blocked::NotPlaced => Standing::Reconciling(Reason::GuildNotFound, message),
        Blocked::MissingCell(_) => Standing::Stalled(Reason::ReferenceNotFound, message),
        Blocked::TargetNotReady(_) => Standing::Reconciling(Reason::Progressing, message),
        Blocked::AutomationPaused => Standing::Stalled(Reason::AutomationPaused, message),
        Blocked::OtherMove { .. } => Standing::Reconciling(Reason::UnitBusy, message),
        Blocked::GaveUp(_) => Standing::Stalled(Reason::Aborted, message),
    }
}

/// Named for the guild, the cause and the wish's generation: a second pass finds the first one's Move.
fn build_move(guild: &Guild, wanted: &Wish, from: String, to: String) -> Move {
    let cause = if matches!(wanted, Wish::Promoted(_)) { MoveCause::Promotion } else { MoveCause::Placement };
    let spec = MoveSpec {
        units: None,
        guild: Some(guild.spec.guild_id.clone()),
        from,
        to,
        cause,
        deadline_seconds: 600,
        rollback_window_seconds: 30,
        ttl_after_finished_seconds: None,
        merge_into_bucket: false,
        abort: false,
        rollback: false,
    };
    let mut one = Move::new(&wish::move_name(guild, wanted), spec);
    let mut labels = labels(&guild.name_any(), "move");
    labels.insert(GUILD_LABEL.into(), guild.spec.guild_id.clone());
    one.metadata.labels = Some(labels);
    one
}

async fn report(
    guild: &Guild,
    context: &Context,
    seen: &observe::Seen,
    (wanted, heat): (Wish, promotion::Memory),
    standing: Standing,
) -> Result<Outcome, ReconcileError> {
    let before = guild.status.clone().unwrap_or_default();
    let hotness = match heat.hotness {
        promotion::Hotness::Cold => Hotness::Cold,
        promotion::Hotness::Warm => Hotness::Warm,
        promotion::Hotness::Hot => Hotness::Hot,
    };
    let status = GuildStatus {
        observed_generation: guild.metadata.generation,
        conditions: standing.conditions(&before.conditions, guild.metadata.generation),
        cell: seen.current.clone().or(before.cell.clone()),
        placement_reason: Some(wanted.label().to_owned()),
        // Who is not measured any more is neither hot nor cold.
        hotness: guild.spec.promotion.as_ref().and(seen.has_load.then_some(hotness).or(before.hotness)),
        hot_since: heat.hot_since_ms.map(time_of),
        move_ref: seen.running.as_ref().map(|running| running.name.clone()),
        blocked_by: standing.blocked_by(),
    };
    if status != before {
        context.applier.status(&manager("guild", "status"), guild, json!(status)).await?;
        if is_transition(&before.conditions, &status.conditions) {
            announce(&context.recorder, guild, &standing, "Place").await;
        }
    }
    let heat_period = guild.spec.promotion.as_ref().filter(|promotion| promotion.auto).map(|promotion| {
        let seconds = u64::try_from(promotion.hold_for_seconds / 4).unwrap_or_default();
        Duration::from_secs(seconds.clamp(*HEAT_PERIOD.start(), *HEAT_PERIOD.end()))
    });
    Ok(match (heat_period, standing) {
        (Some(pause), _) => Outcome::Waiting(pause),
        (None, Standing::Reconciling(..)) => Outcome::Waiting(SOON),
        (None, _) => Outcome::Settled,
    })
}
