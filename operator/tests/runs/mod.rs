//! Whose a run is, and how it is said: forged statuses, Moves that are gone, wishes, generations.

use cell_crds::condition::find as condition;
use cell_crds::{Cell, ConditionType, Guild, Move, MoveResult, StorageCell};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::harness::{Harness, Operator, eventually, http};
use super::{ends, running};

/// The status once it fits.
async fn status_when(harness: &Harness, name: &str, what: &str, fits: impl Fn(&Move) -> bool) -> Move {
    eventually(what, || async {
        let one = harness.api::<Move>().get(name).await.unwrap();
        if fits(&one) { Ok(one) } else { Err(format!("{:?}", one.status)) }
    })
    .await
}

fn step(one: &Move) -> &str {
    one.status.as_ref().and_then(|status| status.step.as_deref()).unwrap_or_default()
}

/// Status and reason of a condition.
fn said(one: &Move, kind: ConditionType) -> Option<(String, String)> {
    let conditions = &one.status.as_ref()?.conditions;
    condition(conditions, kind).map(|found| (found.status.clone(), found.reason.clone()))
}

fn is(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

async fn set(harness: &Harness, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    harness.api::<Move>().patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Removes a Move while no operator runs to do what its deletion needs; another operator is started then.
async fn force_away(harness: &Harness, operator: Operator, name: &str) -> Operator {
    operator.stop().await;
    let moves = harness.api::<Move>();
    moves.delete(name, &DeleteParams::default()).await.unwrap();
    let nobody = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    moves.patch(name, &PatchParams::default(), &nobody).await.unwrap();
    assert!(moves.get_opt(name).await.unwrap().is_none());
    harness.operator()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_status_neither_ends_a_run_nor_lets_its_move_go() {
    let (harness, operator) = running().await;
    let (from, to) = ends(&harness, 7);
    let moves = harness.api::<Move>();
    harness.create_move("real", json!({"guild": "7", "from": from, "to": to, "rollbackWindowSeconds": 600})).await;
    let held = status_when(&harness, "real", "the move holding", |one| step(one) == "Hold").await;
    let forged = json!({"status": {"result": "Completed", "step": "Done", "runId": "another", "finishedAt": "2026-01-01T00:00:00Z"}});
    moves.patch_status("real", &PatchParams::default(), &Patch::Merge(&forged)).await.unwrap();
    moves.delete("real", &DeleteParams::default()).await.unwrap();
    let truth = status_when(&harness, "real", "the status being set right", |one| {
        let status = one.status.clone().unwrap_or_default();
        one.metadata.deletion_timestamp.is_some() && status.result.is_none() && status.run_id == one.uid()
    })
    .await;
    assert_eq!((truth.uid(), step(&truth)), (held.uid(), "Hold"));
    set(&harness, "real", json!({"rollback": true})).await;
    eventually("the move going, rolled back", || async {
        match moves.get_opt("real").await.unwrap() {
            None => Ok(()),
            Some(one) => Err(format!("{:?}", one.status)),
        }
    })
    .await;
    assert_eq!(harness.fakes.world.lock().heads["g7"].cell, from);

    // The unit is free again.
    harness.create_move("next", json!({"guild": "7", "from": from, "to": to, "rollbackWindowSeconds": 0})).await;
    assert_eq!(harness.move_ended("next").await.status.unwrap().result, Some(MoveResult::Completed));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_move_was_removed_by_force_gets_a_move_that_undoes_or_finishes_it() {
    let (harness, mut operator) = running().await;
    let (from, to) = ends(&harness, 7);
    // Its target has no process: the run waits before the commit point.
    harness.create_cell("empty").await;
    let spec = json!({"guild": "7", "from": from, "to": "empty"});
    harness.create_move("early", spec.clone()).await;
    let early = status_when(&harness, "early", "the run waiting", |one| {
        one.status.as_ref().is_some_and(|s| s.run_id.is_some())
    })
    .await;
    operator = force_away(&harness, operator, "early").await;

    // Another content is told what differs, the same content goes on with the run.
    harness.create_move("other", json!({"guild": "7", "from": from, "to": to})).await;
    let other = status_when(&harness, "other", "the other content being told", |one| {
        said(one, ConditionType::Stalled).is_some()
    })
    .await;
    assert_eq!(said(&other, ConditionType::Stalled), is("True", "StageUnknown"));
    let why = other.status.as_ref().unwrap().blocked_by.clone().unwrap();
    assert!(why.contains(&format!("spec.to is empty in the run and {to} here")) && !why.contains("spec.from"), "{why}");
    harness.api::<Move>().delete("other", &DeleteParams::default()).await.unwrap();
    harness.create_move("again", spec).await;
    let again = status_when(&harness, "again", "the run being adopted", |one| {
        one.status.as_ref().is_some_and(|s| s.run_id.is_some())
    })
    .await;
    assert_eq!(again.status.unwrap().run_id, early.uid());

    // Nobody comes for it: the operator makes it visible and undoes it.
    operator = force_away(&harness, operator, "again").await;
    let name = format!("orphan-{}", early.uid().unwrap());
    eventually("a new Move for the run", || async {
        harness.api::<Move>().get_opt(&name).await.unwrap().map(|_| ()).ok_or_else(|| "none yet".to_owned())
    })
    .await;
    let undone = harness.move_ended(&name).await;
    assert_eq!(undone.annotations()["cellplane.dev/orphan-of"], "again");
    assert_eq!(undone.status.as_ref().unwrap().result, Some(MoveResult::Aborted));

    // Past its commit point it is finished instead.
    harness.create_move("late", json!({"guild": "7", "from": from, "to": to, "rollbackWindowSeconds": 20})).await;
    let late = status_when(&harness, "late", "the move holding", |one| step(one) == "Hold").await;
    operator = force_away(&harness, operator, "late").await;
    let name = format!("orphan-{}", late.uid().unwrap());
    eventually("a new Move for the run", || async {
        harness.api::<Move>().get_opt(&name).await.unwrap().map(|_| ()).ok_or_else(|| "none yet".to_owned())
    })
    .await;
    let done = harness.move_ended(&name).await;
    assert_eq!(done.status.unwrap().result, Some(MoveResult::Completed));
    assert_eq!(harness.fakes.world.lock().heads["g7"].cell, to);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_move_is_ready_if_it_did_as_asked_and_speaks_of_the_generation_it_looked_at() {
    let (harness, operator) = running().await;
    let (from, to) = ends(&harness, 7);
    harness.create_cell("empty").await;
    let to_empty = |guild: &str, from: &str, seconds: i32| json!({"guild": guild, "from": from, "to": "empty", "deadlineSeconds": seconds});
    harness.create_move("aborted", to_empty("7", &from, 600)).await;
    status_when(&harness, "aborted", "the run waiting", |one| one.status.as_ref().is_some_and(|s| s.run_id.is_some()))
        .await;
    set(&harness, "aborted", json!({"abort": true})).await;
    harness.move_ended("aborted").await;
    let current = |one: &Move| {
        let status = one.status.clone().unwrap_or_default();
        let conditions = status.conditions.iter().all(|found| found.observed_generation == one.metadata.generation);
        status.observed_generation == one.metadata.generation && conditions
    };
    let aborted = status_when(&harness, "aborted", "the generation being seen", current).await;
    assert_eq!(aborted.metadata.generation, Some(2));
    assert_eq!(said(&aborted, ConditionType::Ready), is("True", "Aborted"));
    assert_eq!(said(&aborted, ConditionType::Stalled), None);

    harness.create_move("late", to_empty("7", &from, 1)).await;
    let late = harness.move_ended("late").await;
    assert_eq!(late.status.as_ref().unwrap().result, Some(MoveResult::Aborted));
    assert_eq!(said(&late, ConditionType::Ready), is("False", "DeadlineExceeded"));
    assert_eq!(said(&late, ConditionType::Stalled), is("True", "DeadlineExceeded"));

    harness.create_move("back", json!({"guild": "7", "from": from, "to": to, "rollbackWindowSeconds": 600})).await;
    status_when(&harness, "back", "the move holding", |one| step(one) == "Hold").await;
    set(&harness, "back", json!({"rollback": true})).await;
    harness.move_ended("back").await;
    let back = status_when(&harness, "back", "the generation being seen", current).await;
    assert_eq!(said(&back, ConditionType::Ready), is("True", "RolledBack"));
    // A wish after the end is seen, and changes nothing.
    set(&harness, "back", json!({"abort": true})).await;
    let after =
        status_when(&harness, "back", "the wish being seen", |one| one.metadata.generation == Some(3) && current(one))
            .await;
    assert_eq!(said(&after, ConditionType::Ready), is("True", "RolledBack"));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_automation_starts_nothing_by_itself_and_lets_a_move_that_is_asked_for_run() {
    let (harness, operator) = running().await;
    let address = format!("127.0.0.1:{}", operator.api_port);
    let paused = json!({"paused": true}).to_string();
    assert_eq!(http(&address, "PUT", "/v1/automation", Some(&harness.token), &paused).await.0, 200);
    let (from, to) = ends(&harness, 7);
    let wish = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Guild", "metadata": {"name": "g-7"},
        "spec": {"guildId": "7", "placement": {"cell": to}}});
    harness.create::<Guild>(wish).await;
    eventually("the wish being told that it waits", || async {
        let status = harness.api::<Guild>().get("g-7").await.unwrap().status.unwrap_or_default();
        let blocked = status.blocked_by.unwrap_or_default();
        if blocked.starts_with("AutomationPaused") { Ok(()) } else { Err(blocked) }
    })
    .await;
    assert!(harness.api::<Move>().list(&ListParams::default()).await.unwrap().items.is_empty());
    let asked = json!({"guildId": "7", "target": {"cell": to}, "rollbackWindowSeconds": 0}).to_string();
    let (status, run) = http(&address, "POST", "/v1/moves", Some(&harness.token), &asked).await;
    assert_eq!(status, 200, "{run}");
    let run: Value = serde_json::from_str(&run).unwrap();
    let ended = harness.move_ended(run["name"].as_str().unwrap()).await;
    assert_eq!((ended.status.unwrap().result, ended.spec.from), (Some(MoveResult::Completed), from));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guild_that_does_not_exist_is_neither_located_nor_planned_for() {
    let (harness, operator) = running().await;
    harness.fakes.world.lock().missing_guilds.insert(404);
    let address = format!("127.0.0.1:{}", operator.api_port);
    let (from, to) = ends(&harness, 7);
    let plan = |guild: &str| json!({"guildId": guild, "target": {"cell": to}}).to_string();
    for (method, path, body) in
        [("GET", "/v1/guilds/404/location", "null".to_owned()), ("POST", "/v1/move-plans", plan("404"))]
    {
        let (status, text) = http(&address, method, path, Some(&harness.token), &body).await;
        let problem: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &problem["reason"]), (404, &json!("GuildNotFound")), "{path}: {text}");
    }
    // A run that holds a guild is named, and what there is to look at.
    harness.create_cell("empty").await;
    harness.create_move("waits", json!({"guild": "7", "from": from, "to": "empty"})).await;
    status_when(&harness, "waits", "the run waiting", |one| one.status.as_ref().is_some_and(|s| s.run_id.is_some()))
        .await;
    let (status, text) = http(&address, "POST", "/v1/moves", Some(&harness.token), &plan("7")).await;
    let problem: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &problem["reason"]), (409, &json!("UnitBusy")), "{text}");
    assert_eq!(problem["next"], "cellctl guild move watch waits", "{text}");
    assert!(problem["detail"].as_str().unwrap().contains("(Move waits)"), "{text}");
    let (status, text) = http(
        &address,
        "POST",
        "/v1/move-plans",
        Some(&harness.token),
        &json!({"guildId": "7", "target": {"cell": "../x"}}).to_string(),
    )
    .await;
    assert_eq!(status, 400, "{text}");
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_says_that_its_storage_cell_goes_or_that_nobody_needs_it_and_serves_on() {
    let (harness, operator) = running().await;
    let cell_when = |name: &'static str, reason: &'static str| {
        let cells = harness.api::<Cell>();
        async move {
            eventually(&format!("{name} saying {reason}"), || async {
                let status = cells.get(name).await.unwrap().status.unwrap_or_default();
                let ready = condition(&status.conditions, ConditionType::Ready).cloned();
                match ready.filter(|ready| ready.reason == reason) {
                    Some(ready) => Ok((ready.status, ready.message)),
                    None => Err(format!("{:?}", status.conditions)),
                }
            })
            .await
        }
    };
    let made = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Cell",
        "metadata": {"name": "g-9-cell", "labels": {"cellplane.dev/guild": "9"}},
        "spec": {"storageCellRef": "main"}});
    harness.create::<Cell>(made).await;
    let (status, message) = cell_when("g-9-cell", "Empty").await;
    assert_eq!(status, "True");
    assert!(message.contains("kubectl delete cell g-9-cell"), "{message}");
    // A wish for it makes it wanted again.
    let wish = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Guild", "metadata": {"name": "g-9"},
        "spec": {"guildId": "9", "placement": {"dedicated": {}}}});
    harness.create::<Guild>(wish).await;
    cell_when("g-9-cell", "AsDesired").await;

    harness.api::<StorageCell>().delete("main", &DeleteParams::default()).await.unwrap();
    let (status, message) = cell_when("shared-1", "StorageDeleting").await;
    assert_eq!(status, "True", "it serves: {message}");
    assert!(message.contains("main") && message.contains("cannot be taken back"), "{message}");
    let events = harness.api::<k8s_openapi::api::events::v1::Event>().list(&ListParams::default()).await.unwrap();
    let missing = events.items.iter().find(|event| event.reason.as_deref() == Some("ReferenceNotFound"));
    assert!(missing.is_none(), "{missing:?}");
    operator.stop().await;
}
