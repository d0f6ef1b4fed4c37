//! `cellctl guild release`: the guild lives where its bucket lives again. Clears the wish for a place where there is one, and starts the
//! move back that merges the guild into its bucket. Refuses before it changes anything.

use cell_api::{MoveRequest, Run, Target};
use cell_crds::Guild;
use clap::Args;
use kube::Api;
use serde_json::{Value, json};

use crate::args::Global;
use crate::commands::edit::{Edited, Editing, edit};
use crate::connect::{Connection, from_api, within};
use crate::exit::{CommandError, Exit};
use crate::kinds::{Kind, guild_id, guild_object};
use crate::output::{Table, View};
use crate::ownership::Edit;

/// Flags of `release`.
#[derive(Args, Debug)]
pub struct ReleaseArgs {
    /// The guild's id
    #[arg(value_name = "GUILD", value_parser = guild_id)]
    pub guild: String,
    /// Change the field although another manager owns it
    #[arg(long = "override")]
    pub take_over: bool,
}

/// Releases the guild.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field, or the guild cannot move now.
pub async fn run(args: ReleaseArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let api = connection.control_plane().await?;
    let way_back = way_back(&api, &args.guild).await?;
    let cleared = clear_placement(&connection, &args, global).await?;
    let run = match way_back {
        Some(request) => Some(api.start_move(&request).await.map_err(from_api)?),
        None => None,
    };
    report(&args.guild, cleared, run.as_ref(), global)
}

/// The move that brings the guild back; none when it is in its bucket already. One with a log of its own in its bucket's cell is merged.
async fn way_back(api: &cell_api::Client, guild: &str) -> Result<Option<MoveRequest>, CommandError> {
    let request = MoveRequest {
        guild_id: guild.to_owned(),
        target: Target::Bucket,
        deadline_seconds: None,
        rollback_window_seconds: None,
        plan_hash: None,
    };
    let plan = api.plan_move(&request).await.map_err(from_api)?;
    if plan.from == plan.to && plan.unit != format!("g{guild}") {
        return Ok(None);
    }
    if let Some(check) = plan.refusal() {
        let reason = check.reason.clone().unwrap_or_else(|| check.name.clone());
        let next = check.next.clone().unwrap_or_else(|| format!("cellctl guild move plan {guild} --to-bucket"));
        return Err(CommandError::refused(reason, check.message.clone(), next));
    }
    Ok(Some(MoveRequest { plan_hash: Some(plan.hash), ..request }))
}

/// Whether there was a wish to clear. Most guilds have no resource, and need none to be where their bucket is.
async fn clear_placement(connection: &Connection, args: &ReleaseArgs, global: &Global) -> Result<bool, CommandError> {
    let name = guild_object(&args.guild);
    let guilds: Api<Guild> = Api::namespaced(connection.client.clone(), &connection.namespace);
    if within(guilds.get_opt(&name)).await?.is_none() {
        return Ok(false);
    }
    let change = Edit { kind: "Guild", name, field: "placement", value: Value::Null };
    let how = Editing { kind: Kind::Guilds, take_over: args.take_over, absent: None, global };
    Ok(edit(connection, &change, &how).await? != Edited::Unchanged)
}

fn report(guild: &str, cleared: bool, run: Option<&Run>, global: &Global) -> Result<Exit, CommandError> {
    let outcome = if cleared || run.is_some() { "changed" } else { "unchanged" };
    let started = run.map(|run| run.name.clone());
    let value = json!({"guild": guild_object(guild), "placement": null, "outcome": outcome, "move": started});
    let next = match &started {
        Some(name) => format!("cellctl guild move watch {name}"),
        None => format!("cellctl locate {guild}"),
    };
    let table = Table::fields([
        ("Guild", format!("{} ({outcome})", guild_object(guild))),
        ("Placement", "where its bucket lives".to_owned()),
        ("Move", started.unwrap_or_else(|| "none: it is in its bucket".to_owned())),
        ("Next", next),
    ]);
    View::of(&value, table, vec![Kind::Guilds.qualified(&guild_object(guild))])?.print(global.output)?;
    Ok(Exit::Done)
}
