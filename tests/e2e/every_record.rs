//! The operator killed at every record of a move: it stores the run's record before it sends a request, so a SIGKILL when the N-th record
//! shows up in etcd stops it around its N-th request, on the real roles. Its successor finishes, and the end is that of a run that nobody
//! disturbed.

use cellctl::kinds::Kind;
use cellctl::sandbox::down::pod_processes;
use cellctl::sandbox::process::ProcessRecord;
use kube::api::DeleteParams;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Guild, Ledger, Records, Sandbox, Traffic, wait_for};

const SOME: usize = 10;
/// A Pod's waits double with each exit: after so many kills it is replaced by a new one.
const KILLS_OF_A_POD: usize = 3;
/// Before the first step that a guild with a log of its own has, too.
const SPLITTING: [&str; 3] = ["Validate", "ValidateBucket", "Split"];

/// What the operator runs as now.
async fn operator(sandbox: &Sandbox) -> (String, ProcessRecord) {
    wait_for("a ready operator", 60, async || {
        let pods = sandbox.list(Kind::Pods, "app.kubernetes.io/component=operator").await?;
        let ready = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            pod["metadata"]["deletionTimestamp"].is_null()
                && conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
        };
        let pod = pods.iter().find(ready).ok_or_else(|| format!("{} pods", pods.len()))?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let process = pod_processes(&sandbox.state).into_iter().find(|process| process.pod_uid == uid);
        let process = process.filter(|process| process.record.is_alive()).ok_or("its process does not run")?;
        Ok((pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), process.record))
    })
    .await
}

/// One test's moves.
struct Moves {
    sandbox: Sandbox,
    count: usize,
    kills: usize,
}

impl Moves {
    /// Moves a guild to the other shared cell; with a number, the operator dies at that record. The steps that were seen, and whether it
    /// was killed.
    async fn go(&mut self, guild: &Guild, number: Option<usize>) -> (Vec<String>, bool) {
        let sandbox = &self.sandbox;
        let from = guild.cell(sandbox).await;
        let to = if from == "shared-1" { "shared-2" } else { "shared-1" };
        let (_, process) = operator(sandbox).await;
        let records = Records::open(sandbox).await;
        self.count += 1;
        let name = format!("every-{}", self.count);
        // Not through the control-plane API, which the operator serves: it may be dead before it has answered.
        let spec = json!({"guild": guild.id, "from": from, "to": to, "rollbackWindowSeconds": 0});
        sandbox.apply(Kind::Moves, &name, spec).await.unwrap();
        let (steps, reached) = records.until(|steps| Some(steps.len()) == number).await;
        if reached {
            assert!(process.signal(Signal::KILL), "the operator does not run");
        }
        assert_eq!(sandbox.follow(&name).await, "Completed", "killed at record {number:?}: {steps:?}");
        assert_eq!(guild.cell(sandbox).await, to, "killed at record {number:?}: {steps:?}");
        println!("record {number:?} of {from} to {to}: killed: {reached}, at {:?}", steps.last());
        if reached {
            self.kills += 1;
            if self.kills.is_multiple_of(KILLS_OF_A_POD) {
                self.renew_operator().await;
            }
        }
        (steps, reached)
    }

    /// Another Pod, which has no kills to wait for. The old one gives its leadership up.
    async fn renew_operator(&self) {
        let (old, _) = operator(&self.sandbox).await;
        self.sandbox.api(Kind::Pods).delete(&old, &DeleteParams::default()).await.unwrap();
        wait_for("another operator", 60, async || {
            let (now, _) = operator(&self.sandbox).await;
            if now == old { Err(format!("{old} is still there")) } else { Ok(()) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_killed_at_every_record_of_a_move_is_succeeded_by_one_that_ends_as_if_undisturbed() {
    let sandbox = Sandbox::up("every").await;
    let guild = Guild::make(&sandbox, "every").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    let mut moves = Moves { sandbox, count: 0, kills: 0 };
    // Undisturbed: once out of its bucket, once with a log of its own.
    let (first, _) = moves.go(&guild, None).await;
    let (plain, _) = moves.go(&guild, None).await;
    println!("undisturbed: {first:?}, then {plain:?}");
    let splitting = first.iter().filter(|step| SPLITTING.contains(&step.as_str())).count();
    assert!(splitting >= 3 && plain.len() >= 8, "a run has more records than that");

    // Out of its bucket a guild goes once: another guild for each record until it has a log of its own.
    for number in 1..=splitting {
        let other = Guild::make(&moves.sandbox, &format!("every-{number}")).await;
        let sent = Ledger::default();
        let sending = Traffic::begin(&moves.sandbox, &other, &sent);
        sent.grow(SOME).await;
        let (steps, killed) = moves.go(&other, Some(number)).await;
        assert!(killed, "the run ended before record {number}: {steps:?}");
        sent.grow(SOME).await;
        sending.stop().await;
        sent.check_history(&moves.sandbox, &other).await;
    }
    let mut missed = 0;
    for number in 1..=plain.len() {
        let (_, killed) = moves.go(&guild, Some(number)).await;
        missed += usize::from(!killed);
    }
    // A retry more or less shifts the last records; all but those must have been met.
    assert!(missed <= 2, "{missed} of {} records were not met", plain.len());
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&moves.sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    moves.sandbox.end();
}
