//! The durable half of the ranges machine: one SQLite file that is committed and synced before an answer is given. It holds what is done,
//! what was leased, sums and receipts; never a row, never a secret.

mod marks;

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::ranges::{Counts, Digest, IntervalSet, LaneName, Phase, Record, Saved, SavedLease, Tokens};

/// The format written; another one is refused.
const FORMAT: i64 = 3;
/// "cmig": tells our files from other programs' databases.
const APPLICATION_ID: i64 = 0x636d_6967;

/// Why a ledger is of no use.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// SQLite said no.
    #[error("failed to {doing} the state file {path}: {source}")]
    Sqlite {
        /// What was tried.
        doing: &'static str,
        /// File.
        path: PathBuf,
        /// SQLite's words.
        source: rusqlite::Error,
    },
    /// Another process has it open.
    #[error("the state file {0} is in use by another process; let that one finish, or stop it")]
    InUse(PathBuf),
    /// Another program's database.
    #[error("{0} is a database of another program; give another --state")]
    Foreign(PathBuf),
    /// Written by a later version.
    #[error(
        "{path} has format {found}, this version knows {FORMAT}; go on with the version that wrote it, or begin anew with another --state"
    )]
    Newer {
        /// File.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
    /// Of another migration.
    #[error(
        "{path} belongs to another migration ({field}: {found}, now {given}); give another --state, or delete it to begin anew"
    )]
    AnotherRun {
        /// File.
        path: PathBuf,
        /// What differs.
        field: String,
        /// There.
        found: String,
        /// Now.
        given: String,
    },
    /// What is stored makes no sense.
    #[error("{path} is damaged: {what}; delete it to begin anew, which copies everything again")]
    Damaged {
        /// File.
        path: PathBuf,
        /// What.
        what: String,
    },
}

/// An open ledger.
#[derive(Debug)]
pub struct Ledger {
    connection: Connection,
    path: PathBuf,
}

const SCHEMA: &str = "
CREATE TABLE identity (field TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), phase TEXT NOT NULL, round INTEGER NOT NULL, began_ms INTEGER NOT NULL,
  rows_per_second INTEGER NOT NULL, paused INTEGER NOT NULL, source TEXT NOT NULL, target TEXT NOT NULL, last_lease INTEGER NOT NULL,
  counts TEXT NOT NULL, receipt TEXT);
