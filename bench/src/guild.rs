//! The guild's loop: entries through the pure actor to its gateways, one shared frame for all links, against encoding a frame for each
//! link on the loop. Copies and encoding of the real driver happen in the links' tasks and are not in either figure.

use std::hint::black_box;

use anyhow::{Context, bail};
use cell_guild::machine::{Effect, GuildActor, GuildView, Identity, Input, Limits, Loaded, Now};
use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    Change, Channel, Committed, Entry, Guild, GuildClaimed, Member, Message, MessageCreated, Position, Role,
    SubmitReply, User,
};
use prost::Message as _;

use crate::measure;

const GUILD: i64 = 4_200_000_000;
const BATCH: u64 = 8;
const BATCHES: u32 = 256;
const NODE: &str = "bench";

/// An actor that owns its guild, with so many live gateways.
struct Loop {
    actor: GuildActor,
    epoch: u64,
    next: u64,
}

impl Loop {
    fn new(gateways: u64) -> anyhow::Result<Self> {
        let log = Unit::Guild(GUILD).log();
        let identity = Identity { guild_id: GUILD, node: NODE.into(), incarnation: 1 };
        let mut actor = GuildActor::new(identity, log.clone(), Limits::default(), now());
        let Some(Effect::Load { epoch, .. }) = actor.handle(Input::Own, now()).into_iter().next() else {
            bail!("the actor did not ask for its guild");
        };
        let loaded = Loaded { view: view(), log: log.clone(), as_of: 10, term: 1 };
        let effects = actor.handle(Input::Loaded { epoch, outcome: Ok(Box::new(loaded)) }, now());
        let opened = effects.iter().find_map(|effect| match effect {
            Effect::OpenFeed { epoch, .. } => Some(*epoch),
            _ => None,
        });
        let epoch = opened.context("the actor opened no feed")?;
        let position = Some(Position { log, number: 11 });
        let committed = Committed { position: position.clone(), term: 1, ..Committed::default() };
        let outcome = Box::new(SubmitReply { outcome: Some(Outcome::Committed(committed)) });
        actor.handle(Input::Claimed { attempt: 1, outcome }, now());
        let claimed = GuildClaimed { guild_id: GUILD, node: NODE.into(), guild_term: 1 };
        let entries = vec![entry(11, Kind::GuildClaimed(claimed))];
        actor.handle(Input::Feed { epoch, entries, last: 11, term: 1 }, now());
        for link in 0..gateways {
            let attach = Input::Attach { link, position: position.clone(), user_ids: vec![1], standby: false };
            actor.handle(attach, now());
        }
        let mut this = Self { actor, epoch, next: 12 };
        let sends = this.feed().iter().filter(|effect| matches!(effect, Effect::Send { .. })).count();
        if sends as u64 != gateways {
            bail!("{sends} of {gateways} gateways are live");
        }
        Ok(this)
    }

    fn feed(&mut self) -> Vec<Effect> {
        let entries: Vec<Entry> = (self.next..self.next + BATCH).map(message).collect();
        self.next += BATCH;
        let (epoch, last) = (self.epoch, self.next - 1);
        self.actor.handle(Input::Feed { epoch, entries, last, term: 1 }, now())
    }
}

fn now() -> Now {
    Now { mono_ms: 1, unix_ms: 1_700_000_000_000 }
}

fn view() -> GuildView {
    let channel = Channel { id: 77, guild_id: GUILD, name: "general".into(), ..Channel::default() };
    let everyone = Role { id: GUILD, permissions: i64::MAX, name: "@everyone".into(), ..Role::default() };
    let mut view = GuildView {
        guild: Guild { id: GUILD, name: "guild".into(), owner_id: 1, policy_version: 1, ..Guild::default() },
        channels: std::sync::Arc::new([(77, channel)].into()),
        roles: std::sync::Arc::new([(GUILD, everyone)].into()),
        ..GuildView::default()
    };
    view.members.insert(1, Member { user: Some(author()), ..Member::default() });
    view
}

/// Somebody who writes.
pub fn author() -> User {
    User { id: 1, name: "somebody".into(), ..User::default() }
}

/// An entry of a log.
pub fn entry(number: u64, kind: Kind) -> Entry {
    Entry {
        number,
        timestamp_us: 1_000_000 + number.cast_signed(),
        operation_id: u128::from(number).to_be_bytes().to_vec(),
        actor_id: 1,
        change: Some(Change { kind: Some(kind) }),
        policy_version: 0,
    }
}

fn message(number: u64) -> Entry {
    let message = Message {
        id: number.cast_signed(),
        guild_id: GUILD,
        channel_id: 77,
        author: Some(author()),
        content: "a message of some eighty characters, as people write them to each other all day".into(),
        ..Message::default()
    };
    entry(number, Kind::MessageCreated(MessageCreated { message: Some(message) }))
}

pub fn run() -> anyhow::Result<()> {
    for gateways in [1, 10, 100] {
        let (mut shared, mut encoding) = (Loop::new(gateways)?, Loop::new(gateways)?);
        let pair = measure::interleaved(
            21,
            BATCHES * BATCH as u32,
            || (0..BATCHES).for_each(|_| drop(black_box(shared.feed()))),
            || {
                for _ in 0..BATCHES {
                    for effect in encoding.feed() {
                        if let Effect::Send { frame, .. } = effect {
                            black_box(frame.encode_to_vec());
                        }
                    }
                }
            },
        );
        measure::rates(&format!("guild loop, {gateways} gateways, events/s"), pair, "encoded per link");
    }
    Ok(())
}
