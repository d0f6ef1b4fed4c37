//! Gateways: snapshots, replays from memory and from the log, standby, shedding, pacing.

use super::*;

fn serving(log: &str, limits: Limits) -> GuildActor {
    let mut actor = owner(log, limits);
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    actor
}

fn small() -> Limits {
    Limits { ring: RingLimits { entries: 4, bytes: 1 << 20 }, frame_entries: 2, ..Limits::default() }
}

fn numbers(positions: Vec<Position>) -> Vec<u64> {
    positions.into_iter().map(|position| position.number).collect()
}

#[test]
fn nobody_is_served_before_the_claim_is_applied() {
    let mut actor = owner(&bucket(), Limits::default());
    assert!(attach(&mut actor, 1, None).is_empty());
    let effects = feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::BuildSnapshot { link: 1, .. })));
}

#[test]
fn a_snapshot_is_followed_by_what_happened_while_it_was_built() {
    let mut actor = serving(&bucket(), Limits::default());
    let asked = attach(&mut actor, 1, None);
    assert!(sent(&feed(&mut actor, vec![message(12)]), 1).is_empty());
    let effects = build(&mut actor, &asked);
    let Some(Down::Snapshot(snapshot)) = &frames(&effects, 1)[0].kind else { panic!("{effects:?}") };
    assert_eq!((snapshot.position.clone(), snapshot.members.len()), (Some(at(&bucket(), 11)), 1));
    assert_eq!(numbers(sent(&effects, 1)), [12]);
    assert_eq!(numbers(sent(&feed(&mut actor, vec![message(13)]), 1)), [13]);
}

#[test]
fn a_snapshot_that_took_too_long_is_built_again() {
    let mut actor = serving(&bucket(), small());
    let asked = attach(&mut actor, 1, None);
    feed(&mut actor, (12..20).map(message).collect());
    let again = build(&mut actor, &asked);
    assert!(frames(&again, 1).is_empty());
    let effects = build(&mut actor, &again);
    let Some(Down::Snapshot(snapshot)) = &frames(&effects, 1)[0].kind else { panic!("{effects:?}") };
    assert_eq!(snapshot.position, Some(at(&bucket(), 19)));
}

#[test]
fn a_position_in_memory_is_replayed_one_frame_at_a_time() {
    let mut actor = serving(&bucket(), small());
    feed(&mut actor, (12..16).map(message).collect());
    let effects = attach(&mut actor, 1, Some(at(&bucket(), 12)));
    assert_eq!(numbers(sent(&effects, 1)), [13, 14]);
    // Not live yet: what happens now comes after the rest.
    assert!(sent(&feed(&mut actor, vec![message(16)]), 1).is_empty());
    assert_eq!(numbers(sent(&actor.handle(Input::Drained { link: 1 }, now(0)), 1)), [15, 16]);
    assert_eq!(numbers(sent(&feed(&mut actor, vec![message(17)]), 1)), [17]);
}

#[test]
fn a_position_older_than_memory_is_replayed_from_the_log() {
    let mut actor = serving(&bucket(), small());
    feed(&mut actor, (12..20).map(message).collect());
    let effects = attach(&mut actor, 1, Some(at(&bucket(), 12)));
    let Some(Effect::FindJunctions { ticket, .. }) = effects.first() else { panic!("{effects:?}") };
    let effects = actor.handle(Input::JunctionsFound { ticket: *ticket, outcome: Ok(vec![]) }, now(0));
    let Some(Effect::ReadLog { ticket, from: 13, .. }) = effects.first() else { panic!("{effects:?}") };
    let page = LogPage { entries: (13..17).map(message).collect(), scanned_to: 16 };
    let effects = actor.handle(Input::LogRead { ticket: *ticket, outcome: Ok(page) }, now(0));
    assert_eq!(numbers(sent(&effects, 1)), [13, 14, 15, 16]);
    assert_eq!(numbers(sent(&actor.handle(Input::Drained { link: 1 }, now(0)), 1)), [17, 18]);
    assert_eq!(numbers(sent(&actor.handle(Input::Drained { link: 1 }, now(0)), 1)), [19]);
}

