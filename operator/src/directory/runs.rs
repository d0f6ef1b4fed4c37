//! Records of runs in etcd: `operations/<runId>` holds the step, `runs/<unit>` says which run holds a unit. Every write is guarded by
//! the leader's token and the revision it was based on. A record names the Move that drives it by its UID: who owns a run is decided
//! here and never read from a status.

use std::collections::BTreeSet;

use cell_plan::moves::{Record, Spec, Subject};
use etcd_client::{Compare, CompareOp, TxnOp};
use serde::{Deserialize, Serialize};

use super::link::{Link, LinkError, Stored};
use super::wire::RecordWire;

/// The format of a stored run. Another is not touched.
const VERSION: u32 = 1;

/// A run as stored.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredRun {
    /// Name of the Move that drives it.
    pub move_name: String,
    /// UID of that Move.
    pub owner: String,
    /// Everything remembered.
    pub record: Record,
    /// Guards the next write.
    pub revision: i64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    version: u32,
    move_name: String,
    /// UID of the Move that adopted the run; absent while it is the one that began it, for which the run is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    record: RecordWire,
}

/// What became of an attempt to begin.
#[derive(Clone, PartialEq, Debug)]
pub enum Begun {
    /// The units are this run's.
    Begun(Box<StoredRun>),
    /// A unit is another run's.
    Busy {
        /// The unit.
        unit: String,
        /// The run that holds it.
        run_id: String,
    },
}

/// Whether two specs ask for the same: everything but the run's name and its deadline.
pub fn content_of(spec: &Spec) -> Spec {
    Spec { run_id: String::new(), deadline_ms: 0, ..spec.clone() }
}

/// In which fields of a Move two specs ask for different things, each with both values. Empty when [`content_of`] says that they are
/// the same.
pub fn differences(run: &Spec, asked: &Spec) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |field: &str, run: String, asked: String| {
        if run != asked {
            found.push(format!("spec.{field} is {run} in the run and {asked} here"));
        }
    };
    compare("guild or units", subjects(run), subjects(asked));
    compare("from", run.from.clone(), asked.from.clone());
    compare("to", run.to.clone(), asked.to.clone());
    compare("mergeIntoBucket", run.merge.to_string(), asked.merge.to_string());
    let seconds = |spec: &Spec| (spec.rollback_window_ms / 1000).to_string();
    compare("rollbackWindowSeconds", seconds(run), seconds(asked));
    found
}

