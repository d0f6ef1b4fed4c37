//! Tells users' own buckets which guilds they joined and left: in order for each user, side by side for different ones, with operation ids made
//! from the log's entry, so that telling twice is telling once.

use std::collections::HashSet;
use std::time::Duration;

use cell_proto::v1::change::Kind;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{Change, SubmitRequest, UserGuildAdded, UserGuildRemoved};
use cell_runtime::unix_ms;
use futures::stream::{self, StreamExt};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::ask::Envelope;
use super::data::DataClient;
use crate::machine::Input;

/// Users told at once.
const CONCURRENCY: usize = 32;
/// Deadline of one command; below half the dedupe window.
const DEADLINE_MS: i64 = 60_000;

/// One membership to tell.
#[derive(Clone, Debug)]
pub(super) struct Telling {
    pub(super) log: String,
    pub(super) number: u64,
    pub(super) guild_id: i64,
    pub(super) user_id: i64,
    pub(super) joined: bool,
}

impl Telling {
    fn request(&self) -> SubmitRequest {
        let text = format!("membership {} {} {}", self.log, self.number, self.user_id);
        let (user_id, guild_id) = (self.user_id, self.guild_id);
        let kind = if self.joined {
            Kind::UserGuildAdded(UserGuildAdded { user_id, guild_id })
        } else {
            Kind::UserGuildRemoved(UserGuildRemoved { user_id, guild_id })
        };
        SubmitRequest {
            log: DataClient::user_log(user_id),
            operation_id: Sha256::digest(text)[..16].to_vec(),
            deadline_unix_ms: unix_ms() + DEADLINE_MS,
            change: Some(Change { kind: Some(kind) }),
            ..SubmitRequest::default()
        }
    }

    /// Tells it, as often as it takes: the entry stays in the log until then.
    async fn tell(&self, data: &DataClient) {
        loop {
            match data.submit(self.request()).await.outcome {
                Some(Outcome::Committed(_)) => return,
                Some(Outcome::Refusal(refusal)) if !refusal.why().is_retryable() => {
                    let reason = refusal.why().label();
                    tracing::warn!(log = self.log, number = self.number, reason, "a user's list of guilds was not changed");
                    return;
                }
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

/// Tells what arrives until the sender is gone.
pub(super) async fn run(data: DataClient, mailbox: mpsc::Sender<Envelope>, mut tellings: mpsc::UnboundedReceiver<Telling>) {
    let mut ahead = None;
    loop {
        let Some(batch) = next_batch(&mut tellings, &mut ahead).await else { return };
        stream::iter(&batch).for_each_concurrent(CONCURRENCY, |telling| telling.tell(&data)).await;
        for telling in batch {
            let fed = Input::MembershipFed { log: telling.log, number: telling.number };
            if mailbox.send(Envelope::Input(fed)).await.is_err() {
                return;
            }
        }
    }
}

/// As many as are there, of different users.
async fn next_batch(
    tellings: &mut mpsc::UnboundedReceiver<Telling>,
    ahead: &mut Option<Telling>,
) -> Option<Vec<Telling>> {
    let first = match ahead.take() {
        Some(telling) => telling,
        None => tellings.recv().await?,
    };
    let mut users = HashSet::from([first.user_id]);
    let mut batch = vec![first];
    while batch.len() < CONCURRENCY * 2 {
        let Ok(telling) = tellings.try_recv() else { break };
        if !users.insert(telling.user_id) {
            *ahead = Some(telling);
            break;
        }
        batch.push(telling);
    }
    Some(batch)
}
