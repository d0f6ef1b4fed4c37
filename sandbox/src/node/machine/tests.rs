//! A Pod's life as sentences.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::backoff::{Backoff, BackoffPolicy};
use super::container::{Exit, LOST, State};
use super::plan::PodPlan;
use super::probe::ProbeKind;
use super::{Adopted, AdoptedState, Command, Input, PodMachine};
use crate::node::clock::Now;

fn at(seconds: u64) -> Now {
    Now { mono_ms: seconds * 1000, wall_ms: i64::try_from(seconds).unwrap() * 1000 }
}

fn machine(spec: serde_json::Value) -> PodMachine {
    let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p" }, "spec": spec })).unwrap();
    PodMachine::new(PodPlan::of(&pod), BackoffPolicy::default())
}

fn plain() -> PodMachine {
    machine(json!({ "containers": [{ "name": "a" }] }))
}

fn exit(code: i32) -> Exit {
    Exit { code, signal: None, reason: "Error", message: None, started_ms: 0, finished_ms: 0 }
}

/// The orders among the commands, without events.
fn orders(commands: Vec<Command>) -> Vec<Command> {
    commands.into_iter().filter(|command| !matches!(command, Command::Say { .. })).collect()
}

fn started(machine: &mut PodMachine, index: usize, now: Now) -> Vec<Command> {
    orders(machine.handle(Input::Started { index, started_ms: now.wall_ms }, now))
}

fn running(now: Now) -> PodMachine {
    let mut machine = plain();
    machine.advance(now);
    machine.handle(Input::Prepared, now);
    started(&mut machine, 0, now);
    machine
}

#[test]
fn volumes_come_first_and_a_failure_is_tried_again_later() {
    let mut machine = plain();
    assert_eq!(machine.advance(at(0)), [Command::Prepare]);
    assert_eq!(machine.advance(at(0)), [], "it is not ordered twice");
    assert_eq!(orders(machine.handle(Input::PrepareFailed("no map".into()), at(1))), []);
    assert_eq!(machine.next_ms(), Some(3_000));
    assert_eq!(machine.advance(at(3)), [Command::Prepare]);
    let start = Command::Start { index: 0, attempt: 0, backoff: Backoff::default() };
    assert_eq!(orders(machine.handle(Input::Prepared, at(3))), [start]);
}

#[test]
fn init_containers_run_one_by_one_before_the_main_ones() {
    let mut machine = machine(json!({
        "initContainers": [{ "name": "i1" }, { "name": "i2" }],
        "containers": [{ "name": "a" }, { "name": "b" }],
    }));
    machine.advance(at(0));
    let start = |index| Command::Start { index, attempt: 0, backoff: Backoff::default() };
    assert_eq!(orders(machine.handle(Input::Prepared, at(0))), [start(0)]);
    started(&mut machine, 0, at(0));
    assert_eq!(machine.next_ms(), None, "nothing is due while the first one runs");
    let next = machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(0) }, at(1));
    assert_eq!(orders(next), [start(1)]);
    started(&mut machine, 1, at(1));
    assert_eq!(machine.phase(), "Pending");
    let rest = machine.handle(Input::Exited { index: 1, attempt: 0, exit: exit(0) }, at(2));
    assert_eq!(orders(rest), [start(2), start(3)]);
    assert!(machine.initialized());
}

#[test]
fn the_first_restart_is_immediate_and_the_next_waits_ten_seconds() {
    let mut machine = running(at(0));
    let again = machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(1) }, at(1));
    let backoff = Backoff { wait_ms: 0, exits: 1 };
    assert_eq!(orders(again), [Command::Start { index: 0, attempt: 1, backoff }]);
    started(&mut machine, 0, at(1));
    assert_eq!(orders(machine.handle(Input::Exited { index: 0, attempt: 1, exit: exit(1) }, at(2))), []);
    assert!(matches!(machine.containers[0].state, State::Waiting { reason: "CrashLoopBackOff", .. }));
    assert_eq!(machine.next_ms(), Some(12_000));
    assert_eq!(orders(machine.advance(at(11))), []);
    assert!(matches!(orders(machine.advance(at(12)))[..], [Command::Start { attempt: 2, .. }]));
}

