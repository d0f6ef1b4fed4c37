//! Tells users' own buckets which guilds they joined and left: in order for each user, side by side for different ones, with operation ids made
//! from the log's entry, so that telling twice is telling once. At a claim, and when some found no room, everything from the acknowledged
//! cursor on is compared with the users' own lists, and what differs is told.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use cell_proto::v1::change::Kind;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{Change, Entry, Reason, Refusal, SubmitRequest, UserGuildAdded, UserGuildRemoved};
use cell_runtime::unix_ms;
use futures::stream::{self, StreamExt};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::ask::Envelope;
use super::data::DataClient;
use super::history;
use crate::machine::{Input, user_id_of};

/// Users told at once.
const CONCURRENCY: usize = 32;
/// Changes told side by side.
const BATCH: usize = 64;
/// Deadline of one command, first try to last; below half the dedupe window.
const DEADLINE_MS: i64 = 60_000;
/// Pause between tries.
const PAUSE: Duration = Duration::from_millis(500);
/// A guild's entries are no older than its id, but for the clocks of those who made the two.
const CLOCKS_APART_MS: i64 = 600_000;
/// What is dropped of a log is passed over in such steps.
const STEP: u64 = 500;

/// Why a telling came to no end.
struct Untold;

/// Who joined or left by one entry.
#[derive(Clone, Debug)]
pub(super) struct MembershipChange {
    pub(super) log: String,
    pub(super) number: u64,
    pub(super) guild_id: i64,
    pub(super) users: Vec<i64>,
    pub(super) joined: bool,
}

/// One membership to tell.
#[derive(Clone, Debug)]
struct Telling {
    guild_id: i64,
    user_id: i64,
    joined: bool,
    operation_id: Vec<u8>,
}

impl Telling {
    /// `compared`: the entry that a comparison went up to; 0 when the entry itself is told. What an owner deposed meanwhile said with the
    /// entry's own operation id may have been undone, so a comparison says it with another.
    fn new(change: &MembershipChange, user_id: i64, compared: u64) -> Self {
        let text = format!("membership {} {} {user_id} {compared}", change.log, change.number);
        let operation_id = Sha256::digest(text)[..16].to_vec();
        Self { guild_id: change.guild_id, user_id, joined: change.joined, operation_id }
    }

    fn request(&self, deadline_unix_ms: i64) -> SubmitRequest {
        let (user_id, guild_id) = (self.user_id, self.guild_id);
        let kind = if self.joined {
            Kind::UserGuildAdded(UserGuildAdded { user_id, guild_id })
        } else {
            Kind::UserGuildRemoved(UserGuildRemoved { user_id, guild_id })
        };
        SubmitRequest {
            log: DataClient::user_log(user_id),
            operation_id: self.operation_id.clone(),
            deadline_unix_ms,
            change: Some(Change { kind: Some(kind) }),
            ..SubmitRequest::default()
        }
    }

