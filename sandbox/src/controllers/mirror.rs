//! An in-memory copy of one resource kind, fed by a watch. It decides when a copy is fresh enough to act on (it has seen a given
//! resourceVersion, or a list begun later than it); it never writes to the API server.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// Key of an object: namespace (empty for cluster-scoped kinds) and name.
pub type Key = (String, String);

/// The key of any object.
pub fn key_of<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The resourceVersion of an object as a number; 0 when it has none or it is not numeric.
pub fn version_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What must have been seen before a controller may act again: its own last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    version: u64,
    list: u64,
}

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    incoming: Option<BTreeMap<Key, Arc<K>>>,
    newest: u64,
    lists_begun: u64,
    list_done: u64,
    undecodable: u64,
}

/// A shared, read-only handle on the copy.
pub struct Mirror<K> {
    state: Arc<RwLock<State<K>>>,
    changed: Arc<watch::Sender<u64>>,
}

impl<K> Clone for Mirror<K> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), changed: self.changed.clone() }
    }
}

impl<K> Default for Mirror<K> {
    fn default() -> Self {
        let state =
            State { objects: BTreeMap::new(), incoming: None, newest: 0, lists_begun: 0, list_done: 0, undecodable: 0 };
        Self { state: Arc::new(RwLock::new(state)), changed: Arc::new(watch::channel(0).0) }
    }
}

impl<K: Resource + Clone> Mirror<K> {
    /// Every object, in key order.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.state.read().objects.values().cloned().collect()
    }

    /// One object by namespace (empty when cluster-scoped) and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.state.read().objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// True once a whole list has arrived.
    pub fn synced(&self) -> bool {
        self.state.read().list_done > 0
    }

    /// How many objects could not be decoded and are left out.
    pub fn undecodable(&self) -> u64 {
        self.state.read().undecodable
    }

    /// A receiver that changes whenever the copy does.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The mark a controller keeps after writing an object that answered with `version`.
    pub fn mark(&self, version: u64) -> Seen {
        Seen { version, list: self.state.read().lists_begun }
    }

    /// True when the copy holds everything up to `mark`: it saw that version or a later one, or a whole list begun after the write.
    pub fn has_seen(&self, mark: Seen) -> bool {
        let state = self.state.read();
        state.newest >= mark.version || state.list_done > mark.list
    }

    /// Takes one watch event. Public so that tests can replay stale and collapsed histories.
    pub fn take(&self, event: watcher::Event<K>) {
        {
            let mut state = self.state.write();
            match event {
                watcher::Event::Init => {
                    state.lists_begun += 1;
                    state.incoming = Some(BTreeMap::new());
                }
                watcher::Event::InitApply(object) => {
                    state.newest = state.newest.max(version_of(&object));
                    let key = key_of(&object);
                    if let Some(incoming) = state.incoming.as_mut() {
                        incoming.insert(key, Arc::new(object));
                    }
                }
                watcher::Event::InitDone => {
                    if let Some(incoming) = state.incoming.take() {
                        state.objects = incoming;
                    }
                    state.list_done = state.lists_begun;
                }
                watcher::Event::Apply(object) => {
                    state.newest = state.newest.max(version_of(&object));
                    state.objects.insert(key_of(&object), Arc::new(object));
                }
                watcher::Event::Delete(object) => {
                    state.newest = state.newest.max(version_of(&object));
                    state.objects.remove(&key_of(&object));
                }
            }
        }
        self.changed.send_modify(|count| *count += 1);
    }

    fn note_undecodable(&self, kind: &str, error: &str) {
        self.state.write().undecodable += 1;
        tracing::warn!(kind, error, "skip an object that cannot be decoded");
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Follows `api` for ever, feeding `mirror`. Watch errors are retried from 200 ms up to every 5 s; an object that cannot be decoded
/// is left out alone.
pub async fn follow<K>(api: Api<DeserializeGuard<K>>, mirror: Mirror<K>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let kind = K::kind(&()).into_owned();
    let mut stream = watcher(api, watcher::Config::default().timeout(200)).boxed();
    let mut retry = FIRST_RETRY;
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                retry = FIRST_RETRY;
                feed(&kind, &mirror, event);
            }
            Err(error) => {
                tracing::info!(kind, error = %error, retry_ms = retry.as_millis() as u64, "watch interrupted");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }
}

fn feed<K: Resource<DynamicType = ()> + Clone>(
    kind: &str,
    mirror: &Mirror<K>,
    event: watcher::Event<DeserializeGuard<K>>,
) {
    let decoded = match event {
        watcher::Event::Init => return mirror.take(watcher::Event::Init),
        watcher::Event::InitDone => return mirror.take(watcher::Event::InitDone),
        watcher::Event::InitApply(guard) => guard.0.map(watcher::Event::InitApply),
        watcher::Event::Apply(guard) => guard.0.map(watcher::Event::Apply),
        watcher::Event::Delete(guard) => guard.0.map(watcher::Event::Delete),
    };
    match decoded {
        Ok(event) => mirror.take(event),
        Err(invalid) => mirror.note_undecodable(kind, &invalid.error),
    }
}

/// Starts a mirror of all objects of a namespaced kind: the handle, and the future that feeds it.
pub fn of_all_namespaces<K>(client: &Client) -> (Mirror<K>, impl Future<Output = ()> + Send + 'static)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let mirror = Mirror::default();
    (mirror.clone(), follow(Api::all(client.clone()), mirror))
}

/// Starts a mirror of a kind of any scope: the handle, and the future that feeds it.
pub fn of_cluster<K>(client: &Client) -> (Mirror<K>, impl Future<Output = ()> + Send + 'static)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let mirror = Mirror::default();
    (mirror.clone(), follow(Api::all(client.clone()), mirror))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    fn pod(name: &str, version: u64) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        pod.metadata.namespace = Some("n".into());
        pod.metadata.resource_version = Some(version.to_string());
        pod
    }

    #[test]
    fn a_write_is_unseen_until_its_version_arrives() {
        let mirror = Mirror::<Pod>::default();
        mirror.take(watcher::Event::Init);
        mirror.take(watcher::Event::InitDone);
        let mark = mirror.mark(7);
        assert!(!mirror.has_seen(mark));
        mirror.take(watcher::Event::Apply(pod("a", 6)));
        assert!(!mirror.has_seen(mark));
        mirror.take(watcher::Event::Apply(pod("a", 7)));
        assert!(mirror.has_seen(mark));
    }

    #[test]
    fn a_list_begun_after_the_write_settles_it_and_one_begun_before_does_not() {
        let mirror = Mirror::<Pod>::default();
        mirror.take(watcher::Event::Init);
        let mark = mirror.mark(9);
        mirror.take(watcher::Event::InitDone);
        assert!(!mirror.has_seen(mark));
        mirror.take(watcher::Event::Init);
        mirror.take(watcher::Event::InitDone);
        assert!(mirror.has_seen(mark));
    }

    #[test]
    fn a_new_list_drops_what_it_does_not_name() {
        let mirror = Mirror::<Pod>::default();
        mirror.take(watcher::Event::Init);
        mirror.take(watcher::Event::InitApply(pod("gone", 1)));
        mirror.take(watcher::Event::InitDone);
        mirror.take(watcher::Event::Init);
        mirror.take(watcher::Event::InitApply(pod("here", 2)));
        assert!(mirror.get("n", "gone").is_some(), "the old copy serves until the new one is whole");
        mirror.take(watcher::Event::InitDone);
        assert!(mirror.get("n", "gone").is_none() && mirror.get("n", "here").is_some());
    }
}
