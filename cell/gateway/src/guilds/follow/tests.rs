use cell_proto::v1::{Change, Entry, GuildClaimed, Merge, Split};
use proptest::prelude::*;

use super::*;

const GUILD: i64 = 5;
const BUCKET: &str = "b0001";
const OWN: &str = "g5";

fn event(log: &str, number: u64, timestamp_us: i64, kind: Kind) -> GuildEvent {
    GuildEvent {
        position: Some(Position { log: log.into(), number }),
        entry: Some(Entry { number, timestamp_us, change: Some(Change { kind: Some(kind) }), ..Entry::default() }),
        ..GuildEvent::default()
    }
}

fn plain(log: &str, number: u64, timestamp_us: i64) -> GuildEvent {
    event(log, number, timestamp_us, Kind::GuildClaimed(GuildClaimed::default()))
}

fn split(number: u64, timestamp_us: i64) -> GuildEvent {
    event(BUCKET, number, timestamp_us, Kind::Split(Split { guild_id: GUILD, log_term: 1 }))
}

fn merge(number: u64, timestamp_us: i64) -> GuildEvent {
    event(BUCKET, number, timestamp_us, Kind::Merge(Merge { guild_id: GUILD, ..Merge::default() }))
}

fn snapshot(log: &str, number: u64, term: u64) -> GuildSnapshot {
    GuildSnapshot { position: Some(Position { log: log.into(), number }), term, ..GuildSnapshot::default() }
}

fn at(log: &str, number: u64) -> Follower {
    let mut follower = Follower::new(GUILD);
    assert_eq!(follower.snapshot(&snapshot(log, number, 1)), Taken::First);
    follower
}

fn feed(follower: &mut Follower, term: u64, event: &GuildEvent) -> Verdict {
    let verdict = follower.judge(term, event);
    if verdict == Verdict::Apply {
        follower.advance(term, event);
    }
    verdict
}

#[test]
fn what_was_had_is_dropped_and_what_follows_passes_though_a_bucket_has_holes() {
    let mut follower = at(BUCKET, 10);
    assert_eq!(feed(&mut follower, 1, &plain(BUCKET, 10, 100)), Verdict::Duplicate);
    assert_eq!(feed(&mut follower, 1, &plain(BUCKET, 14, 140)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 1, &plain(BUCKET, 14, 140)), Verdict::Duplicate);
}

#[test]
fn a_lower_term_is_refused() {
    let mut follower = at(BUCKET, 10);
    assert_eq!(feed(&mut follower, 3, &plain(BUCKET, 11, 110)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 2, &plain(BUCKET, 12, 120)), Verdict::StaleTerm);
    assert_eq!(follower.snapshot(&snapshot(BUCKET, 50, 2)), Taken::Behind);
}

#[test]
fn a_replay_that_claims_no_term_is_no_stale_owner() {
    let mut follower = at(BUCKET, 10);
    assert_eq!(feed(&mut follower, 3, &plain(BUCKET, 11, 110)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 0, &plain(BUCKET, 12, 120)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 2, &plain(BUCKET, 13, 130)), Verdict::StaleTerm);
}

#[test]
fn a_split_leads_into_the_guilds_own_log_and_a_merge_leads_back() {
    let mut follower = at(BUCKET, 10);
    assert_eq!(feed(&mut follower, 7, &split(11, 110)), Verdict::Apply);
    assert_eq!(follower.position(), Some(&Position { log: OWN.into(), number: 0 }));
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 1, 120)), Verdict::Apply, "the own log has its own terms");
    assert_eq!(
        feed(&mut follower, 7, &plain(BUCKET, 12, 115)),
        Verdict::Duplicate,
        "the bucket says nothing more of it"
    );
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 2, 130)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 7, &merge(30, 140)), Verdict::Apply);
    assert_eq!(follower.position(), Some(&Position { log: BUCKET.into(), number: 30 }));
    assert_eq!(feed(&mut follower, 9, &plain(OWN, 2, 130)), Verdict::Duplicate);
    assert_eq!(feed(&mut follower, 7, &plain(BUCKET, 33, 150)), Verdict::Apply);
}

#[test]
fn a_second_split_goes_on_after_the_first_life_of_the_log() {
    let mut follower = at(BUCKET, 10);
    for event in [split(11, 110), plain(OWN, 1, 120), plain(OWN, 2, 130), merge(30, 140), split(31, 150)] {
        assert_eq!(feed(&mut follower, 1, &event), Verdict::Apply);
    }
    assert_eq!(follower.position(), Some(&Position { log: OWN.into(), number: 2 }));
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 2, 130)), Verdict::Duplicate);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 3, 160)), Verdict::Apply);
}

