//! One gateway's link, multiplexed over guilds: what comes up goes to the guilds' mailboxes, what their machines send goes down through one
//! bounded queue. A link that overflows, or a guild that takes nothing for too long, resets it: the gateway comes back with its positions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::link_up::Kind as Up;
use cell_proto::v1::{Attach, AttachRefused, LinkDown, LinkHello, LinkUp, Reason, Refusal};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::ask::Envelope;
use super::link_queue::LinkQueue;
use super::node::Node;
use super::registry::Handle;
use crate::machine::Input;

/// How long the first frame may take.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How long a guild may refuse to take a frame before the link is reset.
const DELIVERY_LIMIT: Duration = Duration::from_secs(5);
/// Frames handed to the transport ahead of its own flow control.
const TRANSPORT_BUFFER: usize = 8;

/// Frames down to the gateway.
pub(super) type DownSender = mpsc::Sender<Result<LinkDown, Status>>;
/// The other end.
pub(super) type DownReceiver = mpsc::Receiver<Result<LinkDown, Status>>;

/// The channel between a link's task and its transport.
pub(super) fn channel() -> (DownSender, DownReceiver) {
    mpsc::channel(TRANSPORT_BUFFER)
}

/// Serves a link until either side ends it.
pub(super) async fn serve(node: Arc<Node>, mut up: Streaming<LinkUp>, down: DownSender) {
    let hello = match tokio::time::timeout(HELLO_LIMIT, up.message()).await {
        Ok(Ok(Some(LinkUp { kind: Some(Up::Hello(hello)) }))) => hello,
        _ => {
            // Whoever is there, it speaks another protocol; it may be gone already.
            let _gone = down.send(Err(Status::invalid_argument("the first frame of a link must be hello"))).await;
            return;
        }
    };
    let LinkHello { member_id, cell, .. } = hello;
    tracing::debug!(gateway = member_id, cell, "link opened");
    let queue = Arc::new(LinkQueue::new(node.next_link_id(), member_id));
    node.metrics.links.inc();
    let writer = tokio::spawn(write(queue.clone(), down));
    let mut link = Link { node: node.clone(), queue: queue.clone(), attached: HashMap::new() };
    tokio::select! {
        () = link.read(&mut up) => {}
        () = queue.reset.cancelled() => {
            node.metrics.link_resets.inc();
            tracing::warn!(gateway = queue.member_id, "link reset: its queue was full");
        }
        // The gateway is gone.
        () = queue.ended.cancelled() => {}
    }
    queue.close();
    link.detach_all();
    drop(writer);
    node.metrics.links.dec();
}

async fn write(queue: Arc<LinkQueue>, down: DownSender) {
    while let Some(frame) = queue.next().await {
        tokio::select! {
            sent = down.send(Ok(frame)) => {
                if sent.is_err() {
                    break;
                }
            }
            () = queue.reset.cancelled() => break,
        }
    }
    if queue.has_overflowed() {
        // Best effort: the end of the stream says the same.
        let _full = down.try_send(Err(Status::resource_exhausted("link reset: its queue was full")));
    }
    queue.ended.cancel();
}

struct Link {
    node: Arc<Node>,
    queue: Arc<LinkQueue>,
    attached: HashMap<i64, Handle>,
}

impl Link {
    async fn read(&mut self, up: &mut Streaming<LinkUp>) {
        while let Ok(Some(frame)) = up.message().await {
            if !self.take(frame).await {
                self.node.metrics.link_resets.inc();
                tracing::warn!(gateway = self.queue.member_id, "link reset: a guild's mailbox stayed full");
                return;
            }
        }
    }

    /// Passes a frame on; false when the guild takes nothing.
    async fn take(&mut self, frame: LinkUp) -> bool {
        let link = self.queue.id;
        match frame.kind {
            Some(Up::Attach(attach)) => self.attach(attach).await,
            Some(Up::Detach(detach)) => match self.attached.remove(&detach.guild_id) {
                Some(handle) => pass_on(&handle, Input::Detach { link }).await,
                None => true,
            },
            Some(Up::Interest(interest)) => {
                let (add, remove) = (interest.add_user_ids, interest.remove_user_ids);
                let input = Input::Interest { link, add, remove, sessions: interest.sessions };
                self.pass_to_attached(interest.guild_id, input).await
            }
            Some(Up::Ack(ack)) => match ack.position {
                Some(position) => self.pass_to_attached(ack.guild_id, Input::Ack { link, position }).await,
                None => true,
            },
            Some(Up::Typing(typing)) => {
                let input =
                    Input::Typing { channel_id: typing.channel_id, user_id: typing.user_id, at_ms: typing.at_ms };
                if let Some(handle) = self.attached.get(&typing.guild_id)
                    && handle.mailbox.try_send(Envelope::Input(input)).is_err()
                {
                    self.node.metrics.dropped_typing.inc();
                }
                true
            }
            // A second hello, or a kind of a newer gateway: nothing to do.
            Some(Up::Hello(_)) | None => true,
        }
    }

    async fn attach(&mut self, attach: Attach) -> bool {
        let guild_id = attach.guild_id;
        let found = if attach.standby {
            self.node.start(guild_id, &attach.log)
        } else {
            self.node.owned(guild_id, &attach.log)
        };
        let handle = match found {
            Ok(handle) => handle,
            Err(refusal) => {
                self.refuse(guild_id, refusal);
                return true;
            }
        };
        let envelope = Envelope::Attach {
            queue: self.queue.clone(),
            position: attach.position,
            user_ids: attach.user_ids,
            standby: attach.standby,
        };
        match handle.mailbox.send_timeout(envelope, DELIVERY_LIMIT).await {
            Ok(()) => {
                self.attached.insert(guild_id, handle);
                true
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => {
                self.refuse(guild_id, Refusal::new(Reason::Wait, "the guild is being restarted").retry_after_ms(50));
                true
            }
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => false,
        }
    }

    async fn pass_to_attached(&mut self, guild_id: i64, input: Input) -> bool {
        let Some(handle) = self.attached.get(&guild_id) else { return true };
        if handle.mailbox.is_closed() {
            self.attached.remove(&guild_id);
            return true;
        }
        pass_on(handle, input).await
    }

    fn refuse(&self, guild_id: i64, refusal: Refusal) {
        let refused = AttachRefused { guild_id, refusal: Some(refusal) };
        self.queue.push(Arc::new(LinkDown { kind: Some(Down::Refused(refused)) }), None);
    }

    /// Tells what has room for it; a guild whose mailbox is full finds the closed queue by itself at its next tick.
    fn detach_all(&mut self) {
        let link = self.queue.id;
        for (_, handle) in self.attached.drain() {
            let _finds_out = handle.mailbox.try_send(Envelope::Input(Input::Detach { link }));
        }
    }
}

/// False when the guild takes nothing; a guild that ended needs nothing.
async fn pass_on(handle: &Handle, input: Input) -> bool {
    let sent = handle.mailbox.send_timeout(Envelope::Input(input), DELIVERY_LIMIT).await;
    !matches!(sent, Err(mpsc::error::SendTimeoutError::Timeout(_)))
}
