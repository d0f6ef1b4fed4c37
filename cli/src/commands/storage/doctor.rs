//! `cellctl storage doctor [STORAGECELL]`: every fault that is known of a StorageCell, each with what to do. Exits 3 when there is one.

use serde_json::{Value, json};

use super::WhichArgs;
use crate::args::Global;
use crate::blocked;
use crate::commands::read::{list, name_of, one};
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::{Table, View};

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) what: String,
    pub(super) remedy: String,
}

/// Looks.
///
/// # Errors
/// [`CommandError::Refused`] when something is at fault.
pub async fn run(args: WhichArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    let cells = match &args.name {
        Some(name) => vec![one(&connection, Kind::StorageCells, name).await?],
        None => list(&connection, Kind::StorageCells).await?,
    };
    let migrations = list(&connection, Kind::StorageMigrations).await?;
    let mut table = Table::new(&["STORAGECELL", "ENGINE", "NODES", "FAULT", "REMEDY"]);
    let mut value = Vec::new();
    let mut first = None;
    for cell in &cells {
        let name = name_of(cell).to_owned();
        let faults = faults(cell, &migrations);
        let engine = cell["spec"]["engine"].as_str().unwrap_or_default().to_owned();
        let nodes = cell["status"]["reachableNodes"].as_i64().map(|nodes| nodes.to_string()).unwrap_or_default();
        if faults.is_empty() {
            table.row([name.clone(), engine, nodes, "none".into(), String::new()]);
        } else {
            for fault in &faults {
                table.row([name.clone(), engine.clone(), nodes.clone(), fault.what.clone(), fault.remedy.clone()]);
            }
        }
        let found: Vec<Value> =
            faults.iter().map(|fault| json!({"fault": fault.what, "remedy": fault.remedy})).collect();
        value.push(json!({"storageCell": name, "faults": found, "status": cell["status"]}));
        first = first.or_else(|| faults.into_iter().next().map(|fault| (name, fault)));
    }
    let names = cells.iter().map(|cell| Kind::StorageCells.qualified(name_of(cell))).collect();
    View { value: json!(value), table, names }.print(global.output)?;
    match first {
        None => Ok(Exit::Done),
        Some((name, fault)) => Err(CommandError::refused(format!("storagecell/{name}"), fault.what, fault.remedy)),
    }
}

/// Everything that is known to be wrong with a StorageCell. Pure.
pub(super) fn faults(cell: &Value, migrations: &[Value]) -> Vec<Fault> {
    let name = name_of(cell);
    let mut faults = Vec::new();
    let waits = blocked::of_resource(cell);
    if waits != blocked::NOTHING {
        faults.push(Fault { what: waits, remedy: format!("cellctl describe storagecell {name}") });
    }
    let lacking: Vec<&str> =
        cell["status"]["missingPrivileges"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !lacking.is_empty() {
        let what = format!("the login lacks {}", lacking.join(", "));
        faults.push(Fault { what, remedy: "grant them in the database".into() });
    }
    let flagged = cell["status"]["flaggedRanges"].as_array().map_or(0, Vec::len);
    if flagged > 0 {
        let what = format!("{flagged} ranges need someone");
        faults.push(Fault { what, remedy: format!("cellctl storage compact-advice {name}") });
    }
    for migration in migrations {
        let spec = &migration["spec"];
        if spec["source"] != name && spec["target"] != name {
            continue;
        }
        let ready = blocked::condition(migration, "Ready");
        let message = ready.and_then(|ready| ready["message"].as_str()).unwrap_or_default();
        if !migration["status"]["result"].is_null() && message.contains("could not be released") {
            let what = format!("migration {} left copies behind: {message}", name_of(migration));
            let remedy = "once both sides answer, run the migration again and abort it: it releases them".into();
            faults.push(Fault { what, remedy });
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_remedy_and_a_well_one_has_none() {
        let ready = json!([{"type": "Ready", "status": "True", "reason": "AsDesired"}]);
        let well = json!({"metadata": {"name": "a", "generation": 1},
            "status": {"observedGeneration": 1, "conditions": ready}});
        assert_eq!(faults(&well, &[]), []);
        let mut ill = well.clone();
        ill["status"]["missingPrivileges"] = json!(["MODIFY on KEYSPACE x"]);
        ill["status"]["flaggedRanges"] = json!([{}]);
        let left = json!({"metadata": {"name": "m"}, "spec": {"source": "a", "target": "b"}, "status": {"result": "Aborted",
            "conditions": [{"type": "Ready", "status": "True", "message": "undone; 3 copies could not be released"}]}});
        let found = faults(&ill, &[left]);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|fault| !fault.remedy.is_empty()), "{found:?}");
    }
}
