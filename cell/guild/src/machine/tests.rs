//! Tests of a guild's machine: fixtures here, sentences by subject below, and a seeded simulation of logs, nodes and gateways.

mod feeding;
mod links;
mod mutating;
mod owning;
mod simulation;
mod world;

use cell_proto::v1::change::Kind;
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::{
    Change, Channel, Committed, Entry, Guild, GuildEvent, GuildSnapshot, Invite, LinkDown, Member, Message,
    MessageCreated, MutateRequest, Position, Refusal, Role, SubmitReply, User, submit_reply::Outcome,
};
use cell_runtime::policy::bits;

use super::*;

pub(super) const GUILD: i64 = 4_200_000_000;
pub(super) const OWNER: i64 = 1;
pub(super) const CHANNEL: i64 = 77;

pub(super) fn bucket() -> String {
    Unit::bucket(GUILD).log()
}

pub(super) fn own() -> String {
    Unit::Guild(GUILD).log()
}

pub(super) fn at(log: &str, number: u64) -> Position {
    Position { log: log.into(), number }
}

pub(super) fn now(mono_ms: u64) -> Now {
    Now { mono_ms, unix_ms: 1_700_000_000_000 + i64::try_from(mono_ms).unwrap() }
}

pub(super) fn operation(number: u64) -> Vec<u8> {
    u128::from(number).to_be_bytes().to_vec()
}

pub(super) fn member(id: i64) -> Member {
    Member { user: Some(User { id, name: format!("user{id}"), ..User::default() }), ..Member::default() }
}

/// A guild with an owner, @everyone, a text channel and an invite `code`.
pub(super) fn guild_view() -> GuildView {
    let mut view = GuildView {
        guild: Guild { id: GUILD, name: "guild".into(), owner_id: OWNER, policy_version: 1, ..Guild::default() },
        channels: std::iter::once((
            CHANNEL,
            Channel { id: CHANNEL, guild_id: GUILD, name: "general".into(), ..Channel::default() },
        ))
        .collect::<BTreeMap<_, _>>()
        .into(),
        roles: std::iter::once((
            GUILD,
            Role { id: GUILD, permissions: bits::DEFAULT_EVERYONE, name: "@everyone".into(), ..Role::default() },
        ))
        .collect::<BTreeMap<_, _>>()
        .into(),
        invites: std::iter::once((
            "code".to_owned(),
            Invite { code: "code".into(), guild_id: GUILD, channel_id: CHANNEL, ..Invite::default() },
        ))
        .collect::<BTreeMap<_, _>>()
        .into(),
        ..GuildView::default()
    };
    view.members.insert(OWNER, member(OWNER));
    view
}

pub(super) fn entry(number: u64, kind: Kind) -> Entry {
    Entry {
        number,
        timestamp_us: 1_000_000 + i64::try_from(number).unwrap(),
        operation_id: operation(1_000_000 + number),
        actor_id: OWNER,
        change: Some(Change { kind: Some(kind) }),
        policy_version: 0,
    }
}

pub(super) fn message(number: u64) -> Entry {
    let message =
        Message { id: i64::try_from(number).unwrap(), guild_id: GUILD, channel_id: CHANNEL, ..Message::default() };
    entry(number, Kind::MessageCreated(MessageCreated { message: Some(message) }))
}

/// The entry of a claim.
pub(super) fn claim_entry(number: u64, node: &str, guild_term: u64) -> Entry {
    let claimed = cell_proto::v1::GuildClaimed { guild_id: GUILD, node: node.into(), guild_term };
    entry(number, Kind::GuildClaimed(claimed))
}

pub(super) fn identity(node: &str) -> Identity {
    Identity { guild_id: GUILD, node: node.into(), incarnation: 1 }
}

/// An actor that has loaded its guild from `log` as of 10, follows it, and was told to own it; its effects up to here are dropped.
pub(super) fn loaded_actor(log: &str, limits: Limits) -> GuildActor {
    let mut actor = GuildActor::new(identity("n1"), log.into(), limits, now(0));
    let effects = actor.handle(Input::Own, now(0));
    let Some(Effect::Load { epoch, .. }) = effects.first() else { panic!("it loads first: {effects:?}") };
    let loaded = Loaded { view: guild_view(), log: log.into(), as_of: 10, term: 1 };
    actor.handle(Input::Loaded { epoch: *epoch, outcome: Ok(Box::new(loaded)) }, now(0));
    actor
}

