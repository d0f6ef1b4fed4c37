//! `cellctl status`: the fleet at a glance. Exits 0 when all is well, 3 while something waits.

use clap::Args;
use serde_json::{Value, json};

use super::{columns, list, name_of};
use crate::args::Global;
use crate::blocked;
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Format, View, write_out};

/// Flags of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {}

/// Shows the fleet.
///
/// # Errors
/// [`CommandError`].
pub async fn run(_args: StatusArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let mut value = json!({});
    let mut text = String::new();
    let mut waiting: Vec<(String, String)> = Vec::new();
    for kind in [Kind::Fleets, Kind::StorageCells, Kind::Cells, Kind::Guilds, Kind::Moves] {
        let mut objects = list(&connection, kind).await?;
        if kind == Kind::Moves {
            objects.retain(|object| object["status"]["result"].is_null());
        }
        waiting.extend(objects.iter().filter_map(|object| waits(kind, object)));
        if !objects.is_empty() {
            let view = View { table: columns::table(kind, &objects, columns::now_s()), ..View::default() };
            text.push_str(&format!("{}\n{}\n", kind.plural().to_uppercase(), view.render(Format::Table)?));
        }
        value[kind.plural()] = Value::Array(objects);
    }
    if value[Kind::Fleets.plural()].as_array().is_none_or(Vec::is_empty) {
        let reason = format!("no Fleet in namespace {:?}", connection.namespace);
        return Err(CommandError::refused("--namespace", reason, "give -n NAMESPACE, or cellctl sandbox up"));
    }
    let automation = match connection.control_plane().await {
        Ok(api) => api.automation().await.ok(),
        Err(_) => None,
    };
    value["automation"] = serde_json::to_value(&automation).unwrap_or_default();
    value["blockedBy"] = waiting.iter().map(|(what, why)| json!({"resource": what, "blockedBy": why})).collect();
    text.push_str(&match &automation {
        Some(automation) if automation.paused => {
            format!(
                "Automation: paused{}\n",
                automation.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default()
            )
        }
        Some(_) => "Automation: running\n".to_owned(),
        None => "Automation: not known (the control-plane API does not answer)\n".to_owned(),
    });
    match global.output {
        Format::Table => write_out(&text)?,
        other => View { value, names: waiting.iter().map(|(what, _)| what.clone()).collect(), ..View::default() }
            .print(other)?,
    }
    match waiting.first() {
        None => Ok(Exit::Done),
        Some((what, why)) => {
            let (kind, name) = what.split_once('/').unwrap_or((what, ""));
            Err(CommandError::refused(what.clone(), why.clone(), format!("cellctl describe {kind} {name}")))
        }
    }
}

fn waits(kind: Kind, object: &Value) -> Option<(String, String)> {
    let why = blocked::of_resource(object);
    // A running move, and a guild under way, wait for their own steps: that is work, not trouble, unless they are stalled.
    let stalled = blocked::condition_status(object, "Stalled") == "True";
    let counts = why != blocked::NOTHING && (!matches!(kind, Kind::Moves | Kind::Guilds) || stalled);
    counts.then(|| (format!("{}/{}", kind.singular().to_lowercase(), name_of(object)), why))
}
