//! Objects in the store: keys, JSON, revisions as resource versions, compare-and-set. It knows no kinds and makes no decision but
//! what a store error means to a client.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::object;
use super::status::{Cause, Reason, Refusal};
use crate::store::{
    Compare, Delete, KUBE_PREFIX, KeyValue, Op, Put, Range, RangeEnd, Store, StoreError, Txn, Watch, WatchFrom,
};

/// An object as it is stored, with its resource version filled in.
#[derive(Debug, Clone)]
pub struct Stored {
    pub key: Bytes,
    pub object: Value,
    pub revision: i64,
}

/// One page of a collection.
#[derive(Debug, Default)]
pub struct Page {
    pub items: Vec<Stored>,
    /// The revision the page shows.
    pub revision: i64,
    /// More keys follow the last one.
    pub more: bool,
}

/// The objects of the Kubernetes API.
#[derive(Clone)]
pub struct Objects {
    store: Store,
}

/// The prefix of a collection's keys; an empty namespace means all of them.
pub fn prefix(group: &str, plural: &str, namespace: &str) -> Vec<u8> {
    let group = if group.is_empty() { "core" } else { group };
    let mut key = KUBE_PREFIX.to_vec();
    key.extend_from_slice(format!("{group}/{plural}/").as_bytes());
    if !namespace.is_empty() {
        key.extend_from_slice(format!("{namespace}/").as_bytes());
    }
    key
}

impl Objects {
    /// The store itself, for backups.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Over a store shared with the etcd API.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// The newest revision.
    pub fn revision(&self) -> i64 {
        self.store.revision()
    }

    /// One object, or none.
    pub fn get(&self, key: &[u8]) -> Result<Option<Stored>, Refusal> {
        let found = self.store.range(&Range::single(Bytes::copy_from_slice(key))).map_err(refuse)?;
        found.kvs.first().map(decode).transpose()
    }

    /// Objects of a collection from `start` on (or from its beginning), as they were at `revision`; 0 as `limit` means all.
    pub fn page(
        &self,
        prefix: &[u8],
        start: Option<&[u8]>,
        revision: Option<i64>,
        limit: usize,
    ) -> Result<Page, Refusal> {
        let mut range = match start {
            None => Range::prefix(Bytes::copy_from_slice(prefix)),
            Some(start) => Range::new(Bytes::copy_from_slice(start), RangeEnd::To(end_of(prefix))),
        };
        range.limit = limit;
        range.revision = revision;
        let found = self.store.range(&range).map_err(refuse)?;
        let items = found.kvs.iter().map(decode).collect::<Result<Vec<_>, _>>()?;
        Ok(Page { items, revision: revision.unwrap_or(found.revision), more: found.more })
    }

    /// Every object of a collection, newest state.
    pub fn all(&self, prefix: &[u8]) -> Result<Page, Refusal> {
        self.page(prefix, None, None, 0)
    }

    /// How many objects a collection has.
    pub fn count(&self, prefix: &[u8]) -> Result<usize, Refusal> {
        let mut range = Range::prefix(Bytes::copy_from_slice(prefix));
        range.count_only = true;
        Ok(self.store.range(&range).map_err(refuse)?.count)
    }

    /// How many objects of a collection follow `start`, as they were at `revision`.
    pub fn count_from(&self, prefix: &[u8], start: &[u8], revision: i64) -> Result<usize, Refusal> {
        let mut range = Range::new(Bytes::copy_from_slice(start), RangeEnd::To(end_of(prefix))).at(revision);
        range.count_only = true;
        Ok(self.store.range(&range).map_err(refuse)?.count)
    }

    /// Creates an object; `None` if the key is taken.
    pub async fn create(&self, key: &[u8], object: &Value) -> Result<Option<Stored>, Refusal> {
        self.put(Compare::absent(Bytes::copy_from_slice(key)), key, object).await
    }

