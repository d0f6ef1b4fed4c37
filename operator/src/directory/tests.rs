//! Writes against a real etcd protocol server: who may claim a prefix.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cell_plan::migrations;
use cell_sandbox::server::{Options, Ready, run};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

struct Etcd {
    endpoint: String,
    stop: CancellationToken,
    _state: tempfile::TempDir,
}

impl Etcd {
    async fn start() -> Self {
        let _installed_before = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let (state, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let (tell, told) = tokio::sync::oneshot::channel();
        let options = Options {
            state_dir: state.path().to_owned(),
            listen_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            etcd_port: 0,
            kubernetes_port: 0,
            controllers: false,
        };
        let announce = move |ready: &Ready| drop(tell.send(ready.clone()));
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(async move { run(options, announce, stopped).await.unwrap() });
        let ready = tokio::time::timeout(LIMIT, told).await.unwrap().unwrap();
        Self { endpoint: ready.etcd.trim_start_matches("http://").to_owned(), stop, _state: state }
    }

    fn link(&self, token: i32) -> Arc<Link> {
        let hub = Hub::new(Leadership::new(token), Vec::new(), self.stop.clone());
        let etcd = serde_json::json!({"endpoints": [self.endpoint], "prefix": "/p/"});
        hub.link_to(&serde_json::from_value(etcd).unwrap())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_claims_no_prefix() {
    let etcd = Etcd::start().await;
    let (old, new) = (etcd.link(4), etcd.link(5));
    // The new leader has written something: its token is in place.
    assert!(new.write(Vec::new(), Vec::new()).await.unwrap());
    assert!(matches!(old.claim_prefix("mine").await, Err(LinkError::Fenced { stored: 5, ours: 4 })));
    assert_eq!(new.read(&new.keys().fleet()).await.unwrap(), None, "nothing was written");
    assert_eq!(new.claim_prefix("theirs").await.unwrap(), Ok(()));
    assert_eq!(new.claim_prefix("theirs").await.unwrap(), Ok(()), "claiming again changes nothing");
    assert_eq!(old.claim_prefix("mine").await.unwrap(), Err("theirs".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_goes_on_in_the_middle_of_a_sweep_knows_where_the_logs_before_stood() {
    let etcd = Etcd::start().await;
    let link = etcd.link(4);
    let spec = migrations::Spec {
        run_id: "r1".to_owned(),
        source: "a".to_owned(),
        target: "b".to_owned(),
        units: Vec::new(),
        rollback_window_ms: 0,
    };
    let mut record = migrations::Record::new(spec, 1);
    let log = |number: u64| migrations::Log { name: format!("b{number:04}"), unit: format!("b{number:04}") };
    record.logs = Arc::new((0..5).map(log).collect());
    let MigrationBegun::Begun(run) = link.begin_migration("m", &record).await.unwrap() else { panic!("not begun") };
    (record.step, record.sweep) = (migrations::Step::Resweep, (3, 0, 0));
    record.positions = Arc::new(vec![7, 8, 9, 0, 0]);
    assert!(link.save_migration(&run, &record).await.unwrap().is_some());
    let found = etcd.link(5).migration_run("r1").await.unwrap().unwrap();
    assert_eq!((found.record.step, found.record.sweep.0), (record.step, 3));
    assert_eq!((found.record.positions, found.record.logs.len()), (record.positions, 5));
}
