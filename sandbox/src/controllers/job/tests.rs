//! Jobs as sentences, and a seeded run of the whole protocol with crashes between any two writes.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{Backoff, FINALIZER, Plan, View, condition_holds, decide, is_finished};

const BACKOFF: Backoff = Backoff { first: 10, most: 600 };

fn job(spec: Value) -> Job {
    let mut whole = json!({ "parallelism": 1, "completions": 1, "backoffLimit": 6,
        "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "c" }] } } });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let meta = json!({ "name": "copy", "namespace": "n", "uid": "j", "generation": 1 });
    serde_json::from_value(json!({ "metadata": meta, "spec": whole })).unwrap()
}

/// A Pod of the Job that ended (or not) at a Unix second.
fn pod(name: &str, phase: &str, at: i64) -> Arc<Pod> {
    let time = k8s_openapi::jiff::Timestamp::from_second(at).unwrap().to_string();
    let code = i32::from(phase != "Succeeded");
    let statuses = match phase {
        "Succeeded" | "Failed" => {
            json!([{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": code, "finishedAt": time } } }])
        }
        _ => json!([]),
    };
    let owner = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "copy", "uid": "j", "controller": true }]);
    let body = json!({
        "metadata": { "name": name, "namespace": "n", "uid": name, "finalizers": [FINALIZER], "ownerReferences": owner,
            "creationTimestamp": "1970-01-01T00:00:00Z" },
        "spec": { "containers": [] }, "status": { "phase": phase, "containerStatuses": statuses },
    });
    Arc::new(serde_json::from_value(body).unwrap())
}

fn released(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = pod.as_ref().clone();
    pod.metadata.finalizers = None;
    Arc::new(pod)
}

fn look(job: &Job, pods: &[Arc<Pod>], now: i64) -> Plan {
    decide(&View { job, pods, now, backoff: BACKOFF })
}

fn stored(job: &Job, plan: &Plan) -> Job {
    let mut job = job.clone();
    job.status = Some(plan.status.clone());
    job
}

fn condition<'a>(status: &'a JobStatus, kind: &str) -> (&'a str, &'a str) {
    let found = status.conditions.iter().flatten().find(|one| one.type_ == kind).expect(kind);
    (found.status.as_str(), found.reason.as_deref().unwrap())
}

#[test]
fn one_pod_is_made_counted_in_three_steps_and_the_job_is_complete() {
    let fresh = job(json!({}));
    let plan = look(&fresh, &[], 100);
    assert_eq!((plan.create.len(), plan.status.start_time.is_some()), (1, true));
    let running = stored(&fresh, &plan);
    let plan = look(&running, &[pod("a", "Running", 0)], 101);
    assert_eq!((plan.create.len(), plan.status.active), (0, Some(1)));
    let done = pod("a", "Succeeded", 105);
    let plan = look(&running, std::slice::from_ref(&done), 105);
    assert_eq!(plan.status.uncounted_terminated_pods.clone().unwrap().succeeded.unwrap(), ["a"]);
    assert!(plan.release.is_empty(), "its count is not stored yet");
    assert_eq!(condition(&plan.status, "SuccessCriteriaMet"), ("True", "CompletionsReached"));
    assert!(!is_finished(&plan.status));
    let seen = stored(&running, &plan);
    let plan = look(&seen, std::slice::from_ref(&done), 106);
    assert_eq!((plan.release.len(), plan.status.succeeded), (1, None));
    let plan = look(&seen, &[released(&done)], 107);
    assert_eq!((plan.status.succeeded, plan.status.active), (Some(1), None));
    assert_eq!(condition(&plan.status, "Complete"), ("True", "CompletionsReached"));
    assert_eq!(plan.status.completion_time.as_ref().unwrap().0.as_second(), 107);
    let settled = stored(&seen, &plan);
    assert_eq!(look(&settled, &[released(&done)], 999).status, plan.status, "a finished Job is not touched again");
}

#[test]
fn failed_pods_are_replaced_after_a_doubling_wait_until_the_limit() {
    let mut of = job(json!({ "backoffLimit": 2 }));
    of.status = Some(look(&of, &[], 100).status);
    let one = [pod("a", "Failed", 100)];
    let plan = look(&of, &one, 105);
    assert_eq!((plan.create.len(), plan.wake), (0, Some(110)));
    assert_eq!(look(&of, &one, 110).create.len(), 1);
    let two = [pod("a", "Failed", 100), pod("b", "Failed", 110)];
    assert_eq!(look(&of, &two, 111).wake, Some(130), "the second wait is twice the first");
    let three = [pod("a", "Failed", 100), pod("b", "Failed", 110), pod("c", "Failed", 130)];
    let plan = look(&of, &three, 131);
    assert_eq!(condition(&plan.status, "FailureTarget"), ("True", "BackoffLimitExceeded"));
    assert!(!is_finished(&plan.status) && plan.create.is_empty());
    let counting = stored(&of, &plan);
    let plan = look(&counting, &three.map(|pod| released(&pod)), 132);
    assert_eq!((condition(&plan.status, "Failed"), plan.status.failed), (("True", "BackoffLimitExceeded"), Some(3)));
}

#[test]
fn a_deadline_ends_what_runs_and_waits_until_it_is_gone() {
    let mut of = job(json!({ "activeDeadlineSeconds": 30 }));
    of.status = Some(look(&of, &[], 100).status);
    let running = pod("a", "Running", 0);
    assert_eq!(look(&of, std::slice::from_ref(&running), 110).wake, Some(130));
    let plan = look(&of, std::slice::from_ref(&running), 130);
    assert_eq!(condition(&plan.status, "FailureTarget"), ("True", "DeadlineExceeded"));
    assert_eq!((plan.delete.len(), plan.delete[0].uncounted), (1, false));
    let ending = stored(&of, &plan);
    let mut leaving = running.as_ref().clone();
    leaving.metadata.deletion_timestamp = running.metadata.creation_timestamp.clone();
    let plan = look(&ending, &[Arc::new(leaving)], 131);
    assert!(!is_finished(&plan.status) && plan.delete.is_empty());
    let counting = stored(&ending, &plan);
    let plan = look(&counting, &[], 132);
    assert_eq!((plan.status.failed, condition(&plan.status, "Failed").1), (Some(1), "DeadlineExceeded"));
}

#[test]
fn parallelism_bounds_what_runs_and_completions_what_is_made() {
    let of = job(json!({ "parallelism": 3, "completions": 4 }));
    assert_eq!(look(&of, &[], 0).create.len(), 3);
    let three = [pod("a", "Succeeded", 1), pod("b", "Succeeded", 1), pod("c", "Running", 0)];
    assert_eq!(look(&of, &three, 2).create.len(), 1, "two of four done, one runs: one more");
    let lower = job(json!({ "parallelism": 1, "completions": 4 }));
    let two = [pod("a", "Running", 0), pod("b", "Running", 0)];
    let plan = look(&lower, &two, 2);
    assert_eq!((plan.delete.len(), plan.delete[0].uncounted), (1, true), "a surplus Pod did not fail");
}

#[test]
fn a_work_queue_ends_when_one_found_it_empty_and_the_others_ended() {
    let of = job(json!({ "parallelism": 2, "completions": null }));
    let first = [pod("a", "Succeeded", 1), pod("b", "Running", 0)];
    let plan = look(&of, &first, 2);
    assert!(plan.create.is_empty() && plan.delete.is_empty());
    assert!(!condition_holds(&plan.status, "SuccessCriteriaMet"));
    let both = [pod("a", "Succeeded", 1), pod("b", "Succeeded", 2)];
    assert!(condition_holds(&look(&of, &both, 3).status, "SuccessCriteriaMet"));
}

#[test]
fn an_indexed_job_makes_each_index_and_names_what_is_done() {
    let of = job(json!({ "parallelism": 2, "completions": 3, "completionMode": "Indexed" }));
    assert_eq!(look(&of, &[], 0).create, [Some(0), Some(1)]);
    let mut done = super::pod(&of, Some(0), "x");
    assert_eq!(done.name_any(), "copy-0-x");
    done.metadata.uid = Some("u0".into());
    done.metadata.owner_references = pod("a", "", 0).metadata.owner_references.clone();
    done.status = pod("a", "Succeeded", 1).status.clone();
    let done = Arc::new(done);
    let plan = look(&of, std::slice::from_ref(&done), 2);
    assert_eq!((plan.create.clone(), plan.status.completed_indexes.as_deref()), (vec![Some(1), Some(2)], Some("0")));
    assert!(plan.release.is_empty());
    let plan = look(&stored(&of, &plan), &[done], 3);
    assert_eq!((plan.release.len(), plan.status.succeeded), (1, Some(1)));
}

#[test]
fn suspension_takes_pods_away_uncounted_and_resuming_starts_anew() {
    let mut of = job(json!({ "suspend": true }));
    let plan = look(&of, &[pod("a", "Running", 0)], 5);
    assert_eq!(condition(&plan.status, "Suspended"), ("True", "JobSuspended"));
    assert!(plan.status.start_time.is_none() && plan.delete[0].uncounted && plan.create.is_empty());
    of = stored(&of, &plan);
    of.spec.as_mut().unwrap().suspend = Some(false);
    let plan = look(&of, &[], 9);
    assert_eq!((condition(&plan.status, "Suspended"), plan.create.len()), (("False", "JobResumed"), 1));
}

#[test]
fn restarts_within_a_pod_count_under_on_failure() {
    let of =
        job(json!({ "backoffLimit": 2, "template": { "spec": { "restartPolicy": "OnFailure", "containers": [] } } }));
    let with = |restarts: i32| {
        let mut pod = pod("a", "Failed", 0).as_ref().clone();
        let status = pod.status.as_mut().unwrap();
        status.phase = Some("Running".into());
        status.container_statuses.as_mut().unwrap()[0].restart_count = restarts;
        Arc::new(pod)
    };
    assert!(!condition_holds(&look(&of, &[with(1)], 1).status, "FailureTarget"));
    assert!(condition_holds(&look(&of, &[with(2)], 1).status, "FailureTarget"));
}

#[test]
fn a_failure_policy_ignores_counts_and_fails_as_its_rules_say() {
    let rule = |action: &str| json!([{ "action": action, "onExitCodes": { "operator": "In", "values": [1] } }]);
    let with = |action: &str| job(json!({ "podFailurePolicy": { "rules": rule(action) } }));
    let failed = [pod("a", "Failed", 1)];
    let plan = look(&with("FailJob"), &failed, 2);
    assert_eq!(condition(&plan.status, "FailureTarget").1, "PodFailurePolicy");
    let message = plan.status.conditions.unwrap()[0].message.clone().unwrap();
    assert_eq!(message, "Container c for pod n/a failed with exit code 1 matching FailJob rule at index 0");
    let plan = look(&with("Ignore"), &failed, 2);
    assert_eq!((plan.release.len(), plan.status.uncounted_terminated_pods.unwrap().failed), (1, None));
    let plan = look(&with("Count"), &failed, 2);
    assert_eq!(plan.status.uncounted_terminated_pods.unwrap().failed.unwrap(), ["a"]);
}

/// A whole Job against a store of Pods, with a crash after any write and Pods that end, fail or are taken away.
fn life(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let completions = random.random_range(1..5);
    let mut of =
        job(json!({ "parallelism": random.random_range(1..4), "completions": completions, "backoffLimit": 3 }));
    let mut pods: Vec<Pod> = Vec::new();
    let (mut now, mut made, mut succeeded, mut failed) = (0, 0, 0, 0);
    for _ in 0..400 {
        now += random.random_range(0..40);
        let view: Vec<_> = pods.iter().cloned().map(Arc::new).collect();
        let plan = look(&of, &view, now);
        let mut left = if random.random_ratio(1, 3) { random.random_range(0..3) } else { usize::MAX };
        let mut may = || {
            let go = left > 0;
            left = left.saturating_sub(1);
            go
        };
        for _ in plan.create.iter().filter(|_| may()) {
            made += 1;
            pods.push(pod(&format!("p{made}"), "Running", 0).as_ref().clone());
        }
        for doomed in plan.delete.iter().filter(|_| may()) {
            failed += usize::from(!doomed.uncounted);
            pods.retain(|pod| pod.metadata.uid != doomed.pod.metadata.uid || !doomed.uncounted);
            let leaving = pods.iter_mut().find(|pod| pod.metadata.uid == doomed.pod.metadata.uid);
            leaving
                .into_iter()
                .for_each(|pod| pod.metadata.deletion_timestamp = pod.metadata.creation_timestamp.clone());
        }
        for free in plan.release.iter().filter(|_| may()) {
            let found = pods.iter_mut().find(|pod| pod.metadata.uid == free.metadata.uid);
            found.into_iter().for_each(|pod| pod.metadata.finalizers = None);
        }
        if may() {
            of.status = Some(plan.status);
        }
        for slot in &mut pods {
            let (ended, leaving) = (super::pods::is_ended(slot), super::pods::is_leaving(slot));
            if !ended && !leaving && random.random_ratio(1, 4) {
                let good = random.random_ratio(3, 4);
                let phase = if good { "Succeeded" } else { "Failed" };
                succeeded += usize::from(good);
                failed += usize::from(!good);
                slot.status = pod("x", phase, now).status.clone();
            }
        }
        // A leaving Pod goes once nothing holds it; an ended one may be swept away by anybody then.
        pods.retain(|pod| {
            pod.metadata.finalizers.is_some() || !super::pods::is_leaving(pod) || !random.random_ratio(1, 2)
        });
        let active = pods.iter().filter(|pod| !super::pods::is_ended(pod) && !super::pods::is_leaving(pod)).count();
        assert!(active <= 3, "seed {seed}: {active} Pods at once");
    }
    let status = of.status.clone().unwrap();
    assert!(is_finished(&status), "seed {seed}: {status:?}");
    assert_eq!(status.succeeded.unwrap_or(0), i32::try_from(succeeded).unwrap(), "seed {seed}");
    assert_eq!(status.failed.unwrap_or(0), i32::try_from(failed).unwrap(), "seed {seed}");
    if condition_holds(&status, "Complete") {
        assert!(succeeded >= usize::try_from(completions).unwrap(), "seed {seed}");
    }
}

#[test]
fn every_end_is_counted_exactly_once_whatever_crashes() {
    for seed in 0..300 {
        life(seed);
    }
}