#[test]
fn a_late_word_of_an_earlier_run_changes_nothing() {
    let mut machine = running(at(0));
    machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(1) }, at(1));
    started(&mut machine, 0, at(1));
    let before = machine.containers[0].state.clone();
    assert_eq!(machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(1) }, at(2)), []);
    assert_eq!(machine.containers[0].state, before);
}

#[test]
fn a_beginning_heard_after_the_end_does_not_revive_the_container() {
    let mut machine = machine(json!({ "restartPolicy": "Never", "containers": [{ "name": "a" }] }));
    machine.advance(at(0));
    machine.handle(Input::Prepared, at(0));
    machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(1) }, at(1));
    assert_eq!(machine.handle(Input::Started { index: 0, started_ms: 0 }, at(1)), []);
    assert_eq!(machine.phase(), "Failed");
}

#[test]
fn never_and_on_failure_end_the_pod_as_they_say() {
    for (policy, code, phase) in
        [("Never", 0, "Succeeded"), ("Never", 3, "Failed"), ("OnFailure", 0, "Succeeded"), ("OnFailure", 3, "Running")]
    {
        let mut machine = machine(json!({ "restartPolicy": policy, "containers": [{ "name": "a" }] }));
        machine.advance(at(0));
        machine.handle(Input::Prepared, at(0));
        started(&mut machine, 0, at(0));
        machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(code) }, at(1));
        assert_eq!(machine.phase(), phase, "{policy} after exit {code}");
    }
}

#[test]
fn deletion_stops_kills_after_the_grace_and_ends_when_nothing_lives() {
    let mut machine = running(at(0));
    let stop = machine.handle(Input::Delete { grace_ms: 5_000 }, at(10));
    assert_eq!(orders(stop), [Command::Stop { index: 0, grace_ms: 5_000 }]);
    assert_eq!(machine.next_ms(), Some(15_000));
    assert_eq!(orders(machine.advance(at(14))), []);
    assert_eq!(orders(machine.advance(at(15))), [Command::Kill { index: 0 }]);
    assert_eq!(orders(machine.advance(at(16))), [], "it is killed once");
    assert!(!machine.gone());
    machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(137) }, at(16));
    assert!(machine.gone(), "a leaving Pod is not restarted");
    assert_eq!(machine.phase(), "Failed");
}

#[test]
fn a_shorter_grace_hastens_the_kill_and_a_longer_one_does_not_delay_it() {
    let mut machine = running(at(0));
    machine.handle(Input::Delete { grace_ms: 30_000 }, at(0));
    machine.handle(Input::Delete { grace_ms: 60_000 }, at(1));
    assert_eq!(machine.next_ms(), Some(30_000));
    machine.handle(Input::Delete { grace_ms: 2_000 }, at(1));
    assert_eq!(machine.next_ms(), Some(3_000));
}

#[test]
fn a_pod_deleted_while_a_container_starts_stops_it_once_it_runs() {
    let mut machine = plain();
    machine.advance(at(0));
    machine.handle(Input::Prepared, at(0));
    assert_eq!(orders(machine.handle(Input::Delete { grace_ms: 1_000 }, at(0))), []);
    assert!(!machine.gone());
    assert_eq!(started(&mut machine, 0, at(1)), [Command::Stop { index: 0, grace_ms: 1_000 }]);
}

fn probed() -> PodMachine {
    let mut machine = machine(json!({ "containers": [{
        "name": "a",
        "startupProbe": { "periodSeconds": 1, "failureThreshold": 2 },
        "readinessProbe": { "periodSeconds": 5 },
        "livenessProbe": { "periodSeconds": 5, "failureThreshold": 1, "terminationGracePeriodSeconds": 3 },
    }] }));
    machine.advance(at(0));
    machine.handle(Input::Prepared, at(0));
    machine
}

