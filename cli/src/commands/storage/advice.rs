//! `cellctl storage compact-advice [STORAGECELL]`: ranges that migrations found slow to read, with what to run on the database.

use serde_json::{Value, json};

use super::WhichArgs;
use crate::args::Global;
use crate::commands::read::{list, name_of, one};
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Table, View};

/// Advises.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: WhichArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let cells = match &args.name {
        Some(name) => vec![one(&connection, Kind::StorageCells, name).await?],
        None => list(&connection, Kind::StorageCells).await?,
    };
    let mut table = Table::new(&["STORAGECELL", "TABLE", "KIND", "WHERE", "DO"]);
    let mut value = Vec::new();
    for cell in &cells {
        let keyspace = cell["spec"]["keyspace"].as_str().unwrap_or_default();
        for range in cell["status"]["flaggedRanges"].as_array().into_iter().flatten() {
            let text = |field: &str| range[field].as_str().unwrap_or_default().to_owned();
            let action = action(keyspace, range);
            let place = place(range);
            table.row([name_of(cell).to_owned(), text("table"), text("kind"), place.clone(), action.clone()]);
            value.push(json!({"storageCell": name_of(cell), "range": range, "where": place, "do": action}));
        }
    }
    let names = cells.iter().map(|cell| Kind::StorageCells.qualified(name_of(cell))).collect();
    View { value: json!(value), table, names }.print(global.output)?;
    Ok(Exit::Done)
}

fn place(range: &Value) -> String {
    match range["partition"].as_str().filter(|partition| !partition.is_empty()) {
        Some(partition) => format!("partition {partition}"),
        None => format!("tokens {}–{}", range["firstToken"], range["lastToken"]),
    }
}

/// What to run. Only a range full of tombstones is helped by a compaction.
fn action(keyspace: &str, range: &Value) -> String {
    let said = range["message"].as_str().unwrap_or_default();
    match range["kind"].as_str() {
        Some("tombstones") => format!(
            "nodetool compact {keyspace} {} --start-token {} --end-token {}",
            range["table"].as_str().unwrap_or_default(),
            range["firstToken"],
            range["lastToken"]
        ),
        _ => said.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tombstones_are_compacted_and_a_named_partition_is_named() {
        let range = json!({"table": "messages", "firstToken": -5, "lastToken": 9, "kind": "tombstones"});
        assert_eq!(action("k", &range), "nodetool compact k messages --start-token -5 --end-token 9");
        let slow = json!({"kind": "slow", "message": "look at the node", "partition": "channel 7, bucket 3"});
        assert_eq!(
            (action("k", &slow).as_str(), place(&slow).as_str()),
            ("look at the node", "partition channel 7, bucket 3")
        );
    }
}
