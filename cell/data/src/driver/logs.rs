//! The logs of this process: finds or starts the task of a log, and says who owns the ones that it does not.

use std::collections::HashMap;
use std::sync::Arc;

use cell_proto::unit::Unit;
use cell_proto::v1::{Head, Reason, Refusal, Route};
use cell_store::StoreError;
use parking_lot::Mutex;

use super::routes::Routes;
use super::task::{self, Context, LogHandle, Message};
use crate::machine::{Identity, Limits, LogMachine};

/// Logs with a task at once; more are refused as overloaded. All buckets of a fleet fit.
const MAX_LOGS: usize = 8192;

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
    Refusal::new(Reason::StoreUnavailable, error.to_string()).retry_after_ms(200)
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

    /// The log's task, started if it is this process's turn; otherwise who else.
    pub(super) async fn owner(&self, log: &str, turn: Turn) -> Result<LogHandle, Refusal> {
        if let Some(handle) = self.get(log) {
            return Ok(handle);
        }
        let unit = parse(log)?;
        let head = self.context.store.read_head(log).await.map_err(|error| unavailable(&error))?;
        let (cell, appender, term) = match (head, unit) {
            (Some(head), _) if head.moved_to.is_empty() => (head.cell, head.appender, head.term),
            // Not split out yet, or merged back: its bucket's cell may open it, if the bucket's log says so.
            (found, Unit::Guild(guild_id)) => {
                let bucket = Unit::bucket(guild_id).log();
                let bucket = self.context.store.read_head(&bucket).await.map_err(|error| unavailable(&error))?;
                let bucket = bucket.ok_or_else(|| no_head(log))?;
                (bucket.cell, String::new(), found.map_or(0, |head| head.term))
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
        self.start(log, unit)
    }

    fn start(&self, log: &str, unit: Unit) -> Result<LogHandle, Refusal> {
        if self.context.shutdown.is_cancelled() {
            return Err(Refusal::new(Reason::Draining, "this data service is shutting down").retry_after_ms(200));
        }
        let mut open = self.open.lock();
        if let Some(handle) = open.get(log).filter(|handle| handle.is_alive()) {
            return Ok(handle.clone());
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
            },
            self.limits.clone(),
        );
        let log: Arc<str> = Arc::from(log);
        let handle = task::start(self.context.clone(), log.clone(), machine);
        open.insert(log, handle.clone());
        Ok(handle)
    }

    /// A refusal as it goes out: with a route read from the head where the machine had none.
    pub(super) async fn redirect(&self, log: &str, refusal: Refusal) -> Refusal {
        self.context.metrics.refused(refusal.why());
        let unrouted = refusal.route.as_ref().is_none_or(|route| route.data_address.is_empty());
        if refusal.why() == Reason::NotOwner
            && unrouted
            && let Ok(Some(head)) = self.context.store.read_head(log).await
        {
            return Refusal { route: Some(self.routes.of_head(&head)), ..refusal };
        }
        self.routes.complete(refusal)
    }
}

fn no_head(log: &str) -> Refusal {
    Refusal::new(Reason::NotFound, format!("there is no head of {log}; the operator creates heads at bootstrap"))
}
