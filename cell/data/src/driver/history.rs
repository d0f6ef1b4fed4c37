//! Pages of a channel's messages over its ten-day buckets: a few buckets at a time, merged by id, stopping as soon as the page is full.

use std::sync::Arc;

use cell_proto::snowflake::{AHEAD_MS, first_of_ms, message_bucket};
use cell_proto::v1::{Message, MessagePage, MessagePageQuery, ReadRowsRequest, Reason, Refusal};
use cell_runtime::unix_ms;
use cell_store::Store;
use futures::StreamExt;

use super::empty::EmptyBuckets;
use super::logs::unavailable;
use super::query::message_of;
use crate::domain::tables::{MESSAGES, id_key, message_partition};

/// Buckets read at once.
const PARALLEL: usize = 4;

fn limit(query: &MessagePageQuery) -> Result<usize, Refusal> {
    let bounds = [query.before, query.after, query.around];
    if bounds.iter().filter(|bound| **bound != 0).count() > 1 || bounds.iter().any(|bound| *bound < 0) {
        return Err(Refusal::new(
            Reason::Invalid,
            "at most one of before, after and around may be set, and not below 0",
        ));
    }
    let limit = usize::try_from(query.limit).ok().filter(|limit| (1..=100).contains(limit));
    limit.ok_or_else(|| Refusal::new(Reason::Invalid, "limit must be 1–100"))
}

/// One page, newest first.
pub(super) async fn page(
    store: &Arc<dyn Store>,
    query: &MessagePageQuery,
    empty: Option<&EmptyBuckets>,
) -> Result<MessagePage, Refusal> {
    let limit = limit(query)?;
    let scan = |from: i64, to: i64, newest_first: bool, limit: usize| Scan {
        store: store.clone(),
        empty,
        channel_id: query.channel_id,
        from,
        to,
        newest_first,
        limit,
    };
    let mut messages = if query.around != 0 {
        let mut newer = scan(query.around, i64::MAX, false, limit.div_ceil(2)).run().await?;
        newer.reverse();
        newer.extend(scan(0, query.around, true, limit - limit.div_ceil(2)).run().await?);
        newer
    } else if query.after != 0 {
        let mut newer = scan(query.after.saturating_add(1), i64::MAX, false, limit).run().await?;
        newer.reverse();
        newer
    } else {
        scan(0, if query.before == 0 { i64::MAX } else { query.before }, true, limit).run().await?
    };
    messages.truncate(limit);
    Ok(MessagePage { messages })
}

/// One message; none when it does not exist.
pub(super) async fn one(store: &Arc<dyn Store>, channel_id: i64, message_id: i64) -> Result<Option<Message>, Refusal> {
    if message_id <= 0 {
        return Ok(None);
    }
    let scan = Scan {
        store: store.clone(),
        empty: None,
        channel_id,
        from: message_id,
        to: message_id.saturating_add(1),
        newest_first: false,
        limit: 1,
    };
    let bucket = message_bucket(message_id);
    Ok(scan.bucket(bucket).await?.into_iter().next())
}

/// Messages with ids in `[from, to)`.
#[derive(Clone)]
struct Scan<'a> {
    store: Arc<dyn Store>,
    /// Not for copies: what they lack must show.
    empty: Option<&'a EmptyBuckets>,
    channel_id: i64,
    from: i64,
    to: i64,
    newest_first: bool,
    limit: usize,
}

impl Scan<'_> {
    async fn run(&self) -> Result<Vec<Message>, Refusal> {
        if self.limit == 0 {
            return Ok(Vec::new());
        }
        // No message is older than its channel; ids may run a little ahead of the clock.
        let oldest = message_bucket(self.channel_id.max(self.from));
        let newest = message_bucket(first_of_ms(unix_ms() + AHEAD_MS).min(self.to)).max(oldest);
        let buckets: Vec<i64> =
            if self.newest_first { (oldest..=newest).rev().collect() } else { (oldest..=newest).collect() };
        let mut found = Vec::new();
        let mut reads = futures::stream::iter(buckets).map(|bucket| self.bucket(bucket)).buffered(PARALLEL);
        while let Some(messages) = reads.next().await {
            found.extend(messages?);
            if found.len() >= self.limit {
                break;
            }
        }
        found.truncate(self.limit);
        Ok(found)
    }

    /// Up to `limit` messages of one bucket. Rows without a message (an edit that outlived it) are passed over.
    async fn bucket(&self, bucket: i64) -> Result<Vec<Message>, Refusal> {
        if self.empty.is_some_and(|empty| empty.skips(self.channel_id, bucket)) {
            return Ok(Vec::new());
        }
        let (mut start, mut end) = (id_key(self.from), id_key(self.to));
        let mut found = Vec::new();
        loop {
            let request = ReadRowsRequest {
                table: MESSAGES.to_owned(),
                partition: message_partition(self.channel_id, bucket),
                start: start.clone(),
                end: end.clone(),
                limit: i32::try_from(self.limit - found.len()).unwrap_or(i32::MAX),
                reverse: self.newest_first,
            };
            let reply = self.store.read_rows(request).await.map_err(|error| unavailable(&error))?;
            found.extend(reply.rows.iter().filter_map(message_of));
            let Some(last) = reply.rows.last().filter(|_| reply.more && found.len() < self.limit) else {
                if let Some(empty) = self.empty.filter(|_| found.is_empty()) {
                    empty.found_nothing(self.channel_id, bucket, (self.from, self.to), unix_ms());
                }
                return Ok(found);
            };
            if self.newest_first {
                end = last.clustering.clone();
            } else {
                start = [last.clustering.as_slice(), &[0]].concat();
            }
        }
    }
}

#[cfg(test)]
mod tests;
