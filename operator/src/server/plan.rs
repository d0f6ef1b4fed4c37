//! What a move would do, and what would refuse it. Planning changes nothing.

use axum::Json;
use axum::extract::State;
use cell_api::{Check, Location, MovePlan, MoveRequest, Target};
use cell_plan::checks::{MoveRefusal, check_ends, check_in_place};
use cell_proto::directory::Load;
use cell_proto::unit::Unit;
use cell_runtime::View;

use super::Api;
use super::error::{ApiError, Body};
use super::locate::{find, parse_guild};
use crate::automation;
use crate::controllers::cell_facts;
use crate::directory::Link;
use crate::names::dedicated_cell;

/// Bounds and defaults, as the Move's schema has them.
const DEADLINE_SECONDS: (i32, i32, i32) = (1, 86_400, 600);
const ROLLBACK_SECONDS: (i32, i32, i32) = (0, 604_800, 30);

pub(super) async fn plan(State(api): State<Api>, Body(request): Body<MoveRequest>) -> Result<Json<MovePlan>, ApiError> {
    Ok(Json(make(&api, &request).await?))
}

fn bounded(field: &str, value: Option<i32>, (least, most, default): (i32, i32, i32)) -> Result<i32, ApiError> {
    let value = value.unwrap_or(default);
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(ApiError::invalid(field, &format!("{value} is not in {least}–{most}")))
}

/// Plans against the head as it is now.
pub(super) async fn make(api: &Api, request: &MoveRequest) -> Result<MovePlan, ApiError> {
    let guild_id = parse_guild(&request.guild_id)?;
    let deadline_seconds = bounded("deadlineSeconds", request.deadline_seconds, DEADLINE_SECONDS)?;
    let rollback_window_seconds = bounded("rollbackWindowSeconds", request.rollback_window_seconds, ROLLBACK_SECONDS)?;
    let (_, link) = api.fleet()?;
    let location = find(api, guild_id).await?;
    let view = link.directory.view().clone();
    let to = target(&view, &request.target, guild_id)?;
    let checks = checks(api, &link, (&location, &to), &request.target).await?;
    let plan = MovePlan {
        guild_id: request.guild_id.clone(),
        unit: location.unit.clone(),
        from: location.cell.clone(),
        term: location.term,
        steps: steps(&location, &request.target, &to),
        checks,
        deadline_seconds,
        rollback_window_seconds,
        sessions: sessions(&link, &request.guild_id).await?,
        hash: String::new(),
        to,
    };
    Ok(plan.sealed())
}

/// As the schema of a Move has it.
fn is_cell_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = |byte: Option<u8>| byte.is_some_and(plain);
    name.len() <= 40
        && ends(name.bytes().next())
        && ends(name.bytes().next_back())
        && name.bytes().all(|byte| plain(byte) || byte == b'-' || byte == b'.')
}

fn target(view: &View, target: &Target, guild_id: i64) -> Result<String, ApiError> {
    match target {
        Target::Cell(cell) if !is_cell_name(cell) => Err(ApiError::invalid(
            "target.cell",
            "the name of a Cell: 1–40 of a-z, 0-9, - and ., the first and the last a letter or digit",
        )),
        Target::Cell(cell) => Ok(cell.clone()),
        Target::Dedicated => Ok(dedicated_cell(&guild_id.to_string())),
        Target::Bucket => {
            let place = view.place(&Unit::bucket(guild_id).log()).map(|place| place.cell.clone());
            place.filter(|cell| !cell.is_empty()).ok_or_else(|| {
                ApiError::new(503, "DirectoryUnavailable", "the bucket's cell is not known", "etcd has no assignment")
            })
        }
    }
}

/// A guild with a log of its own in its bucket's cell, which is to go back into its bucket.
fn is_merge_in_place(location: &Location, target: &Target, to: &str) -> bool {
    *target == Target::Bucket && location.unit != location.bucket && location.cell == to
}

