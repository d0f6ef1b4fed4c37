//! Fan-out of one guild's messages to its sessions in one gateway process: the event is serialised once and only the sequence is spliced
//! in for each session, against serialising the payload for each session. First the machines alone on one core, then real sockets.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, bail};
use cell_gateway::guilds::hosted::{Hosted, Shared};
use cell_gateway::session::machine::{Identity, Session, Taken};
use cell_gateway::session::registry::Slot;
use cell_gateway::wire::intents::{self, Intents};
use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    Channel, Guild, GuildEvent, GuildEvents, GuildSnapshot, Member, Message, MessageCreated, Position, Role, User,
};
use serde_json::Value;

use crate::guild::{author, entry};
use crate::measure;

const GUILD: i64 = 4_200_000_000;
const MESSAGES: u32 = 20;

/// One guild followed by a gateway, with so many connected sessions.
struct Crowd {
    hosted: Arc<Hosted>,
    slots: Vec<Arc<Slot>>,
    next: u64,
}

impl Crowd {
    fn new(sessions: i64) -> anyhow::Result<Self> {
        let shared = Shared { registry: Arc::default(), users: Arc::default(), metrics: Arc::default() };
        let hosted = Hosted::new(GUILD, shared.clone());
        let member = |id: i64| Member {
            user: Some(User { id, name: format!("user{id}"), ..User::default() }),
            ..Member::default()
        };
        let everyone = Role { id: GUILD, permissions: i64::MAX, name: "@everyone".into(), ..Role::default() };
        let channel = Channel { id: 77, guild_id: GUILD, name: "general".into(), ..Channel::default() };
        let snapshot = GuildSnapshot {
            guild: Some(Guild { id: GUILD, name: "guild".into(), owner_id: 1, policy_version: 1, ..Guild::default() }),
            channels: vec![channel],
            roles: vec![everyone],
            members: (1..=sessions).map(member).collect(),
            member_count: i32::try_from(sessions)?,
            position: Some(position(11)),
            term: 1,
            ..GuildSnapshot::default()
        };
        hosted.on_snapshot(snapshot, &[]);
        let bits = intents::GUILDS | intents::GUILD_MESSAGES | intents::MESSAGE_CONTENT;
        let wants = Intents::parse(i64::from(bits), intents::all_privileged())
            .map_err(|error| anyhow::anyhow!("intents: {error:?}"))?;
        let mut slots = Vec::new();
        for user_id in 1..=sessions {
            let identity = Identity { id: format!("s{user_id}"), user_id, bot: true, intents: wants, shard: None };
            let mut session = Session::new(identity, 0);
            session.attach_new(1);
            let slot = Slot::new(session);
            shared.registry.add(&slot, usize::MAX);
            hosted.subscribe(&slot);
            slots.push(slot);
        }
        let this = Self { hosted, slots, next: 12 };
        if this.hosted.sessions() as i64 != sessions {
            bail!("{} of {sessions} sessions have the guild", this.hosted.sessions());
        }
        this.drain(|_, _| ());
        Ok(this)
    }

    fn message(&mut self) {
        let number = self.next;
        self.next += 1;
        let message = Message {
            id: number.cast_signed(),
            guild_id: GUILD,
            channel_id: 77,
            author: Some(author()),
            content: "a message of some eighty characters, as people write them to each other all day".into(),
            ..Message::default()
        };
        let event = GuildEvent {
            position: Some(position(number)),
            policy_version: 1,
            member_count: 0,
            entry: Some(entry(number, Kind::MessageCreated(MessageCreated { message: Some(message) }))),
        };
        self.hosted.on_events(&GuildEvents { guild_id: GUILD, events: vec![event], term: 1 });
    }

    /// What every connection's writer does when it is woken.
    fn drain(&self, mut each: impl FnMut(u64, &cell_gateway::wire::event::Event)) -> usize {
        let mut taken = 0;
        for slot in &self.slots {
            if let Taken::Events(events) = slot.machine.lock().take(1, 64, 64 * 1024) {
                taken += events.len();
                events.iter().for_each(|(sequence, event)| each(*sequence, event));
            }
        }
        taken
    }
}

fn position(number: u64) -> Position {
    Position { log: Unit::Guild(GUILD).log(), number }
}

/// A payload that is serialised for one session.
#[derive(serde::Serialize)]
struct Payload<'a> {
    t: &'a str,
    s: u64,
    op: u8,
    d: &'a Value,
}

pub fn run() -> anyhow::Result<()> {
    for sessions in [2_000, 10_000] {
        let (mut once, mut each) = (Crowd::new(sessions)?, Crowd::new(sessions)?);
        once.message();
        let mut first = None;
        once.drain(|sequence, event| {
            first.get_or_insert_with(|| event.frame(sequence));
        });
        let text = first.context("no session got the message")?;
        let body = serde_json::from_str::<Value>(&text)?["d"].take();
        let pair = measure::interleaved(
            9,
            MESSAGES * u32::try_from(sessions)?,
            || {
                for _ in 0..MESSAGES {
                    once.message();
                    once.drain(|sequence, event| drop(black_box(event.frame(sequence))));
                }
            },
            || {
                for _ in 0..MESSAGES {
                    each.message();
                    each.drain(|s, event| {
                        let payload = Payload { t: event.name(), s, op: 0, d: &body };
                        drop(black_box(serde_json::to_string(&payload)));
                    });
                }
            },
        );
        measure::rates(
            &format!("fan-out, {sessions} sessions, {} B, deliveries/s", text.len()),
            pair,
            "serialised each",
        );
    }
    Ok(())
}