INSERT INTO state VALUES (1, 'idle', 0, 0, 0, 0, '', '', 0, '{\"rows\":0,\"ranges\":0,\"redone\":0,\"repaired\":0,\"withoutCells\":0,\"reread\":0,\"mismatches\":{}}', NULL);
CREATE TABLE lanes (id INTEGER PRIMARY KEY, tbl TEXT NOT NULL, unit TEXT NOT NULL, UNIQUE (tbl, unit));
CREATE TABLE done (lane INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (lane, first, last)) WITHOUT ROWID;
CREATE TABLE leases (id INTEGER PRIMARY KEY, lane INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE digests (lane INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, source TEXT NOT NULL, target TEXT NOT NULL,
  PRIMARY KEY (lane, first)) WITHOUT ROWID;
CREATE TABLE findings (id INTEGER PRIMARY KEY, finding TEXT NOT NULL);
";

impl Ledger {
    /// Opens or makes a ledger. `identity` names what the run is about; a file of another one is refused.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn open(path: &Path, identity: &[(&str, String)]) -> Result<Self, LedgerError> {
        let failed = |source| sqlite("open", path, source);
        let connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(std::time::Duration::from_millis(500)).map_err(failed)?;
        // Held until the process ends, so that two never work with one file.
        let pragmas = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; BEGIN IMMEDIATE; COMMIT;";
        connection.execute_batch(pragmas).map_err(failed)?;
        let mut ledger = Self { connection, path: path.to_owned() };
        ledger.check_format()?;
        ledger.check_identity(identity)?;
        Ok(ledger)
    }

    fn pragma(&self, name: &str) -> Result<i64, LedgerError> {
        self.connection
            .query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
            .map_err(|source| sqlite("read", &self.path, source))
    }

    fn check_format(&mut self) -> Result<(), LedgerError> {
        let tables: i64 = self
            .connection
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .map_err(|source| sqlite("read", &self.path, source))?;
        let (application, format) = (self.pragma("application_id")?, self.pragma("user_version")?);
        if tables == 0 && application == 0 {
            let path = self.path.clone();
            let made = || -> rusqlite::Result<()> {
                let transaction = self.connection.transaction()?;
                transaction.execute_batch(SCHEMA)?;
                transaction.execute_batch(marks::TABLE)?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", FORMAT)?;
                transaction.commit()
            };
            let mut made = made;
            return made().map_err(|source| sqlite("create", &path, source));
        }
        if application != APPLICATION_ID {
            return Err(LedgerError::Foreign(self.path.clone()));
        }
        if format > FORMAT {
            return Err(LedgerError::Newer { path: self.path.clone(), found: format });
        }
        if format == FORMAT - 1 {
            return marks::add(self);
        }
        if format < FORMAT {
            return Err(self.damaged(format!("its format is {format}, which a version before the first release wrote")));
        }
        Ok(())
    }

    fn check_identity(&mut self, identity: &[(&str, String)]) -> Result<(), LedgerError> {
        for (field, given) in identity {
            let found: Option<String> = self
                .connection
                .query_row("SELECT value FROM identity WHERE field = ?1", [field], |row| row.get(0))
                .optional()
                .map_err(|source| sqlite("read", &self.path, source))?;
            match found {
                Some(found) if found != *given => {
                    let (path, field, given) = (self.path.clone(), (*field).to_owned(), given.clone());
                    return Err(LedgerError::AnotherRun { path, field, found, given });
                }
                Some(_) => {}
                None => {
                    self.connection
                        .execute("INSERT INTO identity VALUES (?1, ?2)", params![field, given])
                        .map_err(|source| sqlite("write", &self.path, source))?;
                }
            }
        }
        Ok(())
    }

    fn damaged(&self, what: impl Into<String>) -> LedgerError {
        LedgerError::Damaged { path: self.path.clone(), what: what.into() }
    }

    /// What was committed.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn load(&self) -> Result<Saved, LedgerError> {
        let mut saved = self.load_state()?;
        let read = |source| sqlite("read", &self.path, source);
        let lanes: Vec<(i64, LaneName)> = self.all("SELECT id, tbl, unit FROM lanes", |row| {
            Ok((row.get(0)?, LaneName { table: row.get(1)?, unit: row.get(2)? }))
        })?;
        for (id, name) in lanes {
            let mut set = IntervalSet::default();
            let mut statement =
                self.connection.prepare("SELECT first, last FROM done WHERE lane = ?1").map_err(read)?;
            let rows = statement.query_map([id], |row| Ok((row.get(0)?, row.get(1)?))).map_err(read)?;
            for row in rows {
                let (first, last) = row.map_err(read)?;
                set.insert(Tokens::new(first, last).ok_or_else(|| self.damaged("a range ends before it begins"))?);
            }
            saved.done.insert(name, set);
        }
        self.load_digests(&mut saved)?;
        saved.marks = marks::load(self)?;
        let query = "SELECT leases.id, tbl, unit, first, last FROM leases JOIN lanes ON lanes.id = leases.lane";
        saved.leases = self.all(query, |row| {
            let lane = LaneName { table: row.get(1)?, unit: row.get(2)? };
            let lease: i64 = row.get(0)?;
            Ok(SavedLease {
                lease: lease.cast_unsigned(),
                lane,
                tokens: Tokens { first: row.get(3)?, last: row.get(4)? },
            })
        })?;
        let findings: Vec<String> = self.all("SELECT finding FROM findings ORDER BY id", |row| row.get(0))?;
        for finding in findings {
            saved.findings.push(serde_json::from_str(&finding).map_err(|error| self.damaged(error.to_string()))?);
        }
        Ok(saved)
    }

    fn load_digests(&self, saved: &mut Saved) -> Result<(), LedgerError> {
        type Compared = (LaneName, i64, i64, String, String);
        let query = "SELECT tbl, unit, first, last, source, target FROM digests JOIN lanes ON lanes.id = digests.lane";
        let rows: Vec<Compared> = self.all(query, |row| {
            let lane = LaneName { table: row.get(0)?, unit: row.get(1)? };
            Ok((lane, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })?;
        let digest = |text: &str| -> Result<Digest, LedgerError> {
            serde_json::from_str(text).map_err(|error| self.damaged(error.to_string()))
        };
        for (lane, first, last, source, target) in rows {
            let compared = (last, digest(&source)?, digest(&target)?);
            saved.digests.entry(lane).or_default().insert(first, compared);
        }
        Ok(())
    }

    fn all<T>(
        &self,
        query: &str,
        read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, LedgerError> {
        let failed = |source| sqlite("read", &self.path, source);
        let mut statement = self.connection.prepare(query).map_err(failed)?;
        let rows = statement.query_map([], |row| read(row)).map_err(failed)?;
        rows.collect::<rusqlite::Result<Vec<T>>>().map_err(failed)
    }

    fn load_state(&self) -> Result<Saved, LedgerError> {
        type State = (String, u32, i64, u32, bool, String, String, i64, String, Option<String>);
        let query = "SELECT phase, round, began_ms, rows_per_second, paused, source, target, last_lease, counts, receipt FROM state";
        let state: State = self
            .connection
            .query_row(query, [], |row| {
                Ok((
                    row.get(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get(3)?,
                    row.get(4)?,
                    row.get(5)?,
                    row.get(6)?,
                    row.get(7)?,
                    row.get(8)?,
                    row.get(9)?,
                ))
            })
            .map_err(|source| sqlite("read", &self.path, source))?;
        let (phase, round, began_ms, rows_per_second, paused, source, target, last_lease, counts, receipt) = state;
        let json = |error: serde_json::Error| self.damaged(error.to_string());
        Ok(Saved {
            phase: Phase::of_label(&phase).ok_or_else(|| self.damaged(format!("phase {phase:?}")))?,
            round,
            began_ms,
            rows_per_second,
            paused,
            source,
            target,
            last_lease: last_lease.cast_unsigned(),
            counts: serde_json::from_str(&counts).map_err(json)?,
            receipt: receipt.as_deref().map(serde_json::from_str).transpose().map_err(json)?,
            ..Saved::default()
        })
    }

    /// Commits records, all or none; durable when it returns.
    ///
    /// # Errors
    /// [`LedgerError`]; nothing was kept then.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), LedgerError> {
        if records.is_empty() {
            return Ok(());
        }
        let written = (|| {
            let transaction = self.connection.transaction()?;
            for record in records {
                write(&transaction, record)?;
            }
            transaction.commit()
        })();
        written.map_err(|source| sqlite("write", &self.path, source))
    }
}

fn sqlite(doing: &'static str, path: &Path, source: rusqlite::Error) -> LedgerError {
    match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
            LedgerError::InUse(path.to_owned())
        }
        Some(rusqlite::ErrorCode::NotADatabase) => LedgerError::Foreign(path.to_owned()),
        _ => LedgerError::Sqlite { doing, path: path.to_owned(), source },
    }
}

