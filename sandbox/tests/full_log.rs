//! A log that cannot be written, as on a full disk: the sandbox goes on without it.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

/// Ends what was started, however the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_sandbox_whose_log_is_on_a_full_disk_serves_on() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    // Every write to it fails with "no space left on device".
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cell-sandbox"));
    command.args(["serve", "--etcd-port=0", "--kubernetes-port=0", "--state-dir"]).arg(folder.path());
    command.env("RUST_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(full);
    let mut running = Running(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it never was ready: {line:?}"));
    let kubeconfig = Kubeconfig::read_from(ready["kubeconfig"].as_str().unwrap()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(Client::try_from(config).unwrap());
    for number in 0..20 {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{number}")}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 20);
    assert!(running.0.try_wait().unwrap().is_none(), "it ended");
}
