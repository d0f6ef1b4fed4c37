//! One client of the demo: a person with a websocket, who reconnects, resumes, identifies anew and then reads history as a real client
//! does, and tells its record what it saw.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::crowd::Shared;
use super::history::{self, Read};
use super::ledger::{Client, ReadMark, Seen};
use super::protocol::{self, Event};
use super::rest::RestError;
use super::socket::{Ended, Socket, address_of};

/// How a client behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Temper {
    /// Reads as fast as it can.
    Steady,
    /// Drops its socket now and then, and resumes.
    Dropping,
    /// Stops reading now and then, with a small receive buffer.
    Slow,
}

/// A client and all it keeps.
#[derive(Debug)]
pub struct ClientTask {
    /// What the ledger knows of it.
    pub record: Arc<Mutex<Client>>,
    /// Its session has the guild.
    pub in_guild: Arc<AtomicBool>,
    /// Its token.
    pub token: String,
    /// How it behaves.
    pub temper: Temper,
    /// The address it connects from.
    pub from: Ipv4Addr,
    /// The entry it connects to.
    pub entry: SocketAddr,
    /// What all clients share.
    pub shared: Arc<Shared>,
    /// Its own random numbers.
    pub random: StdRng,
    /// Where it stands.
    pub life: Life,
}

/// Where a client stands.
#[derive(Debug, Default)]
pub struct Life {
    session: Option<Session>,
    /// Up to where its channels are known without a gap.
    known: HashMap<i64, i64>,
    /// It lost a session and has not read what followed yet.
    behind: bool,
    reading: Option<JoinHandle<Result<HashMap<i64, Read>, RestError>>>,
    reading_since_ms: u64,
    begun: bool,
}

#[derive(Debug)]
struct Session {
    id: String,
    address: SocketAddr,
    sequence: u64,
}

/// What follows the end of a socket.
enum Next {
    Resume(Duration),
    Identify(Duration),
    Over,
}

/// Times of one socket.
struct Pace {
    beat: Instant,
    interval: Duration,
    acknowledged: bool,
    whim: Option<Instant>,
}

impl ClientTask {
    /// Lives until it is aborted, or until the server ends it for good.
    pub async fn run(mut self, start: Arc<Semaphore>) {
        let mut permit = start.acquire_owned().await.ok();
        loop {
            let next = self.one_socket(&mut permit).await;
            self.in_guild.store(false, Relaxed);
            let wait = match next {
                Next::Over => return,
                Next::Resume(wait) => wait,
                Next::Identify(wait) => {
                    self.lose_session();
                    wait
                }
            };
            sleep(wait).await;
        }
    }

    async fn one_socket(&mut self, permit: &mut Option<tokio::sync::OwnedSemaphorePermit>) -> Next {
        let to = self.life.session.as_ref().map_or(self.entry, |session| session.address);
        let receive_bytes = (self.temper == Temper::Slow).then_some(4096);
        let mut socket = match Socket::open(to, self.from, receive_bytes).await {
            Ok(socket) => socket,
            Err(ended) => return self.after(ended),
        };
        self.shared.counters.sockets.fetch_add(1, Relaxed);
        let ended = self.talk(&mut socket, permit).await;
        self.shared.counters.sockets.fetch_sub(1, Relaxed);
        ended.unwrap_or_else(|ended| self.after(ended))
    }

