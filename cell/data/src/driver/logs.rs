//! The logs of this process: finds or starts the task of a log, and says who owns the ones that it does not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::Unit;
use cell_proto::v1::{Head, Reason, Refusal, Route};
use cell_store::{Store, StoreError};
use parking_lot::Mutex;

use super::handle::{LogHandle, Message};
use super::routes::Routes;
use super::task::{self, Context};
use crate::machine::{
    Identity, Input, Limits, Locator, LogMachine, Place, Search, has_failed_over, pointer_of, refused_by,
};

/// Logs with a task at once; more are refused as overloaded. All buckets of a fleet fit.
const MAX_LOGS: usize = 8192;

/// How long the other StorageCell of a migration is asked whether the log was failed over to it.
const PEER: Duration = Duration::from_millis(500);
/// Tries of a failover against requests that claim the log at the lost StorageCell meanwhile.
const FAILOVERS: usize = 3;

/// When a claim is in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Only if this member is the one that should.
    Ours,
    /// Ordered: whoever owned it before.
    Ordered,
}

pub(super) struct Logs {
    pub(super) context: Context,
    pub(super) routes: Routes,
    limits: Limits,
    open: Mutex<HashMap<Arc<str>, LogHandle>>,
}

/// What a failed store request means for a caller.
pub(super) fn unavailable(error: &StoreError) -> Refusal {
    refused_by(error)
}

pub(super) fn parse(log: &str) -> Result<Unit, Refusal> {
    log.parse().map_err(|error: cell_proto::unit::InvalidUnit| Refusal::new(Reason::Invalid, error.to_string()))
}

impl Logs {
    pub(super) fn new(context: Context, routes: Routes, limits: Limits) -> Self {
        Self { context, routes, limits, open: Mutex::default() }
    }

    /// The log's task, if there is one.
    pub(super) fn get(&self, log: &str) -> Option<LogHandle> {
        self.open.lock().get(log).filter(|handle| handle.is_alive()).cloned()
    }

    /// All tasks.
    pub(super) fn all(&self) -> Vec<LogHandle> {
        let mut open = self.open.lock();
        open.retain(|_, handle| handle.is_alive());
        open.values().cloned().collect()
    }

    /// Everyone looks at their heads: this process's lease lapsed, somebody else may have claimed.
    pub(super) fn recheck(&self) {
        for handle in self.all() {
            drop(handle.messages.try_send(Message::Recheck));
        }
    }

    /// Where a log is served, by the pointers of its heads (rule 14); the store with it. While the own StorageCell is away, the search
    /// begins where a migration says that the log may be; and a head without a pointer here may be one that a failover left behind.
    pub(super) async fn locate(&self, log: &str) -> Result<Located, Refusal> {
        let home = self.context.stores.home().to_owned();
        let found = self.locate_from(log, &home).await;
        let peers = || self.context.copies.peers(&self.context.directory.view(), log, &home);
        match &found {
            Err(refusal) if refusal.why() == Reason::StoreUnavailable => {
                for peer in peers() {
                    if let Ok(located) = self.locate_from(log, &peer).await
                        && located.place.store != home
                    {
                        return Ok(located);
                    }
                }
            }
            // An owner here learns it from the copy that it keeps.
            Ok(located) if located.place.store == home && self.get(log).is_none() => {
                let Some(bare) = located.place.head.as_ref().filter(|head| head.moved_to.is_empty()) else {
                    return found;
                };
                for peer in peers() {
                    let asked = tokio::time::timeout(PEER, self.failed_over_to(&peer, bare));
                    if let Ok(Some(located)) = asked.await {
                        return Ok(located);
                    }
                }
            }
            _ => {}
        }
        found
    }

    /// Rule 14: of two heads without a pointer, one of them was left by a failover; its term is far below.
    async fn failed_over_to(&self, peer: &str, bare: &Head) -> Option<Located> {
        let there = self.store(peer).ok()?.read_head(&bare.log).await.ok()??;
        if !has_failed_over(bare, &there) {
            return None;
        }
        tracing::warn!(log = %bare.log, peer, "the head here was left by a failover");
        self.locate_from(&bare.log, peer).await.ok()
    }

    async fn locate_from(&self, log: &str, from: &str) -> Result<Located, Refusal> {
        let mut locator = Locator::new(log, from);
        loop {
            let store = self.store(locator.store())?;
            let head = store.read_head(log).await.map_err(|error| unavailable(&error))?;
            match locator.answered(head) {
                Search::Go => {}
                Search::Found(place) => {
                    let store = self.store(&place.store)?;
                    return Ok(Located { log: log.to_owned(), place, store, from: from.to_owned() });
                }
                Search::Refuse(refusal) => return Err(refusal),
            }
        }
    }

    /// The head of a guild's log where its bucket is served, when it has none where the search began; and the term a split must name.
    pub(super) async fn guild_head(&self, guild_id: i64) -> Result<(Option<Head>, u64), Refusal> {
        let log = Unit::Guild(guild_id).log();
        let own = self.locate(&log).await?;
        if let Some(head) = own.serving_head() {
            let term = head.term;
            return Ok((Some(head), term));
        }
        let bucket = self.locate(&Unit::bucket(guild_id).log()).await?;
        if bucket.place.store == own.place.store {
            return Ok((own.place.head, own.place.above));
        }
        let there = bucket.store.read_head(&log).await.map_err(|error| unavailable(&error))?;
        let term = there.as_ref().map_or(0, |head| head.term).max(own.place.above);
        Ok((there.or(own.place.head), term))
    }