#[test]
fn an_event_of_the_own_log_without_the_split_is_a_gap() {
    let mut follower = at(BUCKET, 10);
    assert_eq!(feed(&mut follower, 1, &plain(BUCKET, 11, 110)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 1, 120)), Verdict::Gap);
    assert_eq!(feed(&mut Follower::new(GUILD), 1, &plain(BUCKET, 1, 1)), Verdict::Gap);
}

#[test]
fn a_snapshot_ahead_of_the_position_means_a_hole_and_one_at_it_does_not() {
    let mut follower = at(BUCKET, 10);
    assert_eq!(follower.snapshot(&snapshot(BUCKET, 10, 1)), Taken::Same);
    assert_eq!(follower.snapshot(&snapshot(BUCKET, 9, 1)), Taken::Behind);
    assert_eq!(follower.snapshot(&snapshot(BUCKET, 20, 1)), Taken::Skipped);
    assert_eq!(follower.position().unwrap().number, 20);
}

/// A guild's whole life in order: bucket, own log, bucket, own log.
fn life(lengths: &[usize]) -> Vec<GuildEvent> {
    let (mut events, mut bucket, mut own, mut time) = (Vec::new(), 10, 0, 100);
    for (index, length) in lengths.iter().enumerate() {
        let in_bucket = index % 2 == 0;
        if index > 0 {
            (bucket, time) = (bucket + 1, time + 1);
            events.push(if in_bucket { merge(bucket, time) } else { split(bucket, time) });
        }
        for _ in 0..*length {
            time += 1;
            let number = if in_bucket { &mut bucket } else { &mut own };
            *number += 1 + u64::from(in_bucket);
            events.push(plain(if in_bucket { BUCKET } else { OWN }, *number, time));
        }
    }
    events
}

proptest! {
    /// However often the stream is cut and replayed from anywhere before the position, each event is applied once and in order.
    #[test]
    fn replays_from_anywhere_apply_everything_once_in_order(
        lengths in proptest::collection::vec(0usize..6, 1..6),
        cuts in proptest::collection::vec((0usize..40, 0usize..40), 0..10),
    ) {
        let events = life(&lengths);
        let mut follower = at(BUCKET, 10);
        let (mut applied, mut reached) = (Vec::new(), 0);
        for (back, run) in cuts.into_iter().chain([(3, events.len() + 3)]) {
            let start = reached - back.min(reached);
            for (index, event) in events.iter().enumerate().skip(start).take(run) {
                match feed(&mut follower, 1, event) {
                    Verdict::Apply => applied.push(index),
                    Verdict::Duplicate => prop_assert!(index < reached, "{index} of {reached} was dropped"),
                    verdict => prop_assert!(false, "{verdict:?} at {index} of {reached}"),
                }
                reached = reached.max(index + 1);
            }
        }
        prop_assert_eq!(applied, (0..events.len()).collect::<Vec<_>>());
    }
}

#[test]
fn an_entry_that_overtook_others_in_the_guilds_own_log_is_a_gap_and_the_replay_then_loses_nothing() {
    let mut follower = at(OWN, 10);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 11, 110)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 14, 140)), Verdict::Gap);
    assert_eq!(follower.position(), Some(&Position { log: OWN.into(), number: 11 }), "what it attaches with");
    for number in 12..=14 {
        assert_eq!(feed(&mut follower, 1, &plain(OWN, number, number as i64 * 10)), Verdict::Apply);
    }
}

#[test]
fn a_later_stay_in_the_own_log_may_begin_at_any_number() {
    let mut follower = at(BUCKET, 10);
    assert_eq!(feed(&mut follower, 7, &split(11, 110)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 51, 120)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 53, 130)), Verdict::Gap);
}

#[test]
fn after_a_snapshot_made_right_at_the_split_the_own_log_follows() {
    let mut follower = at(BUCKET, 11);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 1, 120)), Verdict::Apply);
    assert_eq!(feed(&mut follower, 1, &plain(OWN, 2, 130)), Verdict::Apply);
    let mut followed = at(BUCKET, 11);
    assert_eq!(feed(&mut followed, 1, &plain(BUCKET, 12, 120)), Verdict::Apply);
    assert_eq!(feed(&mut followed, 1, &plain(OWN, 1, 130)), Verdict::Gap, "the split is missing");
}