fn answer(machine: &mut PodMachine, kind: ProbeKind, success: bool, now: Now) -> Vec<Command> {
    let attempt = machine.containers[0].attempt;
    orders(machine.handle(Input::Probed { index: 0, attempt, kind, success, message: "no".into() }, now))
}

fn asked(kind: ProbeKind) -> Command {
    Command::Probe { index: 0, attempt: 0, kind }
}

#[test]
fn the_startup_probe_holds_the_others_back_and_then_they_begin_at_once() {
    let mut machine = probed();
    assert_eq!(started(&mut machine, 0, at(0)), [asked(ProbeKind::Startup)]);
    assert!(!machine.containers[0].ready && !machine.containers[0].started);
    let next = answer(&mut machine, ProbeKind::Startup, true, at(1));
    assert_eq!(next, [asked(ProbeKind::Readiness), asked(ProbeKind::Liveness)]);
    assert!(machine.containers[0].started && !machine.containers[0].ready);
    answer(&mut machine, ProbeKind::Readiness, true, at(1));
    assert!(machine.containers[0].ready);
    for _ in 0..3 {
        answer(&mut machine, ProbeKind::Readiness, false, at(2));
    }
    assert!(!machine.containers[0].ready, "three failures in a row make it unready");
}

#[test]
fn a_failed_liveness_probe_restarts_with_its_own_grace() {
    let mut machine = probed();
    started(&mut machine, 0, at(0));
    answer(&mut machine, ProbeKind::Startup, true, at(1));
    let stop = answer(&mut machine, ProbeKind::Liveness, false, at(2));
    assert_eq!(stop, [Command::Stop { index: 0, grace_ms: 3_000 }]);
    let again = machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(143) }, at(3));
    assert!(matches!(orders(again)[..], [Command::Start { attempt: 1, .. }]));
    assert_eq!(machine.containers[0].last.as_ref().unwrap().code, 143);
}

#[test]
fn two_startup_failures_restart_the_container() {
    let mut machine = probed();
    started(&mut machine, 0, at(0));
    assert_eq!(answer(&mut machine, ProbeKind::Startup, false, at(0)), []);
    assert_eq!(answer(&mut machine, ProbeKind::Startup, false, at(1)), [Command::Stop { index: 0, grace_ms: 30_000 }]);
}

#[test]
fn an_adopted_run_stays_ready_and_keeps_its_number_and_back_off() {
    let mut machine = probed();
    let backoff = Backoff { wait_ms: 20_000, exits: 3 };
    let state = AdoptedState::Running { started_ms: 5, was_ready: true };
    machine.adopt(0, Adopted { attempt: 3, backoff, last: Some(exit(9)), state }, at(50));
    assert!(machine.containers[0].ready && machine.containers[0].started);
    let asked: Vec<_> = orders(machine.advance(at(50)));
    assert!(asked.contains(&Command::Probe { index: 0, attempt: 3, kind: ProbeKind::Readiness }));
    assert!(!asked.iter().any(|command| matches!(command, Command::Start { .. })), "it runs already");
    machine.handle(Input::Exited { index: 0, attempt: 3, exit: exit(1) }, at(51));
    assert_eq!(machine.containers[0].backoff.wait_ms, 40_000, "the back-off goes on where it was");
}

#[test]
fn a_run_lost_in_a_power_cut_is_started_again_after_the_volumes() {
    let mut machine = plain();
    let state = AdoptedState::Ended(Exit { reason: LOST, ..exit(137) });
    let worn = Backoff { wait_ms: 40_000, exits: 4 };
    machine.adopt(0, Adopted { attempt: 4, backoff: worn, last: None, state }, at(0));
    assert_eq!(orders(machine.advance(at(0))), [Command::Prepare]);
    let start = Command::Start { index: 0, attempt: 5, backoff: worn };
    assert_eq!(orders(machine.handle(Input::Prepared, at(1))), [start], "at once: a power cut is no crash loop");
}