fn lane_id(transaction: &Transaction<'_>, lane: &LaneName) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached("INSERT INTO lanes (tbl, unit) VALUES (?1, ?2) ON CONFLICT DO NOTHING")?
        .execute(params![lane.table, lane.unit])?;
    transaction
        .prepare_cached("SELECT id FROM lanes WHERE tbl = ?1 AND unit = ?2")?
        .query_row(params![lane.table, lane.unit], |row| row.get(0))
}

fn write(transaction: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    let json = |error: serde_json::Error| rusqlite::Error::ToSqlConversionFailure(error.into());
    let run = |sql: &str, values: &[&dyn rusqlite::ToSql]| transaction.prepare_cached(sql)?.execute(values).map(|_| ());
    match record {
        Record::Began { phase, round, at_ms } => {
            let counts = serde_json::to_string(&Counts::default()).map_err(json)?;
            run("DELETE FROM done", &[])?;
            run("DELETE FROM digests", &[])?;
            run("DELETE FROM marks", &[])?;
            run("DELETE FROM findings", &[])?;
            run(
                "UPDATE state SET phase = ?1, round = ?2, began_ms = ?3, counts = ?4",
                &[&phase.label(), round, at_ms, &counts],
            )
        }
        Record::Set { rows_per_second, paused, source, target } => run(
            "UPDATE state SET rows_per_second = ?1, paused = ?2, source = ?3, target = ?4",
            &[rows_per_second, paused, source, target],
        ),
        Record::Lane(lane) => lane_id(transaction, lane).map(|_| ()),
        Record::Leased(SavedLease { lease, lane, tokens }) => {
            let (lane, lease) = (lane_id(transaction, lane)?, lease.cast_signed());
            run("INSERT INTO leases VALUES (?1, ?2, ?3, ?4)", &[&lease, &lane, &tokens.first, &tokens.last])?;
            run("UPDATE state SET last_lease = max(last_lease, ?1)", &[&lease])
        }
        Record::Shrunk { lease, tokens } => run(
            "UPDATE leases SET first = ?2, last = ?3 WHERE id = ?1",
            &[&lease.cast_signed(), &tokens.first, &tokens.last],
        ),
        Record::Done { lane, tokens } => {
            let lane = lane_id(transaction, lane)?;
            // A range that begins where this one ends is made longer instead: a range's many small steps stay one row.
            let before = tokens.first.checked_sub(1);
            let grown = transaction
                .prepare_cached("UPDATE OR REPLACE done SET last = ?3 WHERE lane = ?1 AND last = ?2")?
                .execute(params![lane, before, tokens.last])?;
            if grown > 0 {
                return Ok(());
            }
            run("INSERT OR IGNORE INTO done VALUES (?1, ?2, ?3)", &[&lane, &tokens.first, &tokens.last])
        }
        Record::Compared { lane, tokens, source, target } => {
            let lane = lane_id(transaction, lane)?;
            let [source, target] = [source, target].map(serde_json::to_string);
            let (source, target) = (source.map_err(json)?, target.map_err(json)?);
            let values: [&dyn rusqlite::ToSql; 5] = [&lane, &tokens.first, &tokens.last, &source, &target];
            run("INSERT OR REPLACE INTO digests VALUES (?1, ?2, ?3, ?4, ?5)", &values)
        }
        Record::Marked { lane, marks } => marks::write(transaction, lane_id(transaction, lane)?, marks),
        Record::Over { lease } => run("DELETE FROM leases WHERE id = ?1", &[&lease.cast_signed()]),
        Record::Counted(grown) => {
            let stored: String = transaction.query_row("SELECT counts FROM state", [], |row| row.get(0))?;
            let mut counts: Counts = serde_json::from_str(&stored).map_err(json)?;
            counts.add(grown);
            run("UPDATE state SET counts = ?1", &[&serde_json::to_string(&counts).map_err(json)?])
        }
        Record::Found(finding) => {
            run("INSERT INTO findings (finding) VALUES (?1)", &[&serde_json::to_string(finding).map_err(json)?])
        }
        Record::Receipt(receipt) => {
            run("UPDATE state SET receipt = ?1", &[&serde_json::to_string(receipt).map_err(json)?])
        }
        Record::NoReceipt => run("UPDATE state SET receipt = NULL", &[]),
    }
}

#[cfg(test)]
mod tests;
