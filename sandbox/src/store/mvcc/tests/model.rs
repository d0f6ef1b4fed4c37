//! Random schedules against a model so plain that it can be believed: one whole map of keys per revision. Writes are published or
//! rolled back, history is compacted, and now and then the state is rebuilt from what a disk would hold.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;

use super::super::super::error::StoreError;
use super::super::super::types::*;
use super::super::{LeaseWrite, Mvcc};
use super::limits;

const KEYS: [&str; 6] = ["a", "a/1", "a/2", "b", "b/1", "c"];

type Snapshot = BTreeMap<Bytes, KeyValue>;

#[derive(Debug, Clone)]
enum Step {
    Write { txns: Vec<Txn>, durable: bool },
    Grant { id: i64, ttl_seconds: i64 },
    Revoke { id: i64 },
    Pass { ms: u64 },
    Compact { back: i64 },
    Restart,
}

fn key() -> impl Strategy<Value = Bytes> {
    prop::sample::select(&KEYS[..]).prop_map(Bytes::from)
}

fn span() -> impl Strategy<Value = (Bytes, RangeEnd)> {
    let end = prop_oneof![
        3 => Just(RangeEnd::Single),
        2 => Just(RangeEnd::Prefix),
        1 => key().prop_map(RangeEnd::To),
        1 => Just(RangeEnd::FromKey),
    ];
    (key(), end)
}

fn compare() -> impl Strategy<Value = Compare> {
    let op = prop::sample::select(&[CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less][..]);
    let target = prop_oneof![
        (0..4i64).prop_map(CompareTarget::Version),
        (0..12i64).prop_map(CompareTarget::CreateRevision),
        (0..12i64).prop_map(CompareTarget::ModRevision),
        (0..4i64).prop_map(CompareTarget::Lease),
        "[xy]".prop_map(|value| CompareTarget::Value(Bytes::from(value))),
    ];
    (span(), op, target).prop_map(|((start, end), op, target)| Compare { start, end, op, target })
}

fn op() -> impl Strategy<Value = Op> {
    let value =
        prop_oneof![4 => "[xyz]{1,3}".prop_map(|value| PutValue::Set(Bytes::from(value))), 1 => Just(PutValue::Keep)];
    let lease =
        prop_oneof![4 => Just(PutLease::None), 3 => (1..4i64).prop_map(PutLease::Attach), 1 => Just(PutLease::Keep)];
    let put = (key(), value, lease).prop_map(|(key, value, lease)| Op::Put(Put { key, value, lease, prev_kv: true }));
    let delete = span().prop_map(|(start, end)| Op::Delete(Delete { start, end, prev_kv: true }));
    let range = span().prop_map(|(start, end)| Op::Range(Range::new(start, end)));
    prop_oneof![4 => put, 1 => delete, 1 => range]
}

fn flat_txn() -> impl Strategy<Value = Txn> {
    let compares = prop::collection::vec(compare(), 0..2);
    (compares, prop::collection::vec(op(), 0..3), prop::collection::vec(op(), 0..2))
        .prop_map(|(compares, success, failure)| Txn { compares, success, failure })
}

