//! Owning: the claim, the higher claim of another, the lower one, moves, runs, idleness.

use super::*;

fn claims(effects: &[Effect]) -> Vec<cell_proto::v1::SubmitRequest> {
    let claim = |effect: &Effect| match effect {
        Effect::Claim { request, .. } => Some((**request).clone()),
        _ => None,
    };
    effects.iter().filter_map(claim).collect()
}

fn moved(effects: &[Effect]) -> Vec<(LinkId, Whereto)> {
    let to = |effect: &Effect| match effect {
        Effect::SendMoved { link, to } => Some((*link, to.clone())),
        _ => None,
    };
    effects.iter().filter_map(to).collect()
}

fn run_reply(effects: &[Effect]) -> Option<cell_proto::v1::RunReply> {
    effects.iter().find_map(|effect| match effect {
        Effect::Reply { reply: Reply::Run(reply), .. } => Some(reply.clone()),
        _ => None,
    })
}

#[test]
fn a_claim_is_one_above_the_last_guild_term() {
    let mut actor = GuildActor::new(identity("n1"), bucket(), Limits::default(), now(0));
    actor.handle(Input::Own, now(0));
    let view = GuildView { guild_term: 7, ..guild_view() };
    let loaded = Loaded { view, log: bucket(), as_of: 10, term: 1 };
    let effects = actor.handle(Input::Loaded { epoch: 1, outcome: Ok(Box::new(loaded)) }, now(0));
    assert_eq!(claims(&effects)[0].guild_term, 8);
}

#[test]
fn a_higher_claim_of_another_node_ends_the_ownership_and_the_gateways_are_told() {
    let mut actor = owner(&bucket(), Limits::default());
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    attach(&mut actor, 1, Some(at(&bucket(), 11)));
    let effects = feed(&mut actor, vec![message(12), claim_entry(13, "n2", 2), message(14)]);
    assert_eq!(sent(&effects, 1).len(), 3, "what is before and with the claim is still told");
    assert_eq!(moved(&effects), [(1, Whereto::Node("n2".into()))]);
    assert!(!actor.is_owner());
    let effects =
        actor.handle(Input::Mutate { ticket: 1, request: mutate(OWNER, 1, Kind::Split(Default::default())) }, now(0));
    assert_eq!(reason(answer(&effects, 1)), Some(Reason::NotOwner));
}

#[test]
fn a_claim_with_a_lower_guild_term_changes_nothing() {
    let mut actor = loaded_actor(&bucket(), Limits::default());
    actor.handle(Input::Claimed { attempt: 1, outcome: Box::new(committed(&bucket(), 11, None)) }, now(0));
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    attach(&mut actor, 1, Some(at(&bucket(), 11)));
    let effects = feed(&mut actor, vec![claim_entry(12, "n2", 0)]);
    assert!(moved(&effects).is_empty() && actor.is_owner());
    assert_eq!(actor.counters().stale_guild_terms, 1);
}

#[test]
fn a_claim_whose_answer_was_lost_counts_when_the_feed_shows_it() {
    let mut actor = loaded_actor(&bucket(), Limits::default());
    let Standing::Claiming { operation_id, .. } = &actor.standing else { panic!("{:?}", actor.standing) };
    let ours = Entry { operation_id: operation_id.clone(), ..claim_entry(11, "n1", 1) };
    feed(&mut actor, vec![ours]);
    assert!(actor.is_owner());
}

#[test]
fn a_refused_claim_reads_the_guild_anew_before_the_next() {
    let mut actor = loaded_actor(&bucket(), Limits::default());
    let refusal = Input::Claimed { attempt: 1, outcome: Box::new(refused(Reason::StaleGuildTerm)) };
    let effects = actor.handle(refusal, now(0));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Load { .. })) && !actor.is_owner());
}

#[test]
fn a_change_refused_for_its_guild_term_ends_the_ownership() {
    let mut actor = owner(&bucket(), Limits::default());
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    let put = Kind::InvitePut(cell_proto::v1::InvitePut {
        invite: Some(Invite { channel_id: CHANNEL, ..Invite::default() }),
    });
    let effects = actor.handle(Input::Mutate { ticket: 1, request: mutate(OWNER, 1, put) }, now(0));
    let (ticket, request) = submits(&effects).remove(0);
    assert_eq!(request.guild_term, 1);
    let effects = actor.handle(Input::Submitted { ticket, outcome: Box::new(refused(Reason::StaleGuildTerm)) }, now(0));
    assert_eq!(reason(answer(&effects, 1)), Some(Reason::StaleGuildTerm));
    assert!(!actor.is_owner());
}

