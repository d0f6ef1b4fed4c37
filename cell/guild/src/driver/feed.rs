//! One guild's feed: opened at the data owner, opened anew at the new owner when it moves or dies, until the machine wants another.

use cell_proto::v1::{FeedBatch, FeedRequest, Reason, Refusal};
use cell_runtime::retry::Retry;
use tokio::sync::mpsc;

use super::ask::Envelope;
use super::data::{DataClient, Failure};
use crate::machine::Input;

/// What to follow.
pub(super) struct FeedTask {
    pub(super) data: DataClient,
    pub(super) mailbox: mpsc::Sender<Envelope>,
    pub(super) guild_id: i64,
    pub(super) follower: String,
    pub(super) epoch: u64,
    pub(super) log: String,
    pub(super) from: u64,
}

/// Why a stream ended.
enum End {
    /// The guild's task is gone.
    Gone,
    /// The machine must decide.
    Tell(Refusal),
    /// Open it again, at this address if one is named, after this hint.
    Again { address: Option<String>, hint_ms: u32 },
}

impl FeedTask {
    /// Runs until the feed has to end or the task is aborted.
    pub(super) async fn run(mut self) {
        let mut retry = Retry::default();
        let mut address = None;
        loop {
            let before = self.from;
            match self.follow(address.take()).await {
                End::Gone => return,
                End::Tell(refusal) => {
                    let ended = Input::FeedEnded { epoch: self.epoch, refusal: Some(refusal) };
                    let _gone = self.mailbox.send(Envelope::Input(ended)).await;
                    return;
                }
                End::Again { address: next, hint_ms } => {
                    if self.from > before {
                        retry = Retry::default();
                    }
                    address = next;
                    tokio::time::sleep(retry.pause(hint_ms)).await;
                }
            }
        }
    }

    async fn follow(&mut self, address: Option<String>) -> End {
        match self.stream(address).await {
            Ok(end) => end,
            Err(Failure::Refused(refusal)) => self.refused(refusal),
            Err(Failure::Transport(status)) => {
                tracing::debug!(log = self.log, guild_id = self.guild_id, message = status.message(), "the feed broke");
                End::Again { address: None, hint_ms: 0 }
            }
        }
    }

    fn refused(&self, refusal: Refusal) -> End {
        match refusal.why() {
            Reason::OtherLog => {
                self.data.redirect(&self.log, &refusal);
                End::Tell(refusal)
            }
            Reason::NotOwner | Reason::StaleTerm => {
                let address = self.data.redirect(&self.log, &refusal);
                End::Again { address, hint_ms: refusal.retry_after_ms }
            }
            reason if reason.is_retryable() => End::Again { address: None, hint_ms: refusal.retry_after_ms },
            _ => End::Tell(refusal),
        }
    }

    async fn stream(&mut self, address: Option<String>) -> Result<End, Failure> {
        let (mut client, _) = self.data.client(&self.log, address.as_deref())?;
        let request = FeedRequest {
            log: self.log.clone(),
            from: self.from,
            guild_id: self.guild_id,
            follower: self.follower.clone(),
        };
        let mut batches = client.feed(request).await?.into_inner();
        while let Some(batch) = batches.message().await? {
            let refusal = batch.refusal.clone();
            if !self.pass_on(batch).await {
                return Ok(End::Gone);
            }
            if let Some(refusal) = refusal {
                return Err(Failure::Refused(refusal));
            }
        }
        Ok(End::Again { address: None, hint_ms: 0 })
    }

    /// Waits for room in the mailbox: entries are never shed, the stream waits instead.
    async fn pass_on(&mut self, batch: FeedBatch) -> bool {
        if batch.entries.is_empty() && batch.refusal.is_some() {
            return true;
        }
        let newest = batch.entries.last().map(|entry| entry.number);
        self.from = newest.map_or(self.from, |newest| self.from.max(newest + 1));
        let last = newest.unwrap_or(batch.last);
        let input = Input::Feed { epoch: self.epoch, entries: batch.entries, last, term: batch.term };
        self.mailbox.send(Envelope::Input(input)).await.is_ok()
    }
}