#[test]
fn an_unknown_image_waits_with_its_reason_and_is_tried_again() {
    let mut machine = plain();
    machine.advance(at(0));
    machine.handle(Input::Prepared, at(0));
    let reason = "ErrImageNeverPull";
    machine.handle(Input::StartFailed { index: 0, reason, message: "no".into() }, at(1));
    assert!(matches!(machine.containers[0].state, State::Waiting { reason: "ErrImageNeverPull", .. }));
    assert!(matches!(orders(machine.advance(at(6)))[..], [Command::Start { attempt: 0, .. }]));
}

#[test]
fn a_sidecar_starts_first_stays_beside_the_main_one_and_ends_after_it() {
    let mut machine = machine(json!({
        "restartPolicy": "Never",
        "initContainers": [{ "name": "side", "restartPolicy": "Always" }, { "name": "once" }],
        "containers": [{ "name": "a" }],
    }));
    machine.advance(at(0));
    let start = |index| Command::Start { index, attempt: 0, backoff: Backoff::default() };
    assert_eq!(orders(machine.handle(Input::Prepared, at(0))), [start(0)]);
    assert_eq!(started(&mut machine, 0, at(0)), [start(1)], "it need not end for the next one to begin");
    started(&mut machine, 1, at(0));
    let next = machine.handle(Input::Exited { index: 1, attempt: 0, exit: exit(0) }, at(1));
    assert_eq!(orders(next), [start(2)]);
    started(&mut machine, 2, at(1));
    assert_eq!((machine.phase(), machine.initialized()), ("Running", true));
    let again = machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(1) }, at(2));
    assert!(
        matches!(orders(again)[..], [Command::Start { index: 0, attempt: 1, .. }]),
        "it is started again whatever the policy"
    );
    started(&mut machine, 0, at(2));
    let stop = machine.handle(Input::Exited { index: 2, attempt: 0, exit: exit(0) }, at(3));
    assert_eq!(orders(stop), [Command::Stop { index: 0, grace_ms: 30_000 }]);
    assert_eq!(machine.phase(), "Running", "not over while it ends");
    assert_eq!(orders(machine.handle(Input::Exited { index: 0, attempt: 1, exit: exit(143) }, at(4))), []);
    assert_eq!(machine.phase(), "Succeeded");
    assert_eq!(machine.next_ms(), None);
}

#[test]
fn a_hook_takes_of_the_grace_and_leaves_two_seconds_in_any_case() {
    let hooked = || {
        let hook = json!({ "preStop": { "sleep": { "seconds": 1 } } });
        let mut machine = machine(json!({ "containers": [{ "name": "a", "lifecycle": hook }] }));
        machine.advance(at(0));
        machine.handle(Input::Prepared, at(0));
        started(&mut machine, 0, at(0));
        machine
    };
    let over = |failure: Option<&str>| Input::Hooked { index: 0, attempt: 0, failure: failure.map(str::to_owned) };
    let mut quick = hooked();
    assert_eq!(
        orders(quick.handle(Input::Delete { grace_ms: 10_000 }, at(1))),
        [Command::Stop { index: 0, grace_ms: 10_000 }]
    );
    quick.handle(over(None), at(3));
    assert_eq!(quick.next_ms(), Some(11_000), "the grace counts from the beginning of the hook");
    let mut late = hooked();
    late.handle(Input::Delete { grace_ms: 10_000 }, at(1));
    assert_eq!(orders(late.advance(at(11))), [], "the signal is sent first");
    let said = late.handle(over(Some("late")), at(11));
    assert!(matches!(&said[..], [Command::Say { warning: true, reason: "FailedPreStopHook", .. }]));
    assert_eq!(orders(late.advance(at(13))), [Command::Kill { index: 0 }]);
    let mut forced = hooked();
    forced.handle(Input::Delete { grace_ms: 10_000 }, at(1));
    assert_eq!(orders(forced.handle(Input::Delete { grace_ms: 0 }, at(2))), [Command::Kill { index: 0 }]);
    forced.handle(Input::Hooked { index: 0, attempt: 7, failure: None }, at(2));
    assert_eq!(forced.next_ms(), None, "another run's hook changes nothing");
}

