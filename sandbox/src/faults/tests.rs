//! The plan as sentences, and the proxy in front of the sandbox's own API.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::core::WatchEvent;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::control::{Ask, ask};
use super::plan::{Asked, Fate, Plan};
use super::proxy::{Proxy, serve};
use super::rule::{Fault, Rule, RuleError};
use crate::kube_api::serve::{KubeApi, serve as serve_api};
use crate::store::{Store, StoreOptions};

fn asked(verb: &str, resource: &str, name: &str) -> Asked {
    Asked { verb: verb.into(), resource: resource.into(), name: name.into(), namespace: "n".into(), ..Asked::default() }
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

#[test]
fn rules_are_read_and_shown_in_the_same_words() {
    for text in [
        "refuse=409,verb=update,resource=pods/status,namespace=n,name=x,share=0.25,after=2,limit=3",
        "lose=504,agent=kubectl",
        "delay=1500ms,group=core",
        "event-delay=20ms,resource=pods",
        "cut",
        "freeze,verb=list",
    ] {
        assert_eq!(rule(text).to_string(), text);
    }
    assert_eq!(rule("delay=1.5s").fault, Fault::Delay(1500));
    let wrong = |text: &str| text.parse::<Rule>().unwrap_err();
    assert!(matches!(wrong("refuse=404"), RuleError::Code(_)));
    assert!(matches!(wrong("delay=2h"), RuleError::Time(_)));
    assert!(matches!(wrong("explode"), RuleError::Fault(_)));
    assert!(matches!(wrong("cut,verb=read"), RuleError::Verb(_)));
    assert!(matches!(wrong("cut,share=2"), RuleError::Number("share", _)));
    assert!(matches!(wrong("cut,colour=red"), RuleError::Key(_)));
}

#[test]
fn a_rule_strikes_what_it_names_after_so_many_and_so_often() {
    let mut plan = Plan::new(1);
    plan.add(rule("refuse=409,verb=update,resource=pods,after=1,limit=2")).unwrap();
    let update = asked("update", "pods", "a");
    let fates: Vec<_> = (0..5).map(|_| plan.request(&update).1).collect();
    let struck = Fate::Strike(Fault::Refuse(409));
    assert_eq!(fates, [Fate::Pass, struck, struck, Fate::Pass, Fate::Pass]);
    assert_eq!(plan.request(&asked("update", "pods/status", "a")).1, Fate::Pass);
    let report = plan.report();
    assert_eq!((report[0].matched, report[0].struck), (3, 2));
    assert_eq!(plan.clear(Some(9)), 0);
    assert_eq!(plan.clear(Some(1)), 1);
}

#[test]
fn the_same_seed_strikes_the_same_questions_however_they_interleave() {
    let questions: Vec<_> = (0..50).map(|number| asked("patch", "pods", &format!("p{number}"))).collect();
    let run = |seed: u64, order: &[usize]| -> BTreeMap<(usize, usize), bool> {
        let mut plan = Plan::new(seed);
        plan.add(rule("refuse=500,share=0.3")).unwrap();
        let mut out = BTreeMap::new();
        let mut times = BTreeMap::new();
        for which in order {
            let time = times.entry(*which).and_modify(|time| *time += 1).or_insert(0);
            out.insert((*which, *time), plan.request(&questions[*which]).1 != Fate::Pass);
        }
        out
    };
    let forwards: Vec<usize> = (0..50).chain(0..50).collect();
    let backwards: Vec<usize> = (0..50).rev().flat_map(|which| [which, which]).collect();
    assert_eq!(run(7, &forwards), run(7, &backwards));
    assert_ne!(run(7, &forwards), run(8, &forwards));
    let struck = run(7, &forwards).values().filter(|struck| **struck).count();
    assert!((15..=45).contains(&struck), "about three in ten of a hundred: {struck}");
}

/// The sandbox's API with the proxy in front of it.
struct Bench {
    dir: tempfile::TempDir,
    api: KubeApi,
    store: Store,
    proxy: Proxy,
    direct: Api<ConfigMap>,
    through: Api<ConfigMap>,
}

async fn client(path: &std::path::Path) -> kube::Client {
    let read = kube::config::Kubeconfig::read_from(path).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(read, &Default::default()).await.unwrap();
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

impl Bench {
    async fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store"), StoreOptions::sandbox()).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let api = serve_api(store.clone(), dir.path(), any).await.unwrap();
        let proxy = serve(&api.kubeconfig, &dir.path().join("faults"), any, 42).await.unwrap();
        let direct = Api::namespaced(client(&api.kubeconfig).await, "default");
        let through = Api::namespaced(client(&proxy.kubeconfig).await, "default");
        Self { dir, api, store, proxy, direct, through }
    }

    fn rules(&self, rules: &[&str]) {
        self.proxy.faults().clear(None);
        self.proxy.faults().add(rules.iter().map(|text| rule(text)).collect()).unwrap();
    }

    async fn stop(self) {
        self.proxy.stop().await;
        self.api.stop().await;
        self.store.close().await;
        drop(self.dir);
    }
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"key": value}})).unwrap()
}

