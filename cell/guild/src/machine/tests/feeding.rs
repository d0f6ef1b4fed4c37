//! Following the log: exactly once, in order, over splits and merges; the lower term is refused.

use cell_proto::v1::{Merge, Split};

use super::*;

fn opened(effects: &[Effect]) -> Option<(String, u64)> {
    effects.iter().find_map(|effect| match effect {
        Effect::OpenFeed { log, from, .. } => Some((log.clone(), *from)),
        _ => None,
    })
}

#[test]
fn entries_seen_again_are_dropped() {
    let mut actor = owner(&bucket(), Limits::default());
    feed(&mut actor, vec![message(11), message(12)]);
    let effects = feed(&mut actor, vec![message(11), message(12), message(13)]);
    assert!(effects.iter().all(|effect| !matches!(effect, Effect::OpenFeed { .. })));
    assert_eq!((actor.counters().entries, actor.counters().repeated), (3, 2));
    assert_eq!(actor.position(), at(&bucket(), 13));
}

#[test]
fn entries_of_a_feed_that_was_replaced_are_ignored() {
    let mut actor = owner(&bucket(), Limits::default());
    let stale = Input::Feed { epoch: actor.epoch - 1, entries: vec![message(11)], last: 11, term: 1 };
    assert!(actor.handle(stale, now(0)).is_empty());
    assert_eq!(actor.counters().entries, 0);
}

#[test]
fn a_batch_of_a_lower_term_is_refused_and_the_feed_opened_anew_after_a_pause() {
    let mut actor = owner(&bucket(), Limits::default());
    let epoch = actor.epoch;
    actor.handle(Input::Feed { epoch, entries: vec![message(11)], last: 11, term: 3 }, now(0));
    let effects = actor.handle(Input::Feed { epoch, entries: vec![message(12)], last: 12, term: 2 }, now(0));
    assert_eq!(opened(&effects), None, "an owner deposed unawares would be asked in a hot loop");
    assert_eq!((actor.counters().entries, actor.counters().stale_terms), (1, 1));
    let effects = actor.handle(Input::Tick, now(1_000));
    assert_eq!(opened(&effects), Some((bucket(), 12)));
}

#[test]
fn a_hole_in_the_guilds_own_log_opens_the_feed_anew_before_it() {
    let mut actor = owner(&own(), Limits::default());
    let effects = feed(&mut actor, vec![message(11), message(13)]);
    assert_eq!(opened(&effects), Some((own(), 12)));
    assert_eq!((actor.counters().gaps, actor.counters().entries), (1, 1));
}

#[test]
fn entries_of_other_guilds_in_the_bucket_are_passed_over() {
    let mut actor = owner(&bucket(), Limits::default());
    let mut other = message(11);
    let Some(Kind::MessageCreated(created)) = other.change.as_mut().unwrap().kind.as_mut() else { unreachable!() };
    created.message.as_mut().unwrap().guild_id = GUILD + 1;
    feed(&mut actor, vec![other, message(12)]);
    assert_eq!((actor.counters().entries, actor.position()), (1, at(&bucket(), 12)));
}

#[test]
fn after_a_split_the_guilds_own_log_is_followed_from_where_the_stay_begins() {
    let mut actor = owner(&bucket(), Limits::default());
    let split = Kind::Split(Split { guild_id: GUILD, log_term: 1 });
    let effects = feed(&mut actor, vec![message(11), entry(12, split), message(13)]);
    let find = effects.iter().find_map(|effect| match effect {
        Effect::FindStart { ticket, log, .. } => Some((*ticket, log.clone())),
        _ => None,
    });
    let (ticket, log) = find.unwrap();
    assert_eq!((log, actor.counters().entries), (own(), 2));
    let effects = actor.handle(Input::StartFound { ticket, outcome: Ok(7) }, now(0));
    assert_eq!(opened(&effects), Some((own(), 8)));
    assert_eq!(actor.position(), at(&bucket(), 12));
}

#[test]
fn after_a_merge_the_bucket_is_followed_from_the_merge_on_once_all_before_it_is_applied() {
    let mut actor = owner(&own(), Limits::default());
    feed(&mut actor, vec![message(11)]);
    let ended = Refusal::new(Reason::OtherLog, "merged");
    let effects = actor.handle(Input::FeedEnded { epoch: actor.epoch, refusal: Some(ended) }, now(0));
    let Some(Effect::FindJunctions { ticket, .. }) = effects.first() else { panic!("{effects:?}") };
    let mut merge = entry(90, Kind::Merge(Merge { guild_id: GUILD, sealed_term: 2, sealed_at: 12 }));
    merge.timestamp_us += 1;
    let found = vec![Junction { entry: merge, start_after: 0 }];
    let effects = actor.handle(Input::JunctionsFound { ticket: *ticket, outcome: Ok(found) }, now(0));
    let Some(Effect::ReadLog { ticket, from: 12, .. }) = effects.first() else { panic!("{effects:?}") };
    let page = LogPage { entries: vec![message(12)], scanned_to: 12 };
    let effects = actor.handle(Input::LogRead { ticket: *ticket, outcome: Ok(page) }, now(0));
    assert_eq!(opened(&effects), Some((bucket(), 91)));
    assert_eq!((actor.position(), actor.counters().entries), (at(&bucket(), 90), 3));
}

#[test]
fn behind_the_retention_everything_is_read_anew_and_claimed_anew() {
    let mut actor = owner(&bucket(), Limits::default());
    let gone = Refusal::new(Reason::BehindRetention, "gone");
    let effects = actor.handle(Input::FeedEnded { epoch: actor.epoch, refusal: Some(gone) }, now(0));
    let Some(Effect::Load { epoch, .. }) = effects.first() else { panic!("{effects:?}") };
    let loaded = Loaded { view: guild_view(), log: bucket(), as_of: 5000, term: 1 };
    let effects = actor.handle(Input::Loaded { epoch: *epoch, outcome: Ok(Box::new(loaded)) }, now(0));
    assert_eq!(opened(&effects), Some((bucket(), 5001)));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Claim { .. })) && !actor.is_owner());
}

#[test]
fn a_membership_is_told_before_the_feed_is_acknowledged() {
    let mut actor = owner(&bucket(), Limits::default());
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    let joined =
        cell_proto::v1::MemberPut { guild_id: GUILD, member: Some(member(5)), joined: true, ..Default::default() };
    let effects = feed(&mut actor, vec![entry(12, Kind::MemberPut(joined)), message(13)]);
    let told = |effect: &&Effect| matches!(effect, Effect::FeedMembership { number: 12, users, joined: true, .. } if *users == [5]);
    assert_eq!(effects.iter().filter(told).count(), 1);
    let acknowledged =
        |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::AckFeed { number: 13, .. }));
    assert!(!acknowledged(&actor.handle(Input::Tick, now(10_000))));
    actor.handle(Input::MembershipFed { log: bucket(), number: 12 }, now(20_000));
    assert!(acknowledged(&actor.handle(Input::Tick, now(30_000))));
}

#[test]
fn the_end_of_a_guild_is_told_to_all_its_members() {
    let mut actor = owner(&bucket(), Limits::default());
    let deleted = entry(11, Kind::GuildDeleted(cell_proto::v1::GuildDeleted { guild_id: GUILD }));
    let members: Vec<i64> = actor.view().members.iter().map(|member| user_id_of(member)).collect();
    let effects = feed(&mut actor, vec![deleted]);
    let told = effects.iter().find_map(|effect| match effect {
        Effect::FeedMembership { number: 11, users, joined: false, .. } => Some(users.clone()),
        _ => None,
    });
    assert_eq!(told, Some(members));
}
