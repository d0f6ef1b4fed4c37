//! The demo's phases in order: boot, users and guild, connect, talk, hot, first move, second move with two kills, drain, ledger. Every
//! wait has a deadline and says what it waits for.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::crowd::{Counters, Crowd, Shared};
use super::history;
use super::ledger::Ledger;
use super::moves::{Hand, Moved};
use super::own::Own;
use super::report::{Report, SendTimes};
use super::rest::Rest;
use super::storage::{Migrated, StorageHand};
use super::talk::{Talk, Tally, rests};
use super::world::{self, World};
use crate::args::Global;
use crate::connect::{Connection, from_api};
use crate::exit::CommandError;
use crate::progress::Progress;
use crate::sandbox::network::Network;
use crate::sandbox::objects::SHARED_CELLS;
use crate::sandbox::state::StateDir;
use crate::sandbox::status::{absent, endpoints};

const SOURCES_OF_SENDERS: u8 = 4;
const MOVE_WITHIN: Duration = Duration::from_secs(240);
/// A stage of a storage migration on a busy machine.
const STORAGE_WITHIN: Duration = Duration::from_secs(300);
/// How long a rollback stays possible in the demo, in seconds; only the first migration uses it.
const STORAGE_WINDOW: u32 = 900;
const READ_PAUSE: Duration = Duration::from_millis(50);
const DRAIN_WITHIN: Duration = Duration::from_secs(120);

/// What is asked of the demo.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Websocket sessions.
    pub sessions: usize,
    /// Messages a second.
    pub rate: u32,
    /// How long to talk at least.
    pub duration: Duration,
    /// Of everything random.
    pub seed: u64,
}

/// Runs all phases on a sandbox that is up.
///
/// # Errors
/// [`CommandError`].
pub async fn run(own: &Own, order: Order, progress: &Progress) -> Result<Report, CommandError> {
    let stage = Stage::set(&own.state, own.storage(1), order, progress).await?;
    let crowd = stage.connect().await?;
    let (stop, stopped) = watch::channel(false);
    let talking = tokio::spawn(stage.talk.clone().run(order.rate, stopped));
    let began = Instant::now();
    let outcome = stage.acts(&crowd, began).await;
    let _ = stop.send(true);
    let acts = outcome?;
    stage.drain(&crowd, talking).await?;
    stage.judge(crowd, acts).await
}

/// What both acts came to.
#[derive(Default)]
struct Acts {
    moves: Vec<Moved>,
    killed: Vec<String>,
    migrations: Vec<Migrated>,
}

/// Everything the phases share.
struct Stage<'a> {
    order: Order,
    progress: &'a Progress,
    network: Network,
    entry: SocketAddr,
    api: cell_api::Client,
    hand: Hand,
    storage: StorageHand,
    /// Spec of the second StorageCell.
    second: Value,
    world: World,
    talk: Talk,
}

impl<'a> Stage<'a> {
    async fn set(state: &StateDir, second: Value, order: Order, progress: &'a Progress) -> Result<Self, CommandError> {
        let settings = state.settings().map_err(anyhow::Error::from)?.ok_or_else(|| absent(state))?;
        let network = state.network().ok_or_else(|| absent(state))?;
        let base = endpoints(state, &settings)?.rest;
        let entry = SocketAddr::from((network.node_address(1), settings.entry_port));
        let connection = Connection::from_file(&state.kubeconfig(), &Global::default()).await?;
        let api = connection.control_plane().await?;
        let rest = Rest::new(&base, network.client_address(200));
        let world = world::make(&api, &rest, order.sessions, order.seed, progress).await?;
        let shared = Arc::new(Shared {
            rest,
            guild_id: world.guild_id,
            channels: world.channels.clone(),
            counters: Counters::default(),
            settled: AtomicBool::new(false),
            began: Instant::now(),
            trouble: Mutex::new(None),
        });
        // Twice as many senders as messages a second keeps each far below the limit of a user in a channel.
        let senders = (order.rate as usize * 2).clamp(1, order.sessions);
        let talk = Talk {
            senders: Arc::new(world.people.iter().take(senders).cloned().collect()),
            rests: Arc::new(rests(&base, (0..SOURCES_OF_SENDERS).map(|number| network.client_address(201 + number)))),
            ledger: Arc::new(Mutex::new(Ledger::default())),
            tally: Arc::new(Tally::default()),
            shared,
            seed: order.seed,
        };
        let hand = Hand::new(&connection.client, state, world.guild_id);
        let storage = StorageHand::new(&connection.client);
        Ok(Self { order, progress, network, entry, api, hand, storage, second, world, talk })
    }

