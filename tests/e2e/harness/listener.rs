//! A live session that never resumes: whatever ends its socket is remembered, so that a test can say that it was not disturbed.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cellctl::demo::protocol::{self, Event};
use cellctl::demo::socket::Socket;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::wait_for;

#[derive(Default)]
struct Heard {
    guilds: Vec<i64>,
    messages: Vec<(u32, i64)>,
    ended: Option<String>,
}

/// One session.
pub struct Listener {
    heard: Arc<Mutex<Heard>>,
    task: JoinHandle<()>,
}

impl Listener {
    /// Identifies at an address and waits for the guild.
    pub async fn open(to: SocketAddr, from: Ipv4Addr, token: &str, guild_id: &str) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (telling, token) = (Arc::clone(&heard), token.to_owned());
        let task = tokio::spawn(async move {
            let ended = live(to, from, &token, &telling).await.expect_err("a session has no end of its own");
            telling.lock().unwrap().ended = Some(ended);
        });
        let listener = Self { heard, task };
        let guild_id: i64 = guild_id.parse().unwrap();
        wait_for("a session to have the guild", 30, async || {
            let heard = listener.heard.lock().unwrap();
            if heard.guilds.contains(&guild_id) { Ok(()) } else { Err(format!("ended: {:?}", heard.ended)) }
        })
        .await;
        listener
    }

    /// Numbers and ids of the messages heard so far, as they came.
    pub fn messages(&self) -> Vec<(u32, i64)> {
        self.heard.lock().unwrap().messages.clone()
    }

    /// What ended it.
    pub fn ended(&self) -> Option<String> {
        self.heard.lock().unwrap().ended.clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn live(to: SocketAddr, from: Ipv4Addr, token: &str, heard: &Mutex<Heard>) -> Result<(), String> {
    let mut socket = Socket::open(to, from, None).await.map_err(|ended| format!("{ended:?}"))?;
    let (mut beat, mut interval, mut sequence) = (Instant::now() + Duration::from_secs(3600), Duration::ZERO, None);
    loop {
        let text = tokio::select! {
            text = socket.next() => text.map_err(|ended| format!("{ended:?}"))?,
            () = sleep_until(beat) => {
                socket.send(protocol::heartbeat(sequence)).await.map_err(|ended| format!("{ended:?}"))?;
                beat = Instant::now() + interval;
                continue;
            }
        };
        let frame = protocol::parse(&text).map_err(|error| error.to_string())?;
        sequence = frame.sequence.or(sequence);
        match frame.event {
            Event::Hello { interval_ms } => {
                interval = Duration::from_millis(interval_ms / 2);
                beat = Instant::now() + interval;
                socket.send(protocol::identify(token)).await.map_err(|ended| format!("{ended:?}"))?;
            }
            Event::Guild { guild_id } => heard.lock().unwrap().guilds.push(guild_id),
            Event::Message { number, message_id, .. } => heard.lock().unwrap().messages.push((number, message_id)),
            Event::Reconnect | Event::Invalid { .. } => return Err(text.to_string()),
            Event::Beat => socket.send(protocol::heartbeat(sequence)).await.map_err(|ended| format!("{ended:?}"))?,
            Event::Ready { .. } | Event::Resumed | Event::Acknowledged | Event::Other => {}
        }
    }
}
