//! Structural changes: their order, their retries, their bounds.

use cell_proto::v1::{MemberPut, RolePut};

use super::*;

fn serving(limits: Limits) -> GuildActor {
    let mut actor = owner(&bucket(), limits);
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    actor
}

fn join(user: i64) -> Kind {
    Kind::MemberPut(MemberPut {
        member: Some(member(user)),
        joined: true,
        invite_code: "code".into(),
        ..MemberPut::default()
    })
}

fn role(name: &str) -> Kind {
    Kind::RolePut(RolePut { role: Some(Role { name: name.into(), ..Role::default() }), created: true, guild_id: GUILD })
}

fn ask(actor: &mut GuildActor, ticket: Ticket, user: i64, kind: Kind) -> Vec<Effect> {
    actor.handle(Input::Mutate { ticket, request: mutate(user, ticket, kind) }, now(0))
}

/// The entry that a submitted change becomes.
fn becomes(number: u64, request: &cell_proto::v1::SubmitRequest) -> Entry {
    let mut entry = entry(number, request.change.clone().unwrap().kind.unwrap());
    entry.operation_id.clone_from(&request.operation_id);
    entry
}

#[test]
fn joins_go_side_by_side_and_other_changes_wait_for_all_before_them() {
    let mut actor = serving(Limits::default());
    let first = submits(&ask(&mut actor, 1, 5, join(5))).remove(0);
    let second = submits(&ask(&mut actor, 2, 6, join(6))).remove(0);
    assert!(submits(&ask(&mut actor, 3, OWNER, role("red"))).is_empty());
    assert!(submits(&ask(&mut actor, 4, 7, join(7))).is_empty(), "nothing overtakes a change that waits");
    for (number, (ticket, request)) in [(12, first), (13, second)] {
        let done = becomes(number, &request);
        let outcome = Box::new(committed(&bucket(), number, Some(done.clone())));
        assert!(submits(&actor.handle(Input::Submitted { ticket, outcome }, now(0))).is_empty());
        let effects = feed(&mut actor, vec![done]);
        assert_eq!(submits(&effects).len(), usize::from(number == 13), "the role starts once both joins are back");
    }
    assert_eq!(actor.view().members.len(), 3);
}

#[test]
fn a_retry_of_a_change_on_its_way_gets_the_same_answer_and_is_sent_once() {
    let mut actor = serving(Limits::default());
    let (ticket, request) = submits(&ask(&mut actor, 1, OWNER, role("red"))).remove(0);
    let retry = Input::Mutate { ticket: 2, request: mutate(OWNER, 1, role("red")) };
    assert!(submits(&actor.handle(retry, now(0))).is_empty());
    let outcome = Box::new(committed(&bucket(), 12, Some(becomes(12, &request))));
    let effects = actor.handle(Input::Submitted { ticket, outcome }, now(0));
    assert!(answer(&effects, 1).is_some() && answer(&effects, 1) == answer(&effects, 2));
}

#[test]
fn a_retry_of_a_committed_change_is_answered_from_memory_and_never_refused() {
    let mut actor = serving(Limits::default());
    let (_, request) = submits(&ask(&mut actor, 1, 5, join(5))).remove(0);
    // The answer got lost; the entry came.
    feed(&mut actor, vec![becomes(12, &request)]);
    let mut again = owner_after(&actor);
    let effects = again.handle(Input::Mutate { ticket: 9, request: mutate(5, 1, join(5)) }, now(0));
    let Some(Outcome::Committed(found)) = answer(&effects, 9) else { panic!("{effects:?}") };
    assert!(found.duplicate && found.position == Some(at(&bucket(), 12)));
}

/// The same actor once the first try is off its hands.
fn owner_after(actor: &GuildActor) -> GuildActor {
    let mut again = serving(Limits::default());
    let event = actor.ring.get(actor.ring.end() - 1).unwrap().entry.clone().unwrap();
    feed(&mut again, vec![event]);
    again
}

