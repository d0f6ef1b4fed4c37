//! Heads, segments and cursors on CQL (LOG.md rules 1–5). A head is a row and a segment a partition; each is changed only by a condition
//! on everything it holds, and read serially. A condition is sent once: what its answer does not say, the caller settles.

use std::collections::BTreeMap;

use cell_proto::v1::{
    AppendRequest, CasHeadReply, CasHeadRequest, CasSegmentRequest, Head, ListHeadsReply, ListHeadsRequest,
    OpenSegmentRequest, ReadSegmentRequest, SegmentReply, Statics, StoredEntry,
};
use cell_store::StoreError;
use cell_store::engine::{ANSWER_BYTES, SMALL_BODY, check_name};
use prost::Message as _;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::value::{CqlValue, Row};

use super::error::unreadable;
use super::statements::{Answer, Kind, Values, is_applied};
use super::store::CqlStore;
use super::values::{Columns, big, blob, number, set, text};

const HEAD: &str = "cell, term, appender, segment, moved_to, moved_at";
const HEAD_IS: &str = "cell = ? AND term = ? AND appender = ? AND segment = ? AND moved_to = ? AND moved_at = ?";
const HEAD_SET: &str = "cell = ?, term = ?, appender = ?, segment = ?, moved_to = ?, moved_at = ?";
const STATICS: &str = "term, sealed, last, last_timestamp, last_snowflake";
const STATICS_IS: &str = "term = ? AND sealed = ? AND last = ? AND last_timestamp = ? AND last_snowflake = ?";
const STATICS_SET: &str = "term = ?, sealed = ?, last = ?, last_timestamp = ?, last_snowflake = ?";

/// Heads or entries of one page.
const PAGE: i32 = 1000;
const ENTRIES_PAGE: i32 = 100;

fn head_values(head: &Head) -> Result<Values, StoreError> {
    Ok(vec![
        text(&head.cell),
        number("term", head.term)?,
        text(&head.appender),
        number("segment", head.segment)?,
        text(&head.moved_to),
        number("moved_at", head.moved_at)?,
    ])
}

fn head_of(log: String, columns: &mut Columns) -> Result<Head, StoreError> {
    Ok(Head {
        log,
        cell: columns.text()?,
        term: columns.number()?,
        appender: columns.text()?,
        segment: columns.number()?,
        moved_to: columns.text()?,
        moved_at: columns.number()?,
    })
}

fn statics_values(statics: &Statics) -> Result<Values, StoreError> {
    Ok(vec![
        number("term", statics.term)?,
        set(CqlValue::Boolean(statics.sealed)),
        number("last", statics.last)?,
        big(statics.last_timestamp_us),
        big(statics.last_snowflake),
    ])
}

fn statics_of(row: Row) -> Result<Option<Statics>, StoreError> {
    let mut columns = Columns::of(row);
    // A partition without a term was never opened, or was dropped.
    let Some(term) = columns.maybe_big()? else { return Ok(None) };
    Ok(Some(Statics {
        term: term.max(0).cast_unsigned(),
        sealed: columns.boolean()?,
        last: columns.number()?,
        last_timestamp_us: columns.big()?,
        last_snowflake: columns.big()?,
    }))
}

fn entry_of(row: Row) -> Result<StoredEntry, StoreError> {
    let mut columns = Columns::of(row);
    Ok(StoredEntry {
        number: columns.number()?,
        timestamp_us: columns.big()?,
        operation_id: columns.maybe_blob()?.unwrap_or_default(),
        body: columns.maybe_blob()?.unwrap_or_default(),
    })
}

fn reply(applied: bool, statics: Option<Statics>) -> SegmentReply {
    SegmentReply { applied, statics, entries: Vec::new() }
}

impl CqlStore {
    pub(super) async fn head(&self, log: &str) -> Result<Option<Head>, StoreError> {
        let log = check_name("log", log)?;
        let cql = format!("SELECT {HEAD} FROM {} WHERE log = ?", self.statements.table("heads"));
        let rows = self.statements.rows(&cql, Kind::SerialRead, vec![text(log)]).await?;
        rows.into_iter().next().map(|row| head_of(log.to_owned(), &mut Columns::of(row))).transpose()
    }

    pub(super) async fn change_head(&self, request: CasHeadRequest) -> Result<CasHeadReply, StoreError> {
        let log = check_name("log", &request.log)?;
        let new = request.new.ok_or_else(|| StoreError::Invalid("new head is missing".to_owned()))?;
        if new.log != log {
            return Err(StoreError::Invalid(format!("the new head names log {:?}, not {log:?}", new.log)));
        }
        let table = self.statements.table("heads");
        let (cql, values) = match &request.expected {
            Some(expected) if expected.log != log => {
                return Ok(CasHeadReply { applied: false, current: self.head(log).await? });
            }
            Some(expected) if expected.term > new.term => {
                return Err(StoreError::Invalid(format!(
                    "the head of {log:?} has term {}, above {}",
                    expected.term, new.term
                )));
            }
            Some(expected) => (
                format!("UPDATE {table} SET {HEAD_SET} WHERE log = ? IF {HEAD_IS}"),
                [head_values(&new)?, vec![text(log)], head_values(expected)?].concat(),
            ),
            None => (
                format!("INSERT INTO {table} (log, {HEAD}) VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"),
                [vec![text(log)], head_values(&new)?].concat(),
            ),
        };
        if is_applied(self.statements.run(&cql, Kind::Condition, values).await?)? {
            return Ok(CasHeadReply { applied: true, current: Some(new) });
        }
        Ok(CasHeadReply { applied: false, current: self.head(log).await? })
    }

