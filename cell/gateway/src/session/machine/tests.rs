use proptest::prelude::*;
use serde_json::json;

use super::super::buffer::MAX_EVENTS;
use super::*;
use crate::wire::intents::all_privileged;

const USER: i64 = 7;
const LEASE_MS: u64 = 180_000;

fn session() -> Session {
    let intents = Intents::parse(513, all_privileged()).unwrap();
    let identity = Identity { id: "s".into(), user_id: USER, bot: true, intents, shard: None };
    let mut session = Session::new(identity, 0);
    session.attach_new(1);
    session
}

fn event(number: usize) -> Arc<Event> {
    Event::new("E", &json!({ "n": number }))
}

fn resumed() -> Arc<Event> {
    Event::new("RESUMED", &json!({}))
}

fn drain(session: &mut Session, connection: u64) -> Vec<u64> {
    let mut sequences = Vec::new();
    loop {
        match session.take(connection, 7, 1 << 20) {
            Taken::Events(events) if events.is_empty() => return sequences,
            Taken::Events(events) => sequences.extend(events.iter().map(|(sequence, _)| *sequence)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_resume_is_answered_by_exactly_what_follows_and_then_resumed() {
    let mut session = session();
    (0..10).for_each(|n| _ = session.push(event(n)));
    assert_eq!(drain(&mut session, 1), (1..=10).collect::<Vec<_>>());
    session.detach(1, 5);
    session.push(event(10));
    assert_eq!(session.resume(USER, 8, 2, resumed()), Ok(3));
    assert_eq!(drain(&mut session, 2), vec![9, 10, 11, 12]);
    session.detach(2, 6);
    session.resume(USER, 12, 3, resumed()).unwrap();
    assert_eq!(drain(&mut session, 3), vec![13], "RESUMED is itself sequenced");
}

#[test]
fn resumed_comes_after_the_replay_even_when_live_events_arrive_meanwhile() {
    let mut session = session();
    (0..5).for_each(|n| _ = session.push(event(n)));
    session.detach(1, 0);
    session.resume(USER, 2, 2, resumed()).unwrap();
    session.push(event(5));
    let Taken::Events(events) = session.take(2, 100, 1 << 20) else { panic!() };
    let names: Vec<_> = events.iter().map(|(_, event)| event.name()).collect();
    assert_eq!(names, ["E", "E", "E", "RESUMED", "E"]);
}

#[test]
fn a_resume_with_a_sequence_never_sent_or_negative_is_invalid() {
    let mut session = session();
    session.push(event(0));
    assert_eq!(session.resume(USER, 2, 2, resumed()), Err(ResumeRefusal::InvalidSequence));
    assert_eq!(session.resume(USER, -1, 2, resumed()), Err(ResumeRefusal::InvalidSequence));
}

#[test]
fn a_resume_by_another_user_is_refused_and_harms_nothing() {
    let mut session = session();
    session.push(event(0));
    assert_eq!(session.resume(USER + 1, 0, 2, resumed()), Err(ResumeRefusal::OtherUser));
    assert_eq!(drain(&mut session, 1), vec![1]);
}

#[test]
fn what_fell_off_the_buffer_ends_the_session_and_frees_it() {
    let mut session = session();
    session.detach(1, 0);
    (0..=MAX_EVENTS).for_each(|n| _ = session.push(event(n)));
    assert_eq!(session.resume(USER, 0, 2, resumed()), Err(ResumeRefusal::BehindBuffer));
    assert_eq!(session.resume(USER, 5, 2, resumed()), Err(ResumeRefusal::Ended(Ended::BufferOverflow)));
    assert_eq!(session.push(event(0)), Pushed::Ended);
}

#[test]
fn a_half_open_socket_is_replaced_by_the_resume() {
    let mut session = session();
    session.push(event(0));
    session.resume(USER, 0, 2, resumed()).unwrap();
    assert_eq!(session.take(1, 10, 1 << 20), Taken::Replaced);
    session.detach(1, 0);
    assert!(session.is_connected(), "the old connection's end does not detach the new one");
    assert_eq!(drain(&mut session, 2), vec![1, 2]);
}

#[test]
fn a_writer_more_than_5000_live_events_behind_must_close_resumably() {
    let mut session = session();
    let results: Vec<_> = (0..=MAX_LAG_EVENTS as usize).map(|n| session.push(event(n))).collect();
    assert_eq!(results.iter().filter(|pushed| **pushed == Pushed::Lagging).count(), 1);
    assert_eq!(session.take(1, 10, 1 << 20), Taken::Lagging);
    session.detach(1, 0);
    session.resume(USER, 0, 2, resumed()).unwrap();
    assert_eq!(drain(&mut session, 2).len() as u64, MAX_LAG_EVENTS + 2, "nothing is lost by a lag close");
}

#[test]
fn a_writer_more_than_2_mib_of_live_events_behind_must_close_resumably() {
    let mut session = session();
    let big = Event::new("E", &json!("x".repeat(700_000)));
    assert_eq!(session.push(big.clone()), Pushed::Wake);
    assert_eq!(session.push(big.clone()), Pushed::Wake);
    assert_eq!(session.push(big), Pushed::Lagging);
}

#[test]
fn the_guilds_a_session_starts_with_are_not_lag() {
    let mut session = session();
    let big = Event::new("GUILD_CREATE", &json!("x".repeat(300_000)));
    for _ in 0..12 {
        assert_eq!(session.push_initial(big.clone()), Pushed::Wake);
    }
    assert_eq!(session.push(event(0)), Pushed::Wake);
    assert_eq!(drain(&mut session, 1).len(), 13);
}

#[test]
fn replay_is_not_lag() {
    let mut session = session();
    session.detach(1, 0);
    (0..8000).for_each(|n| _ = session.push(event(n)));
    session.resume(USER, 0, 2, resumed()).unwrap();
    assert_eq!(session.push(event(0)), Pushed::Wake);
    assert_eq!(drain(&mut session, 2).len(), 8002);
}

#[test]
fn a_replay_that_falls_off_the_buffer_ends_the_session() {
    let mut session = session();
    session.detach(1, 0);
    (0..9000).for_each(|n| _ = session.push(event(n)));
    session.resume(USER, 0, 2, resumed()).unwrap();
    (0..2000).for_each(|n| _ = session.push(event(n)));
    assert_eq!(session.take(2, 10, 1 << 20), Taken::Ended(Ended::BufferOverflow));
}

#[test]
fn the_lease_runs_from_the_drop_and_not_while_connected() {
    let mut session = session();
    assert!(!session.expire(10 * LEASE_MS, LEASE_MS));
    session.detach(1, 1000);
    assert!(!session.expire(1000 + LEASE_MS, LEASE_MS));
    assert!(session.expire(1001 + LEASE_MS, LEASE_MS));
    assert_eq!(session.resume(USER, 0, 2, resumed()), Err(ResumeRefusal::Ended(Ended::LeaseExpired)));
}

#[test]
fn a_close_by_a_replaced_connection_does_not_end_the_session() {
    let mut session = session();
    session.resume(USER, 0, 2, resumed()).unwrap();
    session.end_from(1, Ended::ClosedByClient);
    assert!(session.is_connected());
    session.end_from(2, Ended::ClosedByClient);
    assert_eq!(session.resume(USER, 0, 3, resumed()), Err(ResumeRefusal::Ended(Ended::ClosedByClient)));
}

#[test]
fn all_members_of_a_guild_are_fetched_once_in_30_seconds() {
    let mut session = session();
    assert_eq!(session.admit_full_fetch(1, 1000), Ok(()));
    assert_eq!(session.admit_full_fetch(1, 11_000), Err(20_000));
    assert_eq!(session.admit_full_fetch(2, 11_000), Ok(()));
    assert_eq!(session.admit_full_fetch(1, 31_000), Ok(()));
}

#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    Take(usize),
    Drop,
    Resume,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..40).prop_map(Step::Push),
        4 => (1usize..40).prop_map(Step::Take),
        1 => Just(Step::Drop),
        2 => Just(Step::Resume),
    ]
}

proptest! {
    /// Whatever the drops and resumes: a client that names its largest contiguous sequence receives 1, 2, 3 … without a gap or repeat.
    #[test]
    fn every_client_sees_a_contiguous_prefix(steps in proptest::collection::vec(step(), 1..120)) {
        let mut session = session();
        let (mut connection, mut attached) = (1, true);
        let (mut applied, mut pushed) = (0_u64, 0_u64);
        for step in steps {
            match step {
                Step::Push(count) => for n in 0..count {
                    session.push(event(n));
                    pushed += 1;
                },
                Step::Take(count) => {
                    if !attached {
                        continue;
                    }
                    let Taken::Events(events) = session.take(connection, count, 1 << 20) else { panic!() };
                    for (sequence, _) in events {
                        prop_assert_eq!(sequence, applied + 1);
                        applied = sequence;
                    }
                }
                Step::Drop => {
                    session.detach(connection, 0);
                    attached = false;
                }
                Step::Resume => {
                    connection += 1;
                    prop_assert_eq!(session.resume(USER, applied as i64, connection, resumed()), Ok(pushed - applied));
                    pushed += 1;
                    attached = true;
                }
            }
        }
        prop_assert_eq!(session.last_sequence(), pushed);
    }
}
