//! Many websocket sessions of one guild against one gateway: identified, heartbeating, counting the messages they get.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use futures::{SinkExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::process::{Gateway, token};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// How long all sessions may take to be told something.
const LIMIT: Duration = Duration::from_secs(60);
/// As the gateway says in its Hello, less a little.
const HEARTBEAT: Duration = Duration::from_secs(40);
const INTENTS: u32 = 1 | 1 << 9 | 1 << 15;

/// When sessions send their first heartbeat.
#[derive(Clone, Copy)]
pub enum Beats {
    /// Evenly over the interval, as of clients that came at different times.
    Spread,
    /// As late as allowed, so that no answer is counted for a message.
    Late,
}

/// What the sessions count.
#[derive(Default)]
struct Counts {
    guilds: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    /// Text is counted by event; of compressed frames only that they came.
    frames: AtomicU64,
    /// How the first of the lost ended.
    first_lost: Mutex<Option<String>>,
}

impl Counts {
    fn lose(&self, how: impl std::fmt::Debug) {
        self.first_lost.lock().get_or_insert_with(|| format!("{how:?}"));
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// The sessions; they end with this.
pub struct Crowd {
    counts: Arc<Counts>,
    changed: watch::Receiver<()>,
    sessions: u64,
    compressed: bool,
    _tasks: JoinSet<()>,
}

impl Crowd {
    /// Connects and identifies a session for each user, and waits until each has the guild.
    pub async fn gather(gateway: &Gateway, users: &[i64], compressed: bool, beats: Beats) -> anyhow::Result<Self> {
        let counts = Arc::new(Counts::default());
        let (tell, changed) = watch::channel(());
        let tell = Arc::new(tell);
        let query = if compressed { "v=10&compress=zlib-stream" } else { "v=10" };
        let url = format!("ws://{}/?{query}", gateway.http);
        let sockets: Vec<Socket> = futures::stream::iter(users.iter().copied())
            .map(|user_id| identify(&url, user_id))
            .buffer_unordered(32)
            .try_collect()
            .await?;
        let sessions = sockets.len() as u64;
        let mut tasks = JoinSet::new();
        for (index, socket) in sockets.into_iter().enumerate() {
            let beat = match beats {
                Beats::Spread => HEARTBEAT.mul_f64((index % 100) as f64 / 100.0),
                Beats::Late => HEARTBEAT,
            };
            tasks.spawn(listen(socket, counts.clone(), tell.clone(), beat));
        }
        let mut this = Self { counts, changed, sessions, compressed, _tasks: tasks };
        // Compressed sessions are told Hello, READY and the guild: three frames.
        if compressed {
            this.wait(|counts| counts.frames.load(Ordering::Relaxed), 3).await?;
        } else {
            this.wait(|counts| counts.guilds.load(Ordering::Relaxed), 1).await?;
        }
        Ok(this)
    }

    async fn wait(&mut self, count: impl Fn(&Counts) -> u64, each: u64) -> anyhow::Result<()> {
        let wanted = each * self.sessions;
        let counts = self.counts.clone();
        let all = async { while count(&counts) < wanted && self.changed.changed().await.is_ok() {} };
        let timely = tokio::time::timeout(LIMIT, all).await;
        let lost = counts.lost.load(Ordering::Relaxed);
        if timely.is_err() || lost > 0 {
            let first = counts.first_lost.lock().clone().unwrap_or_default();
            let (came, sessions) = (count(&counts), self.sessions);
            bail!("{came} of {wanted} came to {sessions} sessions, of which {lost} were lost; the first by {first:?}");
        }
        Ok(())
    }

    /// Frames or messages that came so far.
    pub fn received(&self) -> u64 {
        if self.compressed {
            self.counts.frames.load(Ordering::Relaxed)
        } else {
            self.counts.messages.load(Ordering::Relaxed)
        }
    }

    /// Bytes of payloads that came so far.
    pub fn bytes(&self) -> u64 {
        self.counts.bytes.load(Ordering::Relaxed)
    }

    /// Sessions whose connection has ended.
    pub fn lost(&self) -> u64 {
        self.counts.lost.load(Ordering::Relaxed)
    }

    /// Waits until so many have been received in all.
    pub async fn wait_received(&mut self, wanted: u64) -> anyhow::Result<()> {
        let all = async { while self.received() < wanted && self.changed.changed().await.is_ok() {} };
        if tokio::time::timeout(LIMIT, all).await.is_err() {
            bail!("{} of {wanted} deliveries came in time; {} connections were lost", self.received(), self.lost());
        }
        Ok(())
    }
}

async fn identify(url: &str, user_id: i64) -> anyhow::Result<Socket> {
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.context("connect to the gateway")?;
    let identify: Value = json!({"op": 2, "d": {"token": token(user_id)?, "intents": INTENTS, "properties": {}}});
    socket.send(Message::text(identify.to_string())).await?;
    Ok(socket)
}

async fn listen(mut socket: Socket, counts: Arc<Counts>, tell: Arc<watch::Sender<()>>, first_beat: Duration) {
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + first_beat, HEARTBEAT);
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    counts.bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
                    if text.starts_with(r#"{"t":"MESSAGE_CREATE""#) {
                        counts.messages.fetch_add(1, Ordering::Relaxed);
                    } else if text.starts_with(r#"{"t":"GUILD_CREATE""#) {
                        counts.guilds.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Some(Ok(Message::Binary(bytes))) => {
                    counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    counts.frames.fetch_add(1, Ordering::Relaxed);
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                how => {
                    counts.lose(how);
                    tell.send_replace(());
                    return;
                }
            },
            _ = beat.tick() => {
                if let Err(error) = socket.send(Message::text(r#"{"op":1,"d":null}"#)).await {
                    counts.lose(error);
                    return;
                }
            }
        }
        tell.send_replace(());
    }
}