#[test]
fn a_pod_past_its_deadline_is_stopped_not_restarted_and_failed() {
    let mut machine = running(at(0));
    let stop = orders(machine.handle(Input::Expire, at(9)));
    assert_eq!(stop, [Command::Stop { index: 0, grace_ms: 30_000 }]);
    assert_eq!(machine.phase(), "Running", "not over while it ends");
    assert_eq!(machine.handle(Input::Expire, at(10)), [], "it is said once");
    assert_eq!(orders(machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(0) }, at(11))), []);
    assert_eq!((machine.phase(), machine.next_ms(), machine.gone()), ("Failed", None, false));
}

#[test]
fn a_pod_that_has_ended_has_no_deadline_any_more() {
    let spec = json!({ "restartPolicy": "Never", "activeDeadlineSeconds": 5, "containers": [{ "name": "a" }] });
    let mut machine = machine(spec);
    assert_eq!(machine.may_run_ms(), Some(5_000));
    machine.advance(at(0));
    machine.handle(Input::Prepared, at(0));
    started(&mut machine, 0, at(0));
    machine.handle(Input::Exited { index: 0, attempt: 0, exit: exit(0) }, at(1));
    assert_eq!((machine.phase(), machine.may_run_ms()), ("Succeeded", None));
    assert_eq!(machine.handle(Input::Expire, at(9)), [], "nor does one that comes late change anything");
    assert_eq!(machine.phase(), "Succeeded");
}

proptest::proptest! {
    #[test]
    fn whatever_happens_a_deleted_pod_whose_processes_end_is_gone(seed in proptest::collection::vec((0_u8..6, 0_usize..3), 1..60)) {
        let mut machine = machine(json!({
            "initContainers": [{ "name": "i" }],
            "containers": [{ "name": "a", "livenessProbe": { "failureThreshold": 1 } }, { "name": "b" }],
        }));
        let mut alive = [false; 3];
        let mut clock = 0;
        let obey = |commands: Vec<Command>, alive: &mut [bool; 3]| {
            for command in commands {
                if let Command::Start { index, .. } = command {
                    assert!(!alive[index], "one process per container at a time");
                    alive[index] = true;
                }
            }
        };
        for (what, index) in seed {
            clock += 7;
            let attempt = machine.containers[index].attempt;
            let input = match what {
                0 => Input::Prepared,
                1 if alive[index] && machine.containers[index].state == State::Starting => {
                    Input::Started { index, started_ms: 0 }
                }
                2 if alive[index] => {
                    alive[index] = false;
                    Input::Exited { index, attempt, exit: exit(i32::from(what)) }
                }
                3 => Input::Probed { index, attempt, kind: ProbeKind::Liveness, success: false, message: String::new() },
                4 if clock > 200 => Input::Delete { grace_ms: 1_000 },
                _ => Input::Prepared,
            };
            let commands = machine.handle(input, at(clock));
            obey(commands, &mut alive);
        }
        machine.handle(Input::Delete { grace_ms: 0 }, at(clock));
        machine.handle(Input::Prepared, at(clock));
        for (index, alive) in alive.into_iter().enumerate() {
            if alive {
                let attempt = machine.containers[index].attempt;
                let commands = machine.handle(Input::Exited { index, attempt, exit: exit(0) }, at(clock + 1));
                obey(commands, &mut [false; 3]);
            }
        }
        proptest::prop_assert!(machine.gone());
    }
}