    async fn connect(&self) -> Result<Crowd, CommandError> {
        let wanted = self.order.sessions;
        let phase = self.progress.phase("connect", Some(wanted as u64));
        let shared = Arc::clone(&self.talk.shared);
        let crowd = Crowd::start(&self.world.people, self.entry, self.network, shared, self.order.seed);
        let deadline = Instant::now() + Duration::from_secs(60 + wanted as u64 / 10);
        while crowd.in_guild() < wanted {
            phase.set(crowd.in_guild() as u64, "sessions have the guild");
            if Instant::now() > deadline {
                let trouble = self.trouble().unwrap_or_else(|| "no session was refused for good".to_owned());
                return Err(CommandError::TimedOut {
                    waited_for: format!("{wanted} sessions in the guild"),
                    blocked_by: format!(
                        "{} are there, not {}; {trouble}",
                        crowd.in_guild(),
                        crowd.outside().join(", ")
                    ),
                    next: "run it again with --keep, then cellctl sandbox logs POD".to_owned(),
                });
            }
            sleep(Duration::from_millis(100)).await;
        }
        crowd.shared.settled.store(true, Relaxed);
        let tempers = crowd.tempers;
        phase.finish(&format!(
            "{wanted} sessions are in the guild, {} of them drop and resume, {} read slowly",
            tempers.dropping, tempers.slow
        ));
        Ok(crowd)
    }

    /// Talks alone, then both moves, then the storage, then on to the end of the time asked for.
    async fn acts(&self, crowd: &Crowd, began: Instant) -> Result<Acts, CommandError> {
        let mut acts = Acts::default();
        self.talk_until(crowd, began + self.order.duration / 4).await;
        self.first_move(&mut acts.moves).await?;
        self.talk_until(crowd, began + self.order.duration / 2).await;
        acts.killed = self.second_move(&mut acts.moves).await?;
        acts.migrations = self.second_act().await?;
        self.talk_until(crowd, began + self.order.duration).await;
        Ok(acts)
    }

    /// The guild's logs go to another StorageCell, come back, and go again; reads go on, so that shadow reads have something to compare.
    async fn second_act(&self) -> Result<Vec<Migrated>, CommandError> {
        let phase = self.progress.phase("storage", None);
        self.storage.make_second(self.second.clone(), STORAGE_WITHIN, &phase).await?;
        let unit = self.api.locate(&self.world.guild_id.to_string()).await.map_err(from_api)?.bucket;
        phase.finish(&format!("a second StorageCell is ready for {unit} and the guild split out of it"));
        let reading = self.keep_reading();
        let outcome = self.migrate_twice(&unit).await;
        reading.abort();
        outcome
    }

    async fn migrate_twice(&self, unit: &str) -> Result<Vec<Migrated>, CommandError> {
        let phase = self.progress.phase("carry", None);
        self.storage.begin("there-and-back", unit, "Cutover", STORAGE_WINDOW).await?;
        self.storage.until_cut_over("there-and-back", STORAGE_WITHIN, &phase).await?;
        phase.finish("cut over: the second StorageCell serves, and is shipped back to the first");
        let phase = self.progress.phase("return", None);
        self.storage.roll_back("there-and-back").await?;
        let back = self.storage.until_over("there-and-back", STORAGE_WITHIN, &phase).await?;
        phase.finish(&format!("{}: the first StorageCell serves again", back.outcome));
        let phase = self.progress.phase("again", None);
        self.storage.begin("there", unit, "Complete", 0).await?;
        let there = self.storage.until_over("there", STORAGE_WITHIN, &phase).await?;
        let rows = there.receipt.rows;
        phase.finish(&format!("{}: the second StorageCell serves; {rows} rows were compared", there.outcome));
        Ok(vec![back, there])
    }

