//! The ledger: what was acknowledged against what is stored and what reached each client. It alone decides what counts as lost,
//! duplicated or reordered. Pure: no clock, no I/O; times are only shown.
//!
//! - *Lost*: an acknowledged message that is not in the history, or that an entitled client got neither live nor in the history it
//!   read after identifying anew.
//! - *Duplicated*: the same message twice in the history, or twice in one session.
//! - *Reordered*: out of channel order within one session.
//!
//! A message is known by the number its sender gave it: two copies of one send are a duplicate whatever ids they have. Channel order
//! is the order of message ids.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;

/// The number a sender gave its message: dense, from 0, the same in every retry.
pub type SendNumber = u32;

/// A message as somebody saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// Its sender's number.
    pub number: SendNumber,
    /// Its id.
    pub message_id: i64,
    /// Its channel.
    pub channel_id: i64,
    /// Milliseconds since the demo began, for the reader of an offence.
    pub at_ms: u64,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub enum Fault {
    /// Acknowledged, and not in the history.
    NotStored,
    /// Acknowledged, and never reached an entitled client.
    Lost,
    /// Twice in the history.
    StoredTwice,
    /// Twice in one session.
    DeliveredTwice,
    /// Out of channel order in one session.
    Reordered,
}

/// One event that should not have been.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offence {
    /// What is wrong.
    pub fault: Fault,
    /// The client it happened to; empty when it is the history.
    pub client: String,
    /// Its session, from 1; 0 when it is the history.
    pub session: u32,
    /// The message.
    pub message: Seen,
    /// The message before it in the session's channel, where the order matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
    /// Up to where the client had read that channel's history, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<ReadMark>,
}

/// One reading of a channel's history after identifying anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadMark {
    /// Read what follows this id.
    pub from_id: i64,
    /// Up to this id.
    pub to_id: i64,
    /// Asked for at, in milliseconds since the demo began.
    pub at_ms: u64,
}

/// How the losses lie: one message for all points elsewhere than all messages for one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    /// Clients that lack something.
    pub clients: u64,
    /// Messages that somebody lacks.
    pub messages: u64,
    /// The first of them was acknowledged at, in milliseconds since the demo began.
    pub from_ms: u64,
    /// The last of them.
    pub to_ms: u64,
}

/// The sums, as the demo prints them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sums {
    /// Sends that were acknowledged.
    pub sent: u64,
    /// Acknowledged messages found in the history.
    pub stored: u64,
    /// Messages that reached clients, each counted once for each client.
    pub delivered: u64,
    /// Lost: for each message and client, and each message that is not stored.
    pub lost: u64,
    /// Duplicated, each further copy.
    pub duplicated: u64,
    /// Reordered.
    pub reordered: u64,
}

/// What the ledger found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The sums.
    pub sums: Sums,
    /// The first offence by time, if there is one.
    pub first: Option<Offence>,
    /// How the losses lie, if there are any.
    pub losses: Option<Spread>,
}

impl Verdict {
    /// Nothing lost, duplicated or reordered.
    pub fn is_clean(&self) -> bool {
        self.first.is_none() && self.sums.lost + self.sums.duplicated + self.sums.reordered == 0
    }
}

/// A set of send numbers.
#[derive(Clone, Debug, Default)]
struct Numbers {
    words: Vec<u64>,
}

