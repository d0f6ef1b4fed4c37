//! The README's example, run as it stands there.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use cell_sandbox::embedded::Embedded;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{Controller, controller::Action, wait::await_condition, watcher};
use kube::{Api, api::Patch};
use serde_json::json;

async fn paint(map: Arc<ConfigMap>, api: Arc<Api<ConfigMap>>) -> Result<Action, kube::Error> {
    let name = map.metadata.name.clone().unwrap_or_default();
    api.patch(&name, &Default::default(), &Patch::Merge(json!({"data": {"colour": "red"}}))).await?;
    Ok(Action::await_change())
}

// example begins
#[tokio::test]
async fn my_controller_paints_every_map_red() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = Embedded::start(dir.path()).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(sandbox.client());
    let controller = Controller::new(maps.clone(), watcher::Config::default());
    let running = controller.run(paint, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::new(maps.clone()));
    tokio::spawn(running.for_each(|_| async {}));
    let map = serde_json::from_value(json!({"metadata": {"name": "mine"}})).unwrap();
    maps.create(&Default::default(), &map).await.unwrap();
    let red = |map: Option<&ConfigMap>| map.is_some_and(|map| map.data.as_ref().is_some_and(|d| d["colour"] == "red"));
    tokio::time::timeout(Duration::from_secs(20), await_condition(maps, "mine", red)).await.unwrap().unwrap();
    sandbox.stop().await;
}
// example ends

#[test]
fn the_readme_shows_this_very_test() {
    let own = include_str!("readme.rs");
    let example = own.split("// example begins\n").nth(1).unwrap().split("// example ends").next().unwrap();
    assert!(include_str!("../README.md").contains(example), "copy the example into sandbox/README.md");
}
