//! Range requests: what the store reads, and what etcd does with it afterwards (filter, sort, cut).

use std::cmp::Ordering;
use std::sync::Arc;

use etcd_client::proto::{PbRangeRequest, PbRangeResponse};
use tonic::Status;

use super::{convert, keys, refusal};
use crate::store::{KeyValue, Range, RangeResult};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortBy {
    Key,
    Version,
    Create,
    Mod,
    Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    AsFound,
    Ascending,
    Descending,
}

/// What remains to be done with the keys the store found.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    limit: usize,
    keys_only: bool,
    sort_by: SortBy,
    order: Order,
    mod_revisions: (i64, i64),
    create_revisions: (i64, i64),
}

/// Splits a request into what the store does and what is done afterwards.
pub(super) fn parse(request: &PbRangeRequest) -> Result<(Range, Shape), Status> {
    if request.key.is_empty() {
        return Err(Status::invalid_argument(refusal::EMPTY_KEY));
    }
    let (sort_by, order) = sorting(request)?;
    let shape = Shape {
        limit: usize::try_from(request.limit).unwrap_or(0),
        keys_only: request.keys_only,
        sort_by,
        order,
        mod_revisions: (request.min_mod_revision, request.max_mod_revision),
        create_revisions: (request.min_create_revision, request.max_create_revision),
    };
    let range = Range {
        start: keys::inner(&request.key),
        end: keys::inner_end(&request.range_end),
        revision: Some(request.revision).filter(|revision| *revision > 0),
        limit: if shape.takes_all() { 0 } else { shape.limit },
        // Sorting by value needs the values; they are left out when answering.
        keys_only: request.keys_only && sort_by != SortBy::Value,
        count_only: request.count_only,
    };
    Ok((range, shape))
}

fn sorting(request: &PbRangeRequest) -> Result<(SortBy, Order), Status> {
    let invalid = || Status::invalid_argument(refusal::INVALID_SORT);
    let sort_by = match request.sort_target {
        0 => SortBy::Key,
        1 => SortBy::Version,
        2 => SortBy::Create,
        3 => SortBy::Mod,
        4 => SortBy::Value,
        _ => return Err(invalid()),
    };
    let order = match request.sort_order {
        // The store finds keys in order of key; any other target is meant to be sorted.
        0 if sort_by == SortBy::Key => Order::AsFound,
        0 | 1 => Order::Ascending,
        2 => Order::Descending,
        _ => return Err(invalid()),
    };
    Ok((sort_by, order))
}

impl Shape {
    fn takes_all(&self) -> bool {
        self.order != Order::AsFound || self.mod_revisions != (0, 0) || self.create_revisions != (0, 0)
    }

    /// The answer to the client.
    pub(super) fn answer(&self, found: RangeResult) -> PbRangeResponse {
        let mut kvs: Vec<Arc<KeyValue>> = found.kvs;
        kvs.retain(|kv| {
            within(self.mod_revisions, kv.mod_revision) && within(self.create_revisions, kv.create_revision)
        });
        match self.order {
            Order::AsFound => {}
            Order::Ascending => kvs.sort_by(|a, b| self.compare(a, b)),
            Order::Descending => kvs.sort_by(|a, b| self.compare(b, a)),
        }
        let cut = self.limit > 0 && kvs.len() > self.limit;
        if cut {
            kvs.truncate(self.limit);
        }
        let shown = if self.keys_only { convert::key_only } else { convert::key_value };
        PbRangeResponse {
            header: convert::header(found.revision),
            kvs: kvs.iter().map(|kv| shown(kv)).collect(),
            more: found.more || cut,
            count: i64::try_from(found.count).unwrap_or(i64::MAX),
        }
    }

    fn compare(&self, a: &KeyValue, b: &KeyValue) -> Ordering {
        match self.sort_by {
            SortBy::Key => a.key.cmp(&b.key),
            SortBy::Version => a.version.cmp(&b.version),
            SortBy::Create => a.create_revision.cmp(&b.create_revision),
            SortBy::Mod => a.mod_revision.cmp(&b.mod_revision),
            SortBy::Value => a.value.cmp(&b.value),
        }
    }
}

fn within((min, max): (i64, i64), revision: i64) -> bool {
    (min == 0 || revision >= min) && (max == 0 || revision <= max)
}