fn code(error: kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("not within 20 s")
}

#[tokio::test]
async fn refused_writes_do_nothing_and_lost_answers_hide_what_was_done() {
    let b = Bench::start().await;
    let post = PostParams::default();
    b.rules(&["refuse=429,verb=create,limit=1", "lose=504,verb=create,limit=1", "cut-after,verb=create,limit=1"]);
    assert_eq!(code(b.through.create(&post, &map("a", "1")).await.unwrap_err()), 429);
    assert!(b.direct.get_opt("a").await.unwrap().is_none());
    assert_eq!(code(b.through.create(&post, &map("a", "1")).await.unwrap_err()), 504);
    assert!(b.direct.get_opt("a").await.unwrap().is_some(), "the answer was lost, not the write");
    assert_eq!(code(soon(b.through.create(&post, &map("b", "1"))).await.unwrap_err()), 0, "the connection was cut");
    assert!(b.direct.get_opt("b").await.unwrap().is_some());
    b.rules(&["cut,verb=create,limit=1"]);
    assert_eq!(code(soon(b.through.create(&post, &map("c", "1"))).await.unwrap_err()), 0);
    assert!(b.direct.get_opt("c").await.unwrap().is_none());
    assert!(b.through.create(&post, &map("c", "1")).await.is_ok(), "what is over is over");
    b.stop().await;
}

#[tokio::test]
async fn a_stale_read_shows_what_once_was_and_its_watch_catches_up() {
    let b = Bench::start().await;
    b.direct.create(&PostParams::default(), &map("a", "old")).await.unwrap();
    b.through.list(&ListParams::default()).await.unwrap();
    let new = Patch::Merge(json!({"data": {"key": "new"}}));
    b.direct.patch("a", &PatchParams::default(), &new).await.unwrap();
    b.rules(&["stale,verb=list,resource=configmaps"]);
    let stale = b.through.list(&ListParams::default()).await.unwrap();
    let value = |map: &ConfigMap| map.data.as_ref().unwrap()["key"].clone();
    assert_eq!(value(&stale.items[0]), "old");
    let from = stale.metadata.resource_version.unwrap();
    let mut events = Box::pin(b.through.watch(&WatchParams::default(), &from).await.unwrap());
    match soon(events.next()).await.unwrap().unwrap() {
        WatchEvent::Modified(map) => assert_eq!(value(&map), "new"),
        other => panic!("{other:?}"),
    }
    b.rules(&[]);
    assert_eq!(value(&b.through.list(&ListParams::default()).await.unwrap().items[0]), "new");
    b.stop().await;
}

#[tokio::test]
async fn events_are_left_out_repeated_and_cut_as_the_rules_say() {
    let b = Bench::start().await;
    b.rules(&["event-drop,name=dropped", "event-duplicate,name=twice", "event-cut,name=last"]);
    let mut events = Box::pin(b.through.watch(&WatchParams::default(), "0").await.unwrap());
    for name in ["dropped", "twice", "once", "last"] {
        b.direct.create(&PostParams::default(), &map(name, "1")).await.unwrap();
    }
    let mut seen = Vec::new();
    while let Some(Ok(event)) = soon(events.next()).await {
        if let WatchEvent::Added(map) = event {
            seen.push(map.name_any());
        }
    }
    assert_eq!(seen, ["twice", "twice", "once"]);
    b.stop().await;
}

#[tokio::test]
async fn a_frozen_server_answers_once_it_thaws_and_rules_are_changed_from_outside() {
    let b = Bench::start().await;
    let dir = b.dir.path().join("faults");
    let report = ask(&dir, Ask::Add(vec!["freeze,resource=configmaps".into(), "delay=1ms".into()])).await.unwrap();
    assert_eq!(report.rules.len(), 2);
    let through = b.through.clone();
    let waiting = tokio::spawn(async move { through.list(&ListParams::default()).await.map(|_| ()) });
    b.direct.list(&ListParams::default()).await.unwrap();
    assert!(!waiting.is_finished());
    let left = ask(&dir, Ask::Clear(Some(report.rules[0].id))).await.unwrap();
    assert_eq!(left.rules[0].rule, "delay=1ms");
    soon(waiting).await.unwrap().unwrap();
    let wrong = ask(&dir, Ask::Add(vec!["explode".into()])).await.unwrap_err();
    assert!(wrong.to_string().contains("explode"), "{wrong}");
    assert!(ask(&dir, Ask::Clear(None)).await.unwrap().rules.is_empty());
    b.stop().await;
}

#[tokio::test]
async fn nobody_without_a_token_is_let_through() {
    let b = Bench::start().await;
    let read = kube::config::Kubeconfig::read_from(&b.proxy.kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(read, &Default::default()).await.unwrap();
    config.auth_info = kube::config::AuthInfo::default();
    let stranger: Api<ConfigMap> = Api::namespaced(kube::Client::try_from(config).unwrap(), "default");
    assert_eq!(code(stranger.list(&ListParams::default()).await.unwrap_err()), 401);
    b.stop().await;
}
