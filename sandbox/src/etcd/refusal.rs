//! The store's reasons in etcd's words: the status codes and texts that etcd clients match on.

use tonic::{Code, Status};

use crate::store::StoreError;

pub(super) const EMPTY_KEY: &str = "etcdserver: key is not provided";
pub(super) const VALUE_PROVIDED: &str = "etcdserver: value is provided";
pub(super) const LEASE_PROVIDED: &str = "etcdserver: lease is provided";
pub(super) const INVALID_SORT: &str = "etcdserver: invalid sort option";
pub(super) const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
pub(super) const STOPPED: &str = "etcdserver: server stopped";

/// A refusal of the store as etcd would put it; where etcd has no such case the store's own text follows.
pub(super) fn status(error: StoreError) -> Status {
    let (code, text) = match &error {
        StoreError::Compacted { .. } => (Code::OutOfRange, COMPACTED),
        StoreError::FutureRevision { .. } => {
            (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision")
        }
        StoreError::EmptyKey => (Code::InvalidArgument, EMPTY_KEY),
        StoreError::KeyNotFound => (Code::InvalidArgument, "etcdserver: key not found"),
        StoreError::DuplicateKey => (Code::InvalidArgument, "etcdserver: duplicate key given in txn request"),
        StoreError::TooManyOperations { .. } => {
            (Code::InvalidArgument, "etcdserver: too many operations in txn request")
        }
        StoreError::RequestTooLarge { .. } => (Code::InvalidArgument, "etcdserver: request is too large"),
        StoreError::QuotaExceeded { .. } => (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        StoreError::LeaseNotFound { .. } => (Code::NotFound, "etcdserver: requested lease not found"),
        StoreError::LeaseExists { .. } => (Code::FailedPrecondition, "etcdserver: lease already exists"),
        StoreError::LeaseTtlTooLarge { .. } => (Code::OutOfRange, "etcdserver: too large lease TTL"),
        StoreError::Timeout => (Code::Unavailable, "etcdserver: request timed out"),
        StoreError::Closed => (Code::Unavailable, STOPPED),
        StoreError::NestedTooDeep { .. } | StoreError::LeaseIdOutOfRange { .. } => {
            return Status::invalid_argument(format!("etcdserver: {error}"));
        }
        StoreError::TooManyLeases { .. } | StoreError::TooManyWatches { .. } | StoreError::DiskFull { .. } => {
            return Status::resource_exhausted(format!("etcdserver: {error}"));
        }
        StoreError::ReadOnly { .. } => return Status::unavailable(format!("etcdserver: {error}")),
    };
    Status::new(code, text)
}

/// What this API does not have.
pub(super) fn unimplemented(what: &str) -> Status {
    Status::unimplemented(format!("the sandbox's etcd API does not have {what}: use a real etcd for that"))
}
