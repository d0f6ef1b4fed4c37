//! Shadow reads: a share of live reads is repeated at the copy, when the copy has everything the answer was drawn from. No caller waits
//! for one; they have a budget of their own. What differs is looked at again before it counts: the row may have changed in between.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::{CopyStatusReply, Reason, Refusal};
use cell_store::Store;
use parking_lot::Mutex;
use rand::Rng;
use tokio::sync::Semaphore;

use super::handle::LogHandle;
use super::logs::Logs;
use super::query;

/// Shadow reads at once; further ones are left out and counted.
const PARALLEL: usize = 32;
/// How long a copy may take to reach what an answer was drawn from, and to answer itself.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often the copy's progress is looked at.
const LOOK: Duration = Duration::from_millis(25);
/// What differs is looked at again so often; what changes all the while is given up.
const LOOKS: usize = 8;
/// So often a difference must have been seen while the origin's answer stood still.
const STILL_LOOKS: usize = 2;
/// Runs tallied at once; the oldest are forgotten.
const MAX_RUNS: usize = 64;

/// How the shadow reads of one run came out.
#[derive(Clone, Default, Debug)]
struct Tally {
    samples: u64,
    skipped: u64,
    mismatches: BTreeMap<&'static str, u64>,
}

/// The shadow reads of this process.
pub(super) struct Shadow {
    permits: Arc<Semaphore>,
    tallies: Mutex<HashMap<String, Tally>>,
}

type Answered = Result<Answer, Refusal>;

/// The class of a difference; none when two answers say the same.
fn difference(origin: &Answered, copy: &Answered) -> Option<&'static str> {
    match (origin, copy) {
        (Ok(Answer::MessagePage(origin)), Ok(Answer::MessagePage(copy))) if origin != copy => {
            let lacks = origin.messages.iter().any(|message| copy.messages.iter().all(|other| other.id != message.id));
            let extra = copy.messages.iter().any(|message| origin.messages.iter().all(|other| other.id != message.id));
            Some(match (lacks, extra) {
                (true, false) => "missing",
                (false, true) => "extra",
                _ => "differing",
            })
        }
        (Ok(origin), Ok(copy)) => (origin != copy).then_some("differing"),
        (Ok(_), Err(copy)) if copy.why() == Reason::NotFound => Some("missing"),
        (Err(origin), Ok(_)) if origin.why() == Reason::NotFound => Some("extra"),
        (Err(origin), Err(copy)) => (origin.why() != copy.why()).then_some("differing"),
        _ => Some("differing"),
    }
}

/// Only what is drawn from data can be compared.
fn is_drawn_from_data(answered: &Answered) -> bool {
    answered.as_ref().is_ok_and(|_| true)
        || answered.as_ref().is_err_and(|refusal| matches!(refusal.why(), Reason::NotFound | Reason::OtherLog))
}