    /// Heads lie by token, so a page by name needs all of them; only the page is kept.
    pub(super) async fn heads(&self, request: ListHeadsRequest) -> Result<ListHeadsReply, StoreError> {
        let limit = usize::try_from(request.limit).ok().filter(|limit| (1..=5000).contains(limit));
        let limit = limit.ok_or_else(|| StoreError::Invalid("limit must be 1–5000".to_owned()))?;
        let cql = format!("SELECT log, {HEAD} FROM {}", self.statements.table("heads"));
        let mut found = BTreeMap::new();
        let mut state = PagingState::start();
        loop {
            let Answer { rows, next, .. } = self.statements.page((&cql, Kind::Scan), &Vec::new(), PAGE, state).await?;
            for row in rows {
                let mut columns = Columns::of(row);
                let log = columns.text()?;
                let head = head_of(log.clone(), &mut columns)?;
                if log > request.after && (request.cell.is_empty() || head.cell == request.cell) {
                    found.insert(log, head);
                    if found.len() > limit + 1 {
                        found.pop_last();
                    }
                }
            }
            match next {
                PagingStateResponse::HasMorePages { state: next } => state = next,
                PagingStateResponse::NoMorePages => break,
            }
        }
        let more = found.len() > limit;
        Ok(ListHeadsReply { heads: found.into_values().take(limit).collect(), more, refusal: None })
    }

    async fn statics(&self, log: &str, segment: u64) -> Result<Option<Statics>, StoreError> {
        let table = self.statements.table("segments");
        let cql = format!("SELECT {STATICS} FROM {table} WHERE log = ? AND segment = ? LIMIT 1");
        let values = vec![text(log), number("segment", segment)?];
        let rows = self.statements.rows(&cql, Kind::SerialRead, values).await?;
        rows.into_iter().next().map_or(Ok(None), statics_of)
    }

    pub(super) async fn open_new(&self, request: OpenSegmentRequest) -> Result<SegmentReply, StoreError> {
        let log = check_name("log", &request.log)?;
        let new = request.statics.ok_or_else(|| StoreError::Invalid("statics are missing".to_owned()))?;
        if request.segment == 0 {
            return Err(StoreError::Invalid("segments are numbered from 1".to_owned()));
        }
        let table = self.statements.table("segments");
        let cql = format!("UPDATE {table} SET {STATICS_SET} WHERE log = ? AND segment = ? IF term = null");
        let values = [statics_values(&new)?, vec![text(log), number("segment", request.segment)?]].concat();
        if is_applied(self.statements.run(&cql, Kind::Condition, values).await?)? {
            return Ok(reply(true, Some(new)));
        }
        Ok(reply(false, self.statics(log, request.segment).await?))
    }

    pub(super) async fn change_segment(&self, request: CasSegmentRequest) -> Result<SegmentReply, StoreError> {
        let log = check_name("log", &request.log)?;
        let new = request.new.ok_or_else(|| StoreError::Invalid("new statics are missing".to_owned()))?;
        let Some(expected) = request.expected else {
            return Ok(reply(false, self.statics(log, request.segment).await?));
        };
        let table = self.statements.table("segments");
        let cql = format!("UPDATE {table} SET {STATICS_SET} WHERE log = ? AND segment = ? IF {STATICS_IS}");
        let place = vec![text(log), number("segment", request.segment)?];
        let values = [statics_values(&new)?, place, statics_values(&expected)?].concat();
        if is_applied(self.statements.run(&cql, Kind::Condition, values).await?)? {
            return Ok(reply(true, Some(new)));
        }
        Ok(reply(false, self.statics(log, request.segment).await?))
    }

    /// One conditional batch on the segment's partition: all of it or nothing.
    pub(super) async fn append_entries(&self, request: AppendRequest) -> Result<SegmentReply, StoreError> {
        let log = check_name("log", &request.log)?.to_owned();
        let numbers = request.last.saturating_add(1)..u64::MAX;
        if request.entries.is_empty()
            || !request.entries.iter().map(|entry| entry.number).eq(numbers.take(request.entries.len()))
        {
            return Err(StoreError::Invalid("entries must be numbered from last + 1 on, without holes".to_owned()));
        }
        let new = Statics {
            term: request.term,
            sealed: false,
            last: request.last + request.entries.len() as u64,
            last_timestamp_us: request.last_timestamp_us,
            last_snowflake: request.last_snowflake,
        };
        let table = self.statements.table("segments");
        let place = vec![text(&log), number("segment", request.segment)?];
        let condition = format!(
            "UPDATE {table} SET last = ?, last_timestamp = ?, last_snowflake = ? WHERE log = ? AND segment = ? \
             IF term = ? AND sealed = false AND last = ?"
        );
        let changed = vec![number("last", new.last)?, big(new.last_timestamp_us), big(new.last_snowflake)];
        let expected = vec![number("term", request.term)?, number("last", request.last)?];
        let mut statements = vec![(condition, [changed, place.clone(), expected].concat())];
        let insert =
            format!("INSERT INTO {table} (log, segment, number, timestamp, operation, body) VALUES (?, ?, ?, ?, ?, ?)");
        for entry in request.entries {
            let mut values = place.clone();
            values.extend([number("number", entry.number)?, big(entry.timestamp_us)]);
            values.extend([blob(entry.operation_id), blob(entry.body)]);
            statements.push((insert.clone(), values));
        }
        if is_applied(self.statements.batch(statements, Kind::Condition).await?)? {
            return Ok(reply(true, Some(new)));
        }
        Ok(reply(false, self.statics(&log, request.segment).await?))
    }

