//! Feeding followers: from the ring while they keep up, from the segments while they do not. A slow follower holds back nothing but
//! itself: nothing is buffered for it beyond a few batches.

use std::sync::Arc;

use cell_proto::v1::{Entry, FeedBatch, FeedRequest, Refusal};
use cell_store::Store;
use tokio::sync::mpsc;
use tonic::Status as RpcStatus;

use super::handle::{LogHandle, Status};
use super::logs::Logs;
use super::reader::LogReader;
use crate::domain;

/// Entries of one batch.
const BATCH: usize = 256;
/// Batches on their way to one follower.
const AHEAD: usize = 8;

pub(super) type FeedSender = mpsc::Sender<Result<FeedBatch, RpcStatus>>;

/// Whether an entry is of a guild; 0 stands for all.
pub(super) fn concerns(entry: &Entry, guild_id: i64) -> bool {
    guild_id == 0
        || entry.change.as_ref().and_then(|change| change.kind.as_ref()).and_then(domain::guild_of) == Some(guild_id)
}

/// A channel for one follower.
pub(super) fn channel() -> (FeedSender, mpsc::Receiver<Result<FeedBatch, RpcStatus>>) {
    mpsc::channel(AHEAD)
}

/// Feeds one follower until it goes away or the log leaves; then the refusal is its last batch.
pub(super) async fn run(logs: Arc<Logs>, handle: LogHandle, request: FeedRequest, out: FeedSender) {
    logs.context.metrics.feeds.inc();
    let refusal = match handle.store() {
        Ok(store) => follow(&store, &handle, &request, &out).await,
        Err(refusal) => Some(refusal),
    };
    logs.context.metrics.feeds.dec();
    if let Some(refusal) = refusal {
        tracing::debug!(log = %handle.log, follower = %request.follower, reason = refusal.why().label(), "a feed ended");
        let refusal = logs.redirect(&handle.log, refusal).await;
        drop(out.send(Ok(FeedBatch { refusal: Some(refusal), ..FeedBatch::default() })).await);
    }
}

/// The refusal that ends the feed; none when the follower went away.
async fn follow(
    store: &Arc<dyn Store>,
    handle: &LogHandle,
    request: &FeedRequest,
    out: &FeedSender,
) -> Option<Refusal> {
    let mut status = handle.shared.status.subscribe();
    let mut applied = handle.shared.applied.subscribe();
    let mut reader: Option<LogReader> = None;
    let mut next = request.from.max(1);
    let mut told = None;
    loop {
        let term = match &*status.borrow_and_update() {
            Status::Owned(head) => head.term,
            Status::Released(refusal) => return Some(refusal.clone()),
            Status::Claiming => 0,
        };
        let last = *applied.borrow_and_update();
        if next <= last {
            let from_ring = handle.shared.ring.lock().from(next, BATCH);
            let entries: Vec<Entry> = match from_ring {
                Some(entries) => {
                    reader = None;
                    entries.iter().map(|entry| Entry::clone(entry)).collect()
                }
                None => {
                    let reader = reader.get_or_insert_with(|| LogReader::new(store.clone(), &handle.log));
                    match reader.next(next, BATCH).await {
                        Ok((entries, _)) => entries.into_iter().filter(|entry| entry.number <= last).collect(),
                        Err(refusal) => return Some(refusal),
                    }
                }
            };
            // An owner's applied entries are in the log; nothing found means that it is not the owner any more.
            let Some(newest) = entries.last().map(|entry| entry.number) else {
                if out.is_closed() {
                    return None;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                continue;
            };
            next = newest + 1;
            let entries: Vec<Entry> = entries.into_iter().filter(|entry| concerns(entry, request.guild_id)).collect();
            if !entries.is_empty() || next > last {
                told = Some(last);
                let batch = FeedBatch { entries, last, term, refusal: None };
                out.send(Ok(batch)).await.ok()?;
            }
            continue;
        }
        if told != Some(last) {
            told = Some(last);
            out.send(Ok(FeedBatch { last, term, ..FeedBatch::default() })).await.ok()?;
        }
        tokio::select! {
            changed = applied.changed() => if changed.is_err() { return handle_gone(handle) },
            changed = status.changed() => if changed.is_err() { return handle_gone(handle) },
            () = out.closed() => return None,
        }
    }
}

fn handle_gone(handle: &LogHandle) -> Option<Refusal> {
    match &*handle.shared.status.borrow() {
        Status::Released(refusal) => Some(refusal.clone()),
        _ => Some(Refusal::new(cell_proto::v1::Reason::NotOwner, "the log was given up here; retry")),
    }
}