fn steps(location: &Location, target: &Target, to: &str) -> Vec<String> {
    if is_merge_in_place(location, target, to) {
        return ["Validate", "Merge"].map(str::to_owned).into();
    }
    let mut steps = vec!["Validate"];
    if location.unit == location.bucket {
        steps.push("Split");
    }
    steps.extend(["Warm", "Prove", "Switch", "TakeOver", "Hold", "Complete"]);
    if *target == Target::Bucket {
        steps.push("Merge");
    }
    steps.into_iter().map(str::to_owned).collect()
}

async fn checks(
    api: &Api,
    link: &Link,
    (location, to): (&Location, &str),
    target: &Target,
) -> Result<Vec<Check>, ApiError> {
    let view = link.directory.view().clone();
    let facts: Vec<_> = api.context.stores.all_cells().iter().map(|cell| cell_facts(cell, &view)).collect();
    let in_place = is_merge_in_place(location, target, to);
    let ends = if in_place { check_in_place(to, &facts) } else { check_ends(&location.cell, to, &facts) };
    let ends = match ends {
        // The cell is made when the move starts; the run waits for it.
        Err(MoveRefusal::MissingTarget(_)) if *target == Target::Dedicated => {
            passed("target", format!("cell {to} does not exist yet and is made at the start"))
        }
        Err(refusal) if refusal.may_pass() => {
            passed("target", format!("{refusal}; the run waits for it until its deadline"))
        }
        Err(refusal) => refused("target", &refusal),
        Ok(()) if in_place => passed("target", format!("{to} serves the guild and its bucket: nothing is switched")),
        Ok(()) => passed("target", format!("{to} is active, live and on the same StorageCell")),
    };
    let split = if *target == Target::Bucket && location.unit == location.bucket {
        let refusal = MoveRefusal::Units(format!("guild {} is in its bucket already", location.guild_id));
        refused("unit", &refusal)
    } else {
        passed("unit", format!("{} in {} at term {}", location.unit, location.cell, location.term))
    };
    let log = Unit::Guild(parse_guild(&location.guild_id)?).log();
    let free = match link.run_of_unit(&log).await? {
        Some(run_id) => busy(link, log, run_id).await?,
        None => passed("free", "no other run holds the guild".into()),
    };
    let paused = automation::read(link).await?.paused;
    let pause = if paused {
        "paused for what the operator starts by itself; a move that is asked for starts all the same"
    } else {
        "running"
    };
    Ok(vec![ends, split, free, passed("automation", pause.into())])
}

/// Another run has the guild: its Move is named, and is what there is to look at.
async fn busy(link: &Link, unit: String, run_id: String) -> Result<Check, ApiError> {
    let name = link.run(&run_id).await?.map(|run| run.move_name);
    let mut check = refused("free", &MoveRefusal::UnitBusy { unit, run_id: run_id.clone() });
    if let Some(name) = &name {
        check.message = format!("{} (Move {name})", check.message);
    }
    check.next = Some(format!("cellctl guild move watch {}", name.unwrap_or(run_id)));
    Ok(check)
}

fn passed(name: &str, message: String) -> Check {
    Check { name: name.to_owned(), ok: true, message, reason: None, next: None }
}

fn refused(name: &str, refusal: &MoveRefusal) -> Check {
    let reason = Some(refusal.label().to_owned());
    Check { name: name.to_owned(), ok: false, message: refusal.to_string(), reason, next: None }
}

async fn sessions(link: &Link, guild_id: &str) -> Result<Option<i64>, ApiError> {
    let loads = link.read_below(&link.keys().loads()).await?;
    let loads = loads.iter().filter_map(|stored| serde_json::from_slice::<Load>(&stored.value).ok());
    Ok(loads.flat_map(|load| load.guilds).filter(|load| load.guild_id == guild_id).map(|load| load.sessions).max())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_name_a_cell_is_looked_for() {
        for name in ["a", "shared-1", "g-7-cell", "a.b"] {
            assert!(is_cell_name(name), "{name}");
        }
        for name in ["", "../x", "..", "-a", "a-", "A", "a/b", "a b", "é", &"a".repeat(41)] {
            assert!(!is_cell_name(name), "{name}");
        }
    }
}
