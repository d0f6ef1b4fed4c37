//! Rollouts, and who waits for whom: what may go, and that nobody is held for ever.

use super::*;

const NOW: i64 = 1_800_000_000_000;
const HOUR: i64 = 3_600_000;

fn pod(name: &str, up_to_date: bool, ready: bool) -> PodFacts {
    let made_ms = NOW - 24 * HOUR;
    PodFacts { name: name.into(), up_to_date, ready, unscheduled: false, made_ms, gone_by_ms: None }
}

/// A new Pod that is not Ready, made this long ago.
fn new(name: &str, age_ms: i64) -> PodFacts {
    PodFacts { made_ms: NOW - age_ms, ..pod(name, true, false) }
}

fn others() -> Turn {
    Turn::Others("pod b-0 is being replaced".into())
}

/// The turn that a set gives to its siblings.
fn turn_beside(pods: &[PodFacts]) -> Turn {
    under_way(pods, None, NOW).map_or(Turn::Own, Turn::Others)
}

#[test]
fn outdated_pods_go_one_at_a_time_while_all_are_ready() {
    let all = [pod("a-0", false, true), pod("a-1", false, true)];
    assert_eq!(next(&all, 2, &Turn::Own), Rollout::Replace("a-1".into()));
    let one_new = [pod("a-0", false, true), pod("a-1", true, true)];
    assert_eq!(next(&one_new, 2, &Turn::Own), Rollout::Replace("a-0".into()));
    assert_eq!(next(&[pod("a-0", true, true)], 1, &Turn::Own), Rollout::Complete);
}

#[test]
fn a_rollout_halts_at_the_first_replica_that_does_not_come_up() {
    let halted = [pod("a-0", false, true), pod("a-1", true, false)];
    assert!(matches!(next(&halted, 2, &Turn::Own), Rollout::Waiting(_)));
}

#[test]
fn a_broken_outdated_pod_is_replaced_first_and_nothing_while_one_goes() {
    let broken = [pod("a-0", false, false), pod("a-1", false, true)];
    assert_eq!(next(&broken, 2, &Turn::Own), Rollout::Replace("a-0".into()));
    let going = [PodFacts { gone_by_ms: Some(NOW), ..pod("a-0", false, true) }, pod("a-1", false, true)];
    assert!(matches!(next(&going, 2, &Turn::Own), Rollout::Waiting(_)));
    assert!(matches!(next(&[pod("a-0", false, true)], 2, &Turn::Own), Rollout::Waiting(_)));
}

#[test]
fn a_sound_outdated_pod_waits_for_its_turn_and_says_for_what_and_a_broken_one_does_not() {
    let sound = [pod("a-0", false, true), pod("a-1", false, true)];
    let waiting = next(&sound, 2, &others());
    assert!(matches!(&waiting, Rollout::Waiting(why) if why.contains("a-1") && why.contains("b-0")), "{waiting:?}");
    let broken = [pod("a-0", false, false), pod("a-1", false, true)];
    assert_eq!(next(&broken, 2, &others()), Rollout::Replace("a-0".into()));
    assert_eq!(next(&[pod("a-0", true, true)], 1, &others()), Rollout::Complete);
}

#[test]
fn siblings_wait_while_a_pod_goes_while_its_successor_comes_and_in_between() {
    let going = [PodFacts { gone_by_ms: Some(NOW + 45_000), ..pod("a-0", false, false) }];
    assert!(under_way(&going, None, NOW).is_some_and(|why| why.contains("a-0")));
    assert!(under_way(&[], Some(NOW - 1_000), NOW).is_some());
    assert!(under_way(&[new("a-0", 60_000)], None, NOW).is_some_and(|why| why.contains("a-0")));
    assert_eq!(under_way(&[pod("a-0", true, true), pod("a-1", false, true)], None, NOW), None);
}

#[test]
fn a_pod_without_room_gives_the_turn_to_the_sibling_that_makes_room() {
    // One edit: three gateways in place of two, and less memory for data. gateway-2 finds no node until data's Pods are replaced.
    let pending = PodFacts { unscheduled: true, ..new("gateway-2", 45_000) };
    let gateways = [pod("gateway-0", true, true), pod("gateway-1", true, true), pending];
    assert_eq!(turn_beside(&gateways), Turn::Own);
    let data = [pod("data-0", false, true), pod("data-1", false, true)];
    assert_eq!(next(&data, 2, &turn_beside(&gateways)), Rollout::Replace("data-1".into()));
    // A quota that lets no Pod be made is the same.
    assert_eq!(under_way(&gateways[..2], Some(NOW - 45_000), NOW), None);
}

#[test]
fn a_pod_on_a_lost_node_keeps_no_sibling_from_a_hotfix() {
    let guilds = [pod("guild-0", false, true)];
    for lost in [
        // Not Ready since its node is away; then to be deleted, which the node never confirms.
        pod("gateway-1", true, false),
        PodFacts { gone_by_ms: Some(NOW - HOUR), ..pod("gateway-1", false, false) },
        PodFacts { gone_by_ms: Some(NOW - HOUR), ..new("gateway-1", 2 * HOUR) },
    ] {
        let gateways = [pod("gateway-0", false, true), lost];
        assert_eq!(next(&guilds, 1, &turn_beside(&gateways)), Rollout::Replace("guild-0".into()), "{gateways:?}");
    }
    // A new Pod that does not come up holds them for a while, and not for ever.
    assert!(matches!(turn_beside(&[new("gateway-1", SETTLING_MS - 1)]), Turn::Others(_)));
    assert_eq!(turn_beside(&[new("gateway-1", SETTLING_MS)]), Turn::Own);
}

#[test]
fn a_store_goes_before_data_and_a_dead_one_keeps_data_from_no_fix() {
    let first = |store: PodFacts| goes_first(&[store], None, NOW);
    assert!(first(pod("main-store-0", false, true)).is_some_and(|why| why.contains("main-store-0")));
    assert!(first(new("main-store-0", 1_000)).is_some());
    assert_eq!(first(pod("main-store-0", true, true)), None);
    for dead in [
        pod("main-store-0", true, false),
        pod("main-store-0", false, false),
        PodFacts { gone_by_ms: Some(NOW - HOUR), ..pod("main-store-0", false, true) },
        PodFacts { unscheduled: true, ..new("main-store-0", HOUR) },
    ] {
        assert_eq!(first(dead.clone()), None, "{dead:?}");
    }
    assert_eq!(goes_first(&[], Some(NOW - HOUR), NOW), None);
}

#[test]
fn whoever_goes_second_waits_for_a_bounded_time() {
    let turn = |waited_ms: i64| turn_after("pod main-store-0 is replaced first".into(), NOW - waited_ms, NOW);
    assert!(matches!(turn(0), Turn::Others(why) if why.contains("main-store-0")));
    assert!(matches!(turn(PATIENCE_MS - 1), Turn::Others(_)));
    assert_eq!(turn(PATIENCE_MS), Turn::Own);
}
