//! Tests of the pure machine: single rules by name here, random schedules against a naive model in `model`.

mod model;

use std::time::Duration;

use bytes::Bytes;

use super::super::error::StoreError;
use super::super::options::AutoCompaction;
use super::super::types::*;
use super::{Limits, Mvcc};

pub(super) fn limits() -> Limits {
    Limits { quota_bytes: 1 << 20, max_request_bytes: 4096, max_txn_ops: 16, min_lease_ttl_seconds: 1, max_leases: 64 }
}

fn state() -> Mvcc {
    Mvcc::new(limits())
}

fn run(state: &mut Mvcc, txn: Txn) -> Result<TxnResult, StoreError> {
    let result = state.stage_txn(&txn);
    state.publish();
    result
}

fn put(state: &mut Mvcc, key: &'static str, value: &'static str) -> i64 {
    run(state, Txn::always(vec![Op::Put(Put::new(key, value))])).unwrap().revision
}

fn delete(state: &mut Mvcc, key: &'static str) -> i64 {
    run(state, Txn::always(vec![Op::Delete(Delete::single(key))])).unwrap().revision
}

fn values(state: &Mvcc, range: &Range) -> Vec<String> {
    let found = state.range(range).unwrap();
    found.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).collect()
}

fn grant(state: &mut Mvcc, id: i64, ttl_seconds: i64, now_ms: u64) {
    state.stage_grant(LeaseGrant { id: Some(id), ttl_seconds, owner: LeaseOwner::Etcd }, now_ms).unwrap();
    state.publish();
}

#[test]
fn the_first_write_is_revision_two_and_one_that_changes_nothing_has_none() {
    let mut state = state();
    assert_eq!(state.visible(), 1);
    assert_eq!(delete(&mut state, "a"), 1);
    assert_eq!(put(&mut state, "a", "1"), 2);
    assert_eq!(delete(&mut state, "a"), 3);
}

#[test]
fn staged_changes_are_invisible_until_published_and_leave_nothing_when_rolled_back() {
    let mut state = state();
    put(&mut state, "a", "1");
    state.stage_txn(&Txn::always(vec![Op::Put(Put::new("a", "2")), Op::Put(Put::new("b", "2"))])).unwrap();
    assert_eq!(values(&state, &Range::prefix("")), ["1"]);
    assert_eq!(state.visible(), 2);
    let bytes_before = state.bytes();
    state.roll_back();
    assert!(state.bytes() < bytes_before);
    assert_eq!(values(&state, &Range::prefix("")), ["1"]);
    assert_eq!(put(&mut state, "b", "3"), 3);
    assert_eq!(state.range(&Range::single("b")).unwrap().kvs[0].version, 1);
}

#[test]
fn a_refused_operation_undoes_the_operations_before_it() {
    let mut state = state();
    let txn = Txn::always(vec![Op::Put(Put::new("a", "1")), Op::Put(Put::new("b", "1").lease(9))]);
    assert_eq!(state.stage_txn(&txn), Err(StoreError::LeaseNotFound { id: 9 }));
    assert!(state.staged().0.is_empty());
    assert_eq!(state.bytes(), 0);
    assert_eq!(put(&mut state, "b", "2"), 2);
}

#[test]
fn a_missing_key_compares_as_zero_but_its_value_never_compares() {
    let mut state = state();
    let value = |op| Compare {
        start: Bytes::from("a"),
        end: RangeEnd::Single,
        op,
        target: CompareTarget::Value(Bytes::from("x")),
    };
    let holds = |state: &mut Mvcc, compare| run(state, Txn::when(compare, vec![])).unwrap().succeeded;
    assert!(holds(&mut state, Compare::absent("a")));
    assert!(holds(&mut state, Compare::mod_revision("a", 0)));
    assert!(!holds(&mut state, value(CompareOp::NotEqual)));
    put(&mut state, "a", "x");
    assert!(holds(&mut state, value(CompareOp::Equal)));
    assert!(!holds(&mut state, Compare::absent("a")));
    assert!(holds(&mut state, Compare::mod_revision("a", 2)));
}

#[test]
fn a_condition_over_a_range_must_hold_for_every_key() {
    let mut state = state();
    put(&mut state, "p/1", "x");
    put(&mut state, "p/2", "y");
    let compare = |value: &'static str, op| Compare {
        start: Bytes::from("p/"),
        end: RangeEnd::Prefix,
        op,
        target: CompareTarget::Value(Bytes::from(value)),
    };
    assert!(!run(&mut state, Txn::when(compare("x", CompareOp::Equal), vec![])).unwrap().succeeded);
    assert!(run(&mut state, Txn::when(compare("w", CompareOp::Greater), vec![])).unwrap().succeeded);
}

