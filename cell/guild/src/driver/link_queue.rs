//! The bounded queue of one gateway's link. One that overflows is reset: the gateway comes back with its positions and gets what follows.

use std::collections::VecDeque;
use std::sync::Arc;

use cell_proto::v1::LinkDown;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::ask::Envelope;
use crate::machine::{Input, LinkId};

/// Most frames waiting.
pub(super) const FRAME_LIMIT: usize = 4096;
/// Most bytes waiting, as encoded.
pub(super) const BYTE_LIMIT: usize = 8 * 1024 * 1024;

struct Frame {
    down: Arc<LinkDown>,
    bytes: usize,
    /// Who wants to know that it left.
    paced_by: Option<mpsc::Sender<Envelope>>,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Frame>,
    bytes: usize,
    closed: bool,
    overflowed: bool,
}

/// What is on its way to one gateway.
pub(super) struct LinkQueue {
    /// Unique in this process.
    pub(super) id: LinkId,
    /// The gateway's member id, for logs.
    pub(super) member_id: String,
    state: Mutex<State>,
    filled: Notify,
    /// Cancelled when the queue overflows, so that a writer stuck on a slow peer ends too.
    pub(super) reset: CancellationToken,
    /// Cancelled when nothing goes down any more.
    pub(super) ended: CancellationToken,
}

impl LinkQueue {
    pub(super) fn new(id: LinkId, member_id: String) -> Self {
        Self {
            id,
            member_id,
            state: Mutex::default(),
            filled: Notify::new(),
            reset: CancellationToken::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Adds a frame; a full queue closes instead. Frames for a closed queue are dropped: the gateway attaches anew.
    pub(super) fn push(&self, down: Arc<LinkDown>, paced_by: Option<mpsc::Sender<Envelope>>) {
        let bytes = down.encoded_len();
        {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            // One frame of any size fits into an empty queue.
            let full =
                state.frames.len() >= FRAME_LIMIT || state.bytes + bytes > BYTE_LIMIT && !state.frames.is_empty();
            if full {
                state.closed = true;
                state.overflowed = true;
                state.frames.clear();
                self.reset.cancel();
            } else {
                state.bytes += bytes;
                state.frames.push_back(Frame { down, bytes, paced_by });
            }
        }
        self.filled.notify_one();
    }

    /// Takes nothing more.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_one();
    }

    /// Whether nothing more goes down.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Whether it was closed because it was full.
    pub(super) fn has_overflowed(&self) -> bool {
        self.state.lock().overflowed
    }

    /// The next frame; none once it is closed and empty. Tells the guild of a paced frame that it left.
    pub(super) async fn next(&self) -> Option<LinkDown> {
        loop {
            let (frame, closed) = {
                let mut state = self.state.lock();
                let frame = state.frames.pop_front();
                state.bytes -= frame.as_ref().map_or(0, |frame| frame.bytes);
                (frame, state.closed)
            };
            match frame {
                Some(frame) => {
                    if let Some(mailbox) = frame.paced_by {
                        let drained = Envelope::Input(Input::Drained { link: self.id });
                        // The guild's task never waits for a link, so this ends; a task that is gone wants no answer.
                        let _gone = mailbox.send(drained).await;
                    }
                    return Some(Arc::unwrap_or_clone(frame.down));
                }
                None if closed => return None,
                None => self.filled.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::{Typing, link_down::Kind};

    use super::*;

    fn frame() -> Arc<LinkDown> {
        Arc::new(LinkDown { kind: Some(Kind::Typing(Typing { guild_id: 1, ..Typing::default() })) })
    }

    #[tokio::test]
    async fn a_queue_that_overflows_is_closed_and_says_so() {
        let queue = LinkQueue::new(1, "gateway".into());
        for _ in 0..FRAME_LIMIT {
            queue.push(frame(), None);
        }
        assert!(!queue.has_overflowed());
        queue.push(frame(), None);
        assert!(queue.has_overflowed());
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn a_paced_frame_tells_its_guild_when_it_leaves() {
        let (mailbox, mut inbox) = mpsc::channel(1);
        let queue = LinkQueue::new(7, "gateway".into());
        queue.push(frame(), Some(mailbox));
        queue.push(frame(), None);
        assert!(queue.next().await.is_some());
        assert!(matches!(inbox.try_recv(), Ok(Envelope::Input(Input::Drained { link: 7 }))));
        queue.close();
        assert!(queue.next().await.is_some());
        assert!(queue.next().await.is_none());
    }
}
