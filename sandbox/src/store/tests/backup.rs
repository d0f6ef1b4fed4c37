//! A whole store in one file, and back.

use super::super::backup::{BackupError, check, restore};
use super::*;

async fn filled(dir: &Path) -> Store {
    let store = open(dir);
    for number in 0..2_500 {
        put(&store, &format!("k{}", number % 1_200), &format!("v{number}")).await;
    }
    delete(&store, "k7").await;
    store.lease_grant(LeaseGrant { id: Some(9), ttl_seconds: 60, owner: LeaseOwner::Etcd }).await.unwrap();
    let leased = Put::new("leased", "x").lease(9);
    let two = vec![Op::Put(leased), Op::Put(Put::new("beside", "y"))];
    store.txn(Txn::always(two)).await.unwrap();
    store
}

#[tokio::test]
async fn a_restored_store_has_the_same_keys_and_leases_at_a_later_revision() {
    let root = tempfile::tempdir().unwrap();
    let store = filled(&root.path().join("a")).await;
    let mut file = Vec::new();
    let info = store.backup(&mut file).unwrap();
    let live = store.range(&Range::prefix("")).unwrap();
    assert_eq!((info.revision, info.keys as usize, info.leases), (store.revision(), live.kvs.len(), 1));
    put(&store, "after", "is not in it").await;
    assert_eq!(check(&mut file.as_slice()).unwrap(), info);
    let other = root.path().join("b");
    assert_eq!(restore(&other, &mut file.as_slice(), false).unwrap(), info);
    let restored = open(&other);
    assert_eq!(restored.range(&Range::prefix("")).unwrap().kvs, live.kvs);
    assert_eq!(restored.lease(9).unwrap().keys, ["leased"]);
    assert!(restored.revision() > store.revision(), "no client takes an old view for a new one");
    let old = restored.watch(WatchFrom::prefix("", Some(info.revision)));
    assert!(matches!(old, Err(StoreError::Compacted { .. })), "who watched before must list anew");
    let next = put(&restored, "k1", "goes on").await;
    assert_eq!(next, restored.revision());
    restored.close().await;
    drop(restored);
    assert_eq!(value(&open(&other), "k1").unwrap(), "goes on");
}

#[tokio::test]
async fn a_store_is_replaced_only_when_asked_and_never_while_in_use() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a");
    let store = filled(&dir).await;
    let mut file = Vec::new();
    store.backup(&mut file).unwrap();
    put(&store, "later", "1").await;
    let refused = |overwrite: bool| restore(&dir, &mut file.as_slice(), overwrite).unwrap_err();
    assert!(matches!(refused(false), BackupError::Exists { .. }));
    assert!(matches!(refused(true), BackupError::Open(OpenError::Locked { .. })));
    store.close().await;
    drop(store);
    let mut cut = &file[..file.len() - 1];
    assert!(matches!(restore(&dir, &mut cut, true), Err(BackupError::Damaged(_))));
    assert_eq!(value(&open(&dir), "later").unwrap(), "1", "a restore that failed left everything as it was");
    restore(&dir, &mut file.as_slice(), true).unwrap();
    assert_eq!(value(&open(&dir), "later"), None);
    let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["a"], "nothing unfinished is left beside it");
}

#[tokio::test]
async fn a_cut_or_flipped_file_is_refused_wherever_it_is_damaged() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("a"));
    for number in 0..20 {
        put(&store, &format!("k{number}"), "value").await;
    }
    let mut file = Vec::new();
    store.backup(&mut file).unwrap();
    for at in 0..file.len() {
        assert!(matches!(check(&mut &file[..at]), Err(BackupError::Damaged(_))), "cut at {at}");
        let mut flipped = file.clone();
        flipped[at] ^= 0x20;
        assert!(matches!(check(&mut flipped.as_slice()), Err(BackupError::Damaged(_))), "byte {at}");
    }
    file.push(0);
    assert!(check(&mut file.as_slice()).is_err(), "and something after its end");
}