    /// Reads a page of each channel in turn, as clients do that scroll.
    fn keep_reading(&self) -> JoinHandle<()> {
        let (shared, channels, token) =
            (Arc::clone(&self.talk.shared), self.world.channels.clone(), self.world.bot.token.clone());
        tokio::spawn(async move {
            for channel in channels.iter().cycle() {
                if let Err(error) = history::read_newest(&shared.rest, &token, *channel).await {
                    shared.note_trouble(&format!("a read failed: {error}"));
                }
                sleep(READ_PAUSE).await;
            }
        })
    }

    async fn talk_until(&self, crowd: &Crowd, until: Instant) {
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        if left == 0 {
            return;
        }
        let phase = self.progress.phase("talk", Some(left));
        while Instant::now() < until {
            let rest = until.saturating_duration_since(Instant::now()).as_secs();
            let (tally, counters) = (&self.talk.tally, &crowd.shared.counters);
            phase.set(
                left.saturating_sub(rest),
                &format!(
                    "s; {} sent, {} arrived, {} resumes",
                    tally.acknowledged.load(Relaxed),
                    counters.live.load(Relaxed),
                    counters.resumes.load(Relaxed)
                ),
            );
            sleep(Duration::from_millis(250)).await;
        }
        phase.finish(&format!("{} messages acknowledged so far", self.talk.tally.acknowledged.load(Relaxed)));
    }

    /// A hot guild gets a cell of its own.
    async fn first_move(&self, moves: &mut Vec<Moved>) -> Result<(), CommandError> {
        let phase = self.progress.phase("hot", None);
        let threshold = (self.order.sessions / 2).max(1);
        self.hand.promote_above(threshold).await?;
        let name = self.hand.next_move(moves, MOVE_WITHIN, &phase).await?;
        phase.finish(&format!("over {threshold} sessions: the operator made a dedicated cell and move {name}"));
        self.follow(&name, moves).await
    }

    async fn follow(&self, name: &str, moves: &mut Vec<Moved>) -> Result<(), CommandError> {
        let phase = self.progress.phase("move", None);
        let moved = self.hand.follow(name, MOVE_WITHIN, &phase).await?;
        let pause = moved.pause_ms.map(|pause| format!(", commands held {pause:.1} ms")).unwrap_or_default();
        phase.finish(&format!("{} → {}: {}{pause}", moved.from, moved.to, moved.outcome));
        moves.push(moved);
        Ok(())
    }

    /// Back to a shared cell, while a gateway and the guild's owner are killed.
    async fn second_move(&self, moves: &mut Vec<Moved>) -> Result<Vec<String>, CommandError> {
        let phase = self.progress.phase("back", None);
        let came_from = moves.first().map(|moved| moved.from.clone()).unwrap_or_default();
        let target = SHARED_CELLS.into_iter().find(|cell| *cell != came_from).unwrap_or(SHARED_CELLS[0]);
        let owner = self.api.locate(&self.world.guild_id.to_string()).await.ok();
        let gateways = self.hand.ready_pods("gateway", None).await?;
        self.hand.pin(target).await?;
        let name = self.hand.next_move(moves, MOVE_WITHIN, &phase).await?;
        let step = self
            .hand
            .reach(&name, &["Warm", "Prove", "Switch", "TakeOver", "Hold", "Complete", "Merge"], MOVE_WITHIN, &phase)
            .await?;
        let mut random = StdRng::seed_from_u64(self.order.seed);
        let mut killed = Vec::new();
        if !gateways.is_empty() {
            killed.push(gateways[random.random_range(0..gateways.len())].clone());
        }
        let hinted = owner.as_ref().map(|owner| owner.guild_owner.clone()).filter(|owner| !owner.is_empty());
        let guild_node = match (hinted, owner) {
            (Some(hinted), _) => Some(hinted),
            (None, Some(owner)) => self.hand.ready_pods("guild", Some(&owner.cell)).await?.into_iter().next(),
            (None, None) => self.hand.ready_pods("guild", None).await?.into_iter().next(),
        };
        killed.extend(guild_node);
        for pod in &killed {
            self.hand.kill(pod, self.progress).await?;
        }
        phase.finish(&format!("at step {step} of move {name} to {target}: {} killed", killed.join(" and ")));
        self.follow(&name, moves).await?;
        Ok(killed)
    }