impl Numbers {
    /// False when it was in already.
    fn insert(&mut self, number: SendNumber) -> bool {
        let (word, bit) = (number as usize / 64, 1_u64 << (number % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let fresh = self.words[word] & bit == 0;
        self.words[word] |= bit;
        fresh
    }

    fn contains(&self, number: SendNumber) -> bool {
        self.words.get(number as usize / 64).is_some_and(|word| word & (1 << (number % 64)) != 0)
    }

    fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// What one client saw, told as it happens. A resumed session is the same session.
#[derive(Clone, Debug)]
pub struct Client {
    name: String,
    /// The channels it may read.
    channels: BTreeSet<i64>,
    /// It is entitled to messages sent from this number on.
    entitled_from: SendNumber,
    /// Sessions begun.
    sessions: u32,
    /// Seen in this session.
    here: Numbers,
    /// Last id seen in this session, by channel.
    last: HashMap<i64, i64>,
    /// Got at all: live, or by history read after identifying anew.
    got: Numbers,
    /// Its last reading of each channel's history.
    reads: HashMap<i64, ReadMark>,
    duplicated: u64,
    reordered: u64,
    first: Option<Offence>,
}

impl Client {
    /// A client that is entitled to everything sent in the channels from a number on.
    pub fn new(name: impl Into<String>, channels: impl IntoIterator<Item = i64>, entitled_from: SendNumber) -> Self {
        Self {
            name: name.into(),
            channels: channels.into_iter().collect(),
            entitled_from,
            sessions: 0,
            here: Numbers::default(),
            last: HashMap::new(),
            got: Numbers::default(),
            reads: HashMap::new(),
            duplicated: 0,
            reordered: 0,
            first: None,
        }
    }

    /// The client identified: a session begins, and with it the order and the set of what it has seen.
    pub fn identified(&mut self) {
        self.sessions += 1;
        self.here = Numbers::default();
        self.last.clear();
    }

    /// A message arrived in the session.
    pub fn live(&mut self, seen: Seen) {
        let last = self.last.get(&seen.channel_id).copied();
        if !self.here.insert(seen.number) {
            self.duplicated += 1;
            self.offend(Fault::DeliveredTwice, seen, last);
            return;
        }
        self.got.insert(seen.number);
        if last.is_some_and(|last| seen.message_id <= last) {
            self.reordered += 1;
            self.offend(Fault::Reordered, seen, last);
            return;
        }
        self.last.insert(seen.channel_id, seen.message_id);
    }

    /// A message read from the history. It counts only for a client that lost a session and identified anew: nobody else has a
    /// reason to read, and reading must not hide what should have come live.
    pub fn history(&mut self, seen: Seen) {
        if self.sessions > 1 {
            self.got.insert(seen.number);
        }
    }

    /// A channel's history was read.
    pub fn has_read(&mut self, channel_id: i64, mark: ReadMark) {
        self.reads.insert(channel_id, mark);
    }

    /// The last id seen in the session that is or was, by channel: where a client reads on in the history.
    pub fn last_seen(&self, channel_id: i64) -> Option<i64> {
        self.last.get(&channel_id).copied()
    }

    /// How many messages reached it.
    pub fn received(&self) -> u64 {
        self.got.len()
    }

    /// Whether a message reached it.
    pub fn has(&self, number: SendNumber) -> bool {
        self.got.contains(number)
    }

    fn offend(&mut self, fault: Fault, message: Seen, after: Option<i64>) {
        let offence = Offence { fault, client: self.name.clone(), session: self.sessions, message, after, read: None };
        keep_first(&mut self.first, offence);
    }
}

fn keep_first(first: &mut Option<Offence>, offence: Offence) {
    if first.as_ref().is_none_or(|first| (offence.message.at_ms, offence.fault) < (first.message.at_ms, first.fault)) {
        *first = Some(offence);
    }
}

/// What was acknowledged and what is stored.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    acknowledged: BTreeMap<SendNumber, Seen>,
    stored: HashMap<SendNumber, Vec<i64>>,
    copies: u64,
    first: Option<Offence>,
}

impl Ledger {
    /// A send was acknowledged with this id. Told twice for one number with two ids, the second is a duplicate.
    pub fn acknowledged(&mut self, seen: Seen) {
        match self.acknowledged.get(&seen.number) {
            Some(before) if before.message_id != seen.message_id => self.stored_twice(seen),
            Some(_) => {}
            None => {
                self.acknowledged.insert(seen.number, seen);
            }
        }
    }

    /// A message found in the history at the end, each as often as it was found.
    pub fn stored(&mut self, seen: Seen) {
        let ids = self.stored.entry(seen.number).or_default();
        ids.push(seen.message_id);
        if ids.len() > 1 {
            self.stored_twice(seen);
        }
    }

    fn stored_twice(&mut self, seen: Seen) {
        self.copies += 1;
        let offence = Offence {
            fault: Fault::StoredTwice,
            client: String::new(),
            session: 0,
            message: seen,
            after: None,
            read: None,
        };
        keep_first(&mut self.first, offence);
    }

    /// Judges everything that was told.
    pub fn judge<'a>(&self, clients: impl IntoIterator<Item = &'a Client>) -> Verdict {
        let mut sums = Sums { sent: self.acknowledged.len() as u64, duplicated: self.copies, ..Sums::default() };
        let mut first = self.first.clone();
        for message in self.acknowledged.values() {
            if self.stored.get(&message.number).is_some_and(|ids| ids.contains(&message.message_id)) {
                sums.stored += 1;
                continue;
            }
            sums.lost += 1;
            keep_first(
                &mut first,
                Offence {
                    fault: Fault::NotStored,
                    client: String::new(),
                    session: 0,
                    message: *message,
                    after: None,
                    read: None,
                },
            );
        }
        let (mut missing, mut lacking) = (BTreeMap::new(), 0);
        for client in clients {
            sums.delivered += client.got.len();
            sums.duplicated += client.duplicated;
            sums.reordered += client.reordered;
            if let Some(offence) = client.first.clone() {
                keep_first(&mut first, offence);
            }
            let mut lacks = false;
            for message in self.missed(client) {
                lacks = true;
                missing.insert(message.number, message.at_ms);
                sums.lost += 1;
                keep_first(
                    &mut first,
                    Offence {
                        fault: Fault::Lost,
                        client: client.name.clone(),
                        session: client.sessions,
                        message: *message,
                        after: None,
                        read: client.reads.get(&message.channel_id).copied(),
                    },
                );
            }
            lacking += u64::from(lacks);
        }
        let losses = (!missing.is_empty()).then(|| Spread {
            clients: lacking,
            messages: missing.len() as u64,
            from_ms: missing.values().copied().min().unwrap_or(0),
            to_ms: missing.values().copied().max().unwrap_or(0),
        });
        Verdict { sums, first, losses }
    }

    /// How many acknowledged messages a client has not got yet.
    pub fn missing(&self, client: &Client) -> usize {
        self.missed(client).count()
    }

    fn missed<'a>(&'a self, client: &'a Client) -> impl Iterator<Item = &'a Seen> {
        self.acknowledged
            .range(client.entitled_from..)
            .map(|(_, message)| message)
            .filter(|message| client.channels.contains(&message.channel_id) && !client.got.contains(message.number))
    }
}

#[cfg(test)]
mod tests;
