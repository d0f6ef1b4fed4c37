//! Links to guild nodes: one stream per node, shared by all guilds followed there. A link passes frames on in order or is reset; it
//! drops nothing silently.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

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
/// How long one slow guild may hold up the others of its link before the link is reset.
const STALL: Duration = Duration::from_secs(5);
/// How long a node may take to accept a link.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// One link.
pub struct Link {
    /// host:port of the node.
    pub address: String,
    up: mpsc::Sender<LinkUp>,
    guilds: Mutex<HashMap<i64, mpsc::Sender<Down>>>,
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
        self.guilds.lock().remove(&guild_id);
        self.send(Up::Detach(cell_proto::v1::Detach { guild_id }));
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
                    tracing::warn!(guild_id, address = %self.address, "a guild did not take its frames in time; the link is reset");
                    self.reset();
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

    /// The link to a node, opened if there is none.
    pub fn get(self: &Arc<Self>, address: &str) -> Arc<Link> {
        let mut open = self.open.lock();
        if let Some(link) = open.get(address).filter(|link| !link.closed.is_cancelled()) {
            return link.clone();
        }
        let (up, frames) = mpsc::channel(UP_QUEUE);
        // The first frame of a link; the queue is empty, so it fits.
        let _ = up.try_send(LinkUp { kind: Some(Up::Hello(self.hello.clone())) });
        let link = Arc::new(Link {
            address: address.to_owned(),
            up,
            guilds: Mutex::default(),
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