impl Shadow {
    pub(super) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(PARALLEL)), tallies: Mutex::default() }
    }

    fn tally(&self, run_id: &str, change: impl FnOnce(&mut Tally)) {
        let mut tallies = self.tallies.lock();
        if tallies.len() >= MAX_RUNS && !tallies.contains_key(run_id) {
            tallies.clear();
        }
        change(tallies.entry(run_id.to_owned()).or_default());
    }

    /// Adds what is known of a run; of all when none is named.
    pub(super) fn fill(&self, run_id: &str, reply: &mut CopyStatusReply) {
        for (run, tally) in &*self.tallies.lock() {
            if run_id.is_empty() || run == run_id {
                reply.shadow_samples += tally.samples;
                reply.shadow_skipped += tally.skipped;
                for (class, count) in &tally.mismatches {
                    *reply.shadow_mismatches.entry((*class).to_owned()).or_default() += count;
                }
            }
        }
    }

    /// Perhaps repeats a read that was answered as of an entry.
    pub(super) fn consider(
        self: &Arc<Self>,
        logs: &Arc<Logs>,
        handle: &LogHandle,
        query: &Query,
        told: (&Answered, u64),
    ) {
        let Some(copy) = handle.copy() else { return };
        let view = logs.context.directory.view();
        let share = view.migrations().find(|migration| migration.run_id == copy.run_id && migration.ship);
        let share = share.map_or(0, |migration| migration.shadow_per_10000);
        if share == 0 || rand::rng().random_range(0..10_000) >= share || !is_drawn_from_data(told.0) {
            return;
        }
        let (Ok(permit), Ok(target)) = (self.permits.clone().try_acquire_owned(), logs.store(&copy.target)) else {
            return self.skip(logs, &copy.run_id);
        };
        let (shadow, logs, handle, query) = (self.clone(), logs.clone(), handle.clone(), query.clone());
        let (answered, as_of) = (told.0.clone(), told.1);
        tokio::spawn(async move {
            let compared = shadow.compare(&handle, &target, &query, answered, as_of).await;
            match compared {
                Some(None) => {
                    shadow.tally(&copy.run_id, |tally| tally.samples += 1);
                    logs.context.metrics.shadowed("same");
                }
                Some(Some(class)) => {
                    shadow.tally(&copy.run_id, |tally| {
                        tally.samples += 1;
                        *tally.mismatches.entry(class).or_default() += 1;
                    });
                    logs.context.metrics.shadowed(class);
                    tracing::warn!(log = %handle.log, target = %copy.target, class, "a shadow read differs");
                }
                None => shadow.skip(&logs, &copy.run_id),
            }
            drop(permit);
        });
    }

    fn skip(&self, logs: &Logs, run_id: &str) {
        self.tally(run_id, |tally| tally.skipped += 1);
        logs.context.metrics.shadowed("skipped");
    }

    /// None: it could not be compared. Else the class of a difference that stays.
    async fn compare(
        &self,
        handle: &LogHandle,
        target: &Arc<dyn Store>,
        query: &Query,
        mut origin: Answered,
        mut as_of: u64,
    ) -> Option<Option<&'static str>> {
        let mut still = 0;
        for _ in 0..LOOKS {
            reach(handle, as_of).await?;
            let read = query::read_at(target, handle, query.clone(), None);
            let copy = tokio::time::timeout(PATIENCE, read).await.ok().filter(is_drawn_from_data)?;
            let class = difference(&origin, &copy);
            if class.is_none() {
                return Some(None);
            }
            // The copy may have gone on since: it is wrong only if the origin says the same before and after.
            let store = handle.store().ok()?;
            let read = query::read_at(&store, handle, query.clone(), None);
            let again = tokio::time::timeout(PATIENCE, read).await.ok().filter(is_drawn_from_data)?;
            as_of = *handle.shared.applied.borrow();
            if difference(&again, &copy).is_none() {
                return Some(None);
            }
            if difference(&origin, &again).is_none() {
                still += 1;
                if still >= STILL_LOOKS {
                    return Some(class);
                }
            }
            origin = again;
        }
        None
    }
}

/// Waits until the copy has everything up to a number; bounded.
async fn reach(handle: &LogHandle, number: u64) -> Option<()> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while handle.copy()?.shipped < number {
        if tokio::time::Instant::now() >= deadline {
            return None;
        }
        tokio::time::sleep(LOOK).await;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::{Message, MessagePage};

    use super::*;

    fn page(ids: &[i64]) -> Answered {
        let messages = ids.iter().map(|id| Message { id: *id, ..Message::default() }).collect();
        Ok(Answer::MessagePage(MessagePage { messages }))
    }

    #[test]
    fn differences_fall_into_classes() {
        let gone: Answered = Err(Refusal::new(Reason::NotFound, "no such message"));
        assert_eq!(difference(&page(&[2, 1]), &page(&[2, 1])), None);
        assert_eq!(difference(&page(&[2, 1]), &page(&[2])), Some("missing"));
        assert_eq!(difference(&page(&[2]), &page(&[2, 1])), Some("extra"));
        assert_eq!(difference(&page(&[2]), &page(&[1])), Some("differing"));
        assert_eq!(difference(&page(&[2]), &gone), Some("missing"));
        assert_eq!(difference(&gone, &page(&[2])), Some("extra"));
        assert_eq!(difference(&gone, &gone.clone()), None);
    }

    #[test]
    fn a_failed_read_is_no_answer() {
        assert!(!is_drawn_from_data(&Err(Refusal::new(Reason::StoreUnavailable, "away"))));
    }
}