    /// Replaces an object last written at `revision`; `None` if it is not that any more.
    pub async fn replace(&self, key: &[u8], object: &Value, revision: i64) -> Result<Option<Stored>, Refusal> {
        self.put(Compare::mod_revision(Bytes::copy_from_slice(key), revision), key, object).await
    }

    async fn put(&self, compare: Compare, key: &[u8], object: &Value) -> Result<Option<Stored>, Refusal> {
        let mut object = object.clone();
        object::remove_meta(&mut object, "resourceVersion");
        let bytes = serde_json::to_vec(&object).map_err(Refusal::internal)?;
        let key = Bytes::copy_from_slice(key);
        let txn = Txn::when(compare, vec![Op::Put(Put::new(key.clone(), bytes))]);
        let done = self.store.txn(txn).await.map_err(refuse)?;
        if !done.succeeded {
            return Ok(None);
        }
        object::set_meta(&mut object, "resourceVersion", done.revision.to_string());
        Ok(Some(Stored { key, object, revision: done.revision }))
    }

    /// Deletes an object last written at `revision`; `None` if it is not that any more, else the revision of the deletion.
    pub async fn delete(&self, key: &[u8], revision: i64) -> Result<Option<i64>, Refusal> {
        let key = Bytes::copy_from_slice(key);
        let compare = Compare::mod_revision(key.clone(), revision);
        let done = self.store.txn(Txn::when(compare, vec![Op::Delete(Delete::single(key))])).await.map_err(refuse)?;
        Ok(done.succeeded.then_some(done.revision))
    }

    /// Changes of a collection after `revision`, with the versions they replaced.
    pub fn watch(&self, prefix: &[u8], revision: i64) -> Result<Watch, Refusal> {
        let mut from = WatchFrom::prefix(Bytes::copy_from_slice(prefix), Some(revision + 1));
        from.prev_kv = true;
        self.store.watch(from).map_err(refuse)
    }
}

/// Reads a stored version as an object.
pub fn decode(kv: &Arc<KeyValue>) -> Result<Stored, Refusal> {
    let mut object: Value = serde_json::from_slice(&kv.value).map_err(|e| {
        Refusal::internal(format!("object at {:?} cannot be read: {e}", String::from_utf8_lossy(&kv.key)))
    })?;
    object::set_meta(&mut object, "resourceVersion", kv.mod_revision.to_string());
    Ok(Stored { key: kv.key.clone(), object, revision: kv.mod_revision })
}

fn end_of(prefix: &[u8]) -> Bytes {
    // Every prefix ends in '/', so the next byte string is that with '0'.
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Bytes::from(end)
}

/// What a store error means to a client.
pub fn refuse(error: StoreError) -> Refusal {
    match &error {
        StoreError::Compacted { requested, compacted } => {
            Refusal::expired(format!("too old resource version: {requested} ({compacted})"))
        }
        StoreError::FutureRevision { requested, current } => too_large(*requested, *current),
        StoreError::RequestTooLarge { .. } | StoreError::TooManyOperations { .. } => {
            Refusal::new(Reason::RequestEntityTooLarge, error.to_string())
        }
        StoreError::TooManyWatches { .. } => Refusal::too_many(error.to_string(), 5),
        StoreError::Timeout => Refusal::new(Reason::Timeout, error.to_string()),
        StoreError::Closed => Refusal::new(Reason::ServiceUnavailable, error.to_string()),
        _ => Refusal::internal(error),
    }
}

/// 504 for a revision that does not exist yet.
pub fn too_large(requested: i64, current: i64) -> Refusal {
    let refusal =
        Refusal::new(Reason::Timeout, format!("Timeout: Too large resource version: {requested}, current: {current}"))
            .retry_after(1);
    let message = "Too large resource version".to_owned();
    refusal.because(vec![Cause { reason: "ResourceVersionTooLarge", message, field: String::new() }])
}
