//! Leases: who has one, when it ends, which keys hang on it. It decides what has expired at a given time; it never looks at a clock.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::error::StoreError;
use super::super::types::{KeyValue, LeaseGrant, LeaseInfo, LeaseOwner};
use super::{LeaseWrite, Mvcc, Undo};

/// The largest time to live, etcd's.
const MAX_TTL_SECONDS: i64 = 9_000_000_000;

#[derive(Debug, Clone)]
pub(super) struct Lease {
    ttl_seconds: i64,
    expires_at_ms: u64,
    keys: BTreeSet<Bytes>,
}

/// The lease table, also ordered by expiry.
#[derive(Debug, Default)]
pub(super) struct Leases {
    by_id: BTreeMap<i64, Lease>,
    by_expiry: BTreeSet<(u64, i64)>,
}

impl Leases {
    pub(super) fn contains(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn insert(&mut self, id: i64, ttl_seconds: i64, now_ms: u64) -> Option<Lease> {
        let lease = Lease { ttl_seconds, expires_at_ms: expiry(ttl_seconds, now_ms), keys: BTreeSet::new() };
        self.by_expiry.insert((lease.expires_at_ms, id));
        let previous = self.by_id.insert(id, lease);
        if let Some(previous) = &previous {
            self.by_expiry.remove(&(previous.expires_at_ms, id));
        }
        previous
    }

    fn remove(&mut self, id: i64) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        self.by_expiry.remove(&(lease.expires_at_ms, id));
        Some(lease)
    }

    pub(super) fn put_back(&mut self, id: i64, previous: Option<Lease>) {
        self.remove(id);
        if let Some(lease) = previous {
            self.by_expiry.insert((lease.expires_at_ms, id));
            self.by_id.insert(id, lease);
        }
    }

    pub(super) fn attach(&mut self, id: i64, key: &Bytes) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.insert(key.clone());
        }
    }

    pub(super) fn detach(&mut self, id: i64, key: &Bytes) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.keys.remove(key);
        }
    }

    fn unused_id(&self, owner: LeaseOwner, now_ms: u64) -> i64 {
        // Any id not in use will do: ids are spread so that one that expired long ago is not soon given to somebody else.
        let mut seed = now_ms.wrapping_add(self.by_id.len() as u64);
        loop {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let magnitude = ((mixed ^ (mixed >> 27)) >> 1).max(1) as i64;
            let id = match owner {
                LeaseOwner::Etcd => magnitude,
                LeaseOwner::Internal => -magnitude,
            };
            if !self.contains(id) {
                return id;
            }
        }
    }
}

fn expiry(ttl_seconds: i64, now_ms: u64) -> u64 {
    now_ms.saturating_add(ttl_seconds.max(0).unsigned_abs().saturating_mul(1000))
}

impl Mvcc {
    /// Stages a grant; answers (id, granted seconds).
    pub(crate) fn stage_grant(&mut self, grant: LeaseGrant, now_ms: u64) -> Result<(i64, i64), StoreError> {
        if grant.ttl_seconds > MAX_TTL_SECONDS {
            return Err(StoreError::LeaseTtlTooLarge { ttl_seconds: grant.ttl_seconds, max: MAX_TTL_SECONDS });
        }
        if self.leases.by_id.len() >= self.limits.max_leases {
            return Err(StoreError::TooManyLeases { max: self.limits.max_leases });
        }
        let id = match grant.id {
            Some(id) if id == 0 || (id > 0) != (grant.owner == LeaseOwner::Etcd) => {
                return Err(StoreError::LeaseIdOutOfRange { id });
            }
            Some(id) if self.leases.contains(id) => return Err(StoreError::LeaseExists { id }),
            Some(id) => id,
            None => self.leases.unused_id(grant.owner, now_ms),
        };
        let ttl_seconds = grant.ttl_seconds.max(self.limits.min_lease_ttl_seconds);
        let previous = self.leases.insert(id, ttl_seconds, now_ms);
        self.undo.push(Undo::Lease { id, previous });
        self.staged_leases.push(LeaseWrite::Put { id, ttl_seconds });
        Ok((id, ttl_seconds))
    }

    /// Stages a revocation: the lease goes and its keys are deleted as one revision. Answers the newest revision.
    pub(crate) fn stage_revoke(&mut self, id: i64) -> Result<i64, StoreError> {
        let keys = match self.leases.by_id.get(&id) {
            Some(lease) => lease.keys.iter().cloned().collect::<Vec<_>>(),
            None => return Err(StoreError::LeaseNotFound { id }),
        };
        for key in keys {
            self.push_deletion(key);
        }
        let revision = self.seal();
        let previous = self.leases.remove(id);
        self.undo.push(Undo::Lease { id, previous });
        self.staged_leases.push(LeaseWrite::Remove { id });
        Ok(revision)
    }

    /// Stages the revocation of every lease that has ended by `now_ms`; answers how many, at most `limit`.
    pub(crate) fn stage_expired(&mut self, now_ms: u64, limit: usize) -> usize {
        let ended: Vec<i64> =
            self.leases.by_expiry.range(..=(now_ms, i64::MAX)).map(|(_, id)| *id).take(limit).collect();
        ended.into_iter().filter(|id| self.stage_revoke(*id).is_ok()).count()
    }

    /// Starts a lease's time to live anew; answers its seconds. An ended lease cannot be renewed, even before its keys are gone.
    pub(crate) fn keep_alive(&mut self, id: i64, now_ms: u64) -> Result<i64, StoreError> {
        let lease = self.leases.by_id.get_mut(&id).filter(|lease| lease.expires_at_ms > now_ms);
        let Some(lease) = lease else { return Err(StoreError::LeaseNotFound { id }) };
        self.leases.by_expiry.remove(&(lease.expires_at_ms, id));
        lease.expires_at_ms = expiry(lease.ttl_seconds, now_ms);
        self.leases.by_expiry.insert((lease.expires_at_ms, id));
        Ok(lease.ttl_seconds)
    }

    /// A lease as it stands; an ended one is gone.
    pub(crate) fn lease(&self, id: i64, now_ms: u64) -> Option<LeaseInfo> {
        let lease = self.leases.by_id.get(&id).filter(|lease| lease.expires_at_ms > now_ms)?;
        let remaining = (lease.expires_at_ms - now_ms) / 1000;
        Some(LeaseInfo {
            id,
            granted_seconds: lease.ttl_seconds,
            remaining_seconds: i64::try_from(remaining).unwrap_or(i64::MAX),
            keys: lease.keys.iter().cloned().collect(),
        })
    }

    /// All leases with their granted seconds, in order of id.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (i64, i64)> {
        self.leases.by_id.iter().map(|(id, lease)| (*id, lease.ttl_seconds))
    }

    /// When the next lease ends.
    pub(crate) fn next_expiry_ms(&self) -> Option<u64> {
        self.leases.by_expiry.first().map(|(at, _)| *at)
    }

    /// Adds the deletion of a live key to the transaction being staged.
    pub(super) fn push_deletion(&mut self, key: Bytes) {
        let tombstone = KeyValue {
            key,
            value: Bytes::new(),
            create_revision: 0,
            mod_revision: self.head + 1,
            version: 0,
            lease: 0,
        };
        let sub = self.next_sub();
        self.push(sub, std::sync::Arc::new(tombstone));
    }

    pub(super) fn next_sub(&self) -> u32 {
        u32::try_from(self.current.len()).unwrap_or(u32::MAX)
    }
}
