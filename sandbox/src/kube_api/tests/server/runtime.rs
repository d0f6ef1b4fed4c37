//! kube-rs's runtime against the API: watcher, reflector, Controller, finalizer, Recorder, Lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalized, finalizer};
use kube::runtime::{Controller, WatchStreamExt, watcher};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::{CONFIG_MAPS, DEADLINE, Sandbox, config_map};

fn maps(s: &Sandbox) -> Api<ConfigMap> {
    Api::namespaced(s.client.clone(), "default")
}

async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}

#[tokio::test]
async fn both_kinds_of_watcher_see_everything_and_survive_compaction() {
    let s = Sandbox::start().await;
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
        let mut stream = Box::pin(watcher(maps(&s), config.timeout(2)).default_backoff().applied_objects());
        assert_eq!(in_time("first", stream.try_next()).await.unwrap().unwrap().name_any(), "a");
        s.merge(&format!("{CONFIG_MAPS}/a"), json!({"data": {"key": "2"}})).await.ok();
        s.store.compact(s.store.revision()).await.unwrap();
        s.post(CONFIG_MAPS, config_map("b", "1")).await.ok();
        let seen = async {
            while let Some(object) = stream.try_next().await.unwrap() {
                if object.name_any() == "b" {
                    return;
                }
            }
        };
        in_time("the object after compaction", seen).await;
        s.delete(CONFIG_MAPS, json!({})).await.ok();
    }
    s.stop().await;
}

#[tokio::test]
async fn a_controller_with_a_finalizer_cleans_up_and_lets_go() {
    let s = Sandbox::start().await;
    let (applied, cleaned) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = Arc::new((applied.clone(), cleaned.clone(), maps(&s)));
    let controller = Controller::new(maps(&s), watcher::Config::default()).run(
        |object: Arc<ConfigMap>, counts: Arc<(Arc<AtomicUsize>, Arc<AtomicUsize>, Api<ConfigMap>)>| async move {
            finalizer(&counts.2, "example.dev/clean", object, |event| {
                let counts = counts.clone();
                async move {
                    let count = match event {
                        Finalized::Apply(_) => &counts.0,
                        Finalized::Cleanup(_) => &counts.1,
                    };
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, std::io::Error>(Action::await_change())
                }
            })
            .await
        },
        |_, _, _| Action::requeue(Duration::from_millis(100)),
        counts,
    );
    let running = tokio::spawn(controller.for_each(|_| async {}));
    s.post(CONFIG_MAPS, config_map("a", "1")).await.ok();
    s.until(&format!("{CONFIG_MAPS}/a"), "finalizer is set", |a| {
        a.body["metadata"]["finalizers"][0] == "example.dev/clean"
    })
    .await;
    s.delete(&format!("{CONFIG_MAPS}/a"), json!({})).await.ok();
    s.until_gone(&format!("{CONFIG_MAPS}/a")).await;
    assert!(applied.load(Ordering::SeqCst) >= 1);
    assert_eq!(cleaned.load(Ordering::SeqCst), 1);
    running.abort();
    s.stop().await;
}

#[tokio::test]
async fn a_recorder_publishes_and_repeats_events() {
    let s = Sandbox::start().await;
    let object =
        maps(&s).create(&PostParams::default(), &serde_json::from_value(config_map("a", "1")).unwrap()).await.unwrap();
    let reporter = Reporter { controller: "tests".into(), instance: Some("one".into()) };
    let recorder = Recorder::new(s.client.clone(), reporter);
    let reference: ObjectReference = object.object_ref(&());
    for _ in 0..2 {
        let event = Event {
            type_: EventType::Normal,
            reason: "Moved".into(),
            note: Some("hello".into()),
            action: "Move".into(),
            secondary: None,
        };
        recorder.publish(&event, &reference).await.unwrap();
    }
    let found = s.get("/apis/events.k8s.io/v1/namespaces/default/events").await.ok();
    let items = found["items"].as_array().unwrap();
    assert_eq!(items.len(), 1);
    assert_eq!(items[0]["series"]["count"], 2);
    assert_eq!(s.get("/api/v1/namespaces/default/events").await.ok()["items"][0]["message"], "hello");
    s.stop().await;
}

#[tokio::test]
async fn a_lease_is_taken_by_one_of_two() {
    let s = Sandbox::start().await;
    let leases: Api<Lease> = Api::namespaced(s.client.clone(), "default");
    let made: Lease =
        serde_json::from_value(json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": "nobody",
        "leaseTransitions": 0, "renewTime": "2026-01-01T00:00:00.123456Z"}}))
        .unwrap();
    let made = leases.create(&PostParams::default(), &made).await.unwrap();
    let take = |who: &str| {
        let mut mine = made.clone();
        if let Some(spec) = mine.spec.as_mut() {
            spec.holder_identity = Some(who.to_owned());
        }
        let leases = leases.clone();
        async move { leases.replace("leader", &PostParams::default(), &mine).await }
    };
    let (one, two) = tokio::join!(take("one"), take("two"));
    assert_eq!(usize::from(one.is_ok()) + usize::from(two.is_ok()), 1);
    let lost = if one.is_ok() { two } else { one };
    assert!(matches!(lost.unwrap_err(), kube::Error::Api(status) if status.is_conflict()));
    let found = leases.get("leader").await.unwrap();
    assert_eq!(serde_json::to_value(&found).unwrap()["spec"]["renewTime"], "2026-01-01T00:00:00.123456Z");
    s.stop().await;
}

#[tokio::test]
async fn typed_calls_of_kube_rs_work() {
    let s = Sandbox::start().await;
    let api = maps(&s);
    let applied = api.patch("a", &PatchParams::apply("tests"), &Patch::Apply(config_map("a", "1"))).await.unwrap();
    assert_eq!(applied.meta().managed_fields.as_ref().map(Vec::len), Some(1));
    let conflict =
        api.patch("a", &PatchParams::apply("others"), &Patch::Apply(config_map("a", "2"))).await.unwrap_err();
    assert!(matches!(conflict, kube::Error::Api(status) if status.is_conflict()));
    let meta = api.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(meta.items.len(), 1);
    let pages = api.list(&ListParams::default().limit(1)).await.unwrap();
    assert_eq!(pages.items.len(), 1);
    assert!(api.get_opt("nope").await.unwrap().is_none());
    api.delete("a", &DeleteParams::background()).await.unwrap();
    assert!(api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap().is_left());
    s.stop().await;
}