fn subjects(spec: &Spec) -> String {
    let name = |subject: &Subject| match subject {
        Subject::Guild { guild_id, may_split: true, .. } => format!("guild {guild_id}"),
        other => format!("unit {}", other.log()),
    };
    spec.subjects.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl Link {
    /// Reads a run. A record that this version cannot read is [`LinkError::Malformed`]: nothing is written then.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn run(&self, run_id: &str) -> Result<Option<StoredRun>, LinkError> {
        self.read(&self.keys().operation(run_id)).await?.map(decode).transpose()
    }

    /// The run that holds a unit.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn run_of_unit(&self, unit: &str) -> Result<Option<String>, LinkError> {
        let found = self.read(&self.keys().unit_run(unit)).await?;
        Ok(found.map(|stored| String::from_utf8_lossy(&stored.value).into_owned()))
    }

    /// The runs that hold a unit, each once, by id: those that have not ended.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn holding_runs(&self) -> Result<BTreeSet<String>, LinkError> {
        let held = self.read_below(&self.keys().unit_run("")).await?;
        Ok(held.into_iter().map(|stored| String::from_utf8_lossy(&stored.value).into_owned()).collect())
    }

    /// Gives a run to another Move; `None` when somebody else wrote it meanwhile.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn adopt(&self, run: &StoredRun, move_name: &str, uid: &str) -> Result<Option<StoredRun>, LinkError> {
        let adopted = StoredRun { move_name: move_name.to_owned(), owner: uid.to_owned(), ..run.clone() };
        let key = self.keys().operation(&run.record.spec.run_id);
        let guard = Compare::mod_revision(key.as_str(), CompareOp::Equal, run.revision);
        let write = TxnOp::put(key.as_str(), encode(&adopted, &run.record, &key)?, None);
        if !self.write(vec![guard], vec![write]).await? {
            return Ok(None);
        }
        let written = self.run(&run.record.spec.run_id).await?;
        Ok(written.filter(|written| written.owner == uid))
    }

    /// Begins a run: its record and the hold on its units, all or nothing.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn begin(&self, move_name: &str, record: &Record) -> Result<Begun, LinkError> {
        let key = self.keys().operation(&record.spec.run_id);
        let units: Vec<String> =
            record.spec.subjects.iter().map(|subject| self.keys().unit_run(subject.log())).collect();
        let owner = record.spec.run_id.clone();
        let begun = StoredRun { move_name: move_name.to_owned(), owner, record: record.clone(), revision: 0 };
        let mut guards = vec![Compare::version(key.as_str(), CompareOp::Equal, 0)];
        guards.extend(units.iter().map(|unit| Compare::version(unit.as_str(), CompareOp::Equal, 0)));
        let mut writes = vec![TxnOp::put(key.as_str(), encode(&begun, record, &key)?, None)];
        writes.extend(units.iter().map(|unit| TxnOp::put(unit.as_str(), record.spec.run_id.as_str(), None)));
        self.write(guards, writes).await?;
        // Read back in every case: an attempt whose answer was lost may have succeeded.
        if let Some(run) = self.run(&record.spec.run_id).await? {
            return Ok(Begun::Begun(Box::new(run)));
        }
        for subject in &record.spec.subjects {
            if let Some(run_id) = self.run_of_unit(subject.log()).await? {
                return Ok(Begun::Busy { unit: subject.log().to_owned(), run_id });
            }
        }
        Err(LinkError::Malformed { key, message: "the run was neither begun nor refused; trying again".into() })
    }

    /// Stores the next record; `None` when somebody else wrote it meanwhile: it must be read again.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn save(&self, run: &StoredRun, record: &Record) -> Result<Option<StoredRun>, LinkError> {
        let key = self.keys().operation(&record.spec.run_id);
        let guard = Compare::mod_revision(key.as_str(), CompareOp::Equal, run.revision);
        let mut writes = vec![TxnOp::put(key.as_str(), encode(run, record, &key)?, None)];
        if record.outcome.is_some() {
            let units = record.spec.subjects.iter().map(|subject| self.keys().unit_run(subject.log()));
            writes.extend(units.map(|unit| TxnOp::delete(unit, None)));
        }
        if !self.write(vec![guard], writes).await? {
            return Ok(None);
        }
        // The revision of the write: read back, since a transaction's answer holds the store's revision, not the key's.
        let written = self.run(&record.spec.run_id).await?;
        Ok(written.filter(|written| written.record == *record))
    }

    /// Forgets a finished run.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn forget_run(&self, run: &StoredRun) -> Result<(), LinkError> {
        let key = self.keys().operation(&run.record.spec.run_id);
        let guard = Compare::mod_revision(key.as_str(), CompareOp::Equal, run.revision);
        self.write(vec![guard], vec![TxnOp::delete(key, None)]).await.map(|_| ())
    }
}

fn encode(run: &StoredRun, record: &Record, key: &str) -> Result<Vec<u8>, LinkError> {
    let owner = Some(run.owner.clone()).filter(|owner| *owner != record.spec.run_id);
    let envelope = Envelope { version: VERSION, move_name: run.move_name.clone(), owner, record: record.into() };
    serde_json::to_vec(&envelope)
        .map_err(|error| LinkError::Malformed { key: key.to_owned(), message: error.to_string() })
}

fn decode(stored: Stored) -> Result<StoredRun, LinkError> {
    let malformed = |message: String| LinkError::Malformed { key: stored.key.clone(), message };
    let raw: serde_json::Value = serde_json::from_slice(&stored.value).map_err(|error| malformed(error.to_string()))?;
    if raw["version"] != VERSION {
        return Err(malformed(format!("its version is {}, this operator knows {VERSION}", raw["version"])));
    }
    let envelope: Envelope = serde_json::from_value(raw).map_err(|error| malformed(error.to_string()))?;
    let record: Record = envelope.record.into();
    let owner = envelope.owner.unwrap_or_else(|| record.spec.run_id.clone());
    Ok(StoredRun { move_name: envelope.move_name, owner, record, revision: stored.revision })
}