    pub(super) fn store(&self, name: &str) -> Result<Arc<dyn Store>, Refusal> {
        self.context.stores.get(name).map_err(|error| unavailable(&error))
    }

    /// The log's task, started if it is this process's turn; otherwise who else.
    pub(super) async fn owner(&self, log: &str, turn: Turn) -> Result<LogHandle, Refusal> {
        if let Some(handle) = self.get(log) {
            return Ok(handle);
        }
        let unit = parse(log)?;
        let located = self.locate(log).await?;
        let from = located.from.clone();
        let (cell, appender, term) = match (located.serving_head(), unit) {
            (Some(head), _) => (head.cell, head.appender, head.term),
            // Not split out yet, or merged back: its bucket's cell may open it, if the bucket's log says so.
            (None, Unit::Guild(guild_id)) => {
                let bucket = self.locate(&Unit::bucket(guild_id).log()).await?;
                let bucket = bucket.serving_head().ok_or_else(|| no_head(log))?;
                (bucket.cell, String::new(), located.place.above)
            }
            _ => return Err(no_head(log)),
        };
        let place = Head { log: log.to_owned(), cell: cell.clone(), term, appender, ..Head::default() };
        if cell != self.routes.cell {
            let refusal = Refusal::new(Reason::NotOwner, format!("{log} is served by cell {cell}"));
            return Err(refusal.with_route(self.routes.of_head(&place)));
        }
        if turn == Turn::Ours
            && let Some(address) = self.routes.elsewhere(log, &place.appender)
        {
            let route = Route { data_address: address, ..self.routes.of_head(&place) };
            return Err(Refusal::new(Reason::NotOwner, format!("{log} is another member's")).with_route(route));
        }
        self.start(log, unit, from, Input::Claim)
    }

    /// Claims the copy of a log whose origin is lost. Whoever holds the log here otherwise, or still claims it at the origin, goes first.
    pub(super) async fn fail_over(&self, log: &str, to: String, term: u64) -> Result<LogHandle, Refusal> {
        let unit = parse(log)?;
        for _ in 0..FAILOVERS {
            if let Some(handle) = self.get(log).filter(|handle| !handle.serves(&to)) {
                let _gone = handle.messages.send(Message::Abandon).await;
                handle.messages.closed().await;
            }
            let first = Input::FailOver { to: to.clone(), term };
            let (handle, is_new) = self.start_or_find(log, unit, to.clone(), first)?;
            if is_new || handle.serves(&to) {
                return Ok(handle);
            }
        }
        let message = "the log is claimed again and again at the lost StorageCell; ask again";
        Err(Refusal::new(Reason::Wait, message).retry_after_ms(200))
    }

    fn start(&self, log: &str, unit: Unit, home: String, first: Input) -> Result<LogHandle, Refusal> {
        self.start_or_find(log, unit, home, first).map(|(handle, _)| handle)
    }

    /// The log's task, and whether it was started with this input.
    fn start_or_find(&self, log: &str, unit: Unit, home: String, first: Input) -> Result<(LogHandle, bool), Refusal> {
        if self.context.shutdown.is_cancelled() {
            return Err(Refusal::new(Reason::Draining, "this data service is shutting down").retry_after_ms(200));
        }
        let mut open = self.open.lock();
        if let Some(handle) = open.get(log).filter(|handle| handle.is_alive()) {
            return Ok((handle.clone(), false));
        }
        open.retain(|_, handle| handle.is_alive());
        if open.len() >= MAX_LOGS {
            return Err(
                Refusal::new(Reason::Overloaded, format!("{MAX_LOGS} logs are owned here")).retry_after_ms(1000)
            );
        }
        let machine = LogMachine::new(
            Identity {
                unit,
                log: log.to_owned(),
                cell: self.routes.cell.clone(),
                member_id: self.routes.member_id.clone(),
                home,
            },
            self.limits.clone(),
        );
        let log: Arc<str> = Arc::from(log);
        let handle = task::start(self.context.clone(), log.clone(), machine, first);
        open.insert(log, handle.clone());
        Ok((handle, true))
    }

    /// A refusal as it goes out: with a route read from the head where the machine had none.
    pub(super) async fn redirect(&self, log: &str, refusal: Refusal) -> Refusal {
        self.context.metrics.refused(refusal.why());
        let unrouted = refusal.route.as_ref().is_none_or(|route| route.data_address.is_empty());
        if refusal.why() == Reason::NotOwner
            && unrouted
            && let Ok(located) = self.locate(log).await
            && let Some(head) = located.serving_head()
        {
            return Refusal { route: Some(self.routes.of_head(&head)), ..refusal };
        }
        self.routes.complete(refusal)
    }
}

/// Where a log is served.
pub(super) struct Located {
    pub(super) log: String,
    pub(super) place: Place,
    pub(super) store: Arc<dyn Store>,
    /// The StorageCell the search began in.
    pub(super) from: String,
}

impl Located {
    /// The head whose word holds; none when there is none, or the log is sealed for a merge.
    pub(super) fn serving_head(&self) -> Option<Head> {
        self.place.serving_head().filter(|head| head.moved_to.is_empty() || pointer_of(head).is_some())
    }
}

/// Not `NotFound`, which callers read as "no such message": that a log has no head where this process looks says nothing of what it holds.
fn no_head(log: &str) -> Refusal {
    let message = format!("there is no head of {log} in this StorageCell; the operator creates heads at bootstrap");
    Refusal::new(Reason::StoreUnavailable, message).retry_after_ms(500)
}
