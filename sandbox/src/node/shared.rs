//! What every part of one agent shares: who it is, what it sees, what it may use. It decides nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Taint};
use kube::Client;
use kube::runtime::events::Recorder;
use parking_lot::Mutex;

use super::addresses::Addresses;
use super::clock::Clock;
use super::images::Images;
use super::machine::backoff::BackoffPolicy;
use crate::controllers::act::Writes;
use crate::controllers::mirror::Mirror;

/// One agent's identity and limits.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node's name.
    pub node: String,
    /// The node's own address.
    pub address: IpAddr,
    /// Where everything is kept.
    pub state: PathBuf,
    /// This program, started again as a shim.
    pub program: PathBuf,
    /// The kubeconfig handed to Pods.
    pub kubeconfig: PathBuf,
    /// The search path of Pods.
    pub path: String,
    /// CPU (thousandths) and memory (bytes) of the node.
    pub size: (i64, i64),
    /// Restart back-off.
    pub backoff: BackoffPolicy,
    /// Rotate logs at this size, in bytes.
    pub log_bytes: u64,
    /// Log files kept per run.
    pub log_files: u32,
    /// Processes a container may have at once; 0 is no bound.
    pub most_processes: u32,
    /// Taints the Node is registered with.
    pub taints: Vec<Taint>,
}

/// Counters of one agent, served at `/metrics`.
#[derive(Debug, Default)]
pub struct Counters {
    /// Containers started.
    pub starts: AtomicU64,
    /// Container runs that ended.
    pub exits: AtomicU64,
    /// Entry connections accepted.
    pub entry_accepted: AtomicU64,
    /// Entry connections refused because too many were open.
    pub entry_overflow: AtomicU64,
    /// Entry connections that found no ready Pod.
    pub entry_unserved: AtomicU64,
    /// Log requests refused because too many were open.
    pub logs_overflow: AtomicU64,
    /// Connections to the log server closed because too many were open.
    pub log_connections_overflow: AtomicU64,
    /// Events not sent because the same was said a moment ago.
    pub events_held: AtomicU64,
}

/// Everything the parts share.
pub struct Shared {
    /// Identity and limits.
    pub settings: Settings,
    /// The API client.
    pub client: Client,
    /// Publishes events.
    pub recorder: Recorder,
    /// The clocks.
    pub clock: Clock,
    /// Images and programs.
    pub images: Images,
    /// Pod addresses.
    pub addresses: Mutex<Addresses>,
    /// Pods of all nodes.
    pub pods: Mirror<Pod>,
    /// ConfigMaps.
    pub config_maps: Mirror<ConfigMap>,
    /// Secrets.
    pub secrets: Mirror<Secret>,
    /// Claims.
    pub claims: Mirror<PersistentVolumeClaim>,
    /// Volumes.
    pub volumes: Mirror<PersistentVolume>,
    /// API writes.
    pub writes: Writes,
    /// Counters.
    pub counters: Counters,
}

impl Shared {
    /// The Pod's own folder: the working directory of its containers.
    pub fn pod_folder(&self, uid: &str) -> PathBuf {
        self.settings.state.join("pods").join(uid)
    }

    /// The folder of the Pod's own volumes.
    pub fn mounts_folder(&self, uid: &str) -> PathBuf {
        self.settings.state.join("mounts").join(uid)
    }

    /// What every container finds in its environment before its own settings.
    pub fn base_env(&self, pod_name: &str, uid: &str, kubeconfig: Option<PathBuf>) -> BTreeMap<String, String> {
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), self.settings.path.clone()),
            ("HOME".to_owned(), self.pod_folder(uid).display().to_string()),
            ("HOSTNAME".to_owned(), pod_name.to_owned()),
        ]);
        env.extend(kubeconfig.map(|path| ("KUBECONFIG".to_owned(), path.display().to_string())));
        env
    }
}

/// A shared handle.
pub type Node = Arc<Shared>;