    /// Waits until every client has every acknowledged message, or the time for it is over: then the ledger says who has not.
    async fn drain(&self, crowd: &Crowd, talking: JoinHandle<()>) -> Result<(), CommandError> {
        let phase = self.progress.phase("drain", None);
        phase.note("waiting for sends under way");
        talking.await.map_err(|error| anyhow::Error::from(error).context("talk"))?;
        let deadline = Instant::now() + DRAIN_WITHIN;
        loop {
            let missing = crowd.missing(&self.talk.ledger.lock().unwrap_or_else(PoisonError::into_inner));
            if missing == 0 {
                phase.finish("every acknowledged message reached every client");
                return Ok(());
            }
            phase.note(&format!(
                "{missing} deliveries outstanding, {} of {} sessions in the guild",
                crowd.in_guild(),
                crowd.len()
            ));
            if Instant::now() > deadline {
                phase.finish(&format!("{missing} deliveries never came"));
                return Ok(());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    async fn judge(&self, crowd: Crowd, acts: Acts) -> Result<Report, CommandError> {
        let phase = self.progress.phase("ledger", Some(self.world.channels.len() as u64));
        for (done, channel) in self.world.channels.iter().enumerate() {
            phase.set(done as u64, "channels read");
            let at_ms = self.talk.shared.at_ms();
            let read = history::read_after(&self.talk.shared.rest, &self.world.bot.token, *channel, 0, at_ms)
                .await
                .map_err(|error| anyhow::Error::from(error).context("read the history"))?;
            let mut ledger = self.talk.ledger.lock().unwrap_or_else(PoisonError::into_inner);
            read.messages.iter().for_each(|seen| ledger.stored(*seen));
        }
        let (shared, tempers) = (Arc::clone(&crowd.shared), crowd.tempers);
        let ledger = self.talk.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let verdict = crowd.judge(&ledger).await;
        phase.finish(if verdict.is_clean() { "clean" } else { "NOT clean" });
        let (counters, tally) = (&shared.counters, &self.talk.tally);
        Ok(Report {
            seed: self.order.seed,
            sessions: self.order.sessions,
            tempers,
            rate: self.order.rate,
            guild_id: self.world.guild_id.to_string(),
            ledger: verdict.sums,
            moves: acts.moves,
            migrations: acts.migrations,
            killed: acts.killed,
            resumes: counters.resumes.load(Relaxed),
            sessions_lost: counters.sessions_lost.load(Relaxed),
            histories_read: counters.histories.load(Relaxed),
            sends_unknown: tally.unknown.load(Relaxed),
            sends_refused: tally.refused.load(Relaxed),
            sends_held_back: tally.held_back.load(Relaxed),
            sequence_gaps: counters.gaps.load(Relaxed),
            send_ms: SendTimes { p50: tally.latency_ms(0.5), p99: tally.latency_ms(0.99), max: tally.latency_ms(1.0) },
            first_offence: verdict.first,
            losses: verdict.losses,
            trouble: self.trouble(),
        })
    }

    fn trouble(&self) -> Option<String> {
        self.talk.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