#[test]
fn nested_conditions_are_judged_before_the_transaction_and_reads_see_its_writes() {
    let mut state = state();
    let inner = Txn::when(Compare::absent("a"), vec![Op::Range(Range::single("a"))]);
    let txn = Txn::always(vec![Op::Put(Put::new("a", "1")), Op::Txn(inner)]);
    let result = run(&mut state, txn).unwrap();
    let OpResult::Txn(inner) = &result.responses[1] else { panic!("not a transaction: {result:?}") };
    assert!(inner.succeeded, "the key did not exist before the transaction");
    let OpResult::Range(found) = &inner.responses[0] else { panic!("not a range: {inner:?}") };
    assert_eq!(found.kvs[0].value, "1");
    assert_eq!((inner.revision, found.revision), (2, 2));
}

#[test]
fn a_key_written_twice_is_refused_at_any_depth_except_by_branches_that_exclude_each_other() {
    let mut state = state();
    let put = |key: &'static str| Op::Put(Put::new(key, "v"));
    let prefix =
        |start: &'static str| Op::Delete(Delete { start: Bytes::from(start), end: RangeEnd::Prefix, prev_kv: false });
    let refused = [
        vec![put("a"), put("a")],
        vec![prefix("a"), put("ab")],
        vec![put("ab"), prefix("a")],
        vec![put("a"), Op::Txn(Txn::always(vec![put("a")]))],
        vec![Op::Txn(Txn::always(vec![put("a")])), Op::Txn(Txn::always(vec![]).otherwise(vec![put("a")]))],
        vec![Op::Txn(Txn::always(vec![prefix("a")])), put("ab")],
        vec![put("ab"), Op::Txn(Txn::always(vec![prefix("a")]))],
    ];
    for ops in refused {
        assert_eq!(state.stage_txn(&Txn::always(ops.clone())), Err(StoreError::DuplicateKey), "{ops:?}");
    }
    let either = Op::Txn(Txn::always(vec![put("a")]).otherwise(vec![put("a")]));
    assert!(state.stage_txn(&Txn::always(vec![either])).is_ok());
    assert!(state.stage_txn(&Txn::always(vec![prefix("b"), prefix("b")])).is_ok());
}

#[test]
fn what_one_nested_transaction_puts_a_later_one_can_delete() {
    let mut state = state();
    let put = Op::Txn(Txn::always(vec![Op::Put(Put::new("a", "1"))]));
    let delete = Op::Txn(Txn::always(vec![Op::Delete(Delete::single("a"))]));
    let revision = run(&mut state, Txn::always(vec![put, delete])).unwrap().revision;
    assert_eq!(revision, 2);
    assert!(values(&state, &Range::prefix("")).is_empty());
    let kinds: Vec<_> = state.history(2).flat_map(|revision| &revision.changes).map(|change| change.kind()).collect();
    assert_eq!(kinds, [EventKind::Put, EventKind::Delete]);
    let plan = state.plan_compaction(2).unwrap();
    state.compact(&plan);
    assert!(values(&state, &Range::prefix("")).is_empty());
}

#[test]
fn what_is_too_large_too_many_too_deep_or_without_key_is_refused() {
    let mut state = state();
    let many = vec![Op::Range(Range::single("a")); 17];
    assert_eq!(state.stage_txn(&Txn::always(many)), Err(StoreError::TooManyOperations { operations: 17, max: 16 }));
    let large = Txn::always(vec![Op::Put(Put::new("a", vec![0; 4096]))]);
    assert_eq!(state.stage_txn(&large), Err(StoreError::RequestTooLarge { bytes: 4097, max: 4096 }));
    let deep = (0..40).fold(Txn::default(), |inner, _| Txn::always(vec![Op::Txn(inner)]));
    assert_eq!(state.stage_txn(&deep), Err(StoreError::NestedTooDeep { max: 16 }));
    assert_eq!(state.stage_txn(&Txn::always(vec![Op::Put(Put::new("", "v"))])), Err(StoreError::EmptyKey));
    assert_eq!(state.read_txn(&Txn::when(Compare::absent(""), vec![])), Err(StoreError::EmptyKey));
}

#[test]
fn the_quota_refuses_puts_and_compaction_makes_room() {
    let mut state = Mvcc::new(Limits { quota_bytes: 1000, ..limits() });
    let large = || Txn::always(vec![Op::Put(Put::new("a", vec![0; 300]))]);
    run(&mut state, large()).unwrap();
    run(&mut state, large()).unwrap();
    assert!(matches!(run(&mut state, large()), Err(StoreError::QuotaExceeded { max: 1000, .. })));
    let plan = state.plan_compaction(state.visible()).unwrap();
    state.compact(&plan);
    run(&mut state, large()).unwrap();
}

