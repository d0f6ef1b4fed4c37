//! Tells users' own buckets which guilds they joined and left: in order for each user, side by side for different ones, with operation ids made
//! from the log's entry, so that telling twice is telling once. At a claim, what the owner before may have left out is compared and told first.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use cell_proto::v1::change::Kind;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{Change, Entry, Reason, Refusal, SubmitRequest, UserGuildAdded, UserGuildRemoved};
use cell_runtime::unix_ms;
use futures::stream::{self, StreamExt};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::ask::Envelope;
use super::data::DataClient;
use crate::machine::{Input, user_id_of};

/// Users told at once.
const CONCURRENCY: usize = 32;
/// Deadline of one command; below half the dedupe window.
const DEADLINE_MS: i64 = 60_000;

/// How many entries before a claim are compared: what an owner that died can have left untold.
const COMPARED_ENTRIES: u64 = 5_000;

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
                    tracing::warn!(
                        log = self.log,
                        number = self.number,
                        reason,
                        "a user's list of guilds was not changed"
                    );
                    return;
                }
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}

/// What the task is asked, in the order it is done.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Tell one membership.
    Tell(Telling),
    /// The guild was claimed: compare what the log says up to here with the users' own lists.
    Compare { log: String, guild_id: i64, until: u64 },
}

/// Does what is asked until the sender is gone.
pub(super) async fn run(data: DataClient, mailbox: mpsc::Sender<Envelope>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut ahead = None;
    loop {
        let batch = match next_batch(&mut orders, &mut ahead).await {
            None => return,
            Some(Batch::Tell(batch)) => batch,
            Some(Batch::Compare { log, guild_id, until }) => {
                compare(&data, &log, guild_id, until).await;
                continue;
            }
        };
        stream::iter(&batch).for_each_concurrent(CONCURRENCY, |telling| telling.tell(&data)).await;
        for telling in batch {
            let fed = Input::MembershipFed { log: telling.log, number: telling.number };
            if mailbox.send(Envelope::Input(fed)).await.is_err() {
                return;
            }
        }
    }
}

enum Batch {
    Tell(Vec<Telling>),
    Compare { log: String, guild_id: i64, until: u64 },
}

/// As many as are there, of different users; or a comparison, alone.
async fn next_batch(orders: &mut mpsc::UnboundedReceiver<Order>, ahead: &mut Option<Order>) -> Option<Batch> {
    let first = match ahead.take() {
        Some(order) => order,
        None => orders.recv().await?,
    };
    let first = match first {
        Order::Tell(telling) => telling,
        Order::Compare { log, guild_id, until } => return Some(Batch::Compare { log, guild_id, until }),
    };
    let mut users = HashSet::from([first.user_id]);
    let mut batch = vec![first];
    while batch.len() < CONCURRENCY * 2 {
        match orders.try_recv() {
            Ok(Order::Tell(telling)) if users.insert(telling.user_id) => batch.push(telling),
            Ok(other) => {
                *ahead = Some(other);
                break;
            }
            Err(_) => break,
        }
    }
    Some(Batch::Tell(batch))
}

/// Reads the last entries up to the claim and tells the users whose lists differ from what those entries leave.
async fn compare(data: &DataClient, log: &str, guild_id: i64, until: u64) {
    let tellings = match latest(data, log, guild_id, until).await {
        Ok(tellings) => tellings,
        Err(refusal) => {
            let reason = refusal.why().label();
            tracing::warn!(
                log,
                reason,
                "users' lists of guilds were not compared; they are checked when a session starts"
            );
            return;
        }
    };
    stream::iter(&tellings)
        .for_each_concurrent(CONCURRENCY, |telling| async move {
            let listed = data.user_guilds(telling.user_id).await.map(|guilds| guilds.contains(&guild_id));
            if listed != Ok(telling.joined) {
                telling.tell(data).await;
            }
        })
        .await;
}

/// For each user of the last entries, what they leave.
async fn latest(data: &DataClient, log: &str, guild_id: i64, until: u64) -> Result<Vec<Telling>, Refusal> {
    let mut from = until.saturating_sub(COMPARED_ENTRIES) + 1;
    let mut users: BTreeMap<i64, Telling> = BTreeMap::new();
    while from <= until {
        let page = match data.read_log(log, from).await {
            Ok(page) => page,
            Err(refusal) if refusal.why() == Reason::BehindRetention => {
                from += COMPARED_ENTRIES / 10;
                continue;
            }
            Err(refusal) => return Err(refusal),
        };
        for entry in page.entries.iter().filter(|entry| entry.number <= until) {
            if let Some((user_id, joined)) = membership(entry, guild_id) {
                let telling = Telling { log: log.to_owned(), number: entry.number, guild_id, user_id, joined };
                users.insert(user_id, telling);
            }
        }
        if page.scanned_to < from {
            break;
        }
        from = page.scanned_to + 1;
    }
    Ok(users.into_values().collect())
}

fn membership(entry: &Entry, guild_id: i64) -> Option<(i64, bool)> {
    match entry.change.as_ref()?.kind.as_ref()? {
        Kind::MemberPut(put) if put.joined && put.guild_id == guild_id => {
            Some((user_id_of(put.member.as_ref()?), true))
        }
        Kind::MemberRemoved(removed) if removed.guild_id == guild_id => Some((removed.user_id, false)),
        Kind::GuildCreated(created) if created.guild.as_ref()?.id == guild_id => {
            Some((user_id_of(created.owner.as_ref()?), true))
        }
        _ => None,
    }
}