/// The same, and the claim is committed as entry 11, not fed yet.
pub(super) fn owner(log: &str, limits: Limits) -> GuildActor {
    let mut actor = loaded_actor(log, limits);
    actor.handle(Input::Claimed { attempt: 1, outcome: Box::new(committed(log, 11, None)) }, now(0));
    assert!(actor.is_owner());
    actor.handle(Input::MembershipFed { log: log.into(), number: 11 }, now(0));
    actor
}

pub(super) fn committed(log: &str, number: u64, entry: Option<Entry>) -> SubmitReply {
    let committed = Committed { position: Some(at(log, number)), entry, duplicate: false, term: 1 };
    SubmitReply { outcome: Some(Outcome::Committed(committed)) }
}

pub(super) fn refused(reason: Reason) -> SubmitReply {
    SubmitReply { outcome: Some(Outcome::Refusal(Refusal::new(reason, "test"))) }
}

/// Feeds entries on the feed that is open now.
pub(super) fn feed(actor: &mut GuildActor, entries: Vec<Entry>) -> Vec<Effect> {
    let last = entries.last().map_or(0, |entry| entry.number);
    let (epoch, term) = (actor.epoch, actor.term.max(1));
    actor.handle(Input::Feed { epoch, entries, last, term }, now(0))
}

pub(super) fn attach(actor: &mut GuildActor, link: LinkId, position: Option<Position>) -> Vec<Effect> {
    actor.handle(Input::Attach { link, position, user_ids: vec![OWNER], standby: false }, now(0))
}

pub(super) fn frames(effects: &[Effect], link: LinkId) -> Vec<LinkDown> {
    let to_link = |effect: &Effect| match effect {
        Effect::Send { link: to, frame, .. } if *to == link => Some(LinkDown::clone(frame)),
        _ => None,
    };
    effects.iter().filter_map(to_link).collect()
}

/// The positions of the events sent to a link.
pub(super) fn sent(effects: &[Effect], link: LinkId) -> Vec<Position> {
    events(effects, link).into_iter().filter_map(|event| event.position).collect()
}

pub(super) fn events(effects: &[Effect], link: LinkId) -> Vec<GuildEvent> {
    let events = |frame: LinkDown| match frame.kind {
        Some(Down::Events(events)) => events.events,
        _ => vec![],
    };
    frames(effects, link).into_iter().flat_map(events).collect()
}

/// Builds the snapshots asked for, as the driver's worker does.
pub(super) fn build(actor: &mut GuildActor, effects: &[Effect]) -> Vec<Effect> {
    let mut out = vec![];
    for effect in effects {
        if let Effect::BuildSnapshot { link, ticket, view, user_ids, position, term } = effect {
            let snapshot: GuildSnapshot = view.snapshot(user_ids, position.clone(), *term);
            let built = Input::SnapshotBuilt { link: *link, ticket: *ticket, snapshot: Box::new(snapshot) };
            out.extend(actor.handle(built, now(0)));
        }
    }
    out
}

pub(super) fn mutate(actor_id: i64, number: u64, kind: Kind) -> Box<MutateRequest> {
    Box::new(MutateRequest {
        guild_id: GUILD,
        log: String::new(),
        operation_id: operation(number),
        deadline_unix_ms: now(60_000).unix_ms,
        actor_id,
        change: Some(Change { kind: Some(kind) }),
    })
}

/// The answer to the mutation with this ticket.
pub(super) fn answer(effects: &[Effect], ticket: Ticket) -> Option<Outcome> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply { ticket: to, reply: Reply::Mutate(reply) } if *to == ticket => reply.outcome.clone(),
        _ => None,
    })
}

pub(super) fn reason(outcome: Option<Outcome>) -> Option<Reason> {
    match outcome? {
        Outcome::Refusal(refusal) => Some(refusal.why()),
        Outcome::Committed(_) => None,
    }
}

pub(super) fn submits(effects: &[Effect]) -> Vec<(Ticket, cell_proto::v1::SubmitRequest)> {
    let submit = |effect: &Effect| match effect {
        Effect::Submit { ticket, request } => Some((*ticket, (**request).clone())),
        _ => None,
    };
    effects.iter().filter_map(submit).collect()
}