    /// Statics first, serially: that settles what is in flight, and what is at most `last` is then at a quorum.
    pub(super) async fn segment(&self, request: ReadSegmentRequest) -> Result<SegmentReply, StoreError> {
        let log = check_name("log", &request.log)?;
        let statics = self.statics(log, request.segment).await?;
        let limit = usize::try_from(request.limit.max(0)).unwrap_or(0);
        let Some(last) = statics.as_ref().map(|statics| statics.last).filter(|last| limit > 0 && request.from <= *last)
        else {
            return Ok(reply(false, statics));
        };
        let cql = format!(
            "SELECT number, timestamp, operation, body FROM {} WHERE log = ? AND segment = ? AND number >= ? AND number <= ?",
            self.statements.table("segments")
        );
        let values =
            vec![text(log), number("segment", request.segment)?, number("from", request.from)?, number("last", last)?];
        let (mut entries, mut bytes, mut state) = (Vec::new(), 0, PagingState::start());
        'pages: loop {
            // Large entries come a few at a time, so that an answer that stops early has not read much more.
            let size = if bytes == 0 { 20 } else { ENTRIES_PAGE };
            let Answer { rows, next, .. } = self.statements.page((&cql, Kind::Read), &values, size, state).await?;
            for row in rows {
                let mut entry = entry_of(row)?;
                if entry.number < request.bodies_from && entry.body.len() > SMALL_BODY {
                    entry.body = Vec::new();
                }
                bytes += entry.encoded_len();
                if !entries.is_empty() && bytes > ANSWER_BYTES {
                    break 'pages;
                }
                entries.push(entry);
                if entries.len() >= limit {
                    break 'pages;
                }
            }
            match next {
                PagingStateResponse::HasMorePages { state: next } => state = next,
                PagingStateResponse::NoMorePages => break,
            }
        }
        Ok(SegmentReply { applied: false, statics, entries })
    }

    /// Deletes the partition at its own highest write time: whatever clock this machine has, that hides all there is and nothing that
    /// comes later. Every change of a segment writes `last`.
    pub(super) async fn discard(&self, log: &str, segment: u64) -> Result<(), StoreError> {
        let log = check_name("log", log)?;
        let table = self.statements.table("segments");
        let place = vec![text(log), number("segment", segment)?];
        let cql = format!("SELECT WRITETIME(last) FROM {table} WHERE log = ? AND segment = ? LIMIT 1");
        let rows = self.statements.rows(&cql, Kind::SerialRead, place.clone()).await?;
        let Some(row) = rows.into_iter().next() else { return Ok(()) };
        let Some(written) = Columns::of(row).maybe_big()? else { return Ok(()) };
        let cql = format!("DELETE FROM {table} USING TIMESTAMP ? WHERE log = ? AND segment = ?");
        self.statements.run(&cql, Kind::Write, [vec![big(written)], place].concat()).await.map(drop)
    }

    pub(super) async fn cursor(&self, log: &str, name: &str) -> Result<u64, StoreError> {
        let values = vec![text(check_name("log", log)?), text(check_name("cursor", name)?)];
        let cql = format!("SELECT value FROM {} WHERE log = ? AND name = ?", self.statements.table("cursors"));
        let rows = self.statements.rows(&cql, Kind::Read, values).await?;
        rows.into_iter().next().map_or(Ok(0), |row| Columns::of(row).number())
    }

    /// A cursor is written at a time that is its value: of any two writes the higher wins, in whatever order they arrive.
    pub(super) async fn raise_cursor(&self, log: &str, name: &str, value: u64) -> Result<u64, StoreError> {
        let place = vec![text(check_name("log", log)?), text(check_name("cursor", name)?)];
        if value > 0 {
            let value = number("cursor", value)?;
            let table = self.statements.table("cursors");
            let cql = format!("UPDATE {table} USING TIMESTAMP ? SET value = ? WHERE log = ? AND name = ?");
            let values = [vec![value.clone(), value], place].concat();
            self.statements.run(&cql, Kind::Write, values).await?;
        }
        let now = self.cursor(log, name).await?;
        if now < value {
            return Err(unreadable("a cursor is below what was written to it"));
        }
        Ok(now)
    }
}
