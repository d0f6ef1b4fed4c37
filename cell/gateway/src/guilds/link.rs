//! Links to guild nodes: one stream per node, shared by all guilds followed there. A link passes frames on in order or is reset; it
//! drops nothing silently.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::link_up::Kind as Up;
use cell_proto::v1::{Attach, LinkDown, LinkHello, LinkUp};
use cell_runtime::{CancellationToken, Channels};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::metrics::Metrics;

/// Frames that may wait to be sent up.
const UP_QUEUE: usize = 4096;
/// Frames that may wait for one guild's driver.
const GUILD_QUEUE: usize = 1024;
/// How long one slow guild may hold up the others of its link before it is let go: far below what any of them notices.
const STALL: Duration = Duration::from_millis(250);
/// How long frames of an attachment that was ended from here may still be on their way.
const ON_THE_WAY: Duration = Duration::from_secs(60);
/// How long a node may take to accept a link.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// One link.
pub struct Link {
    /// host:port of the node.
    pub address: String,
    up: mpsc::Sender<LinkUp>,
    guilds: Mutex<HashMap<i64, mpsc::Sender<Down>>>,
    /// Guilds whose attachment was ended from here, and when: frames of it may still arrive, and a later attachment would take them for
    /// its own and skip what they overtook. Such a guild gets another link.
    left: Mutex<HashMap<i64, Instant>>,
    /// Another link took this one's place: it closes with its last guild.
    replaced: AtomicBool,
    closed: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Link {
    /// Follows a guild here: sends the attach and answers where its frames arrive. `None` when the link is closed or full.
    pub fn attach(&self, attach: Attach) -> Option<mpsc::Receiver<Down>> {
        let (sender, receiver) = mpsc::channel(GUILD_QUEUE);
        self.guilds.lock().insert(attach.guild_id, sender);
        self.send(Up::Attach(attach)).then_some(receiver)
    }

    /// Stops following a guild here.
    pub fn detach(&self, guild_id: i64) {
        if self.guilds.lock().remove(&guild_id).is_none() {
            return;
        }
        {
            let mut left = self.left.lock();
            left.retain(|_, at| at.elapsed() < ON_THE_WAY);
            left.insert(guild_id, Instant::now());
        }
        self.send(Up::Detach(cell_proto::v1::Detach { guild_id }));
        self.close_if_unused();
    }

    /// The owner ended the attachment with its last frame: nothing of it is on its way any more.
    pub fn ended(&self, guild_id: i64) {
        self.guilds.lock().remove(&guild_id);
        self.close_if_unused();
    }

    fn close_if_unused(&self) {
        if self.replaced.load(Ordering::Acquire) && self.guilds.lock().is_empty() {
            self.closed.cancel();
        }
    }

    /// Whether frames of an earlier attachment of this guild may still arrive here.
    fn may_overtake(&self, guild_id: i64) -> bool {
        self.guilds.lock().contains_key(&guild_id)
            || self.left.lock().get(&guild_id).is_some_and(|at| at.elapsed() < ON_THE_WAY)
    }

    /// Sends a frame up; a full queue resets the link.
    pub fn send(&self, kind: Up) -> bool {
        if self.closed.is_cancelled() {
            return false;
        }
        let sent = self.up.try_send(LinkUp { kind: Some(kind) }).is_ok();
        if !sent {
            self.reset();
        }
        sent
    }

    /// Closes the link: every guild on it attaches anew.
    pub fn reset(&self) {
        if !self.closed.is_cancelled() {
            self.metrics.link_resets.inc();
            self.closed.cancel();
        }
    }

    /// Completes when the link is closed.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    async fn dispatch(&self, frame: LinkDown) {
        let Some(kind) = frame.kind else {
            return;
        };
        let guild_id = guild_of(&kind);
        let Some(sender) = self.guilds.lock().get(&guild_id).cloned() else {
            return;
        };
        match sender.try_send(kind) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Closed(_)) => {
                self.guilds.lock().retain(|id, other| *id != guild_id || !other.same_channel(&sender));
            }
            Err(mpsc::error::TrySendError::Full(kind)) => {
                if tokio::time::timeout(STALL, sender.send(kind)).await.is_err() {
                    tracing::warn!(guild_id, address = %self.address, "a guild did not take its frames in time; it attaches anew");
                    self.metrics.link_resets.inc();
                    // Unless it attached anew by itself meanwhile.
                    if self.guilds.lock().get(&guild_id).is_some_and(|other| other.same_channel(&sender)) {
                        self.detach(guild_id);
                    }
                }
            }
        }
    }
}

