//! The columns of each kind, read from its objects. Pure: the clock is an argument.

use serde_json::Value;

use crate::blocked;
use crate::kinds::Kind;
use crate::output::Table;

/// The table of some objects of a kind; `now_s` is the time in seconds since the Unix epoch.
pub fn table(kind: Kind, objects: &[Value], now_s: i64) -> Table {
    let mut table = Table::new(&[]);
    table.head = head(kind).to_vec();
    table.rows = objects
        .iter()
        .map(|object| {
            let row = row(kind, object, now_s);
            row.into_iter().map(|cell| if cell.trim().is_empty() { "-".to_owned() } else { cell }).collect()
        })
        .collect();
    table
}

fn head(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Fleets => &["NAME", "READY", "CELLS", "BOOTSTRAPPED", "ENTRY", "AGE", "BLOCKED-BY"],
        Kind::Cells => &["NAME", "READY", "AVAILABILITY", "STORAGE", "UNITS", "PODS", "AGE", "BLOCKED-BY"],
        Kind::Guilds => &["NAME", "READY", "CELL", "PLACEMENT", "HOTNESS", "MOVE", "AGE", "BLOCKED-BY"],
        Kind::Moves => &["NAME", "GUILD", "FROM", "TO", "STEP", "RESULT", "CAUSE", "AGE", "BLOCKED-BY"],
        Kind::StorageCells => &["NAME", "READY", "ENGINE", "NODES", "AGE", "BLOCKED-BY"],
        Kind::StorageMigrations => {
            &["NAME", "SOURCE", "TARGET", "STAGE", "GOES-TO", "DONE", "LAG", "RESULT", "AGE", "BLOCKED-BY"]
        }
        Kind::Pods => &["NAME", "READY", "PHASE", "RESTARTS", "NODE", "IP", "AGE", "BLOCKED-BY"],
    }
}

fn row(kind: Kind, object: &Value, now_s: i64) -> Vec<String> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = || blocked::condition_status(object, "Ready");
    let mut row = vec![text(&object["metadata"]["name"])];
    match kind {
        Kind::Fleets => {
            row.extend([ready(), text(&status["cells"]), text(&status["bootstrapped"]), text(&status["entryUrl"])])
        }
        Kind::Cells => row.extend([
            ready(),
            text(&spec["availability"]),
            text(&spec["storageCellRef"]),
            text(&status["units"]),
            text(&status["pods"]),
        ]),
        Kind::Guilds => row.extend([
            ready(),
            text(&status["cell"]),
            text(&status["placementReason"]),
            text(&status["hotness"]),
            text(&status["moveRef"]),
        ]),
        Kind::Moves => row.extend([
            if spec["guild"].is_string() { text(&spec["guild"]) } else { units(&spec["units"]) },
            text(&spec["from"]),
            text(&spec["to"]),
            text(&status["step"]),
            text(&status["result"]),
            text(&spec["cause"]),
        ]),
        Kind::StorageCells => row.extend([ready(), text(&spec["engine"]), text(&status["reachableNodes"])]),
        Kind::StorageMigrations => row.extend([
            text(&spec["source"]),
            text(&spec["target"]),
            text(&status["stage"]),
            text(&spec["targetStage"]),
            status["donePpm"].as_i64().map(|ppm| format!("{:.1} %", ppm as f64 / 10_000.0)).unwrap_or_default(),
            status["lagSeconds"].as_i64().map(|lag| format!("{lag} s")).unwrap_or_default(),
            text(&status["result"]),
        ]),
        Kind::Pods => row.extend([
            ready(),
            text(&status["phase"]),
            restarts(status).to_string(),
            text(&spec["nodeName"]),
            text(&status["podIP"]),
        ]),
    }
    row.push(age(object["metadata"]["creationTimestamp"].as_str(), now_s));
    row.push(if kind == Kind::Pods { blocked::of_pod(object) } else { blocked::of_resource(object) });
    row
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn units(units: &Value) -> String {
    match units.as_array().map(Vec::as_slice) {
        Some([]) | None => String::new(),
        Some([one]) => text(one),
        Some([first, rest @ ..]) => format!("{} and {} more", text(first), rest.len()),
    }
}

fn restarts(status: &Value) -> i64 {
    status["containerStatuses"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|found| found["restartCount"].as_i64())
        .sum()
}

/// The age as kubectl shows it.
fn age(created: Option<&str>, now_s: i64) -> String {
    let created = created.and_then(|text| text.parse::<k8s_openapi::jiff::Timestamp>().ok());
    let Some(created) = created else { return String::new() };
    let seconds = (now_s - created.as_second()).max(0);
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Seconds since the Unix epoch.
pub fn now_s() -> i64 {
    k8s_openapi::jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::{Format, View};

    fn render(kind: Kind, objects: &[Value]) -> String {
        let view = View { table: table(kind, objects, 1_700_000_100), ..View::default() };
        view.render(Format::Table).unwrap()
    }

    #[test]
    fn moves_look_as_they_did() {
        let object = |name: &str, spec: Value, status: Value| {
            json!({"metadata": {"name": name, "generation": 1, "creationTimestamp": "2023-11-14T22:13:20Z"},
                "spec": spec, "status": status})
        };
        let running = object(
            "g-5-1",
            json!({"guild": "5", "from": "a", "to": "b", "cause": "Requested"}),
            json!({"observedGeneration": 1, "step": "Warm", "blockedBy": "guild node b-guild-0: not ready"}),
        );
        let done = object(
            "m",
            json!({"units": ["b0001", "b0002"], "from": "a", "to": "b", "cause": "Placement"}),
            json!({"observedGeneration": 1, "step": "Done", "result": "Completed"}),
        );
        let new = object("n", json!({"guild": "6", "from": "a", "to": "b"}), Value::Null);
        assert_eq!(
            render(Kind::Moves, &[running, done, new]),
            "\
NAME    GUILD              FROM   TO   STEP   RESULT      CAUSE       AGE    BLOCKED-BY
g-5-1   5                  a      b    Warm   -           Requested   100s   guild node b-guild-0: not ready
m       b0001 and 1 more   a      b    Done   Completed   Placement   100s   -
n       6                  a      b    -      -           -           100s   NotObserved: the operator has not looked at it yet
"
        );
    }

    #[test]
    fn every_kind_has_as_many_cells_as_titles() {
        for kind in Kind::ALL {
            let table = table(kind, &[json!({})], 0);
            assert_eq!(table.rows[0].len(), table.head.len(), "{kind:?}");
            assert_eq!(table.head.last(), Some(&"BLOCKED-BY"));
            assert_ne!(table.rows[0].last().map(String::as_str), Some("-"), "{kind:?}: an object without status waits");
        }
    }

    #[test]
    fn ages_read_as_kubectl_shows_them() {
        let ages = [(5, "5s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172_800, "2d")];
        for (seconds, expected) in ages {
            assert_eq!(age(Some("1970-01-01T00:00:00Z"), seconds), expected);
        }
        assert_eq!(age(Some("not a time"), 5), "");
        assert_eq!(age(Some("2023-11-14T22:13:20Z"), 0), "0s", "a clock behind");
    }
}