    /// Tells it until its one deadline; the entry stays in the log for the next comparison otherwise.
    async fn tell(&self, data: &DataClient) -> Result<(), Untold> {
        let deadline = unix_ms() + DEADLINE_MS;
        loop {
            match data.submit(self.request(deadline)).await.outcome {
                Some(Outcome::Committed(_)) => return Ok(()),
                Some(Outcome::Refusal(refusal)) if refusal.why() == Reason::DeadlinePassed => return Err(Untold),
                Some(Outcome::Refusal(refusal)) if !refusal.why().is_retryable() => {
                    let reason = refusal.why().label();
                    tracing::warn!(guild_id = self.guild_id, reason, "a user's list of guilds was not changed");
                    return Ok(());
                }
                _ if unix_ms() >= deadline => return Err(Untold),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// What the task is asked, in the order it is done, for as long as this ownership lasts.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) kind: OrderKind,
    pub(super) ownership: CancellationToken,
}

/// What to do.
#[derive(Clone, Debug)]
pub(super) enum OrderKind {
    /// Tell what one entry changed.
    Tell(MembershipChange),
    /// Compare what the log says from the acknowledged cursor up to here with the users' own lists.
    Compare { log: String, guild_id: i64, until: u64 },
}

impl Order {
    /// The entry that is answered with.
    pub(super) fn names(self) -> (String, u64) {
        match self.kind {
            OrderKind::Tell(change) => (change.log, change.number),
            OrderKind::Compare { log, until, .. } => (log, until),
        }
    }
}

/// Does what is asked until the sender is gone.
pub(super) async fn run(data: DataClient, mailbox: mpsc::Sender<Envelope>, mut orders: mpsc::Receiver<Order>) {
    let mut ahead = None;
    while let Some(batch) = next_batch(&mut orders, &mut ahead).await {
        let Some(ownership) = batch.first().map(|order| order.ownership.clone()) else { continue };
        let work = stream::iter(batch).for_each_concurrent(CONCURRENCY, |order| {
            let (data, mailbox) = (data.clone(), mailbox.clone());
            async move {
                let told = match &order.kind {
                    OrderKind::Tell(change) => tell_all(&data, change, 0).await,
                    OrderKind::Compare { log, guild_id, until } => compare(&data, log, *guild_id, *until).await,
                };
                let (log, number) = order.names();
                let input = match told {
                    Ok(()) => Input::MembershipFed { log, number },
                    Err(Untold) => Input::MembershipLeftOut { log, number },
                };
                // A task that is gone wants no answer.
                let _gone = mailbox.send(Envelope::Input(input)).await;
            }
        });
        // Who owns the guild by now compares what is left.
        let _deposed = ownership.run_until_cancelled(work).await;
    }
}

async fn tell_all(data: &DataClient, change: &MembershipChange, compared: u64) -> Result<(), Untold> {
    let tellings: Vec<Telling> = change.users.iter().map(|id| Telling::new(change, *id, compared)).collect();
    let tell = |telling: Telling| {
        let data = data.clone();
        async move { telling.tell(&data).await }
    };
    let told = stream::iter(tellings).map(tell).buffer_unordered(CONCURRENCY);
    told.fold(Ok(()), |all: Result<(), Untold>, one| async move { all.and(one) }).await
}

/// As many changes of one ownership as are there, of one user each, all different; or another order, alone.
async fn next_batch(orders: &mut mpsc::Receiver<Order>, ahead: &mut Option<Order>) -> Option<Vec<Order>> {
    let first = loop {
        let order = match ahead.take() {
            Some(order) => order,
            None => orders.recv().await?,
        };
        if !order.ownership.is_cancelled() {
            break order;
        }
    };
    let one_user = |order: &Order| match &order.kind {
        OrderKind::Tell(change) if change.users.len() == 1 => change.users.first().copied(),
        _ => None,
    };
    let Some(user_id) = one_user(&first) else { return Some(vec![first]) };
    let mut users = HashSet::from([user_id]);
    let mut batch = vec![first];
    while batch.len() < BATCH {
        let Ok(next) = orders.try_recv() else { break };
        if !next.ownership.is_cancelled() && one_user(&next).is_some_and(|user_id| users.insert(user_id)) {
            batch.push(next);
        } else {
            *ahead = Some(next);
            break;
        }
    }
    Some(batch)
}

/// Reads the entries from the cursor to the one named and tells the users whose lists differ from what those entries leave. Tries as long
/// as the log cannot be read: right after a failover it often cannot.
async fn compare(data: &DataClient, log: &str, guild_id: i64, until: u64) -> Result<(), Untold> {
    let changes = loop {
        match latest(data, log, guild_id, until).await {
            Ok(changes) => break changes,
            Err(refusal) if refusal.why().is_retryable() => tokio::time::sleep(PAUSE).await,
            Err(refusal) => {
                let reason = refusal.why().label();
                tracing::warn!(log, reason, "users' lists of guilds were not compared with the log");
                tokio::time::sleep(PAUSE * 20).await;
                return Err(Untold);
            }
        }
    };
    let tell = |(user_id, change): (i64, MembershipChange)| {
        let data = data.clone();
        async move {
            let listed = data.user_guilds(user_id).await.map(|guilds| guilds.contains(&guild_id));
            if listed == Ok(change.joined) { Ok(()) } else { Telling::new(&change, user_id, until).tell(&data).await }
        }
    };
    let told = stream::iter(changes).map(tell);
    told.buffer_unordered(CONCURRENCY).fold(Ok(()), |all: Result<(), Untold>, one| async move { all.and(one) }).await
}

/// For each user of the entries not acknowledged yet, what they leave. A guild that has just got its own log left entries in its bucket's.
async fn latest(
    data: &DataClient,
    log: &str,
    guild_id: i64,
    until: u64,
) -> Result<BTreeMap<i64, MembershipChange>, Refusal> {
    let mut users = BTreeMap::new();
    let cursor = data.ack_feed(log, 0, guild_id).await?;
    let bucket_log = DataClient::user_log(guild_id);
    if cursor == 0 && log != bucket_log {
        let from = first_to_compare(data, &bucket_log, guild_id).await?;
        read_changes(data, (&bucket_log, guild_id), (from, u64::MAX), &mut users).await?;
    }
    let from = if log == bucket_log { first_to_compare(data, log, guild_id).await? } else { cursor + 1 };
    read_changes(data, (log, guild_id), (from, until), &mut users).await?;
    Ok(users)
}

/// After the cursor; where there is none, from before the guild was made.
async fn first_to_compare(data: &DataClient, log: &str, guild_id: i64) -> Result<u64, Refusal> {
    match data.ack_feed(log, 0, guild_id).await? {
        0 => {
            let made_us = (cell_proto::snowflake::timestamp_ms(guild_id) - CLOCKS_APART_MS).max(0) * 1000;
            Ok(history::find_start(data, log, made_us).await? + 1)
        }
        cursor => Ok(cursor + 1),
    }
}

async fn read_changes(
    data: &DataClient,
    (log, guild_id): (&str, i64),
    (mut from, until): (u64, u64),
    users: &mut BTreeMap<i64, MembershipChange>,
) -> Result<(), Refusal> {
    while from <= until {
        let page = match data.read_log(log, from).await {
            Ok(page) => page,
            Err(refusal) if refusal.why() == Reason::BehindRetention => {
                // Nothing that is to be told is dropped.
                from += STEP;
                continue;
            }
            Err(refusal) => return Err(refusal),
        };
        for entry in page.entries.iter().filter(|entry| entry.number <= until) {
            if let Some((user_id, joined)) = membership(entry, guild_id) {
                let (log, number) = (log.to_owned(), entry.number);
                let change = MembershipChange { log, number, guild_id, users: vec![user_id], joined };
                users.insert(user_id, change);
            }
        }
        if page.scanned_to < from {
            return Ok(());
        }
        from = page.scanned_to + 1;
    }
    Ok(())
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
