//! `cellctl events KIND [NAME]`: the events of resources, oldest first.

use clap::Args;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::args::Global;
use crate::connect::{Connection, within};
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Table, View};

/// Flags of `events`.
#[derive(Args, Debug)]
pub struct EventsArgs {
    /// fleets, cells, guilds, moves, storagecells or pods
    #[arg(value_name = "KIND")]
    pub kind: Kind,
    /// One resource; a guild also by its bare id
    pub name: Option<String>,
}

/// Shows events.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: EventsArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let name = args.name.as_deref().map(|given| args.kind.object_name(given));
    let events = of(&connection, args.kind, name.as_deref()).await?;
    let value = json!({"apiVersion": "v1", "kind": "List", "items": events});
    let names = events.iter().filter_map(|event| event["metadata"]["name"].as_str()).map(str::to_owned).collect();
    View { value, table: table(&events), names }.print(global.output)?;
    Ok(Exit::Done)
}

/// The events about a kind, or one object of it.
pub(in crate::commands) async fn of(
    connection: &Connection,
    kind: Kind,
    name: Option<&str>,
) -> Result<Vec<Value>, CommandError> {
    let api: Api<Event> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let mut selector = format!("involvedObject.kind={}", kind.singular());
    if let Some(name) = name {
        selector.push_str(&format!(",involvedObject.name={name}"));
    }
    let listed = within(api.list(&ListParams::default().fields(&selector))).await?;
    let mut events: Vec<Value> = listed.items.iter().filter_map(|event| serde_json::to_value(event).ok()).collect();
    events.sort_by_key(last_seen);
    Ok(events)
}

/// Events of `events.k8s.io` carry `eventTime` and a series, older ones `lastTimestamp`.
fn last_seen(event: &Value) -> String {
    [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["metadata"]["creationTimestamp"],
    ]
    .into_iter()
    .find_map(|time| time.as_str())
    .unwrap_or_default()
    .to_owned()
}

/// The table of events.
pub(super) fn table(events: &[Value]) -> Table {
    let mut table = Table::new(&["LAST-SEEN", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"]);
    for event in events {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["involvedObject"];
        let count =
            [&event["series"]["count"], &event["count"]].into_iter().find_map(|count| count.as_i64()).unwrap_or(1);
        table.row([
            last_seen(event),
            text(&event["type"]),
            text(&event["reason"]),
            format!("{}/{}", text(&object["kind"]).to_lowercase(), text(&object["name"])),
            count.to_string(),
            text(&event["message"]),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_both_apis_show_when_they_were_last_seen() {
        let old = json!({"lastTimestamp": "2026-01-01T00:00:02Z", "count": 3, "type": "Warning", "reason": "PrefixClaimed",
            "message": "taken", "involvedObject": {"kind": "Fleet", "name": "main"}});
        let new = json!({"eventTime": "2026-01-01T00:00:01.5Z", "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:09Z"},
            "involvedObject": {"kind": "Move", "name": "m"}});
        let table = table(&[old, new]);
        assert_eq!(table.rows[0], ["2026-01-01T00:00:02Z", "Warning", "PrefixClaimed", "fleet/main", "3", "taken"]);
        assert_eq!(table.rows[1], ["2026-01-01T00:00:09Z", "-", "-", "move/m", "2", "-"]);
    }
}