#[test]
fn the_source_of_a_move_tells_its_gateways_and_stays_warm_until_it_is_forgotten() {
    let mut actor = owner(&own(), Limits::default());
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    attach(&mut actor, 1, Some(at(&own(), 11)));
    let route = Route { guild_address: "there:1".into(), ..Route::default() };
    let take = Input::TakeOver { ticket: 1, run_id: "r".into(), claim: false, route: Some(route.clone()) };
    let effects = actor.handle(take, now(0));
    assert_eq!(moved(&effects), [(1, Whereto::Route(route))]);
    assert!(run_reply(&effects).unwrap().done);
    feed(&mut actor, vec![message(12)]);
    assert_eq!(actor.position(), at(&own(), 12));
    assert!(!actor.handle(Input::Tick, now(10_000_000)).iter().any(|effect| matches!(effect, Effect::Stop)));
    let effects = actor.handle(Input::Forget { ticket: 2, run_id: "r".into(), route: Route::default() }, now(0));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Stop)));
}

#[test]
fn another_run_is_refused_while_one_holds_the_guild() {
    let mut actor = loaded_actor(&own(), Limits::default());
    actor.handle(Input::Warm { ticket: 1, run_id: "r1".into(), route: Route::default() }, now(0));
    let effects = actor.handle(Input::TakeOver { ticket: 2, run_id: "r2".into(), claim: true, route: None }, now(0));
    assert_eq!(run_reply(&effects).unwrap().refusal.unwrap().why(), Reason::OtherRun);
    let effects = actor.handle(Input::Forget { ticket: 3, run_id: "r2".into(), route: Route::default() }, now(0));
    assert_eq!(run_reply(&effects).unwrap().refusal.unwrap().why(), Reason::OtherRun);
}

#[test]
fn a_guild_held_by_a_run_is_not_given_up_because_the_directory_is_late() {
    let mut actor = owner(&own(), Limits::default());
    actor.handle(Input::Warm { ticket: 1, run_id: "r1".into(), route: Route::default() }, now(0));
    actor.handle(Input::Yield(None), now(0));
    assert!(actor.is_owner());
    actor.handle(Input::Drain(None), now(0));
    assert!(!actor.is_owner(), "a process that ends gives up everything");
}

#[test]
fn reach_answers_once_everything_is_here_or_the_time_is_up() {
    let mut actor = owner(&own(), Limits::default());
    let reach = |ticket, at, wait_ms| Input::Reach { ticket, run_id: String::new(), log: own(), at, wait_ms };
    assert!(actor.handle(reach(1, 12, 100), now(0)).is_empty());
    assert!(actor.handle(reach(2, 99, 100), now(0)).is_empty());
    let effects = feed(&mut actor, vec![message(11), message(12)]);
    assert!(matches!(&effects[..], [Effect::Reply { ticket: 1, reply: Reply::Reach(reply) }] if reply.reached));
    let effects = actor.handle(Input::Tick, now(100));
    let late =
        |effect: &Effect| matches!(effect, Effect::Reply { ticket: 2, reply: Reply::Reach(reply) } if !reply.reached);
    assert!(effects.iter().any(late));
}

#[test]
fn an_actor_that_nobody_needs_stops() {
    let mut actor = owner(&bucket(), Limits::default());
    feed(&mut actor, vec![claim_entry(11, "n1", 1)]);
    attach(&mut actor, 1, None);
    let stops = |effects: Vec<Effect>| effects.iter().any(|effect| matches!(effect, Effect::Stop));
    assert!(!stops(actor.handle(Input::Tick, now(1_000_000))));
    actor.handle(Input::Detach { link: 1 }, now(1_000_000));
    assert!(!stops(actor.handle(Input::Tick, now(1_000_001))));
    assert!(stops(actor.handle(Input::Tick, now(1_300_000))));
}

