//! Many senders over several channels at a steady rate. A send is repeated with the same nonce until it is acknowledged or its time is
//! over; what is acknowledged goes into the ledger.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::content;
use super::crowd::{Person, Shared};
use super::ledger::{Ledger, Seen, SendNumber};
use super::rest::{Call, Rest};

/// Sends under way at once; past it, sending waits.
const UNDER_WAY: usize = 512;
/// Half of the ten minutes over which a nonce is remembered would be allowed; a minute is plenty.
const SEND_WITHIN: Duration = Duration::from_secs(60);
const LATENCIES: usize = 100_000;

/// What came of the talking, counted as it goes.
#[derive(Debug, Default)]
pub struct Tally {
    /// Sends begun.
    pub begun: AtomicU64,
    /// Sends acknowledged.
    pub acknowledged: AtomicU64,
    /// Sends whose outcome nobody knows.
    pub unknown: AtomicU64,
    /// Sends that were refused.
    pub refused: AtomicU64,
    /// Messages that were due and never begun, because the machine or the platform could not keep up.
    pub held_back: AtomicU64,
    latencies: Mutex<VecDeque<u32>>,
}

impl Tally {
    fn took(&self, elapsed: Duration) {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        if latencies.len() >= LATENCIES {
            latencies.pop_front();
        }
        latencies.push_back(u32::try_from(elapsed.as_millis()).unwrap_or(u32::MAX));
    }

    /// Milliseconds within which a share of the sends was acknowledged.
    pub fn latency_ms(&self, share: f64) -> u32 {
        let mut sorted: Vec<u32> =
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share.clamp(0.0, 1.0)).round() as usize).copied().unwrap_or(0)
    }
}

/// Which numbers are due. A short stall is made up for; a debt of more than a second is forgiven, and counted: the rate is a load,
/// and a burst is another one.
#[derive(Debug, Default)]
struct Pace {
    begun: SendNumber,
    forgiven: u64,
}

impl Pace {
    fn due(&mut self, rate: u32, elapsed: Duration) -> Range<SendNumber> {
        let due = (elapsed.as_secs_f64() * f64::from(rate)) as u64;
        let debt = due.saturating_sub(u64::from(self.begun) + self.forgiven);
        let most = u64::from(rate.max(1));
        self.forgiven += debt.saturating_sub(most);
        let first = self.begun;
        self.begun += debt.min(most) as SendNumber;
        first..self.begun
    }
}

/// Those who talk.
#[derive(Clone, Debug)]
pub struct Talk {
    /// The senders.
    pub senders: Arc<Vec<Person>>,
    /// REST clients, used in turn.
    pub rests: Arc<Vec<Rest>>,
    /// Where what is acknowledged goes.
    pub ledger: Arc<Mutex<Ledger>>,
    /// Counted as it goes.
    pub tally: Arc<Tally>,
    /// Guild, channels, clock.
    pub shared: Arc<Shared>,
    /// Of the texts.
    pub seed: u64,
}

impl Talk {
    /// Talks at `rate` messages a second until told to stop, then waits for what is under way.
    pub async fn run(self, rate: u32, mut stop: watch::Receiver<bool>) {
        let mut ticks = interval(Duration::from_secs(1) / rate.max(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let room = Arc::new(Semaphore::new(UNDER_WAY));
        let mut sends = JoinSet::new();
        let mut pace = Pace::default();
        let began = Instant::now();
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                _ = ticks.tick() => {}
            }
            for number in pace.due(rate, began.elapsed()) {
                let Ok(permit) = Arc::clone(&room).acquire_owned().await else { break };
                let talk = self.clone();
                sends.spawn(async move {
                    talk.send(number).await;
                    drop(permit);
                });
            }
            self.tally.held_back.store(pace.forgiven, Relaxed);
            while sends.try_join_next().is_some() {}
        }
        let _ = timeout(SEND_WITHIN, async { while sends.join_next().await.is_some() {} }).await;
    }

    async fn send(&self, number: SendNumber) {
        let place = number as usize;
        let (Some(sender), Some(rest), Some(channel_id)) = (
            self.senders.get(place % self.senders.len().max(1)),
            self.rests.get(place % self.rests.len().max(1)),
            self.shared.channels.get(place % self.shared.channels.len().max(1)).copied(),
        ) else {
            return;
        };
        self.tally.begun.fetch_add(1, Relaxed);
        let body = json!({
            "content": content::text(self.seed, number),
            "nonce": content::nonce(self.seed, number),
            "enforce_nonce": true,
        });
        let call = Call {
            method: Method::POST,
            path: format!("/channels/{channel_id}/messages"),
            authorization: &sender.token,
            body: Some(body),
            within: SEND_WITHIN,
        };
        let began = Instant::now();
        let outcome = rest.call(&call).await;
        let message_id = outcome.as_ref().ok().and_then(|answer| answer["id"].as_str()?.parse::<i64>().ok());
        match (outcome, message_id) {
            (Ok(_), Some(message_id)) => {
                self.tally.took(began.elapsed());
                self.tally.acknowledged.fetch_add(1, Relaxed);
                let seen = Seen { number, message_id, channel_id, at_ms: self.shared.at_ms() };
                self.ledger.lock().unwrap_or_else(PoisonError::into_inner).acknowledged(seen);
            }
            (Err(error @ super::rest::RestError::Refused { .. }), _) => {
                self.tally.refused.fetch_add(1, Relaxed);
                self.shared.note_trouble(&format!("send {number} was refused: {error}"));
            }
            _ => {
                self.tally.unknown.fetch_add(1, Relaxed);
            }
        }
    }
}

/// REST clients over several source addresses.
pub fn rests(base: &str, addresses: impl IntoIterator<Item = Ipv4Addr>) -> Vec<Rest> {
    addresses.into_iter().map(|address| Rest::new(base, address)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_stall_is_made_up_for_and_a_long_one_forgiven() {
        let mut pace = Pace::default();
        let milliseconds = Duration::from_millis;
        assert_eq!(pace.due(10, milliseconds(100)), 0..1);
        assert_eq!(pace.due(10, milliseconds(150)), 1..1);
        assert_eq!(pace.due(10, milliseconds(900)), 1..9, "0.75 s late");
        assert_eq!(pace.due(10, milliseconds(5000)), 9..19, "one second of debt at most");
        assert_eq!(pace.forgiven, 31);
        assert_eq!(pace.due(10, milliseconds(5100)), 19..20);
    }

    #[test]
    fn latencies_are_read_by_share() {
        let tally = Tally::default();
        assert_eq!(tally.latency_ms(0.99), 0);
        (1..=100).for_each(|milliseconds| tally.took(Duration::from_millis(milliseconds)));
        assert_eq!((tally.latency_ms(0.5), tally.latency_ms(0.99), tally.latency_ms(1.0)), (51, 99, 100));
    }
}