    async fn talk(
        &mut self,
        socket: &mut Socket,
        permit: &mut Option<tokio::sync::OwnedSemaphorePermit>,
    ) -> Result<Next, Ended> {
        let mut pace = self.greet(socket).await?;
        loop {
            tokio::select! {
                text = socket.next() => {
                    let frame = protocol::parse(&text?).map_err(|error| Ended::Broken(error.to_string()))?;
                    self.count_sequence(frame.sequence);
                    if let Some(next) = self.react(frame.event, socket, &mut pace).await? {
                        return Ok(next);
                    }
                    if self.in_guild.load(Relaxed) {
                        permit.take();
                    }
                }
                () = sleep_until(pace.beat) => {
                    if !pace.acknowledged {
                        return Err(Ended::Broken("the heartbeat was not answered".to_owned()));
                    }
                    self.beat(socket, &mut pace).await?;
                    pace.beat = Instant::now() + pace.interval;
                }
                () = sleep_until(pace.whim.unwrap_or(pace.beat)), if pace.whim.is_some() => {
                    if self.follow_whim(&mut pace).await {
                        return Ok(Next::Resume(Duration::from_millis(self.random.random_range(0..1500))));
                    }
                }
                read = finished(&mut self.life.reading), if self.life.reading.is_some() => self.take_history(read),
            }
        }
    }

    /// Hello, then identify or resume.
    async fn greet(&mut self, socket: &mut Socket) -> Result<Pace, Ended> {
        let text = socket.next().await?;
        let frame = protocol::parse(&text).map_err(|error| Ended::Broken(error.to_string()))?;
        let Event::Hello { interval_ms } = frame.event else {
            return Err(Ended::Broken("the first frame is not a hello".to_owned()));
        };
        let interval = Duration::from_millis(interval_ms.clamp(1000, 120_000));
        let opening = match &self.life.session {
            Some(session) => protocol::resume(&self.token, &session.id, session.sequence),
            None => protocol::identify(&self.token),
        };
        socket.send(opening).await?;
        let first = interval.mul_f64(self.random.random_range(0.1..1.0));
        let whim = (self.temper != Temper::Steady).then(|| Instant::now() + self.until_whim());
        Ok(Pace { beat: Instant::now() + first, interval, acknowledged: true, whim })
    }

    async fn react(&mut self, event: Event, socket: &mut Socket, pace: &mut Pace) -> Result<Option<Next>, Ended> {
        match event {
            Event::Message { number, message_id, channel_id } => {
                let seen = Seen { number, message_id, channel_id, at_ms: self.shared.at_ms() };
                self.record(|record| record.live(seen));
                self.shared.counters.live.fetch_add(1, Relaxed);
            }
            Event::Ready { session_id, resume_url } => self.begin(session_id, &resume_url),
            Event::Guild { guild_id } if guild_id == self.shared.guild_id => {
                self.in_guild.store(true, Relaxed);
                self.read_history();
            }
            Event::Resumed => {
                self.shared.counters.resumes.fetch_add(1, Relaxed);
                self.in_guild.store(true, Relaxed);
            }
            Event::Beat => self.beat(socket, pace).await?,
            Event::Acknowledged => pace.acknowledged = true,
            Event::Reconnect => return Ok(Some(Next::Resume(Duration::ZERO))),
            Event::Invalid { resumable: true } => return Ok(Some(Next::Resume(self.jitter(1000)))),
            Event::Invalid { resumable: false } => return Ok(Some(Next::Identify(self.jitter(3000)))),
            Event::Guild { .. } | Event::Hello { .. } | Event::Other => {}
        }
        Ok(None)
    }

    async fn beat(&mut self, socket: &mut Socket, pace: &mut Pace) -> Result<(), Ended> {
        pace.acknowledged = false;
        socket.send(protocol::heartbeat(self.life.session.as_ref().map(|session| session.sequence))).await
    }

    /// True when the whim is to drop the socket; a slow reader stands still meanwhile.
    async fn follow_whim(&mut self, pace: &mut Pace) -> bool {
        let settled = self.shared.settled.load(Relaxed) && self.in_guild.load(Relaxed);
        if self.temper == Temper::Slow && settled {
            sleep(Duration::from_millis(self.random.random_range(2000..6000))).await;
        }
        pace.whim = Some(Instant::now() + self.until_whim());
        self.temper == Temper::Dropping && settled
    }

    fn until_whim(&mut self) -> Duration {
        Duration::from_millis(self.random.random_range(8_000..30_000))
    }