#[test]
fn a_guild_that_does_not_exist_is_refused_and_forgotten_soon() {
    let mut actor = GuildActor::new(identity("n1"), bucket(), Limits::default(), now(0));
    actor.handle(Input::Own, now(0));
    attach(&mut actor, 1, None);
    let missing = Err(Refusal::new(Reason::NotFound, "no such guild"));
    let effects = actor.handle(Input::Loaded { epoch: 1, outcome: missing }, now(0));
    let refused = frames(&effects, 1);
    assert!(
        matches!(&refused[0].kind, Some(Down::Refused(refused)) if refused.refusal.as_ref().unwrap().why() == Reason::NotFound)
    );
    let effects = actor.handle(Input::View { ticket: 1 }, now(0));
    let found = |effect: &Effect| matches!(effect, Effect::Reply { reply: Reply::View(Err(refusal)), .. } if refusal.why() == Reason::NotFound);
    assert!(effects.iter().any(found));
    assert!(actor.handle(Input::Tick, now(2_000)).iter().any(|effect| matches!(effect, Effect::Stop)));
}

fn routed(term: u64) -> Option<Route> {
    Some(Route { log: own(), term, guild_address: "there:1".into(), ..Route::default() })
}

#[test]
fn a_late_request_of_an_earlier_run_does_not_depose_a_live_owner() {
    let mut actor = owner(&own(), Limits::default());
    let epoch = actor.epoch;
    actor.handle(Input::Feed { epoch, entries: vec![claim_entry(11, "n1", 1)], last: 11, term: 7 }, now(0));
    let take = |ticket, claim, term| Input::TakeOver { ticket, run_id: "r1".into(), claim, route: routed(term) };
    assert!(run_reply(&actor.handle(take(1, true, 7), now(0))).unwrap().done);
    for claim in [false, true] {
        let effects = actor.handle(take(2, claim, 6), now(0));
        assert_eq!(run_reply(&effects).unwrap().refusal.unwrap().why(), Reason::StaleTerm);
        assert!(actor.is_owner());
    }
    assert!(run_reply(&actor.handle(take(3, false, 8), now(0))).unwrap().done);
    assert!(!actor.is_owner());
}

#[test]
fn a_run_that_did_its_work_or_fell_silent_gives_way_to_another() {
    let mut actor = owner(&own(), Limits::default());
    let take = Input::TakeOver { ticket: 1, run_id: "r1".into(), claim: true, route: routed(7) };
    assert!(run_reply(&actor.handle(take, now(0))).unwrap().done);
    actor.handle(Input::Warm { ticket: 2, run_id: "r2".into(), route: Route::default() }, now(0));
    assert_eq!(actor.run.as_ref().unwrap().id, "r2", "the end of r1 was lost");
    actor.handle(Input::Warm { ticket: 3, run_id: "r3".into(), route: Route::default() }, now(1_000));
    assert_eq!(actor.run.as_ref().unwrap().id, "r2");
    actor.handle(Input::Warm { ticket: 4, run_id: "r3".into(), route: Route::default() }, now(200_000));
    assert_eq!(actor.run.as_ref().unwrap().id, "r3");
}

#[test]
fn a_warm_or_forget_of_a_lower_term_is_refused_and_told_the_term() {
    let mut actor = loaded_actor(&own(), Limits::default());
    let at = |term| Route { log: own(), term, ..Route::default() };
    let take = Input::TakeOver { ticket: 1, run_id: "r1".into(), claim: true, route: routed(7) };
    assert!(run_reply(&actor.handle(take, now(0))).is_none_or(|reply| reply.refusal.is_none()));
    let effects = actor.handle(Input::Warm { ticket: 2, run_id: "r0".into(), route: at(6) }, now(0));
    let warm = effects.iter().find_map(|effect| match effect {
        Effect::Reply { reply: Reply::Warm(reply), .. } => reply.refusal.clone(),
        _ => None,
    });
    let refusal = warm.unwrap();
    assert_eq!((refusal.why(), refusal.route.unwrap().term), (Reason::StaleTerm, 7));
    assert_eq!(actor.run.as_ref().unwrap().id, "r1", "the late request holds nothing");
    let late = Input::Forget { ticket: 3, run_id: "r1".into(), route: at(6) };
    assert_eq!(run_reply(&actor.handle(late, now(0))).unwrap().refusal.unwrap().why(), Reason::StaleTerm);
    let timely = Input::Forget { ticket: 4, run_id: "r1".into(), route: at(7) };
    assert!(run_reply(&actor.handle(timely, now(0))).unwrap().done);
    assert!(actor.run.is_none());
}
