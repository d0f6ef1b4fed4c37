//! Marks in the ledger: a lane's are written together, for they are few.

use std::collections::BTreeMap;

use rusqlite::{Transaction, params};

use super::{FORMAT, Ledger, LedgerError, sqlite};
use crate::ranges::{LaneName, Marks, Tokens};

/// Where they are.
pub(super) const TABLE: &str = "
CREATE TABLE marks (lane INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, mark BLOB NOT NULL,
  PRIMARY KEY (lane, first)) WITHOUT ROWID;
";

/// Of every lane that has some.
pub(super) fn load(ledger: &Ledger) -> Result<BTreeMap<LaneName, Marks>, LedgerError> {
    let query = "SELECT tbl, unit, first, last, mark FROM marks JOIN lanes ON lanes.id = marks.lane";
    let rows: Vec<(LaneName, i64, i64, Vec<u8>)> = ledger.all(query, |row| {
        Ok((LaneName { table: row.get(0)?, unit: row.get(1)? }, row.get(2)?, row.get(3)?, row.get(4)?))
    })?;
    let mut loaded = BTreeMap::<LaneName, Marks>::new();
    for (lane, first, last, mark) in rows {
        let tokens = Tokens::new(first, last).ok_or_else(|| ledger.damaged("a mark's range ends before it begins"))?;
        loaded.entry(lane).or_default().set(tokens, mark);
    }
    Ok(loaded)
}

/// Puts a lane's marks in the place of those it had.
pub(super) fn write(transaction: &Transaction<'_>, lane: i64, marks: &Marks) -> rusqlite::Result<()> {
    transaction.prepare_cached("DELETE FROM marks WHERE lane = ?1")?.execute([lane])?;
    let mut insert = transaction.prepare_cached("INSERT INTO marks VALUES (?1, ?2, ?3, ?4)")?;
    for (tokens, mark) in marks.iter() {
        insert.execute(params![lane, tokens.first, tokens.last, mark])?;
    }
    Ok(())
}

/// Makes room for marks in a file of the format before. It had none: what was under way is read anew.
pub(super) fn add(ledger: &mut Ledger) -> Result<(), LedgerError> {
    let path = ledger.path.clone();
    let made = (|| {
        let transaction = ledger.connection.transaction()?;
        transaction.execute_batch(TABLE)?;
        transaction.pragma_update(None, "user_version", FORMAT)?;
        transaction.commit()
    })();
    made.map_err(|source| sqlite("upgrade", &path, source))
}