    fn jitter(&mut self, up_to_ms: u64) -> Duration {
        Duration::from_millis(self.random.random_range(up_to_ms / 10..=up_to_ms))
    }

    /// A dispatch's sequence must follow the last one: the session is a contiguous sequence.
    fn count_sequence(&mut self, sequence: Option<u64>) {
        let (Some(sequence), Some(session)) = (sequence, self.life.session.as_mut()) else { return };
        if sequence != session.sequence + 1 {
            self.shared.counters.gaps.fetch_add(1, Relaxed);
        }
        session.sequence = session.sequence.max(sequence);
    }

    fn begin(&mut self, id: String, resume_url: &str) {
        let address = address_of(resume_url).unwrap_or(self.entry);
        self.life.session = Some(Session { id, address, sequence: 1 });
        self.record(Client::identified);
        if self.life.begun {
            self.life.behind = true;
            // A read begun under the session before says nothing of what came between the two.
            if let Some(earlier) = self.life.reading.take() {
                earlier.abort();
            }
        }
        self.life.begun = true;
    }

    fn lose_session(&mut self) {
        if self.life.session.take().is_none() {
            return;
        }
        self.shared.counters.sessions_lost.fetch_add(1, Relaxed);
        // While it is behind there is a gap below what it saw live.
        if !self.life.behind {
            for channel in self.shared.channels.clone() {
                if let Some(last) = self.record(|record| record.last_seen(channel)) {
                    let known = self.life.known.entry(channel).or_insert(last);
                    *known = (*known).max(last);
                }
            }
        }
    }

    fn read_history(&mut self) {
        if !self.life.behind || self.life.reading.is_some() {
            return;
        }
        let (shared, token, known) = (Arc::clone(&self.shared), self.token.clone(), self.life.known.clone());
        self.life.reading_since_ms = shared.at_ms();
        self.life.reading = Some(tokio::spawn(async move {
            let mut reads = HashMap::new();
            for channel in &shared.channels {
                let after = known.get(channel).copied().unwrap_or(0);
                let read = history::read_after(&shared.rest, &token, *channel, after, shared.at_ms()).await?;
                reads.insert(*channel, read);
            }
            Ok(reads)
        }));
    }

    fn take_history(&mut self, read: Result<HashMap<i64, Read>, String>) {
        self.life.reading = None;
        match read {
            Ok(reads) => {
                let at_ms = self.life.reading_since_ms;
                self.record(|record| {
                    for (channel, read) in &reads {
                        read.messages.iter().for_each(|seen| record.history(*seen));
                        record.has_read(*channel, ReadMark { from_id: read.from_id, to_id: read.last_id, at_ms });
                    }
                });
                self.life.known.extend(reads.into_iter().map(|(channel, read)| (channel, read.last_id)));
                self.life.behind = false;
                self.shared.counters.histories.fetch_add(1, Relaxed);
            }
            Err(error) => {
                self.shared.note_trouble(&format!("history not read: {error}"));
                self.read_history();
            }
        }
    }

    fn after(&mut self, ended: Ended) -> Next {
        match ended {
            Ended::Closed(code @ (4004 | 4010..=4014)) => {
                self.shared.note_trouble(&format!("the gateway closed a session for good: {code}"));
                self.lose_session();
                Next::Over
            }
            Ended::Closed(1000 | 1001 | 4007) => Next::Identify(self.jitter(3000)),
            Ended::Closed(_) => Next::Resume(self.jitter(500)),
            Ended::Broken(_) => Next::Resume(self.jitter(1000)),
        }
    }

    fn record<T>(&self, tell: impl FnOnce(&mut Client) -> T) -> T {
        tell(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn finished(
    reading: &mut Option<JoinHandle<Result<HashMap<i64, Read>, RestError>>>,
) -> Result<HashMap<i64, Read>, String> {
    match reading {
        Some(handle) => match handle.await {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        },
        None => std::future::pending().await,
    }
}