#[test]
fn an_invite_for_one_use_lets_one_of_two_at_once_in() {
    let mut actor = serving(Limits::default());
    let invite = Invite { code: "once".into(), guild_id: GUILD, channel_id: CHANNEL, max_uses: 1, ..Invite::default() };
    let put = Kind::InvitePut(cell_proto::v1::InvitePut { invite: Some(invite) });
    feed(&mut actor, vec![entry(12, put)]);
    let join = |user| {
        Kind::MemberPut(MemberPut {
            member: Some(member(user)),
            joined: true,
            invite_code: "once".into(),
            ..MemberPut::default()
        })
    };
    assert_eq!(submits(&ask(&mut actor, 1, 5, join(5))).len(), 1);
    assert_eq!(reason(answer(&ask(&mut actor, 2, 6, join(6)), 2)), Some(Reason::NotFound));
}

#[test]
fn a_full_queue_refuses_at_once_with_a_hint() {
    let mut actor = serving(Limits { queued_mutations: 1, ..Limits::default() });
    ask(&mut actor, 1, OWNER, role("a"));
    ask(&mut actor, 2, OWNER, role("b"));
    let Some(Outcome::Refusal(refusal)) = answer(&ask(&mut actor, 3, OWNER, role("c")), 3) else { panic!() };
    assert_eq!((refusal.why(), refusal.retry_after_ms > 0), (Reason::Overloaded, true));
    assert_eq!(actor.counters().overflowed_mutations, 1);
}

#[test]
fn what_waits_past_its_deadline_is_refused() {
    let mut actor = serving(Limits::default());
    ask(&mut actor, 1, OWNER, role("a"));
    ask(&mut actor, 2, OWNER, role("b"));
    let effects = actor.handle(Input::Tick, now(60_000));
    assert_eq!(reason(answer(&effects, 2)), Some(Reason::DeadlinePassed));
}

#[test]
fn a_committed_change_that_never_comes_back_makes_the_guild_be_read_anew() {
    let mut actor = serving(Limits::default());
    let (ticket, request) = submits(&ask(&mut actor, 1, OWNER, role("a"))).remove(0);
    let outcome = Box::new(committed(&bucket(), 12, Some(becomes(12, &request))));
    actor.handle(Input::Submitted { ticket, outcome }, now(0));
    assert!(actor.handle(Input::Tick, now(1_000)).iter().all(|effect| !matches!(effect, Effect::Load { .. })));
    assert!(actor.handle(Input::Tick, now(3_000)).iter().any(|effect| matches!(effect, Effect::Load { .. })));
}

#[test]
fn an_operation_id_of_another_length_is_invalid() {
    let mut actor = serving(Limits::default());
    let mut request = mutate(OWNER, 1, role("a"));
    request.operation_id = vec![1, 2, 3];
    let effects = actor.handle(Input::Mutate { ticket: 1, request }, now(0));
    assert_eq!(reason(answer(&effects, 1)), Some(Reason::Invalid));
}

#[test]
fn a_retry_of_what_the_owner_before_did_is_answered_as_done_and_not_judged_by_its_outcome() {
    let gone = || Kind::RoleDeleted(cell_proto::v1::RoleDeleted { guild_id: GUILD, role_id: 4711 });
    let mut actor = serving(Limits::default());
    let refused_at_once = ask(&mut actor, 1, OWNER, gone());
    assert_eq!(reason(answer(&refused_at_once, 1)), Some(Reason::NotFound), "nobody owned the guild before");
    actor.standing = super::super::ownership::Standing::Owner { guild_term: 2 };
    actor.view.guild_term = 2;
    let (probe, request) = submits(&ask(&mut actor, 2, OWNER, gone())).remove(0);
    assert!(request.deadline_unix_ms < 2, "it must not be done now");
    let done = becomes(9, &request);
    let outcome = Box::new(committed(&bucket(), 9, Some(done)));
    let effects = actor.handle(Input::Submitted { ticket: probe, outcome }, now(0));
    assert!(matches!(answer(&effects, 2), Some(Outcome::Committed(committed)) if committed.duplicate));
    let (probe, _) = submits(&ask(&mut actor, 3, OWNER, gone())).remove(0);
    let outcome = Box::new(refused(Reason::DeadlinePassed));
    let effects = actor.handle(Input::Submitted { ticket: probe, outcome }, now(0));
    assert_eq!(reason(answer(&effects, 3)), Some(Reason::NotFound));
}
