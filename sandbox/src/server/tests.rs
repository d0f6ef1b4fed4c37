//! The sandbox as one process: started, stopped, copied.

use super::*;
use std::sync::mpsc;

fn options(dir: &std::path::Path) -> Options {
    let address = IpAddr::from([127, 0, 0, 1]);
    Options { state_dir: dir.to_owned(), listen_address: address, etcd_port: 0, kubernetes_port: 0, controllers: false }
}

async fn started(options: Options) -> (Ready, CancellationToken, tokio::task::JoinHandle<Result<(), ServerError>>) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (tell, told) = mpsc::channel();
    let stop = CancellationToken::new();
    let announce = move |ready: &Ready| tell.send(ready.clone()).unwrap_or_default();
    let running = tokio::spawn(run(options, announce, stop.clone().cancelled_owned()));
    let ready = tokio::task::spawn_blocking(move || told.recv_timeout(std::time::Duration::from_secs(20)));
    (ready.await.unwrap().unwrap(), stop, running)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_apis_answer_over_one_store_and_a_second_process_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (ready, stop, running) = started(Options { controllers: true, ..options(dir.path()) }).await;
    let mut etcd = etcd_client::Client::connect([&ready.etcd], None).await.unwrap();
    etcd.put("a", "b", None).await.unwrap();
    let kube = client(&ready.kubeconfig).await.unwrap();
    assert_eq!(kube.apiserver_version().await.unwrap().minor, "33");
    let second = run(options(dir.path()), |_| {}, std::future::pending()).await.unwrap_err();
    assert!(second.to_string().contains("in use by process"), "{second}");
    let port: u16 = ready.etcd.rsplit(':').next().unwrap().parse().unwrap();
    let other = tempfile::tempdir().unwrap();
    let taken =
        run(Options { etcd_port: port, ..options(other.path()) }, |_| {}, std::future::pending()).await.unwrap_err();
    assert!(taken.to_string().contains("--etcd-port"), "{taken}");
    stop.cancel();
    running.await.unwrap().unwrap();
    let (_, stop, running) = started(options(dir.path())).await;
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_and_a_stopped_sandbox_are_copied_and_a_new_one_goes_on_from_the_copy() {
    use crate::copies::{CopyError, backup, restore};
    use k8s_openapi::api::core::v1::ConfigMap;
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (root.path().join("old"), root.path().join("new"));
    let (ready, stop, running) = started(options(&old)).await;
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(client(&ready.kubeconfig).await.unwrap(), "default");
    let map: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": {"name": "kept"}})).unwrap();
    let made = maps.create(&kube::api::PostParams::default(), &map).await.unwrap();
    let (live, cold) = (root.path().join("live"), root.path().join("cold"));
    let info = backup(&old, &live, false).await.unwrap();
    assert!(matches!(backup(&old, &live, false).await, Err(CopyError::Exists { .. })));
    stop.cancel();
    running.await.unwrap().unwrap();
    assert!(backup(&old, &cold, false).await.unwrap().keys >= info.keys);
    assert!(matches!(backup(&new, &cold, true).await, Err(CopyError::NoStore { .. })));
    restore(&new, &live, false).unwrap();
    let (ready, stop, running) = started(options(&new)).await;
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(client(&ready.kubeconfig).await.unwrap(), "default");
    let kept = maps.get("kept").await.unwrap();
    assert_eq!(kept.metadata.uid, made.metadata.uid);
    let old_version = made.metadata.resource_version.unwrap();
    let from = kube::api::WatchParams::default();
    use futures::StreamExt;
    let told = maps.watch(&from, &old_version).await;
    let gone = match told {
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
        Ok(events) => match Box::pin(events).next().await.unwrap().unwrap() {
            kube::core::WatchEvent::Error(status) => status.code,
            other => panic!("{other:?}"),
        },
    };
    assert_eq!(gone, 410, "who watched the old one lists anew");
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn only_loopback_addresses_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let open = Options { listen_address: IpAddr::from([0, 0, 0, 0]), ..options(dir.path()) };
    assert!(matches!(run(open, |_| {}, std::future::pending()).await, Err(ServerError::NotLoopback(_))));
}
