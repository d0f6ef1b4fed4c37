//! Reading a log's retained entries by number, owned here or not: finds the segment, then goes on from segment to segment.

use std::sync::Arc;

use cell_proto::v1::{Entry, ReadSegmentRequest, Reason, Refusal, SegmentReply};
use cell_store::{CURSOR_SEGMENT, Store};

use super::logs::unavailable;
use crate::domain;

/// Reads forward; remembers its segment.
pub(super) struct LogReader {
    store: Arc<dyn Store>,
    log: String,
    segment: Option<u64>,
}

fn behind() -> Refusal {
    Refusal::new(Reason::BehindRetention, "the entries asked for were dropped; read everything anew")
}

impl LogReader {
    pub(super) fn new(store: Arc<dyn Store>, log: &str) -> Self {
        Self { store, log: log.to_owned(), segment: None }
    }

    async fn read(&self, segment: u64, from: u64, limit: usize) -> Result<SegmentReply, Refusal> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let request = ReadSegmentRequest { log: self.log.clone(), segment, from, limit, bodies_from: 0 };
        self.store.read_segment(request).await.map_err(|error| unavailable(&error))
    }

    async fn last_of(&self, segment: u64) -> Result<Option<u64>, Refusal> {
        if segment == 0 {
            return Ok(Some(0));
        }
        Ok(self.read(segment, 0, 0).await?.statics.map(|statics| statics.last))
    }

    /// The segment that holds `from`, or the last one if nothing does yet.
    async fn locate(&self, from: u64) -> Result<Option<u64>, Refusal> {
        let hint = self.store.read_cursor(&self.log, CURSOR_SEGMENT).await.map_err(|error| unavailable(&error))?;
        let mut segment = hint.max(1);
        let Some(mut last) = self.last_of(segment).await? else { return Ok(None) };
        while last < from {
            let Some(next) = self.last_of(segment + 1).await? else { return Ok(Some(segment)) };
            (segment, last) = (segment + 1, next);
        }
        while let Some(before) = self.last_of(segment - 1).await? {
            if before < from || segment == 1 {
                return Ok(Some(segment));
            }
            segment -= 1;
        }
        // What comes before was dropped: is `from` still here?
        let first = self.read(segment, 0, 1).await?.entries.first().map(|entry| entry.number);
        if first.is_some_and(|first| first <= from) { Ok(Some(segment)) } else { Err(behind()) }
    }

    /// Up to `limit` entries from a number on, and the last number of the log as far as seen; empty at its end.
    ///
    /// # Errors
    /// `BehindRetention`, `StoreUnavailable`.
    pub(super) async fn next(&mut self, from: u64, limit: usize) -> Result<(Vec<Entry>, u64), Refusal> {
        let from = from.max(1);
        if self.segment.is_none() {
            self.segment = self.locate(from).await?;
        }
        let Some(mut segment) = self.segment else { return Ok((Vec::new(), 0)) };
        loop {
            let reply = self.read(segment, from, limit).await?;
            let Some(statics) = reply.statics else {
                self.segment = None;
                return Err(behind());
            };
            if !reply.entries.is_empty() {
                let entries: Result<Vec<Entry>, _> = reply.entries.iter().map(domain::entry_of).collect();
                let entries = entries.map_err(|error| Refusal::new(Reason::StoreUnavailable, error.to_string()))?;
                self.segment = Some(segment);
                return Ok((entries, statics.last));
            }
            if !statics.sealed || self.last_of(segment + 1).await?.is_none() {
                self.segment = Some(segment);
                return Ok((Vec::new(), statics.last));
            }
            segment += 1;
        }
    }
}
