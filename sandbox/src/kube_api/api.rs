//! What every request works with: the objects, what is served, who may enter. One `Api` for each server; nothing global.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{Mutex, Semaphore};

use super::access::Access;
use super::kinds::Resource;
use super::managed::Writer;
use super::object;
use super::objects::Objects;
use super::registry::Registry;
use super::request::{Query, Target};
use super::status::Refusal;

/// Requests worked on at once; more wait briefly and are then told to come back.
pub const MAX_REQUESTS: usize = 400;
/// Watches of one connection.
pub const MAX_WATCHES_PER_CONNECTION: usize = 256;
/// Watches in all.
pub const MAX_WATCHES: usize = 8_192;
/// Largest request body; an object itself may have 1.5 MiB.
pub const MAX_BODY: usize = 3 * 1024 * 1024;

/// Counters for what was turned away.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests answered, refusals among them.
    pub requests: AtomicU64,
    /// Requests that failed by a fault of ours.
    pub internal_errors: AtomicU64,
    /// Requests refused because too many were being worked on.
    pub busy_refusals: AtomicU64,
    /// Watches refused because of a bound.
    pub watch_refusals: AtomicU64,
    /// Watches ended because the client read too slowly.
    pub watches_overrun: AtomicU64,
    /// Connections whose TLS handshake failed.
    pub handshake_failures: AtomicU64,
}

/// The state behind the API.
pub struct Api {
    pub objects: Objects,
    pub registry: Registry,
    pub access: Access,
    /// `host:port` shown in `/api`.
    pub address: String,
    /// Held while a Service's node ports are chosen and stored.
    pub node_ports: Mutex<()>,
    reloads: parking_lot::Mutex<()>,
    /// Held while an eviction is weighed against its budget.
    pub evictions: Mutex<()>,
    pub requests: Arc<Semaphore>,
    pub watches: Arc<AtomicUsize>,
    pub counters: Counters,
    /// Turns true when the server stops: watches end then.
    pub stopping: tokio::sync::watch::Sender<bool>,
}

impl Api {
    /// Over a store; definitions already stored are served at once.
    pub fn new(objects: Objects, access: Access, address: String) -> Result<Self, Refusal> {
        let api = Self {
            objects,
            registry: Registry::default(),
            access,
            address,
            node_ports: Mutex::new(()),
            reloads: parking_lot::Mutex::new(()),
            evictions: Mutex::new(()),
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            watches: Arc::new(AtomicUsize::new(0)),
            counters: Counters::default(),
            stopping: tokio::sync::watch::Sender::new(false),
        };
        api.reload_definitions()?;
        Ok(api)
    }

    /// The figures in Prometheus' text form.
    pub fn metrics(&self) -> String {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = [
            ("requests", "Requests answered, refusals among them.", load(&self.counters.requests)),
            ("internal_errors", "Requests that failed by a fault of the server.", load(&self.counters.internal_errors)),
            ("busy_refusals", "Requests refused because too many were worked on.", load(&self.counters.busy_refusals)),
            ("watch_refusals", "Watches refused because of a bound.", load(&self.counters.watch_refusals)),
            (
                "watches_overrun",
                "Watches ended because the client read too slowly.",
                load(&self.counters.watches_overrun),
            ),
            ("handshake_failures", "Connections whose TLS handshake failed.", load(&self.counters.handshake_failures)),
        ];
        let mut out = String::new();
        for (name, help, value) in counters {
            let name = format!("sandbox_kube_{name}_total");
            out.push_str(&format!("# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}\n"));
        }
        let watches = self.watches.load(Ordering::Relaxed);
        let name = "sandbox_kube_watches";
        out.push_str(&format!("# HELP {name} Watches open now.\n# TYPE {name} gauge\n{name} {watches}\n"));
        out
    }

