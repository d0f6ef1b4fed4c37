//! The Watch service: many watches on one stream. A client too slow to read only delays itself: the store's queues and history wait
//! for it, or end its watches.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::proto::{PbEvent, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse, PbWatchService};
use futures::StreamExt;
use futures::stream::{self, AbortHandle, BoxStream, SelectAll};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{convert, keys, refusal};
use crate::store::{EventKind, Store, StoreError, Watch, WatchBatch, WatchEnd, WatchFrom, WatchProgress};

/// Responses waiting for a client before its stream waits.
const OUT_QUEUE: usize = 64;
/// How often a watch that asked for it hears how far it is. etcd's default is ten minutes, which nobody with a laptop waits for.
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

pub(super) struct WatchService {
    pub store: Store,
    pub shutdown: CancellationToken,
}

#[tonic::async_trait]
impl PbWatchService for WatchService {
    type WatchStream = ReceiverStream<Result<PbWatchResponse, Status>>;

    async fn watch(&self, request: Request<Streaming<PbWatchRequest>>) -> Result<Response<Self::WatchStream>, Status> {
        let (out, responses) = mpsc::channel(OUT_QUEUE);
        let session = Session {
            store: self.store.clone(),
            shutdown: self.shutdown.clone(),
            out,
            watches: HashMap::new(),
            events: SelectAll::new(),
            next_id: 0,
        };
        tokio::spawn(session.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

/// What a client said about one watch, as far as the store does not do it.
struct Running {
    abort: AbortHandle,
    progress: WatchProgress,
    wants_progress: bool,
    no_puts: bool,
    no_deletes: bool,
}

type Delivery = (i64, Result<WatchBatch, WatchEnd>);

/// One stream with its watches.
struct Session {
    store: Store,
    shutdown: CancellationToken,
    out: mpsc::Sender<Result<PbWatchResponse, Status>>,
    watches: HashMap<i64, Running>,
    events: SelectAll<BoxStream<'static, Delivery>>,
    next_id: i64,
}

/// The client is gone, or the server is going.
struct Over;

impl Session {
    async fn run(mut self, mut requests: Streaming<PbWatchRequest>) {
        let mut ticks = tokio::time::interval_at(Instant::now() + PROGRESS_EVERY, PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let step = tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => self.handle(request).await,
                    Ok(None) | Err(_) => Err(Over),
                },
                Some((id, delivery)) = self.events.next(), if !self.events.is_empty() => self.deliver(id, delivery).await,
                _ = ticks.tick() => self.report_progress().await,
                () = self.shutdown.cancelled() => {
                    let _ = self.out.try_send(Err(Status::unavailable(refusal::STOPPED)));
                    Err(Over)
                }
                () = self.out.closed() => Err(Over),
            };
            if step.is_err() {
                return;
            }
        }
    }

    async fn handle(&mut self, request: PbWatchRequest) -> Result<(), Over> {
        match request.request_union {
            Some(PbWatchRequestUnion::CreateRequest(create)) => {
                let from = WatchFrom {
                    start: keys::inner(&create.key),
                    end: keys::inner_end(&create.range_end),
                    from_revision: Some(create.start_revision).filter(|revision| *revision > 0),
                    prev_kv: create.prev_kv,
                };
                let filters = (create.filters.contains(&0), create.filters.contains(&1));
                self.create(create.watch_id, from, create.progress_notify, filters).await
            }
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id).await,
            Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                let revisions = self.watches.values().map(|watch| watch.progress.revision());
                let revision = revisions.min().unwrap_or_else(|| self.store.revision());
                self.send(PbWatchResponse { watch_id: -1, ..response(revision) }).await
            }
            None => Ok(()),
        }
    }

    async fn create(
        &mut self,
        wanted_id: i64,
        mut from: WatchFrom,
        wants_progress: bool,
        (no_puts, no_deletes): (bool, bool),
    ) -> Result<(), Over> {
        // The revision told to the client: everything after it will be delivered.
        let revision = self.store.revision();
        from.from_revision = from.from_revision.or(Some(revision + 1));
        if wanted_id < 0 || self.watches.contains_key(&wanted_id) && wanted_id != 0 {
            let cancel_reason = "mvcc: duplicate watch ID provided on the WatchStream".to_owned();
            let refused = PbWatchResponse { watch_id: -1, created: true, canceled: true, ..response(revision) };
            return self.send(PbWatchResponse { cancel_reason, ..refused }).await;
        }
        let id = if wanted_id == 0 { self.unused_id() } else { wanted_id };
        let created = PbWatchResponse { watch_id: id, created: true, ..response(revision) };
        match self.store.watch(from) {
            Ok(watch) => {
                let progress = watch.progress_handle();
                let (deliveries, abort) = stream::abortable(deliveries(id, watch));
                self.events.push(deliveries.boxed());
                self.watches.insert(id, Running { abort, progress, wants_progress, no_puts, no_deletes });
                self.send(created).await
            }
            Err(StoreError::Compacted { compacted, .. }) => {
                self.send(created).await?;
                self.send(compacted_response(id, revision, compacted)).await
            }
            Err(error) => {
                let cancel_reason = refusal::status(error).message().to_owned();
                self.send(PbWatchResponse { canceled: true, cancel_reason, ..created }).await
            }
        }
    }

    fn unused_id(&mut self) -> i64 {
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    async fn cancel(&mut self, id: i64) -> Result<(), Over> {
        let Some(watch) = self.watches.remove(&id) else { return Ok(()) };
        watch.abort.abort();
        let revision = self.store.revision();
        self.send(PbWatchResponse { watch_id: id, canceled: true, ..response(revision) }).await
    }

    async fn deliver(&mut self, id: i64, delivery: Result<WatchBatch, WatchEnd>) -> Result<(), Over> {
        // What was under way when the client cancelled is no longer wanted.
        let Some(watch) = self.watches.get(&id) else { return Ok(()) };
        match delivery {
            Ok(batch) => {
                let wanted = batch.events.iter().filter(|event| match event.kind {
                    EventKind::Put => !watch.no_puts,
                    EventKind::Delete => !watch.no_deletes,
                });
                let events: Vec<PbEvent> = wanted.map(convert::event).collect();
                if events.is_empty() {
                    return Ok(());
                }
                self.send(PbWatchResponse { watch_id: id, events, ..response(batch.revision) }).await
            }
            Err(WatchEnd::Compacted { compacted }) => {
                self.watches.remove(&id);
                self.send(compacted_response(id, self.store.revision(), compacted)).await
            }
            Err(WatchEnd::Closed) => {
                let _ = self.out.try_send(Err(Status::unavailable(refusal::STOPPED)));
                Err(Over)
            }
        }
    }

    async fn report_progress(&mut self) -> Result<(), Over> {
        let asked = self.watches.iter().filter(|(_, watch)| watch.wants_progress);
        let reports: Vec<(i64, i64)> = asked.map(|(id, watch)| (*id, watch.progress.revision())).collect();
        for (id, revision) in reports {
            self.send(PbWatchResponse { watch_id: id, ..response(revision) }).await?;
        }
        Ok(())
    }

    /// Borrows nothing of the session across the wait, whose streams are not to be shared between threads.
    fn send(&self, response: PbWatchResponse) -> impl Future<Output = Result<(), Over>> + Send + use<> {
        let (out, shutdown) = (self.out.clone(), self.shutdown.clone());
        async move {
            tokio::select! {
                sent = out.send(Ok(response)) => sent.map_err(|_| Over),
                () = shutdown.cancelled() => Err(Over),
            }
        }
    }
}

fn response(revision: i64) -> PbWatchResponse {
    PbWatchResponse { header: convert::header(revision), ..PbWatchResponse::default() }
}

fn compacted_response(id: i64, revision: i64, compacted: i64) -> PbWatchResponse {
    PbWatchResponse {
        watch_id: id,
        canceled: true,
        compact_revision: compacted,
        cancel_reason: refusal::COMPACTED.to_owned(),
        ..response(revision)
    }
}

/// A watch as a stream that ends after the watch's end was told.
fn deliveries(id: i64, watch: Watch) -> impl futures::Stream<Item = Delivery> + Send {
    stream::unfold(Some(watch), move |watch| async move {
        let mut watch = watch?;
        let delivery = watch.next().await;
        let rest = delivery.is_ok().then_some(watch);
        Some(((id, delivery), rest))
    })
}
