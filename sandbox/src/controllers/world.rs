//! What every controller sees and acts through: the mirrors, the client, the clock. It decides nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::core::DeserializeGuard;
use kube::runtime::events::Recorder;
use tokio::sync::watch;

use super::Options;
use super::act::Writes;
use super::mirror::{Mirror, follow, of_all_namespaces, of_cluster};

/// The controllers' shared view of the cluster.
pub struct World {
    /// The API client.
    pub client: Client,
    /// Periods and limits.
    pub options: Options,
    /// Publishes events.
    pub recorder: Recorder,
    /// Counts writes.
    pub writes: Arc<Writes>,
    /// Nodes.
    pub nodes: Mirror<Node>,
    /// Node heartbeats.
    pub leases: Mirror<Lease>,
    /// Pods of all namespaces.
    pub pods: Mirror<Pod>,
    /// StatefulSets.
    pub sets: Mirror<StatefulSet>,
    /// Deployments.
    pub deployments: Mirror<Deployment>,
    /// ReplicaSets.
    pub replica_sets: Mirror<ReplicaSet>,
    /// Jobs.
    pub jobs: Mirror<Job>,
    /// Claims.
    pub claims: Mirror<PersistentVolumeClaim>,
    /// Volumes.
    pub volumes: Mirror<PersistentVolume>,
    /// Services.
    pub services: Mirror<Service>,
    /// EndpointSlices.
    pub slices: Mirror<EndpointSlice>,
}

/// The namespace of node heartbeats.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

type Feed = Pin<Box<dyn Future<Output = ()> + Send>>;

impl World {
    /// The world and the feeds that keep its mirrors fresh.
    pub fn new(client: Client, options: Options, recorder: Recorder) -> (Self, Vec<Feed>) {
        let (nodes, nodes_feed) = of_cluster(&client);
        let (pods, pods_feed) = of_all_namespaces(&client);
        let (sets, sets_feed) = of_all_namespaces(&client);
        let (deployments, deployments_feed) = of_all_namespaces(&client);
        let (replica_sets, replica_sets_feed) = of_all_namespaces(&client);
        let (jobs, jobs_feed) = of_all_namespaces(&client);
        let (claims, claims_feed) = of_all_namespaces(&client);
        let (volumes, volumes_feed) = of_cluster(&client);
        let (services, services_feed) = of_all_namespaces(&client);
        let (slices, slices_feed) = of_all_namespaces(&client);
        let leases = Mirror::<Lease>::default();
        let leases_api = kube::Api::<DeserializeGuard<Lease>>::namespaced(client.clone(), LEASE_NAMESPACE);
        let feeds: Vec<Feed> = vec![
            Box::pin(nodes_feed),
            Box::pin(pods_feed),
            Box::pin(sets_feed),
            Box::pin(deployments_feed),
            Box::pin(replica_sets_feed),
            Box::pin(jobs_feed),
            Box::pin(claims_feed),
            Box::pin(volumes_feed),
            Box::pin(services_feed),
            Box::pin(slices_feed),
            Box::pin(follow(leases_api, leases.clone())),
        ];
        let writes = Arc::new(Writes::default());
        let world = Self {
            client,
            options,
            recorder,
            writes,
            nodes,
            leases,
            pods,
            sets,
            deployments,
            replica_sets,
            jobs,
            claims,
            volumes,
            services,
            slices,
        };
        (world, feeds)
    }

    /// True when every mirror has had its first whole list: until then no controller acts.
    pub fn synced(&self) -> bool {
        self.nodes.synced()
            && self.leases.synced()
            && self.pods.synced()
            && self.sets.synced()
            && self.deployments.synced()
            && self.replica_sets.synced()
            && self.jobs.synced()
            && self.claims.synced()
            && self.volumes.synced()
            && self.services.synced()
            && self.slices.synced()
    }

    /// Unix time in seconds.
    pub fn unix_now(&self) -> i64 {
        k8s_openapi::jiff::Timestamp::now().as_second()
    }
}

/// Waits for a change in any of several mirrors.
pub struct Changes(Vec<watch::Receiver<u64>>);

impl Changes {
    /// Watches these receivers (see [`Mirror::changes`]).
    pub fn new(receivers: Vec<watch::Receiver<u64>>) -> Self {
        Self(receivers)
    }

    /// Returns at the next change, or after `at_most`; then gathers what follows closely, so that a burst is one round.
    pub async fn next(&mut self, at_most: Duration) {
        let waits: Vec<_> = self.0.iter_mut().map(|receiver| Box::pin(receiver.changed())).collect();
        if tokio::time::timeout(at_most, select_all(waits)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        for receiver in &mut self.0 {
            receiver.borrow_and_update();
        }
    }
}