    /// Serves what the stored definitions say.
    pub fn reload_definitions(&self) -> Result<(), Refusal> {
        let prefix = super::objects::prefix("apiextensions.k8s.io", "customresourcedefinitions", "");
        // Read and served under one lock: an older view never replaces a newer one.
        let _one_at_a_time = self.reloads.lock();
        let page = self.objects.all(&prefix)?;
        let definitions: Vec<_> = page.items.into_iter().map(|s| s.object).collect();
        self.registry.reload(&definitions);
        Ok(())
    }

    /// Whether an object's namespace or definition is being deleted, so that the object's end may let that go on.
    pub fn terminating(&self, namespace: &str, group: &str, plural: &str) -> bool {
        let mut key = super::objects::prefix("", "namespaces", "");
        key.extend_from_slice(namespace.as_bytes());
        let leaving = || self.objects.get(&key).ok().flatten().is_some_and(|n| object::deleting(&n.object));
        let ending = || {
            let served = self.registry.served();
            served.all().iter().any(|r| r.is(group, plural) && r.custom().is_some_and(|c| c.terminating))
        };
        (!namespace.is_empty() && leaving()) || ending()
    }

    /// Counts one more watch, or refuses.
    pub fn open_watch(&self, connection: &Arc<AtomicUsize>) -> Result<WatchPermit, Refusal> {
        let permit = WatchPermit { counts: [self.watches.clone(), connection.clone()] };
        let before = permit.counts.each_ref().map(|c| c.fetch_add(1, Ordering::Relaxed));
        if before[0] >= MAX_WATCHES || before[1] >= MAX_WATCHES_PER_CONNECTION {
            self.counters.watch_refusals.fetch_add(1, Ordering::Relaxed);
            return Err(Refusal::too_many("too many watches: close some or open another connection", 5));
        }
        Ok(permit)
    }
}

/// Counts a watch for as long as it lives.
pub struct WatchPermit {
    counts: [Arc<AtomicUsize>; 2],
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What to do about fields nobody knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    Ignore,
    Warn,
    Strict,
}

/// Which part of an object a request reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// The object without its status.
    Main,
    /// Only the status.
    Status,
    /// Parts only the server itself changes (binding, finalizing).
    Server,
}

/// One request on one resource.
pub struct Call<'a> {
    pub api: &'a Api,
    pub resource: Arc<Resource>,
    pub target: Target,
    pub query: Query,
    pub door: Door,
    pub manager: String,
    pub dry_run: bool,
    pub strictness: Strictness,
    pub time: k8s_openapi::jiff::Timestamp,
}

impl<'a> Call<'a> {
    /// A call the server itself makes.
    pub fn server(api: &'a Api, resource: Arc<Resource>, namespace: &str, name: &str) -> Self {
        let target = Target {
            group: resource.group.clone(),
            version: resource.version.clone(),
            namespace: namespace.to_owned(),
            plural: resource.plural.clone(),
            name: name.to_owned(),
            subresource: String::new(),
        };
        Self {
            api,
            resource,
            target,
            query: Query::default(),
            door: Door::Server,
            manager: "cell-sandbox".into(),
            dry_run: false,
            strictness: Strictness::Ignore,
            time: object::now(),
        }
    }

    /// The key of the object the call names.
    pub fn key(&self, name: &str) -> Vec<u8> {
        self.resource.key(&self.target.namespace, name)
    }

    /// 404 for the object named.
    pub fn not_found(&self, name: &str) -> Refusal {
        Refusal::not_found(&self.resource.group, &self.resource.plural, name)
    }

    /// 409 for the object named.
    pub fn conflict(&self, name: &str, why: &str) -> Refusal {
        Refusal::conflict(&self.resource.group, &self.resource.plural, name, why)
    }

    /// Runs `f` with the writer of this call.
    pub fn as_writer<T>(&self, f: impl FnOnce(Writer) -> T) -> T {
        let time = object::rfc3339(self.time);
        let api_version = self.resource.api_version();
        let subresource = self.target.subresource.as_str();
        f(Writer { manager: &self.manager, api_version: &api_version, subresource, time: &time })
    }
}