fn guild_of(kind: &Down) -> i64 {
    match kind {
        Down::Snapshot(snapshot) => snapshot.guild.as_ref().map_or(0, |guild| guild.id),
        Down::Events(events) => events.guild_id,
        Down::Members(info) => info.guild_id,
        Down::Typing(typing) => typing.guild_id,
        Down::Moved(moved) | Down::Standby(moved) => moved.guild_id,
        Down::Refused(refused) => refused.guild_id,
    }
}

/// All links of this process.
pub struct Links {
    open: Mutex<HashMap<String, Arc<Link>>>,
    channels: Arc<Channels>,
    hello: LinkHello,
    metrics: Arc<Metrics>,
}

impl Links {
    /// None yet.
    pub fn new(channels: Arc<Channels>, hello: LinkHello, metrics: Arc<Metrics>) -> Self {
        Self { open: Mutex::default(), channels, hello, metrics }
    }

    /// The link to a node for a guild that is not attached there: the one there is, unless frames of an earlier attachment of the guild
    /// may still arrive on it; then a new one, which takes its place.
    pub fn get(self: &Arc<Self>, address: &str, guild_id: i64) -> Arc<Link> {
        let mut open = self.open.lock();
        if let Some(link) = open.get(address).filter(|link| !link.closed.is_cancelled()) {
            if !link.may_overtake(guild_id) {
                return link.clone();
            }
            link.replaced.store(true, Ordering::Release);
            link.close_if_unused();
        }
        let (up, frames) = mpsc::channel(UP_QUEUE);
        // The first frame of a link; the queue is empty, so it fits.
        let _ = up.try_send(LinkUp { kind: Some(Up::Hello(self.hello.clone())) });
        let link = Arc::new(Link {
            address: address.to_owned(),
            up,
            guilds: Mutex::default(),
            left: Mutex::default(),
            replaced: AtomicBool::new(false),
            closed: CancellationToken::new(),
            metrics: self.metrics.clone(),
        });
        open.insert(address.to_owned(), link.clone());
        drop(open);
        tokio::spawn(self.clone().run(link.clone(), frames));
        link
    }

    /// Closes all links.
    pub fn close(&self) {
        self.open.lock().drain().for_each(|(_, link)| link.closed.cancel());
    }

    async fn run(self: Arc<Self>, link: Arc<Link>, frames: mpsc::Receiver<LinkUp>) {
        let closed = link.closed.clone();
        tokio::select! {
            () = closed.cancelled() => {}
            result = self.read(&link, frames) => {
                if let Err(error) = result {
                    tracing::info!(address = %link.address, %error, "a link broke");
                    self.channels.forget(&link.address);
                }
                self.metrics.link_losses.inc();
            }
        }
        link.closed.cancel();
        link.guilds.lock().clear();
        let mut open = self.open.lock();
        if open.get(&link.address).is_some_and(|other| Arc::ptr_eq(other, &link)) {
            open.remove(&link.address);
        }
    }

    async fn read(&self, link: &Link, frames: mpsc::Receiver<LinkUp>) -> Result<(), LinkError> {
        let channel = self.channels.get(&link.address)?;
        let mut client = GuildServiceClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let opening = client.link(ReceiverStream::new(frames));
        let mut stream = tokio::time::timeout(OPEN_TIMEOUT, opening).await.map_err(|_| LinkError::Slow)??.into_inner();
        while let Some(frame) = stream.message().await? {
            link.dispatch(frame).await;
        }
        Ok(())
    }
}

/// Why a link ended.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Address(#[from] cell_runtime::channels::InvalidAddress),
    #[error("the guild node did not accept the link in time")]
    Slow,
    #[error("{0}")]
    Broken(#[from] Box<tonic::Status>),
}

impl From<tonic::Status> for LinkError {
    fn from(status: tonic::Status) -> Self {
        Self::Broken(Box::new(status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(guild_id: i64) -> Attach {
        Attach { guild_id, ..Attach::default() }
    }

    #[tokio::test]
    async fn a_guild_that_left_gets_another_link_so_that_frames_on_their_way_overtake_nothing() {
        // Accepts and says nothing, so the links stay as they are.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let links = Arc::new(Links::new(Arc::default(), LinkHello::default(), Arc::default()));
        let first = links.get(&address, 1);
        let (_one, _two) = (first.attach(attach(1)).unwrap(), first.attach(attach(2)).unwrap());
        assert!(Arc::ptr_eq(&links.get(&address, 3), &first), "a guild that was never there shares the link");
        first.detach(1);
        let second = links.get(&address, 1);
        assert!(!Arc::ptr_eq(&second, &first));
        assert!(!first.closed.is_cancelled(), "the other guild goes on");
        first.ended(2);
        assert!(first.closed.is_cancelled(), "nobody uses it any more");
        let _one = second.attach(attach(1)).unwrap();
        second.ended(1);
        assert!(Arc::ptr_eq(&links.get(&address, 1), &second), "the owner's last frame came: nothing is on its way");
    }
}
