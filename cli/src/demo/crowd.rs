//! All clients of the demo: who they are, what they share, how they are started and ended.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{ClientTask, Life, Temper};
use super::ledger::{Client, Ledger, Verdict};
use super::rest::Rest;
use crate::sandbox::network::Network;

/// Clients that connect at once.
const CONNECTING: usize = 64;
/// Clients for each source address: below the number of ports an address has.
const CLIENTS_PER_ADDRESS: usize = 2000;

/// A user of the demo.
#[derive(Clone, Debug)]
pub struct Person {
    /// Its name.
    pub name: String,
    /// Its token.
    pub token: String,
}

/// What clients count together.
#[derive(Debug, Default)]
pub struct Counters {
    /// Open websockets.
    pub sockets: AtomicI64,
    /// Messages that arrived live.
    pub live: AtomicU64,
    /// Sessions resumed.
    pub resumes: AtomicU64,
    /// Sessions lost for good.
    pub sessions_lost: AtomicU64,
    /// Histories read after identifying anew.
    pub histories: AtomicU64,
    /// Dispatches whose sequence did not follow the last one.
    pub gaps: AtomicU64,
}

/// What all clients share.
#[derive(Debug)]
pub struct Shared {
    /// For histories.
    pub rest: Rest,
    /// The guild.
    pub guild_id: i64,
    /// Its channels.
    pub channels: Vec<i64>,
    /// Counted together.
    pub counters: Counters,
    /// Everyone was in the guild once: from now on clients follow their whims.
    pub settled: AtomicBool,
    /// When the demo began.
    pub began: Instant,
    /// The first trouble a client had that the ledger cannot know.
    pub trouble: Mutex<Option<String>>,
}

impl Shared {
    /// Milliseconds since the demo began.
    pub fn at_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Keeps the first trouble.
    pub fn note_trouble(&self, trouble: &str) {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| trouble.to_owned());
    }
}

/// How many clients of each temper there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Tempers {
    /// They drop their sockets and resume.
    pub dropping: usize,
    /// They stop reading now and then.
    pub slow: usize,
}

/// All clients.
#[derive(Debug)]
pub struct Crowd {
    /// What they share.
    pub shared: Arc<Shared>,
    /// How they behave.
    pub tempers: Tempers,
    names: Vec<String>,
    records: Vec<Arc<Mutex<Client>>>,
    places: Vec<Arc<AtomicBool>>,
    tasks: JoinSet<()>,
}

/// A tenth drops, a twentieth is slow; of few clients still one each.
fn temper(place: usize) -> Temper {
    match place % 20 {
        3 | 13 => Temper::Dropping,
        7 => Temper::Slow,
        _ => Temper::Steady,
    }
}

impl Crowd {
    /// Starts a client for each person; they connect at their pace.
    pub fn start(people: &[Person], entry: SocketAddr, network: Network, shared: Arc<Shared>, seed: u64) -> Self {
        let start = Arc::new(Semaphore::new(CONNECTING));
        let mut seeds = StdRng::seed_from_u64(seed);
        let mut crowd = Self {
            shared: Arc::clone(&shared),
            tempers: Tempers { dropping: 0, slow: 0 },
            names: people.iter().map(|person| person.name.clone()).collect(),
            records: Vec::new(),
            places: Vec::new(),
            tasks: JoinSet::new(),
        };
        for (place, person) in people.iter().enumerate() {
            let record = Arc::new(Mutex::new(Client::new(person.name.clone(), shared.channels.iter().copied(), 0)));
            let in_guild = Arc::new(AtomicBool::new(false));
            crowd.records.push(Arc::clone(&record));
            crowd.places.push(Arc::clone(&in_guild));
            let temper = temper(place);
            crowd.tempers.dropping += usize::from(temper == Temper::Dropping);
            crowd.tempers.slow += usize::from(temper == Temper::Slow);
            let task = ClientTask {
                record,
                in_guild,
                token: person.token.clone(),
                temper,
                from: network.client_address((place / CLIENTS_PER_ADDRESS) as u8),
                entry,
                shared: Arc::clone(&shared),
                random: StdRng::seed_from_u64(seeds.random()),
                life: Life::default(),
            };
            crowd.tasks.spawn(task.run(Arc::clone(&start)));
        }
        crowd
    }

    /// How many clients there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Clients whose session has the guild now.
    pub fn in_guild(&self) -> usize {
        self.places.iter().filter(|place| place.load(Relaxed)).count()
    }

    /// Names of some clients that are not there, to look for in logs.
    pub fn outside(&self) -> Vec<&str> {
        let places = self.names.iter().zip(&self.places);
        places.filter(|(_, place)| !place.load(Relaxed)).map(|(name, _)| name.as_str()).take(5).collect()
    }

    /// Acknowledged messages that have not reached everyone yet, over all clients.
    pub fn missing(&self, ledger: &Ledger) -> usize {
        self.records.iter().map(|record| ledger.missing(&record.lock().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    /// Ends all clients and judges.
    pub async fn judge(mut self, ledger: &Ledger) -> Verdict {
        self.tasks.shutdown().await;
        let records: Vec<Client> =
            self.records.iter().map(|record| record.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect();
        ledger.judge(&records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_a_small_crowd_has_every_temper() {
        let tempers: Vec<Temper> = (0..8).map(temper).collect();
        assert!(tempers.contains(&Temper::Dropping) && tempers.contains(&Temper::Slow));
        let steady = (0..2000).filter(|place| temper(*place) == Temper::Steady).count();
        assert_eq!(steady, 1700);
    }
}
