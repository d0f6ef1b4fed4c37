//! The operator against a sandbox's real APIs, with fake cells: bootstrap, convergence, moves, crashes, the control-plane API.

// A test may fail loudly anywhere; the lint only knows test functions, not what they call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;
mod migrations;
mod runs;

use cell_crds::{Cell, Fleet, Guild, Move, MoveResult, StorageCell};
use cell_proto::unit::Unit;
use harness::{Harness, eventually, http};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

async fn running() -> (Harness, harness::Operator) {
    let mut harness = Harness::start().await;
    for cell in ["shared-1", "shared-2"] {
        harness.run_cell(cell).await;
    }
    let operator = harness.operator();
    harness.create_fleet().await;
    harness.fleet_ready().await;
    (harness, operator)
}

/// Where a guild's bucket was bootstrapped, and the other shared cell.
fn ends(harness: &Harness, guild_id: i64) -> (String, String) {
    let from = harness.fakes.world.lock().heads[&Unit::bucket(guild_id).log()].cell.clone();
    let to = if from == "shared-1" { "shared-2" } else { "shared-1" };
    (from, to.to_owned())
}

async fn versions(harness: &Harness) -> Vec<String> {
    fn seen<K: ResourceExt>(kind: &str, items: Vec<K>) -> Vec<String> {
        let line = |item: &K| format!("{kind}/{}@{}", item.name_any(), item.resource_version().unwrap_or_default());
        items.iter().map(line).collect()
    }
    let all = ListParams::default();
    let mut found = seen("sts", harness.api::<StatefulSet>().list(&all).await.unwrap().items);
    found.extend(seen("cell", harness.api::<Cell>().list(&all).await.unwrap().items));
    found.extend(seen("storagecell", harness.api::<StorageCell>().list(&all).await.unwrap().items));
    found.extend(seen("service", harness.api::<Service>().list(&all).await.unwrap().items));
    found.extend(seen("secret", harness.api::<Secret>().list(&all).await.unwrap().items));
    found.extend(seen("guild", harness.api::<Guild>().list(&all).await.unwrap().items));
    found.extend(seen("move", harness.api::<Move>().list(&all).await.unwrap().items));
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_bootstrapped_once_and_a_converged_one_is_not_written() {
    let (harness, operator) = running().await;
    let heads = harness.fakes.world.lock().heads.clone();
    assert_eq!(heads.len(), 4096);
    for cell in ["shared-1", "shared-2"] {
        assert!(heads.values().filter(|head| head.cell == cell).count() > 1800, "{cell} has about half");
    }
    let pinned = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Guild", "metadata": {"name": "g-7"},
        "spec": {"guildId": "7", "placement": {"cell": ends(&harness, 7).0}}});
    harness.create::<Guild>(pinned).await;
    let settled = || async {
        let guild = harness.api::<Guild>().get("g-7").await.unwrap();
        let cells = harness.api::<Cell>().list(&ListParams::default()).await.unwrap().items;
        let units = cells.iter().filter_map(|cell| cell.status.as_ref()?.units).sum::<i32>();
        let ready =
            guild.status.as_ref().is_some_and(|status| cell_crds::condition::is_ready(&status.conditions, None));
        if ready && units == 4096 { Ok(()) } else { Err(format!("{units} units, guild {:?}", guild.status)) }
    };
    eventually("everything settling", settled).await;
    let (before, writes) = (versions(&harness).await, operator.counter("writes").await);
    // A change of the Fleet that means nothing makes the operator look at everything again.
    let reconciles = operator.counter("reconciles").await;
    let annotate = json!({"metadata": {"annotations": {"example.com/note": "look again"}}});
    harness.api::<Fleet>().patch("prod", &PatchParams::default(), &Patch::Merge(&annotate)).await.unwrap();
    eventually("another look", || async {
        let now = operator.counter("reconciles").await;
        if now >= reconciles + 6 { Ok(()) } else { Err(format!("{reconciles} then, {now} now")) }
    })
    .await;
    assert_eq!(operator.counter("writes").await, writes, "a converged fleet is not written");
    assert_eq!(versions(&harness).await, before);
    operator.stop().await;

    // A second life finds the buckets and creates no heads again.
    let bootstraps = harness.fakes.world.lock().bootstraps;
    let again = harness.operator();
    eventually("the second life reconciling", || async {
        let now = again.counter("reconciles").await;
        if now >= 5 { Ok(()) } else { Err(format!("{now} reconciles")) }
    })
    .await;
    assert_eq!(harness.fakes.world.lock().bootstraps, bootstraps);
    assert_eq!(again.counter("writes").await, 0, "a restart alone writes nothing");
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_stopped_after_any_request_of_a_move_reaches_the_same_end() {
    let (harness, mut operator) = running().await;
    let undisturbed = 13;
    for after in 1..=undisturbed {
        let guild_id = 1_000 + i64::from(after);
        let (from, to) = ends(&harness, guild_id);
        let before = harness.fakes.requests();
        let name = format!("crash-{after}");
        let spec = json!({"guild": guild_id.to_string(), "from": from, "to": to, "rollbackWindowSeconds": 0});
        harness.create_move(&name, spec).await;
        tokio::time::timeout(harness::LIMIT, harness.fakes.wait_requests(before + after)).await.unwrap();
        operator.crash().await;
        operator = harness.operator();
        let ended = harness.move_ended(&name).await;
        assert_eq!(ended.status.unwrap().result, Some(MoveResult::Completed), "crash after request {after}");
        let log = Unit::Guild(guild_id).log();
        let world = harness.fakes.world.lock();
        assert_eq!(world.heads[&log].cell, to, "crash after request {after}");
        assert_eq!(world.head_changes[&log], 1, "crash after request {after}");
        assert_eq!(world.owners[&guild_id], to, "crash after request {after}");
        assert!(!world.warm.contains(&(from, guild_id)));
        let terms = &world.route_terms;
        assert!(terms.iter().all(|(named, term)| *term > 0 && named == term), "routes name the head's term: {terms:?}");
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_that_cannot_be_are_refused_and_two_of_one_unit_do_not_run_at_once() {
    let (harness, operator) = running().await;
    let (from, to) = ends(&harness, 7);
    harness.create_move("missing", json!({"guild": "7", "from": from, "to": "nowhere"})).await;
    let missing = harness.move_ended("missing").await;
    assert_eq!(missing.status.as_ref().unwrap().result, Some(MoveResult::Refused));
    assert!(missing.status.unwrap().conditions.iter().any(|one| one.message.contains("nowhere")));
    harness.create_move("wrong-source", json!({"guild": "7", "from": to, "to": from})).await;
    assert_eq!(harness.move_ended("wrong-source").await.status.unwrap().result, Some(MoveResult::Refused));

    harness.create_move("first", json!({"guild": "7", "from": from, "to": to, "rollbackWindowSeconds": 600})).await;
    let step = |name: &'static str, wanted: &'static str| {
        let moves = harness.api::<Move>();
        async move {
            let status = moves.get(name).await.unwrap().status.unwrap_or_default();
            if status.step.as_deref() == Some(wanted) { Ok(status) } else { Err(format!("{status:?}")) }
        }
    };
    eventually("the first move holding", || step("first", "Hold")).await;
    harness.create_move("second", json!({"guild": "7", "from": to, "to": from})).await;
    let busy = eventually("the second being told", || async {
        let status = harness.api::<Move>().get("second").await.unwrap().status.unwrap_or_default();
        status.blocked_by.clone().ok_or_else(|| format!("{status:?}"))
    })
    .await;
    assert!(busy.starts_with("UnitBusy") && busy.contains("first"), "{busy}");

    // After the commit point an abort is refused, and a deletion waits; a rollback brings the guild home.
    let wish = |field: &str| json!({"spec": {field: true}});
    let moves = harness.api::<Move>();
    moves.patch("first", &PatchParams::default(), &Patch::Merge(&wish("abort"))).await.unwrap();
    eventually("the abort being refused", || async {
        let status = moves.get("first").await.unwrap().status.unwrap_or_default();
        let refused = status.conditions.iter().any(|one| one.reason == "TooLateToAbort");
        if refused { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    moves.delete("first", &DeleteParams::default()).await.unwrap();
    assert!(moves.get("first").await.is_ok(), "held until it is complete or rolled back");
    moves.patch("first", &PatchParams::default(), &Patch::Merge(&wish("rollback"))).await.unwrap();
    eventually("the first going", || async {
        match moves.get_opt("first").await.unwrap() {
            None => Ok(()),
            Some(one) => Err(format!("{:?}", one.status)),
        }
    })
    .await;
    assert_eq!(harness.fakes.world.lock().heads["g7"].cell, from);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_control_plane_api_plans_starts_locates_and_issues_tokens() {
    let (mut harness, operator) = running().await;
    let address = harness.fleet_ready().await.status.unwrap().control_plane_address.unwrap();
    let address = address.trim_start_matches("http://").to_owned();
    let token = harness.token.clone();
    let call = |method: &'static str, path: String, body: Value| {
        let (address, token) = (address.clone(), token.clone());
        async move {
            let (status, text) = http(&address, method, &path, Some(&token), &body.to_string()).await;
            (status, serde_json::from_str::<Value>(&text).unwrap_or_else(|_| json!(text)))
        }
    };
    assert_eq!(http(&address, "GET", "/v1/moves", Some("wrong"), "").await.0, 401);
    assert_eq!(http(&address, "GET", "/healthz", None, "").await.0, 200);

    let bot = json!({"kind": "bot", "name": "ada"});
    let (status, first) = call("POST", "/v1/tokens".into(), bot.clone()).await;
    assert_eq!((status, &first["created"]), (200, &json!(true)), "{first}");
    let (_, again) = call("POST", "/v1/tokens".into(), bot).await;
    assert_eq!((&again["created"], &again["userId"]), (&json!(false), &first["userId"]));
    let (status, problem) = call("POST", "/v1/tokens".into(), json!({"kind": "bot", "name": "a"})).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!("name")));

    let (from, _) = ends(&harness, 7);
    let (status, place) = call("GET", "/v1/guilds/7/location".into(), json!(null)).await;
    assert_eq!((status, &place["cell"]), (200, &json!(from)), "{place}");
    let request = json!({"guildId": "7", "target": "dedicated", "rollbackWindowSeconds": 0});
    let (status, plan) = call("POST", "/v1/move-plans".into(), request.clone()).await;
    assert_eq!((status, &plan["to"]), (200, &json!("g-7-cell")), "{plan}");
    let mut wrong = request.clone();
    wrong["planHash"] = json!("0".repeat(32));
    assert_eq!(call("POST", "/v1/moves".into(), wrong).await.0, 409);
    let mut right = request;
    right["planHash"] = plan["hash"].clone();
    let (status, run) = call("POST", "/v1/moves".into(), right).await;
    assert_eq!(status, 200, "{run}");
    harness.run_cell("g-7-cell").await;
    let name = run["name"].as_str().unwrap().to_owned();
    assert_eq!(harness.move_ended(&name).await.status.unwrap().result, Some(MoveResult::Completed));
    let (_, place) = call("GET", "/v1/guilds/7/location".into(), json!(null)).await;
    assert_eq!(place["cell"], json!("g-7-cell"), "{place}");
    let (status, problem) = call("POST", format!("/v1/moves/{name}/abort"), json!(null)).await;
    assert_eq!(status, 409, "{problem}");

    let (status, _) = call("PUT", "/v1/automation".into(), json!({"paused": true})).await;
    assert_eq!(status, 200);
    assert_eq!(call("GET", "/v1/automation".into(), json!(null)).await.1["paused"], json!(true));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_guild_gets_a_cell_of_its_own_and_is_moved_there() {
    let (mut harness, operator) = running().await;
    let guild = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Guild", "metadata": {"name": "g-7"},
        "spec": {"guildId": "7", "promotion": {"auto": true, "sessionsAbove": 100, "holdForSeconds": 1}}});
    harness.create::<Guild>(guild).await;
    harness.report_load("7", 500).await;
    eventually("the dedicated cell being made", || async {
        let found = harness.api::<Cell>().get_opt("g-7-cell").await.unwrap();
        found.ok_or_else(|| "no cell yet".to_owned())
    })
    .await;
    harness.run_cell("g-7-cell").await;
    let promoted = eventually("the promotion's move", || async {
        let moves = harness.api::<Move>().list(&ListParams::default()).await.unwrap().items;
        moves.first().map(ResourceExt::name_any).ok_or_else(|| "no move yet".to_owned())
    })
    .await;
    eventually("the switch", || async {
        let cell = harness.fakes.world.lock().heads.get("g7").map(|head| head.cell.clone());
        if cell.as_deref() == Some("g-7-cell") { Ok(()) } else { Err(format!("{cell:?}")) }
    })
    .await;
    let one = harness.api::<Move>().get(&promoted).await.unwrap();
    assert_eq!(one.spec.cause, cell_crds::MoveCause::Promotion);
    let guild = harness.api::<Guild>().get("g-7").await.unwrap().status.unwrap();
    assert_eq!(guild.placement_reason.as_deref(), Some("Promoted"));
    assert_eq!(guild.hotness, Some(cell_crds::Hotness::Hot));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_are_held_while_something_depends_on_them() {
    let (harness, operator) = running().await;
    harness.api::<StorageCell>().delete("main", &DeleteParams::default()).await.unwrap();
    harness.api::<Cell>().delete("shared-1", &DeleteParams::default()).await.unwrap();
    let reason = |conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]| {
        conditions.iter().find(|one| one.type_ == "Stalled").map(|one| one.reason.clone())
    };
    eventually("the cell being held", || async {
        let cell = harness.api::<Cell>().get("shared-1").await.unwrap();
        let status = cell.status.unwrap_or_default();
        if reason(&status.conditions).as_deref() == Some("HoldsUnits") { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    eventually("the StorageCell being held", || async {
        let storage = harness.api::<StorageCell>().get("main").await.unwrap();
        let status = storage.status.unwrap_or_default();
        if reason(&status.conditions).as_deref() == Some("StillReferenced") {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    // Once no head names it, the cell goes.
    for head in harness.fakes.world.lock().heads.values_mut() {
        head.cell = "shared-2".into();
    }
    eventually("the cell going", || async {
        match harness.api::<Cell>().get_opt("shared-1").await.unwrap() {
            None => Ok(()),
            Some(cell) => Err(format!("{:?}", cell.status)),
        }
    })
    .await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_fleet_is_stalled() {
    let (harness, operator) = running().await;
    let first = harness.api::<Fleet>().get("prod").await.unwrap();
    let mut spec = serde_json::to_value(&first.spec).unwrap();
    spec["etcd"]["prefix"] = json!("/cellplane/other/");
    let second =
        json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "zzz"}, "spec": spec});
    harness.create::<Fleet>(second).await;
    eventually("the second fleet being stalled", || async {
        let status = harness.api::<Fleet>().get("zzz").await.unwrap().status.unwrap_or_default();
        let stalled = status.conditions.iter().any(|one| one.reason == "SecondFleet" && one.type_ == "Stalled");
        if stalled { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_kubernetes_knows_may_do_only_what_a_rule_allows() {
    let (harness, operator) = running().await;
    let address = format!("127.0.0.1:{}", operator.api_port);
    let token = harness.service_account_token().await;
    let token = token.as_str();
    let refused = |method: &'static str, path: &'static str, body: Value, rule: (&'static str, &'static str)| {
        let address = address.clone();
        async move {
            let (status, text) = http(&address, method, path, Some(token), &body.to_string()).await;
            let problem: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((status, &problem["reason"]), (403, &json!("Forbidden")), "{method} {path}: {problem}");
            let detail = problem["detail"].as_str().unwrap();
            let (verb, resource) = rule;
            let wanted = format!("{{apiGroups: [cellplane.dev], resources: [{resource}], verbs: [{verb}]}}");
            assert!(detail.contains(&wanted) && detail.contains("system:serviceaccount:fleet:bot"), "{detail}");
        }
    };
    let start = || json!({"guildId": "7", "target": "dedicated"});
    refused("GET", "/v1/moves", json!(null), ("get", "moves")).await;
    refused("GET", "/v1/moves/one", json!(null), ("get", "moves")).await;
    refused("GET", "/v1/guilds/7/location", json!(null), ("get", "moves")).await;
    refused("POST", "/v1/move-plans", start(), ("get", "moves")).await;
    refused("POST", "/v1/moves", start(), ("create", "moves")).await;
    refused("POST", "/v1/moves/one/abort", json!(null), ("update", "moves")).await;
    refused("POST", "/v1/moves/one/rollback", json!(null), ("update", "moves")).await;
    refused("GET", "/v1/automation", json!(null), ("get", "fleets")).await;
    refused("PUT", "/v1/automation", json!({"paused": true}), ("update", "fleets")).await;
    refused("POST", "/v1/tokens", json!({"kind": "user", "name": "ada"}), ("create", "tokens")).await;
    assert!(harness.fakes.world.lock().users.is_empty(), "nobody was created");
    assert!(harness.api::<Move>().list(&ListParams::default()).await.unwrap().items.is_empty(), "nothing was started");
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_takes_no_field_over_that_another_manager_set() {
    let (harness, operator) = running().await;
    let address = format!("127.0.0.1:{}", operator.api_port);
    let (from, _) = ends(&harness, 7);
    // Its target has no process: the run waits before the commit point.
    harness.create_cell("empty").await;
    let spec = json!({"guild": "7", "from": from, "to": "empty"});
    let mut owned =
        json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Move", "metadata": {"name": "owned"}, "spec": spec});
    owned["spec"]["abort"] = json!(false);
    let moves = harness.api::<Move>();
    moves.patch("owned", &PatchParams::apply("argocd"), &Patch::Apply(&owned)).await.unwrap();
    let (status, text) = http(&address, "POST", "/v1/moves/owned/abort", Some(&harness.token), "").await;
    let problem: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &problem["reason"]), (409, &json!("FieldConflict")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("argocd"), "{problem}");
    let next = problem["next"].as_str().unwrap();
    assert!(next.contains("kubectl patch move owned") && next.contains(r#"{"spec":{"abort":true}}"#), "{next}");
    assert!(!moves.get("owned").await.unwrap().spec.abort, "it is as its manager set it");

    // A Move whose author said nothing of an abort is aborted, and stays so.
    owned["spec"].as_object_mut().unwrap().remove("abort");
    moves.patch("owned", &PatchParams::apply("argocd"), &Patch::Apply(&owned)).await.unwrap();
    let (status, text) = http(&address, "POST", "/v1/moves/owned/abort", Some(&harness.token), "").await;
    assert_eq!(status, 200, "{text}");
    assert_eq!(harness.move_ended("owned").await.status.unwrap().result, Some(MoveResult::Aborted));
    for taken_back in [json!({"spec": {"abort": false}}), json!({"spec": {"abort": null}})] {
        let refused = moves.patch("owned", &PatchParams::default(), &Patch::Merge(&taken_back)).await.unwrap_err();
        assert!(refused.to_string().contains("abort cannot be taken back"), "{refused}");
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guild_whose_log_is_in_its_buckets_cell_is_released_by_a_merge_alone() {
    let (harness, operator) = running().await;
    let address = format!("127.0.0.1:{}", operator.api_port);
    let (from, to) = ends(&harness, 7);
    harness.create_move("there", json!({"guild": "7", "from": from, "to": to, "rollbackWindowSeconds": 0})).await;
    harness.move_ended("there").await;
    harness.create_move("back", json!({"guild": "7", "from": to, "to": from, "rollbackWindowSeconds": 0})).await;
    harness.move_ended("back").await;
    let changes = harness.fakes.world.lock().head_changes["g7"];
    let same = json!({"guild": "7", "from": from, "to": from});
    let one =
        json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Move", "metadata": {"name": "same"}, "spec": same});
    let refused = harness.api::<Move>().create(&Default::default(), &serde_json::from_value(one).unwrap()).await;
    assert!(refused.unwrap_err().to_string().contains("same cell"), "only a merge may stay where it is");

    let call = |path: &'static str| {
        let body = json!({"guildId": "7", "target": "bucket"}).to_string();
        let (address, token) = (address.clone(), harness.token.clone());
        async move {
            let (status, text) = http(&address, "POST", path, Some(&token), &body).await;
            (status, serde_json::from_str::<Value>(&text).unwrap())
        }
    };
    let (status, plan) = call("/v1/move-plans").await;
    assert_eq!((status, &plan["steps"]), (200, &json!(["Validate", "Merge"])), "{plan}");
    assert!(plan["checks"].as_array().unwrap().iter().all(|check| check["ok"] == json!(true)), "{plan}");
    let (status, run) = call("/v1/moves").await;
    assert_eq!(status, 200, "{run}");
    let ended = harness.move_ended(run["name"].as_str().unwrap()).await;
    assert_eq!(ended.status.unwrap().result, Some(MoveResult::Completed));
    {
        let world = harness.fakes.world.lock();
        assert!(world.heads["g7"].moved_to.starts_with("log:"), "{:?}", world.heads["g7"]);
        assert_eq!(world.head_changes["g7"], changes, "no head was switched");
    }
    // In its bucket there is nothing to release.
    let (_, plan) = call("/v1/move-plans").await;
    assert!(plan["checks"].as_array().unwrap().iter().any(|check| check["ok"] == json!(false)), "{plan}");
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_ready_and_refuses_api_calls_with_the_leaders_name() {
    let (harness, leader) = running().await;
    assert_eq!(harness::Operator::ask(leader.admin_port, "/readyz").await.unwrap().0, 200);
    let standby = harness.standby();
    eventually("the standby being ready", || async {
        match harness::Operator::ask(standby.admin_port, "/readyz").await {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for path in ["/v1/moves", "/healthz"] {
        let (status, problem) = harness::Operator::ask(standby.api_port, path).await.unwrap();
        assert_eq!(status, 503, "{problem}");
        assert!(problem.contains("NotLeader") && problem.contains("cellplane-operator-0 leads"), "{problem}");
    }
    leader.stop().await;
    eventually("the standby serving", || async {
        match harness::Operator::ask(standby.api_port, "/healthz").await {
            Some((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(harness::Operator::ask(standby.admin_port, "/readyz").await.unwrap().0, 200);
    standby.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_never_reached_kubernetes_is_not_ready() {
    let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let nobody = format!("http://127.0.0.1:{}", harness::free_port()).parse().unwrap();
    let operator = harness::operator(kube::Config::new(nobody), "cellplane-operator-0", harness::free_port());
    let (status, why) = eventually("the port opening", || async {
        harness::Operator::ask(operator.admin_port, "/readyz").await.ok_or_else(|| "closed".to_owned())
    })
    .await;
    assert_eq!(status, 503, "{why}");
    assert!(why.contains("not been reached"), "{why}");
    let (status, problem) = harness::Operator::ask(operator.api_port, "/v1/moves").await.unwrap();
    assert_eq!(status, 503);
    assert!(problem.contains("no leader is known"), "{problem}");
    operator.stop().await;
}