fn txn() -> impl Strategy<Value = Txn> {
    (flat_txn(), prop::option::weighted(0.2, flat_txn())).prop_map(|(mut txn, nested)| {
        txn.success.extend(nested.map(Op::Txn));
        txn
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (prop::collection::vec(txn(), 1..4), prop::bool::weighted(0.85))
            .prop_map(|(txns, durable)| Step::Write { txns, durable }),
        2 => (1..4i64, 1..20i64).prop_map(|(id, ttl_seconds)| Step::Grant { id, ttl_seconds }),
        1 => (1..4i64).prop_map(|id| Step::Revoke { id }),
        1 => (0..15_000u64).prop_map(|ms| Step::Pass { ms }),
        2 => (0..6i64).prop_map(|back| Step::Compact { back }),
        1 => Just(Step::Restart),
    ]
}

/// The believable one.
struct Model {
    /// The whole state at each revision, from revision 1 on.
    snapshots: Vec<Snapshot>,
    compacted: i64,
    /// Seconds granted and the time of expiry, by id.
    leases: BTreeMap<i64, (i64, u64)>,
}

impl Model {
    fn revision(&self) -> i64 {
        self.snapshots.len() as i64
    }

    fn newest(&self) -> Snapshot {
        self.snapshots.last().unwrap().clone()
    }

    fn within(snapshot: &Snapshot, start: &Bytes, end: &RangeEnd) -> Vec<KeyValue> {
        snapshot.values().filter(|kv| end.contains(start, &kv.key)).cloned().collect()
    }

    fn holds(snapshot: &Snapshot, compare: &Compare) -> bool {
        let found = Self::within(snapshot, &compare.start, &compare.end);
        let zero = (0, 0, 0, 0, None);
        let fields =
            |kv: &KeyValue| (kv.version, kv.create_revision, kv.mod_revision, kv.lease, Some(kv.value.clone()));
        let rows = if found.is_empty() { vec![zero] } else { found.iter().map(fields).collect() };
        rows.into_iter().all(|(version, create, modified, lease, value)| {
            let ordering = match &compare.target {
                CompareTarget::Version(wanted) => version.cmp(wanted),
                CompareTarget::CreateRevision(wanted) => create.cmp(wanted),
                CompareTarget::ModRevision(wanted) => modified.cmp(wanted),
                CompareTarget::Lease(wanted) => lease.cmp(wanted),
                CompareTarget::Value(wanted) => match value {
                    None => return false,
                    Some(value) => value.cmp(wanted),
                },
            };
            match compare.op {
                CompareOp::Equal => ordering.is_eq(),
                CompareOp::NotEqual => ordering.is_ne(),
                CompareOp::Greater => ordering.is_gt(),
                CompareOp::Less => ordering.is_lt(),
            }
        })
    }

    fn run(&self, txn: &Txn, before: &Snapshot, now: &mut Snapshot) -> Result<(bool, Vec<Seen>), StoreError> {
        let revision = self.revision() + 1;
        let succeeded = txn.compares.iter().all(|compare| Self::holds(before, compare));
        let mut seen = Vec::new();
        for op in if succeeded { &txn.success } else { &txn.failure } {
            match op {
                Op::Range(range) => seen.push(Seen::Keys(Self::within(now, &range.start, &range.end))),
                Op::Delete(delete) => {
                    let gone = Self::within(now, &delete.start, &delete.end);
                    now.retain(|key, _| !delete.end.contains(&delete.start, key));
                    seen.push(Seen::Keys(gone));
                }
                Op::Put(put) => {
                    let prev = now.get(&put.key).cloned();
                    let value = match (&put.value, &prev) {
                        (PutValue::Set(value), _) => value.clone(),
                        (PutValue::Keep, prev) => prev.clone().ok_or(StoreError::KeyNotFound)?.value,
                    };
                    let lease = match (put.lease, &prev) {
                        (PutLease::None, _) => 0,
                        (PutLease::Attach(id), _) if self.leases.contains_key(&id) => id,
                        (PutLease::Attach(id), _) => return Err(StoreError::LeaseNotFound { id }),
                        (PutLease::Keep, prev) => prev.clone().ok_or(StoreError::KeyNotFound)?.lease,
                    };
                    let create_revision = prev.as_ref().map_or(revision, |prev| prev.create_revision);
                    let version = prev.as_ref().map_or(1, |prev| prev.version + 1);
                    let key = put.key.clone();
                    let kv = KeyValue { key, value, create_revision, mod_revision: revision, version, lease };
                    now.insert(put.key.clone(), kv);
                    seen.push(Seen::Keys(prev.into_iter().collect()));
                }
                Op::Txn(inner) => {
                    let (succeeded, inner) = self.run(inner, before, now)?;
                    seen.push(Seen::Nested(succeeded, inner));
                }
            }
        }
        Ok((succeeded, seen))
    }

    /// Ends a lease: its keys go as one revision.
    fn end_lease(&mut self, id: i64) {
        self.leases.remove(&id);
        let mut now = self.newest();
        let before = now.len();
        now.retain(|_, kv| kv.lease != id);
        if now.len() < before {
            self.snapshots.push(now);
        }
    }
}

/// What an operation answered, reduced to what both sides can tell.
#[derive(Debug, PartialEq)]
enum Seen {
    Keys(Vec<KeyValue>),
    Nested(bool, Vec<Seen>),
}

fn seen(responses: &[OpResult]) -> Vec<Seen> {
    let owned = |kvs: &[std::sync::Arc<KeyValue>]| kvs.iter().map(|kv| (**kv).clone()).collect();
    let seen = responses.iter().map(|response| match response {
        OpResult::Range(found) => Seen::Keys(owned(&found.kvs)),
        OpResult::Put(result) => Seen::Keys(result.prev.iter().map(|kv| (**kv).clone()).collect()),
        OpResult::Delete(result) => Seen::Keys(owned(&result.prev)),
        OpResult::Txn(result) => Seen::Nested(result.succeeded, seen(&result.responses)),
    });
    seen.collect()
}

/// What a disk holds.
#[derive(Default)]
struct Disk {
    versions: BTreeMap<(i64, u32), KeyValue>,
    leases: BTreeMap<i64, i64>,
    compacted: i64,
}

struct Pair {
    state: Mvcc,
    model: Model,
    disk: Disk,
    now_ms: u64,
}

impl Pair {
    fn new() -> Self {
        let model = Model { snapshots: vec![Snapshot::new()], compacted: 0, leases: BTreeMap::new() };
        Self { state: Mvcc::new(limits()), model, disk: Disk::default(), now_ms: 0 }
    }

    fn publish(&mut self) {
        let (revisions, leases) = self.state.staged();
        for change in revisions.iter().flat_map(|revision| &revision.changes) {
            let replaced = self.disk.versions.insert((change.kv.mod_revision, change.sub), (*change.kv).clone());
            assert_eq!(replaced, None, "two changes have one place");
        }
        for lease in leases {
            match lease {
                LeaseWrite::Put { id, ttl_seconds } => drop(self.disk.leases.insert(*id, *ttl_seconds)),
                LeaseWrite::Remove { id } => drop(self.disk.leases.remove(id)),
            }
        }
        self.state.publish();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { txns, durable } => self.write(&txns, durable),
            Step::Grant { id, ttl_seconds } => {
                let grant = LeaseGrant { id: Some(id), ttl_seconds, owner: LeaseOwner::Etcd };
                let granted = self.state.stage_grant(grant, self.now_ms).is_ok();
                assert_eq!(granted, !self.model.leases.contains_key(&id));
                if granted {
                    let expires = self.now_ms + ttl_seconds as u64 * 1000;
                    self.model.leases.insert(id, (ttl_seconds, expires));
                }
                self.publish();
            }
            Step::Revoke { id } => {
                let revoked = self.state.stage_revoke(id).is_ok();
                assert_eq!(revoked, self.model.leases.contains_key(&id));
                if revoked {
                    self.model.end_lease(id);
                }
                self.publish();
            }
            Step::Pass { ms } => self.pass(ms),
            Step::Compact { back } => self.compact(self.model.revision() - back),
            Step::Restart => self.restart(),
        }
    }

    fn write(&mut self, txns: &[Txn], durable: bool) {
        let before = self.model.snapshots.len();
        for txn in txns {
            let newest = self.model.newest();
            let mut now = newest.clone();
            let staged = self.state.stage_txn(txn);
            if staged == Err(StoreError::DuplicateKey) {
                // The model does not judge requests; the rule has its own test.
                continue;
            }
            match (self.model.run(txn, &newest, &mut now), staged) {
                (Ok((succeeded, expected)), Ok(result)) => {
                    assert_eq!((succeeded, expected), (result.succeeded, seen(&result.responses)));
                    if now != newest || touched(&result.responses) {
                        self.model.snapshots.push(now);
                    }
                    assert_eq!(result.revision, self.model.revision());
                }
                (Err(expected), Err(refused)) => assert_eq!(expected, refused),
                (expected, staged) => panic!("{txn:?}: model {expected:?}, store {staged:?}"),
            }
        }
        if durable {
            self.publish();
        } else {
            self.model.snapshots.truncate(before);
            self.state.roll_back();
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.state.stage_expired(self.now_ms, usize::MAX);
        self.publish();
        let mut ended: Vec<(u64, i64)> = self.model.leases.iter().map(|(id, (_, expires))| (*expires, *id)).collect();
        ended.retain(|(expires, _)| *expires <= self.now_ms);
        ended.sort_unstable();
        for (_, id) in ended {
            self.model.end_lease(id);
        }
    }

    fn compact(&mut self, revision: i64) {
        let Ok(plan) = self.state.plan_compaction(revision) else {
            assert!(revision <= self.model.compacted, "compaction to {revision} was refused");
            return;
        };
        for place in &plan.removed {
            assert!(self.disk.versions.remove(place).is_some(), "{place:?} was not on disk");
        }
        self.disk.compacted = revision;
        self.model.compacted = revision;
        self.state.compact(&plan);
    }

    fn restart(&mut self) {
        let versions = self.disk.versions.iter().map(|((_, sub), kv)| (*sub, kv.clone()));
        let leases = self.disk.leases.clone();
        self.state = Mvcc::restore(limits(), self.disk.compacted, leases, versions, self.now_ms).unwrap();
        for (seconds, expires) in self.model.leases.values_mut() {
            *expires = self.now_ms + *seconds as u64 * 1000;
        }
    }

    fn check(&self) {
        assert_eq!(self.state.visible(), self.model.revision());
        let oldest = self.model.compacted.max(1);
        for revision in oldest..=self.model.revision() {
            let found = self.state.range(&Range::prefix("").at(revision)).unwrap();
            let expected: Vec<_> = self.model.snapshots[revision as usize - 1].values().cloned().collect();
            let found: Vec<_> = found.kvs.iter().map(|kv| (**kv).clone()).collect();
            assert_eq!(found, expected, "at revision {revision}");
        }
        if oldest > 1 {
            let compacted = StoreError::Compacted { requested: oldest - 1, compacted: oldest };
            assert_eq!(self.state.range(&Range::prefix("").at(oldest - 1)), Err(compacted));
        }
        self.check_history(oldest);
        self.check_leases();
        assert_eq!(self.state.bytes(), self.disk.versions.values().map(KeyValue::weight).sum::<u64>());
    }

    /// Replaying history on the oldest readable state gives every later one.
    fn check_history(&self, oldest: i64) {
        let mut snapshot = self.model.snapshots[oldest as usize - 1].clone();
        if oldest > 1 {
            let before = &self.model.snapshots[oldest as usize - 2];
            let keys: BTreeSet<_> = before.keys().chain(snapshot.keys()).collect();
            let changed = keys.into_iter().filter(|key| before.get(*key) != snapshot.get(*key)).count();
            let told = self.state.history(oldest).next().map_or(0, |revision| revision.changes.len());
            assert_eq!(told, changed, "changes of the oldest revision that can be watched");
        }
        let mut expected = oldest + 1;
        for revision in self.state.history(oldest + 1) {
            assert_eq!(revision.revision, expected);
            for change in &revision.changes {
                assert_eq!(change.prev.as_deref(), snapshot.get(&change.kv.key), "what was replaced");
                match change.kind() {
                    EventKind::Put => drop(snapshot.insert(change.kv.key.clone(), (*change.kv).clone())),
                    EventKind::Delete => drop(snapshot.remove(&change.kv.key)),
                }
            }
            assert_eq!(snapshot, self.model.snapshots[expected as usize - 1]);
            expected += 1;
        }
        assert_eq!(expected, self.model.revision() + 1);
    }

    fn check_leases(&self) {
        let expected: Vec<_> = self.model.leases.iter().map(|(id, (seconds, _))| (*id, *seconds)).collect();
        assert_eq!(self.state.leases().collect::<Vec<_>>(), expected);
        for (id, (_, expires)) in &self.model.leases {
            let Some(lease) = self.state.lease(*id, self.now_ms) else {
                assert!(*expires <= self.now_ms);
                continue;
            };
            let newest = self.model.newest();
            let keys: Vec<_> = newest.values().filter(|kv| kv.lease == *id).map(|kv| kv.key.clone()).collect();
            assert_eq!(lease.keys, keys, "of lease {id}");
        }
    }
}

/// A put that writes the same bytes is still a change.
fn touched(responses: &[OpResult]) -> bool {
    responses.iter().any(|response| match response {
        OpResult::Put(_) => true,
        OpResult::Delete(result) => result.deleted > 0,
        OpResult::Range(_) => false,
        OpResult::Txn(result) => touched(&result.responses),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn any_schedule_of_writes_leases_compactions_and_restarts_equals_the_model(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
            pair.check();
        }
    }
}
