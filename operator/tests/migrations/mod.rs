//! Storage migrations: the real operator on the sandbox's APIs, with fake data services and a fake coordinator.

use cell_crds::{Cell, Fleet, MigrationResult, StorageCell, StorageMigration, StorageMigrationStatus};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Harness, LIMIT, NAMESPACE, Operator, eventually};
use crate::running;

async fn ready(name: &str) -> (Harness, Operator) {
    let (mut harness, operator) = running().await;
    harness.run_storage("next", name).await;
    (harness, operator)
}

async fn start(harness: &Harness, name: &str, spec: Value) {
    harness
        .create::<StorageMigration>(json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "StorageMigration",
            "metadata": {"name": name}, "spec": spec}))
        .await;
}

async fn patch(harness: &Harness, name: &str, spec: Value) {
    let change = json!({"spec": spec});
    let api = harness.api::<StorageMigration>();
    api.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
}

async fn status(harness: &Harness, name: &str) -> StorageMigrationStatus {
    harness.api::<StorageMigration>().get(name).await.unwrap().status.unwrap_or_default()
}

async fn waits_for(harness: &Harness, name: &str, reason: &str) -> StorageMigrationStatus {
    eventually(reason, || async {
        let status = status(harness, name).await;
        let waits = status.blocked_by.as_deref().is_some_and(|blocked| blocked.starts_with(reason));
        if waits { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

async fn ended(harness: &Harness, name: &str) -> StorageMigrationStatus {
    eventually("the migration's end", || async {
        let status = status(harness, name).await;
        if status.result.is_some() { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

async fn leaves_nothing(harness: &Harness, name: &str, run_id: &str) {
    let all = ListParams::default().labels(&format!("cellplane.dev/storage-migration={name}"));
    assert!(harness.api::<StatefulSet>().list(&all).await.unwrap().items.is_empty(), "the coordinator goes");
    assert!(harness.api::<Deployment>().list(&all).await.unwrap().items.is_empty(), "the workers go");
    let secret = format!("{name}-migration-storage");
    assert!(harness.api::<Secret>().get_opt(&secret).await.unwrap().is_none(), "no login stays behind");
    assert_eq!(harness.stored(|keys| keys.migration(run_id)).await, None, "the announcement is taken back");
    for side in ["main", "next"] {
        assert_eq!(harness.stored(|keys| keys.unit_run(&format!("storage:{side}"))).await, None, "{side} is free");
    }
    assert!(harness.fakes.world.lock().copies.values().all(|copy| !copy.shipping), "nothing is shipped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_stops_where_it_was_told_and_goes_on_to_the_end() {
    let (harness, operator) = ready("mig").await;
    // Few logs, so that everything is little.
    harness.fakes.world.lock().heads.retain(|log, _| log.as_str() < "b0005");
    start(&harness, "mig", json!({"source": "main", "target": "next", "rollbackWindowSeconds": 0})).await;
    let waiting = waits_for(&harness, "mig", "TargetStageReached").await;
    assert_eq!((waiting.stage.as_deref(), waiting.logs), (Some("ShadowRead"), Some(5)));
    assert!(waiting.receipt.as_ref().is_some_and(|receipt| receipt.clean && receipt.rows == 1_000), "{waiting:?}");
    assert!(waiting.shadow.is_some() && waiting.blocked_by.unwrap().contains("migration advance"));
    let run_id = waiting.run_id.unwrap();
    let hint = harness.stored(|keys| keys.migration(&run_id)).await.unwrap();
    assert!(hint.contains(r#""ship":true"#) && hint.contains(r#""shadowPer10000":100"#), "{hint}");
    assert!(harness.fakes.world.lock().copies.values().all(|copy| copy.serving == "main"), "nothing is cut over");
    let deployment = harness.api::<Deployment>().get("mig-workers").await.unwrap();
    assert_eq!(deployment.spec.unwrap().replicas, Some(2));

    // A second one of the same StorageCell waits for the first.
    start(&harness, "second", json!({"source": "next", "target": "main"})).await;
    assert!(waits_for(&harness, "second", "UnitBusy").await.blocked_by.unwrap().contains("mig"));
    harness.api::<StorageMigration>().delete("second", &DeleteParams::default()).await.unwrap();

    patch(&harness, "mig", json!({"targetStage": "Complete"})).await;
    let done = ended(&harness, "mig").await;
    assert_eq!((done.result, done.logs_cut_over), (Some(MigrationResult::Completed), Some(5)), "{done:?}");
    assert_eq!(done.held_microseconds, Some(2_500));
    {
        let world = harness.fakes.world.lock();
        assert_eq!(world.copies.len(), 5);
        assert!(world.copies.values().all(|copy| copy.serving == "next" && copy.cut_overs == 1), "{:?}", world.copies);
    }
    leaves_nothing(&harness, "mig", &run_id).await;
    for name in ["shared-1", "shared-2"] {
        let told = eventually("the cell following", || async {
            let cell = harness.api::<Cell>().get(name).await.unwrap();
            let status = cell.status.unwrap_or_default();
            let ready = status.conditions.iter().find(|one| one.reason == "StorageRefOutdated").cloned();
            let serves = status.storage.as_ref().is_some_and(|storage| storage.serving == "next");
            if serves { ready.ok_or(format!("{:?}", status.conditions)) } else { Err(format!("{status:?}")) }
        })
        .await;
        assert!(told.message.contains(r#""storageCellRef":"next""#), "{told:?}");
        let set = harness.api::<StatefulSet>().get(&format!("{name}-data")).await.unwrap();
        let args = set.spec.unwrap().template.spec.unwrap().containers.remove(0).args.unwrap();
        assert!(args.contains(&"--storage-cell=next".to_owned()), "{args:?}");
        // What was decided may now be written down; anything else may not.
        let cells = harness.api::<Cell>();
        let set = |to: &str| json!({"spec": {"storageCellRef": to}});
        cells.patch(name, &PatchParams::default(), &Patch::Merge(&set("other"))).await.unwrap_err();
        cells.patch(name, &PatchParams::default(), &Patch::Merge(&set("next"))).await.unwrap();
    }
    idle(&harness, &operator).await;
    operator.stop().await;
}

/// A finished migration is not written, nor is anything else.
async fn idle(harness: &Harness, operator: &Operator) {
    let settled = || async {
        let before = operator.counter("writes").await;
        let reconciles = operator.counter("reconciles").await;
        eventually("another look", || async {
            let now = operator.counter("reconciles").await;
            if now >= reconciles + 4 { Ok(()) } else { Err(format!("{reconciles} then, {now} now")) }
        })
        .await;
        let after = operator.counter("writes").await;
        if after == before { Ok(()) } else { Err(format!("{before} writes, then {after}")) }
    };
    eventually("everything settling", settled).await;
    let writes = operator.counter("writes").await;
    let reconciles = operator.counter("reconciles").await;
    let touch = json!({"metadata": {"annotations": {"example.com/note": "look again"}}});
    let fleets = harness.api::<cell_crds::Fleet>();
    fleets.patch("prod", &PatchParams::default(), &Patch::Merge(&touch)).await.unwrap();
    eventually("a look at everything", || async {
        let now = operator.counter("reconciles").await;
        if now >= reconciles + 6 { Ok(()) } else { Err(format!("{reconciles} then, {now} now")) }
    })
    .await;
    assert_eq!(operator.counter("writes").await, writes, "a converged fleet is not written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_crashes_again_and_again_reaches_the_same_end() {
    let (harness, mut operator) = ready("crash").await;
    let spec = json!({"source": "main", "target": "next", "scope": {"units": ["b0001", "b0002"]},
        "targetStage": "Complete", "rollbackWindowSeconds": 0});
    let mut seen = harness.fakes.requests();
    start(&harness, "crash", spec).await;
    let mut crashes = 0_u32;
    loop {
        let next = tokio::time::timeout(LIMIT, async {
            tokio::select! {
                // After one, two, three, four requests: a place in a sweep is not stored before each of them.
                () = harness.fakes.wait_requests(seen + 1 + crashes % 4) => false,
                _ = ended(&harness, "crash") => true,
            }
        });
        if next.await.unwrap() {
            break;
        }
        operator.crash().await;
        seen = harness.fakes.requests();
        crashes += 1;
        operator = harness.operator();
    }
    let status = ended(&harness, "crash").await;
    assert_eq!(status.result, Some(MigrationResult::Completed), "{status:?}");
    assert!(crashes >= 10, "{crashes} crashes");
    {
        let world = harness.fakes.world.lock();
        let cut: Vec<_> = world.copies.iter().filter(|(_, copy)| copy.serving == "next").map(|(log, _)| log).collect();
        assert_eq!(cut, ["b0001", "b0002"], "only the units in scope");
        assert!(world.copies.values().all(|copy| copy.cut_overs <= 1));
    }
    leaves_nothing(&harness, "crash", &status.run_id.unwrap()).await;
    let cell = harness.api::<Cell>().get("shared-1").await.unwrap().status.unwrap().storage.unwrap();
    assert_eq!((cell.serving.as_str(), cell.others), ("main", vec!["next".to_owned()]));
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_a_rollback_and_a_deletion_leave_nothing_behind() {
    let (harness, operator) = ready("back").await;
    let spec = |stage: &str| json!({"source": "main", "target": "next", "scope": {"units": ["b0001", "b0002"]}, "targetStage": stage});
    start(&harness, "back", spec("Cutover")).await;
    let waiting = waits_for(&harness, "back", "TargetStageReached").await;
    assert_eq!(waiting.stage.as_deref(), Some("Reverse"));
    assert_eq!(harness.fakes.world.lock().copies["b0001"].serving, "next");
    // In use: the StorageCell is held, and so is the migration until it is complete or rolled back.
    harness.api::<StorageCell>().delete("next", &DeleteParams::default()).await.unwrap();
    harness.api::<StorageMigration>().delete("back", &DeleteParams::default()).await.unwrap();
    patch(&harness, "back", json!({"abort": true})).await;
    eventually("the abort being refused", || async {
        let status = status(&harness, "back").await;
        let refused = status.conditions.iter().any(|one| one.reason == "TooLateToAbort");
        if refused { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    patch(&harness, "back", json!({"rollback": true})).await;
    eventually("the migration going", || async {
        match harness.api::<StorageMigration>().get_opt("back").await.unwrap() {
            None => Ok(()),
            Some(one) => Err(format!("{:?}", one.status)),
        }
    })
    .await;
    assert!(harness.fakes.world.lock().copies.values().all(|copy| copy.serving == "main"));
    leaves_nothing(&harness, "back", &waiting.run_id.unwrap()).await;
    eventually("the StorageCell going", || async {
        match harness.api::<StorageCell>().get_opt("next").await.unwrap() {
            None => Ok(()),
            Some(one) => Err(format!("{:?}", one.status)),
        }
    })
    .await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_migration_is_cannot_change_and_how_far_it_goes_only_rises() {
    let harness = Harness::start().await;
    start(&harness, "m", json!({"source": "main", "target": "next"})).await;
    let api = harness.api::<StorageMigration>();
    let refused = |spec: Value| {
        let api = api.clone();
        async move {
            let change = json!({"spec": spec});
            api.patch("m", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap_err().to_string()
        }
    };
    assert!(refused(json!({"source": "x"})).await.contains("source cannot change"));
    assert!(refused(json!({"scope": {"units": ["b0001"]}})).await.contains("scope cannot change"));
    assert!(refused(json!({"targetStage": "Verify"})).await.contains("targetStage cannot go back"));
    patch(&harness, "m", json!({"targetStage": "Complete", "abort": true})).await;
    assert!(refused(json!({"abort": false})).await.contains("abort cannot be taken back"));
    patch(&harness, "m", json!({"throttle": {"paused": true}, "shadowRead": {"minSamples": 0}})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_can_be_deleted_where_there_is_no_fleet() {
    let harness = Harness::start().await;
    let _operator = harness.operator();
    start(&harness, "mig", json!({"source": "a", "target": "b"})).await;
    waits_for(&harness, "mig", "NoFleet").await;
    let api = harness.api::<StorageMigration>();
    // As when its run had begun.
    let held = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "StorageMigration",
        "metadata": {"name": "mig", "finalizers": [cell_crds::FINALIZER]}});
    api.patch("mig", &PatchParams::apply("cellplane-operator/finalizer"), &Patch::Apply(&held)).await.unwrap();
    api.delete("mig", &DeleteParams::default()).await.unwrap();
    eventually("the migration going", || async {
        let left = api.get_opt("mig").await.unwrap();
        left.map_or(Ok(()), |left| Err(format!("{:?}", left.metadata.finalizers)))
    })
    .await;
}

/// Has the API server take any Fleet, as one did that still has an older schema.
async fn admit_any_fleet(harness: &Harness) {
    let definitions: Api<CustomResourceDefinition> = Api::all(harness.client.clone());
    let mut definition = definitions.get("fleets.cellplane.dev").await.unwrap();
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    for version in &mut definition.spec.versions {
        version.schema = serde_json::from_value(schema.clone()).unwrap();
    }
    definitions.replace("fleets.cellplane.dev", &PostParams::default(), &definition).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_cannot_be_decoded_lets_no_migration_and_no_cell_go() {
    let harness = Harness::start().await;
    admit_any_fleet(&harness).await;
    let fleets: Api<DynamicObject> =
        Api::namespaced_with(harness.client.clone(), NAMESPACE, &ApiResource::erase::<Fleet>(&()));
    let broken = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "prod"},
        "spec": {"etcd": 7}});
    fleets.create(&PostParams::default(), &serde_json::from_value(broken).unwrap()).await.unwrap();
    let _operator = harness.operator();
    start(&harness, "mig", json!({"source": "a", "target": "b"})).await;
    harness.create_cell("shared-1").await;
    // As when the run had begun, and the cell had been applied.
    let held = |kind: &str, name: &str| {
        json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "finalizers": [cell_crds::FINALIZER]}})
    };
    let (migrations, cells) = (harness.api::<StorageMigration>(), harness.api::<Cell>());
    let as_operator = PatchParams::apply("cellplane-operator/finalizer");
    migrations.patch("mig", &as_operator, &Patch::Apply(&held("StorageMigration", "mig"))).await.unwrap();
    cells.patch("shared-1", &as_operator, &Patch::Apply(&held("Cell", "shared-1"))).await.unwrap();
    migrations.delete("mig", &DeleteParams::default()).await.unwrap();
    cells.delete("shared-1", &DeleteParams::default()).await.unwrap();

    let blocked = waits_for(&harness, "mig", "InvalidSpec: Fleet prod cannot be decoded").await;
    assert!(blocked.conditions.iter().any(|one| one.type_ == "Stalled" && one.status == "True"), "{blocked:?}");
    eventually("the cell being held", || async {
        let status = cells.get("shared-1").await.unwrap().status.unwrap_or_default();
        let held = status.blocked_by.as_deref().is_some_and(|why| why.starts_with("HoldsUnits: Fleet prod cannot"));
        if held { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    // The deletion is looked at: its timestamp does not release it either.
    let still = migrations.get("mig").await.unwrap();
    assert!(still.metadata.deletion_timestamp.is_some() && !still.metadata.finalizers.unwrap_or_default().is_empty());

    fleets.delete("prod", &DeleteParams::default()).await.unwrap();
    eventually("both going", || async {
        let left = (migrations.get_opt("mig").await.unwrap(), cells.get_opt("shared-1").await.unwrap());
        if let (None, None) = left { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}