#[test]
fn keeping_value_or_lease_needs_a_key_that_exists() {
    let mut state = state();
    grant(&mut state, 7, 10, 0);
    let keep_value = |lease| Put { value: PutValue::Keep, lease, ..Put::new("a", "") };
    let txn = |put| Txn::always(vec![Op::Put(put)]);
    assert_eq!(state.stage_txn(&txn(keep_value(PutLease::None))), Err(StoreError::KeyNotFound));
    put(&mut state, "a", "1");
    run(&mut state, txn(keep_value(PutLease::Attach(7)))).unwrap();
    run(&mut state, txn(Put { lease: PutLease::Keep, ..Put::new("a", "2") })).unwrap();
    let kv = state.range(&Range::single("a")).unwrap().kvs[0].clone();
    assert_eq!((kv.value.as_ref(), kv.lease, kv.version), (&b"2"[..], 7, 3));
}

#[test]
fn an_ended_lease_deletes_its_keys_as_one_revision_and_cannot_be_renewed() {
    let mut state = state();
    grant(&mut state, 7, 10, 1000);
    for key in ["a", "b", "c"] {
        run(&mut state, Txn::always(vec![Op::Put(Put::new(key, "v").lease(7))])).unwrap();
    }
    put(&mut state, "c", "off the lease");
    assert_eq!(state.next_expiry_ms(), Some(11_000));
    assert_eq!(state.stage_expired(10_999, 10), 0);
    assert_eq!(state.keep_alive(7, 5000), Ok(10));
    assert_eq!(state.lease(7, 6000).unwrap().remaining_seconds, 9);
    assert_eq!(state.keep_alive(7, 15_000), Err(StoreError::LeaseNotFound { id: 7 }));
    assert_eq!(state.stage_expired(15_000, 10), 1);
    let published = state.publish();
    assert_eq!(published.len(), 1);
    assert_eq!(published[0].changes.len(), 2);
    assert_eq!(values(&state, &Range::prefix("")), ["off the lease"]);
    assert_eq!(state.lease(7, 15_000), None);
    assert_eq!(state.next_expiry_ms(), None);
}

#[test]
fn a_rolled_back_revocation_leaves_the_lease_with_its_keys() {
    let mut state = state();
    grant(&mut state, 7, 10, 0);
    run(&mut state, Txn::always(vec![Op::Put(Put::new("a", "v").lease(7))])).unwrap();
    state.stage_revoke(7).unwrap();
    state.roll_back();
    assert_eq!(state.lease(7, 0).unwrap().keys, ["a"]);
    assert_eq!(state.next_expiry_ms(), Some(10_000));
    state.stage_revoke(7).unwrap();
    state.publish();
    assert!(values(&state, &Range::prefix("")).is_empty());
}

#[test]
fn lease_ids_are_unique_bounded_and_of_their_owner() {
    let mut state = state();
    let ask = |id, ttl_seconds, owner| LeaseGrant { id, ttl_seconds, owner };
    let (etcd, internal) = (LeaseOwner::Etcd, LeaseOwner::Internal);
    assert_eq!(state.stage_grant(ask(Some(5), -3, etcd), 0), Ok((5, 1)));
    assert_eq!(state.stage_grant(ask(Some(5), 9, etcd), 0), Err(StoreError::LeaseExists { id: 5 }));
    for (id, owner) in [(-5, etcd), (5, internal), (0, etcd), (i64::MIN, etcd)] {
        assert_eq!(state.stage_grant(ask(Some(id), 9, owner), 0), Err(StoreError::LeaseIdOutOfRange { id }));
    }
    assert!(state.stage_grant(ask(None, 9, etcd), 0).unwrap().0 > 0);
    assert!(state.stage_grant(ask(None, 9, internal), 0).unwrap().0 < 0);
    let forever = state.stage_grant(ask(None, i64::MAX, etcd), 0);
    assert!(matches!(forever, Err(StoreError::LeaseTtlTooLarge { .. })));
    while state.leases().count() < 64 {
        state.stage_grant(ask(None, 9, etcd), 0).unwrap();
    }
    assert_eq!(state.stage_grant(ask(None, 9, etcd), 0), Err(StoreError::TooManyLeases { max: 64 }));
}

#[test]
fn empty_and_inverted_ranges_find_nothing() {
    let mut state = state();
    put(&mut state, "m", "1");
    for (start, end) in [("z", "a"), ("m", "m"), ("n", "m")] {
        let range = Range::new(start, RangeEnd::To(Bytes::from(end)));
        assert_eq!(state.range(&range).unwrap().count, 0);
        let delete = Delete { start: Bytes::from(start), end: RangeEnd::To(Bytes::from(end)), prev_kv: true };
        assert_eq!(run(&mut state, Txn::always(vec![Op::Delete(delete)])).unwrap().revision, 2);
    }
    put(&mut state, "\u{7f}", "2");
    let last = Range::prefix(vec![0xff, 0xff]);
    assert_eq!(state.range(&last).unwrap().count, 0);
    assert_eq!(state.range(&Range::new("m", RangeEnd::FromKey)).unwrap().count, 2);
}

