//! Records of migrations in etcd: `operations/<runId>` holds the record, `operations/<runId>/logs` the logs, which hardly change and
//! would make every write heavy, `operations/<runId>/positions` where the logs stood at the last comparison; `runs/storage:<StorageCell>` says which run holds a StorageCell. Every write is guarded by the
//! leader's token and the revision it was based on.

use std::sync::Arc;

use cell_plan::migrations::{Log, Record, Spec};
use cell_proto::directory::Migration;
use etcd_client::{Compare, CompareOp, TxnOp};
use serde::{Deserialize, Serialize};

use super::link::{Link, LinkError};
use super::migration_wire::RecordWire;

/// The format of a stored run. Another is not touched.
const VERSION: u32 = 1;

/// A migration's run as stored.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredMigration {
    /// The StorageMigration it was begun for.
    pub name: String,
    /// Everything remembered.
    pub record: Record,
    /// Guards the next write.
    pub revision: i64,
    /// The logs as they are stored.
    logs: (Arc<Vec<Log>>, Arc<Vec<Log>>),
    /// The positions as they are stored.
    positions: Arc<Vec<u64>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    version: u32,
    storage_migration: String,
    record: RecordWire,
}

/// `name` or `name@unit`, where the unit is another.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogsWire {
    logs: Vec<String>,
    there: Vec<String>,
}

/// What became of an attempt to begin.
#[derive(Clone, PartialEq, Debug)]
pub enum MigrationBegun {
    /// Both StorageCells are this run's.
    Begun(Box<StoredMigration>),
    /// One is another run's.
    Busy {
        /// The StorageCell.
        storage_cell: String,
        /// The run that holds it.
        run_id: String,
    },
}

/// Whether two specs ask for the same: everything but the run's name.
pub fn migration_content(spec: &Spec) -> Spec {
    Spec { run_id: String::new(), ..spec.clone() }
}

fn hold(storage_cell: &str) -> String {
    format!("storage:{storage_cell}")
}

impl Link {
    fn logs_key(&self, run_id: &str) -> String {
        format!("{}/logs", self.keys().operation(run_id))
    }

    fn positions_key(&self, run_id: &str) -> String {
        format!("{}/positions", self.keys().operation(run_id))
    }