#[test]
fn a_position_behind_the_retention_gets_a_snapshot() {
    let mut actor = serving(&bucket(), small());
    feed(&mut actor, (12..20).map(message).collect());
    let effects = attach(&mut actor, 1, Some(at(&bucket(), 2)));
    let Some(Effect::FindJunctions { ticket, .. }) = effects.first() else { panic!("{effects:?}") };
    let gone = Err(Refusal::new(Reason::BehindRetention, "gone"));
    let effects = actor.handle(Input::JunctionsFound { ticket: *ticket, outcome: gone }, now(0));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::BuildSnapshot { link: 1, .. })));
}

#[test]
fn a_position_ahead_of_this_node_goes_on_live() {
    let mut actor = serving(&bucket(), Limits::default());
    assert!(attach(&mut actor, 1, Some(at(&bucket(), 14))).is_empty());
    assert_eq!(numbers(sent(&feed(&mut actor, (12..16).map(message).collect()), 1)), [12, 13, 14, 15]);
}

#[test]
fn a_standby_link_hears_nothing_before_this_node_owns_the_guild_then_all_after_its_position() {
    let mut actor = loaded_actor(&bucket(), Limits::default());
    let standby = Input::Attach { link: 1, position: Some(at(&bucket(), 11)), user_ids: vec![], standby: true };
    assert!(actor.handle(standby, now(0)).is_empty());
    assert!(frames(&feed(&mut actor, vec![message(11), message(12)]), 1).is_empty());
    let claimed = Input::Claimed { attempt: 1, outcome: Box::new(committed(&bucket(), 13, None)) };
    assert!(frames(&actor.handle(claimed, now(0)), 1).is_empty());
    assert_eq!(numbers(sent(&feed(&mut actor, vec![claim_entry(13, "n1", 1)]), 1)), [12, 13]);
}

#[test]
fn typing_reaches_live_gateways_and_is_shed_first_and_messages_never() {
    let mut actor = serving(&bucket(), Limits::default());
    attach(&mut actor, 1, Some(at(&bucket(), 11)));
    let typing = Input::Typing { channel_id: CHANNEL, user_id: OWNER, at_ms: 1 };
    assert_eq!(frames(&actor.handle(typing.clone(), now(0)), 1).len(), 1);
    actor.handle(Input::Pressure(Pressure::Alarm), now(0));
    assert!(actor.handle(typing.clone(), now(0)).is_empty());
    assert_eq!(actor.counters().shed_typing, 1);
    assert_eq!(numbers(sent(&feed(&mut actor, vec![message(12)]), 1)), [12]);
    actor.handle(Input::Pressure(Pressure::Calm), now(0));
    assert_eq!(frames(&actor.handle(typing, now(0)), 1).len(), 1);
}

#[test]
fn users_who_come_are_answered_with_their_membership() {
    let mut actor = serving(&bucket(), Limits::default());
    attach(&mut actor, 1, Some(at(&bucket(), 11)));
    let effects = actor.handle(Input::Interest { link: 1, add: vec![OWNER, 9], remove: vec![], sessions: 2 }, now(0));
    let Some(Down::Members(info)) = &frames(&effects, 1)[0].kind else { panic!("{effects:?}") };
    assert_eq!((info.members.len(), info.not_members.as_slice()), (1, &[9][..]));
    assert_eq!(actor.sessions(), 2);
}

#[test]
fn gateways_beyond_the_limit_are_refused_with_a_hint() {
    let mut actor = serving(&bucket(), Limits { links: 1, ..Limits::default() });
    attach(&mut actor, 1, None);
    let effects = attach(&mut actor, 2, None);
    let Some(Down::Refused(refused)) = &frames(&effects, 2)[0].kind else { panic!("{effects:?}") };
    assert_eq!(refused.refusal.as_ref().map(Refusal::why), Some(Reason::Overloaded));
}
