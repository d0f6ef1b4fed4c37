//! Where a guild is: the directory says whom to ask, the head decides. A bucket's head says nothing of a guild in it: its owner does.

use axum::Json;
use axum::extract::{Path, State};
use cell_api::Location;
use cell_crds::Reason;
use cell_proto::unit::Unit;
use cell_proto::v1::{Head, InspectReply};
use cell_runtime::route::unit_of_guild;

use super::Api;
use super::error::ApiError;
use crate::controllers::databases::serving;
use crate::directory::Link;
use crate::rpc;

/// How often a head that points elsewhere is followed.
const MOST_HOPS: usize = 4;

pub(super) async fn locate(State(api): State<Api>, Path(guild_id): Path<String>) -> Result<Json<Location>, ApiError> {
    let guild_id = parse_guild(&guild_id)?;
    Ok(Json(find(&api, guild_id).await?))
}

/// A guild id as the API takes it.
pub(super) fn parse_guild(text: &str) -> Result<i64, ApiError> {
    let id = text.parse::<i64>().ok().filter(|id| *id > 0 && id.to_string() == text);
    id.ok_or_else(|| ApiError::invalid("guildId", "a decimal guild id, 1 to 9223372036854775807"))
}

/// Reads heads until one serves the guild.
pub(super) async fn find(api: &Api, guild_id: i64) -> Result<Location, ApiError> {
    let (_, link) = api.fleet()?;
    let view = link.directory.view().clone();
    let mut unit = unit_of_guild(&view, guild_id);
    let mut cell = view.place(&unit.log()).map(|place| place.cell.clone()).unwrap_or_default();
    for _ in 0..MOST_HOPS {
        if cell.is_empty() {
            break;
        }
        let reply = rpc::inspect(&link, &cell, &unit.log()).await?;
        let Some(head) = reply.head.clone() else {
            // No such log (any more): the guild is in its bucket, if anywhere.
            let bucket = Unit::bucket(guild_id);
            if unit == bucket {
                break;
            }
            unit = bucket;
            cell = view.place(&unit.log()).map(|place| place.cell.clone()).unwrap_or_default();
            continue;
        };
        if head.moved_to.starts_with("log:") {
            unit = Unit::bucket(guild_id);
            cell = view.place(&unit.log()).map(|place| place.cell.clone()).unwrap_or_default();
            continue;
        }
        if unit != Unit::Guild(guild_id) && reply.split_guilds.contains(&guild_id) {
            unit = Unit::Guild(guild_id);
            continue;
        }
        if head.cell != cell {
            cell.clone_from(&head.cell);
            continue;
        }
        if unit != Unit::Guild(guild_id) {
            known(&link, guild_id, &cell, &unit.log()).await?;
        }
        return describe(api, &link, guild_id, (unit, head, reply)).await;
    }
    let detail = format!("guild {guild_id}: no head serves it; the fleet may not be bootstrapped (cellctl status)");
    Err(ApiError::new(404, Reason::GuildNotFound.label(), "guild not found", detail).next("cellctl status"))
}

/// Refuses a guild that its bucket's owner does not know. Where the owner cannot be asked, the head alone has to do.
async fn known(link: &Link, guild_id: i64, cell: &str, log: &str) -> Result<(), ApiError> {
    match rpc::guild_exists(link, cell, log, guild_id).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            let detail = format!("guild {guild_id}: its bucket {log} in cell {cell} has no such guild; check the id");
            Err(ApiError::new(404, Reason::GuildNotFound.label(), "guild not found", detail))
        }
        Err(error) => {
            tracing::debug!(guild_id, error = format!("{error:#}"), "located by the bucket's head alone");
            Ok(())
        }
    }
}

async fn describe(
    api: &Api,
    link: &Link,
    guild_id: i64,
    (unit, head, reply): (Unit, Head, InspectReply),
) -> Result<Location, ApiError> {
    let view = link.directory.view();
    let cell = api.context.stores.cell(&api.context.settings.namespace, &head.cell);
    let place = view.place(&unit.log()).filter(|place| place.cell == head.cell);
    let hinted = place.map(|place| place.guild_owner.clone()).filter(|owner| !owner.is_empty());
    let winner = || {
        let member = cell_runtime::route::guild_member(&view, &unit.log(), guild_id);
        member.map(|member| member.id.clone()).unwrap_or_default()
    };
    Ok(Location {
        guild_id: guild_id.to_string(),
        unit: unit.to_string(),
        bucket: Unit::bucket(guild_id).to_string(),
        // A unit may have been carried off the StorageCell that serves its cell.
        storage_cell: Some(reply.storage_cell)
            .filter(|name| !name.is_empty())
            .or_else(|| cell.as_ref().map(serving))
            .unwrap_or_default(),
        term: head.term,
        data_owner: head.appender,
        guild_owner: hinted.unwrap_or_else(winner),
        last: reply.last,
        run_id: link.run_of_unit(&Unit::Guild(guild_id).log()).await?.unwrap_or_default(),
        cell: head.cell,
    })
}