    /// Reads a migration's run. A record that this version cannot read is [`LinkError::Malformed`]: nothing is written then.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn migration_run(&self, run_id: &str) -> Result<Option<StoredMigration>, LinkError> {
        let Some(stored) = self.read(&self.keys().operation(run_id)).await? else { return Ok(None) };
        let malformed = |message: String| LinkError::Malformed { key: stored.key.clone(), message };
        let raw: serde_json::Value = parse(&stored.value).map_err(malformed)?;
        if raw["version"] != VERSION || raw["storageMigration"].is_null() {
            return Err(malformed(format!("it is not a migration's record of version {VERSION}")));
        }
        let envelope: Envelope = serde_json::from_value(raw).map_err(|error| malformed(error.to_string()))?;
        let mut record = Record::from(envelope.record);
        if let Some(stored) = self.read(&self.logs_key(run_id)).await? {
            let wire: LogsWire = parse(&stored.value).map_err(malformed)?;
            record.logs = Arc::new(wire.logs.iter().map(|text| read_log(text)).collect());
            record.there = Arc::new(wire.there.iter().map(|text| read_log(text)).collect());
        }
        if let Some(stored) = self.read(&self.positions_key(run_id)).await? {
            record.positions = Arc::new(parse(&stored.value).map_err(malformed)?);
        }
        let (logs, positions) = ((record.logs.clone(), record.there.clone()), record.positions.clone());
        let name = envelope.storage_migration;
        Ok(Some(StoredMigration { name, record, revision: stored.revision, logs, positions }))
    }

    /// The run that holds a StorageCell.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn run_of_storage(&self, storage_cell: &str) -> Result<Option<String>, LinkError> {
        self.run_of_unit(&hold(storage_cell)).await
    }

    /// Begins a run: its record and the hold on both StorageCells, all or nothing.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn begin_migration(&self, name: &str, record: &Record) -> Result<MigrationBegun, LinkError> {
        let spec = &record.spec;
        let key = self.keys().operation(&spec.run_id);
        let holds = [&spec.source, &spec.target].map(|side| self.keys().unit_run(&hold(side)));
        let mut guards = vec![Compare::version(key.as_str(), CompareOp::Equal, 0)];
        guards.extend(holds.iter().map(|hold| Compare::version(hold.as_str(), CompareOp::Equal, 0)));
        let mut writes = vec![TxnOp::put(key.as_str(), encode(name, record, &key)?, None)];
        writes.extend(holds.iter().map(|hold| TxnOp::put(hold.as_str(), spec.run_id.as_str(), None)));
        self.write(guards, writes).await?;
        // Read back in every case: an attempt whose answer was lost may have succeeded.
        if let Some(run) = self.migration_run(&spec.run_id).await? {
            return Ok(MigrationBegun::Begun(Box::new(run)));
        }
        for side in [&spec.source, &spec.target] {
            if let Some(run_id) = self.run_of_storage(side).await? {
                return Ok(MigrationBegun::Busy { storage_cell: side.clone(), run_id });
            }
        }
        Err(LinkError::Malformed { key, message: "the run was neither begun nor refused; trying again".into() })
    }

    /// Stores the next record; `None` when somebody else wrote it meanwhile: it must be read again.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn save_migration(
        &self,
        run: &StoredMigration,
        record: &Record,
    ) -> Result<Option<StoredMigration>, LinkError> {
        let spec = &record.spec;
        let key = self.keys().operation(&spec.run_id);
        let guard = Compare::mod_revision(key.as_str(), CompareOp::Equal, run.revision);
        let mut writes = vec![TxnOp::put(key.as_str(), encode(&run.name, record, &key)?, None)];
        let logs = (record.logs.clone(), record.there.clone());
        if logs != run.logs {
            let wire = LogsWire {
                logs: logs.0.iter().map(write_log).collect(),
                there: logs.1.iter().map(write_log).collect(),
            };
            let text = serde_json::to_vec(&wire)
                .map_err(|error| LinkError::Malformed { key: key.clone(), message: error.to_string() })?;
            writes.push(TxnOp::put(self.logs_key(&spec.run_id), text, None));
        }
        // While they are looked at they change with every log, but a place in a sweep is stored rarely: what lies before it is not asked
        // again by whoever goes on from there.
        let moved = record.positions != run.positions;
        if moved {
            let text = serde_json::to_vec(&*record.positions)
                .map_err(|error| LinkError::Malformed { key: key.clone(), message: error.to_string() })?;
            writes.push(TxnOp::put(self.positions_key(&spec.run_id), text, None));
        }
        let positions = if moved { record.positions.clone() } else { run.positions.clone() };
        if record.outcome.is_some() {
            let holds = [&spec.source, &spec.target].map(|side| self.keys().unit_run(&hold(side)));
            writes.extend(holds.map(|hold| TxnOp::delete(hold, None)));
        }
        if !self.write(vec![guard], writes).await? {
            return Ok(None);
        }
        let Some(stored) = self.read(&key).await? else { return Ok(None) };
        let (name, record, revision) = (run.name.clone(), record.clone(), stored.revision);
        Ok(Some(StoredMigration { name, record, revision, logs, positions }))
    }

    /// Forgets a finished run.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn forget_migration(&self, run: &StoredMigration) -> Result<(), LinkError> {
        let run_id = &run.record.spec.run_id;
        let key = self.keys().operation(run_id);
        let guard = Compare::mod_revision(key.as_str(), CompareOp::Equal, run.revision);
        let keys = [self.logs_key(run_id), self.positions_key(run_id), key];
        let writes = keys.into_iter().map(|key| TxnOp::delete(key, None)).collect();
        self.write(vec![guard], writes).await.map(|_| ())
    }

    /// Tells the data services what to keep copies of, or takes that back.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn announce(&self, run_id: &str, migration: Option<&Migration>) -> Result<(), LinkError> {
        let key = self.keys().migration(run_id);
        let write = match migration {
            None => TxnOp::delete(key, None),
            Some(migration) => {
                let text = serde_json::to_vec(migration)
                    .map_err(|error| LinkError::Malformed { key: key.clone(), message: error.to_string() })?;
                TxnOp::put(key, text, None)
            }
        };
        self.write(Vec::new(), vec![write]).await.map(|_| ())
    }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

fn write_log(log: &Log) -> String {
    if log.name == log.unit { log.name.clone() } else { format!("{}@{}", log.name, log.unit) }
}

fn read_log(text: &str) -> Log {
    let (name, unit) = text.split_once('@').unwrap_or((text, text));
    Log { name: name.to_owned(), unit: unit.to_owned() }
}

fn encode(name: &str, record: &Record, key: &str) -> Result<Vec<u8>, LinkError> {
    let envelope = Envelope { version: VERSION, storage_migration: name.to_owned(), record: record.into() };
    serde_json::to_vec(&envelope)
        .map_err(|error| LinkError::Malformed { key: key.to_owned(), message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_survives_its_short_form() {
        for (name, unit, text) in [("b0001", "b0001", "b0001"), ("g7", "b0042", "g7@b0042")] {
            let log = Log { name: name.into(), unit: unit.into() };
            assert_eq!(write_log(&log), text);
            assert_eq!(read_log(text), log);
        }
    }
}