#[test]
fn limits_cut_and_counts_do_not() {
    let mut state = state();
    for key in ["a", "b", "c"] {
        put(&mut state, key, "v");
    }
    let found = state.range(&Range::prefix("").limit(2)).unwrap();
    assert_eq!((found.kvs.len(), found.count, found.more), (2, 3, true));
    let found = state.range(&Range::prefix("").limit(3)).unwrap();
    assert_eq!((found.kvs.len(), found.count, found.more), (3, 3, false));
    let found = state.range(&Range { keys_only: true, ..Range::single("a") }).unwrap();
    assert!(found.kvs[0].value.is_empty());
    let found = state.range(&Range { count_only: true, ..Range::prefix("") }).unwrap();
    assert_eq!((found.kvs.len(), found.count), (0, 3));
}

#[test]
fn compaction_hides_older_revisions_only() {
    let mut state = state();
    let (first, second) = (put(&mut state, "a", "1"), put(&mut state, "a", "2"));
    let gone = delete(&mut state, "a");
    put(&mut state, "b", "1");
    let future = state.plan_compaction(99);
    assert_eq!(future, Err(StoreError::FutureRevision { requested: 99, current: 5 }));
    let plan = state.plan_compaction(second).unwrap();
    state.compact(&plan);
    let old = state.range(&Range::single("a").at(first));
    assert_eq!(old, Err(StoreError::Compacted { requested: first, compacted: second }));
    assert_eq!(values(&state, &Range::single("a").at(second)), ["2"]);
    let again = state.plan_compaction(second);
    assert_eq!(again, Err(StoreError::Compacted { requested: second, compacted: second }));
    let plan = state.plan_compaction(gone).unwrap();
    state.compact(&plan);
    assert_eq!(state.history(gone).count(), 2, "the deletion itself can still be watched");
    let plan = state.plan_compaction(5).unwrap();
    state.compact(&plan);
    assert_eq!(state.key_count(), 1, "nothing of the deleted key remains");
}

#[test]
fn history_is_compacted_by_age_count_and_bytes() {
    let policy = AutoCompaction { keep_revisions: 1000, keep_for: Duration::from_secs(100), keep_bytes: 1 << 30 };
    let mut state = state();
    assert_eq!(state.compaction_due(policy, 0), None);
    put(&mut state, "a", "1");
    assert_eq!(state.compaction_due(policy, 50_000), None);
    put(&mut state, "a", "2");
    assert_eq!(state.compaction_due(policy, 99_999), None);
    assert_eq!(state.compaction_due(policy, 150_000), Some(2), "what was newest 100 s ago can still be read");

    let few = AutoCompaction { keep_revisions: 8, ..policy };
    let mut state = self::state();
    let mut compactions = 0;
    for _ in 0..100 {
        put(&mut state, "a", "1");
        if let Some(revision) = state.compaction_due(few, 0) {
            let plan = state.plan_compaction(revision).unwrap();
            state.compact(&plan);
            compactions += 1;
        }
        assert!(state.visible() - state.compacted() <= 9);
    }
    assert!(compactions > 10);

    let small = AutoCompaction { keep_bytes: 1000, ..policy };
    let mut state = self::state();
    for _ in 0..100 {
        put(&mut state, "a", "1");
        if let Some(revision) = state.compaction_due(small, 0) {
            let plan = state.plan_compaction(revision).unwrap();
            state.compact(&plan);
        }
        assert!(state.history_bytes <= 1000, "{}", state.history_bytes);
        assert!(state.history(0).count() > 0);
    }
}

#[test]
fn a_store_with_a_hole_in_its_revisions_is_not_restored() {
    let kv = |revision| KeyValue {
        key: Bytes::from("a"),
        value: Bytes::new(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease: 0,
    };
    assert!(Mvcc::restore(limits(), 0, [], [(0, kv(2)), (0, kv(3))], 0).is_ok());
    assert!(Mvcc::restore(limits(), 5, [], [(0, kv(2)), (0, kv(5)), (0, kv(6))], 0).is_ok());
    let hole = Mvcc::restore(limits(), 0, [], [(0, kv(2)), (0, kv(5))], 0).err();
    assert_eq!(hole.as_deref(), Some("revisions 3 to 4 are missing"));
    assert!(Mvcc::restore(limits(), 3, [], [(0, kv(2)), (0, kv(5))], 0).is_err());
}
