//! Tests of the whole store on a real directory.

mod backup;
mod disk;
mod kill;
mod service;
mod watching;

use std::path::Path;
use std::time::Duration;

use super::*;

pub(super) fn options() -> StoreOptions {
    StoreOptions { auto_compaction: None, min_lease_ttl_seconds: 1, ..StoreOptions::sandbox() }
}

pub(super) fn open(dir: &Path) -> Store {
    Store::open(dir, options()).unwrap()
}

pub(super) async fn put(store: &Store, key: &str, value: &str) -> i64 {
    let put = Put::new(key.to_owned(), value.to_owned());
    store.txn(Txn::always(vec![Op::Put(put)])).await.unwrap().revision
}

pub(super) async fn delete(store: &Store, key: &str) -> i64 {
    store.txn(Txn::always(vec![Op::Delete(Delete::single(key.to_owned()))])).await.unwrap().revision
}

pub(super) fn value(store: &Store, key: &str) -> Option<String> {
    let found = store.range(&Range::single(key.to_owned())).unwrap();
    found.kvs.first().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap())
}

/// Waits for something that must come; the deadline is only for the test to end when it does not.
pub(super) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it did not happen within 30 s")
}
