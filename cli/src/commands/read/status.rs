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
use crate::sandbox::probe;

/// Flags of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {}

/// What stands in the way of something.
struct Wait {
    /// The resource, as `kind/name`.
    what: String,
    why: String,
    /// It will not pass by itself.
    stalled: bool,
}

/// Shows the fleet.
///
/// # Errors
/// [`CommandError`].
pub async fn run(_args: StatusArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let mut value = json!({});
    let mut text = String::new();
    let (mut names, mut notes, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
    for kind in [Kind::Fleets, Kind::StorageCells, Kind::Cells, Kind::Guilds, Kind::Moves, Kind::StorageMigrations] {
        let mut objects = list(&connection, kind).await?;
        if matches!(kind, Kind::Moves | Kind::StorageMigrations) {
            objects.retain(|object| object["status"]["result"].is_null());
        }
        waiting.extend(objects.iter().filter_map(|object| waits(kind, object)));
        names.extend(objects.iter().map(|object| kind.qualified(name_of(object))));
        notes.extend(objects.iter().filter_map(|object| note(kind, object)));
        if !objects.is_empty() {
            let view = View { table: columns::table(kind, &objects, columns::now_s()), ..View::default() };
            text.push_str(&format!("{}\n{}\n", kind.plural().to_uppercase(), view.render(Format::Table)?));
        }
        value[kind.plural()] = Value::Array(objects);
    }
    let fleets = value[Kind::Fleets.plural()].as_array().cloned().unwrap_or_default();
    if fleets.is_empty() {
        let reason = format!("no Fleet in namespace {:?}", connection.namespace);
        return Err(CommandError::refused("--namespace", reason, "give -n NAMESPACE, or cellctl sandbox up"));
    }
    waiting.extend(unanswered(&fleets).await);
    let automation = automation(&connection).await;
    value["automation"] = serde_json::to_value(automation.as_ref().ok()).unwrap_or_default();
    match automation {
        Ok(automation) => text.push_str(&line(&automation)),
        Err(why) => {
            text.push_str("Automation: not known (the control-plane API does not answer)\n");
            waiting.push(Wait { what: "fleet/control-plane".to_owned(), why, stalled: false });
        }
    }
    notes.iter().for_each(|note| text.push_str(&format!("Note: {note}\n")));
    value["notes"] = json!(notes);
    value["blockedBy"] = waiting.iter().map(|wait| json!({"resource": wait.what, "blockedBy": wait.why})).collect();
    match global.output {
        Format::Table => write_out(&text)?,
        other => View { value, names, ..View::default() }.print(other)?,
    }
    end(waiting)
}

/// What needs a person goes first.
fn end(waiting: Vec<Wait>) -> Result<Exit, CommandError> {
    let Some(first) = waiting.into_iter().min_by_key(|wait| !wait.stalled) else { return Ok(Exit::Done) };
    let (kind, name) = first.what.split_once('/').unwrap_or((&first.what, ""));
    let next = match name {
        "entry" | "control-plane" => "cellctl describe fleets; cellctl get pods".to_owned(),
        _ => format!("cellctl describe {kind} {name}"),
    };
    Err(CommandError::Waiting { stalled: first.stalled, what: first.what, why: first.why, next })
}

/// Conditions may be those of before something died: whether the entry answers, only the entry can say. One behind TLS is not asked: its
/// certificate is not known here.
async fn unanswered(fleets: &[Value]) -> Option<Wait> {
    let base = fleets.first()?["status"]["entryUrl"].as_str()?.trim_end_matches('/');
    if !base.starts_with("http://") {
        return None;
    }
    let why = probe::fault(&format!("{base}/api/v10/gateway")).await?;
    Some(Wait { what: "fleet/entry".to_owned(), why, stalled: false })
}

async fn automation(connection: &Connection) -> Result<cell_api::Automation, String> {
    let api = connection.control_plane().await.map_err(|error| error.to_string())?;
    api.automation().await.map_err(|error| error.to_string())
}

fn line(automation: &cell_api::Automation) -> String {
    match (&automation.note, automation.paused) {
        (_, false) => "Automation: running\n".to_owned(),
        (Some(note), true) => format!("Automation: paused ({note})\n"),
        (None, true) => "Automation: paused\n".to_owned(),
    }
}

fn waits(kind: Kind, object: &Value) -> Option<Wait> {
    let why = blocked::of_resource(object);
    // A running move, and a guild under way, wait for their own steps: that is work, not trouble, unless they are stalled.
    let stalled = blocked::condition_status(object, "Stalled") == "True";
    let counts =
        why != blocked::NOTHING && (!matches!(kind, Kind::Moves | Kind::Guilds | Kind::StorageMigrations) || stalled);
    counts.then(|| Wait { what: format!("{}/{}", kind.singular().to_lowercase(), name_of(object)), why, stalled })
}

/// What is as it should be, and still worth a word.
fn note(kind: Kind, object: &Value) -> Option<String> {
    let ready = blocked::condition(object, "Ready").filter(|ready| ready["status"] == "True")?;
    let told = ["Empty", "StorageDeleting"].iter().any(|reason| ready["reason"] == *reason);
    told.then(|| format!("{} {}: {}", kind.singular(), name_of(object), ready["message"].as_str().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(conditions: Value) -> Value {
        json!({"metadata": {"name": "g-5-cell", "generation": 1},
            "status": {"observedGeneration": 1, "conditions": conditions}})
    }

    #[test]
    fn an_empty_cell_is_no_trouble_and_still_worth_a_word() {
        let empty =
            cell(json!([{"type": "Ready", "status": "True", "reason": "Empty", "message": "kubectl delete cell"}]));
        assert!(waits(Kind::Cells, &empty).is_none());
        assert_eq!(note(Kind::Cells, &empty).unwrap(), "Cell g-5-cell: kubectl delete cell");
        let fine = cell(json!([{"type": "Ready", "status": "True", "reason": "AsDesired", "message": "m"}]));
        assert_eq!(note(Kind::Cells, &fine), None);
    }

    #[test]
    fn work_under_way_is_called_waiting_and_what_needs_a_person_blocked_and_first() {
        let conditions = |kind: &str| {
            json!([{"type": "Ready", "status": "False", "reason": "R", "message": "m"},
            {"type": kind, "status": "True", "reason": "R", "message": "m"}])
        };
        let work = waits(Kind::Cells, &cell(conditions("Reconciling"))).unwrap();
        let error = end(vec![work]).unwrap_err();
        assert!(error.report().starts_with("waiting: cell/g-5-cell: R: m"), "{}", error.report());
        let both =
            [conditions("Reconciling"), conditions("Stalled")].map(|found| waits(Kind::Cells, &cell(found)).unwrap());
        let error = end(both.into()).unwrap_err();
        assert!(error.report().starts_with("blocked: "), "{}", error.report());
        assert_eq!(error.exit(), Exit::Blocked);
        assert!(end(Vec::new()).is_ok());
    }
}
