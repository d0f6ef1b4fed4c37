//! What the data role counts. Labels are bounded: reasons and query kinds, never logs or guilds.

use std::sync::Arc;

use cell_proto::v1::Reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByReason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ByOutcome {
    outcome: &'static str,
}

/// The metrics of one process.
#[derive(Clone)]
pub(super) struct Metrics(Arc<Inner>);

pub(super) struct Inner {
    pub(super) commits: Counter,
    pub(super) duplicates: Counter,
    pub(super) batch_entries: Histogram,
    pub(super) commit_seconds: Histogram,
    refusals: Family<ByReason, Counter>,
    pub(super) owned_logs: Gauge,
    pub(super) claims: Counter,
    pub(super) step_backs: Counter,
    pub(super) store_requests: Counter,
    store_errors: Family<ByOutcome, Counter>,
    pub(super) queries: Counter,
    pub(super) queries_joined: Counter,
    pub(super) empty_skipped: Counter,
    pub(super) empty_overflows: Counter,
    pub(super) feeds: Gauge,
    pub(super) held_seconds: Histogram,
    pub(super) shipped: Counter,
    pub(super) ship_failures: Counter,
    pub(super) cutovers: Counter,
    shadow: Family<ByOutcome, Counter>,
}

impl std::ops::Deref for Metrics {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Metrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let inner = Inner {
            commits: Counter::default(),
            duplicates: Counter::default(),
            // 1 to 256, the largest batch.
            batch_entries: Histogram::new(exponential_buckets(1.0, 2.0, 9)),
            // 0.25 ms to 8 s: from one sync to a store that is away.
            commit_seconds: Histogram::new(exponential_buckets(0.000_25, 2.0, 16)),
            refusals: Family::default(),
            owned_logs: Gauge::default(),
            claims: Counter::default(),
            step_backs: Counter::default(),
            store_requests: Counter::default(),
            store_errors: Family::default(),
            queries: Counter::default(),
            queries_joined: Counter::default(),
            empty_skipped: Counter::default(),
            empty_overflows: Counter::default(),
            feeds: Gauge::default(),
            held_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            shipped: Counter::default(),
            ship_failures: Counter::default(),
            cutovers: Counter::default(),
            shadow: Family::default(),
        };
        let it = Self(Arc::new(inner));
        registry.register("data_commits", "Operations committed and applied", it.commits.clone());
        registry.register("data_duplicates", "Operations answered from the dedupe window", it.duplicates.clone());
        registry.register("data_batch_entries", "Entries applied at once", it.batch_entries.clone());
        registry.register("data_commit_seconds", "From submit to answer", it.commit_seconds.clone());
        registry.register("data_refusals", "Commands and queries refused, by reason", it.refusals.clone());
        registry.register("data_owned_logs", "Logs with a task here", it.owned_logs.clone());
        registry.register("data_claims", "Logs claimed", it.claims.clone());
        registry.register("data_step_backs", "Logs given up to a higher term", it.step_backs.clone());
        registry.register("data_store_requests", "Requests to the store", it.store_requests.clone());
        registry.register("data_store_errors", "Requests the store failed, by kind", it.store_errors.clone());
        registry.register("data_queries", "Queries that read the store", it.queries.clone());
        registry.register(
            "data_queries_joined",
            "Queries that joined an identical one in flight",
            it.queries_joined.clone(),
        );
        registry.register("data_empty_buckets_skipped", "Buckets known to be empty not read", it.empty_skipped.clone());
        registry.register(
            "data_empty_buckets_forgotten",
            "Times that too many empty buckets were known and all were forgotten",
            it.empty_overflows.clone(),
        );
        registry.register("data_feeds", "Followers connected", it.feeds.clone());
        registry.register("data_held_seconds", "How long a switch held commands", it.held_seconds.clone());
        registry.register("data_shipped_entries", "Entries shipped to copies", it.shipped.clone());
        registry.register("data_ship_failures", "Requests for copies that failed", it.ship_failures.clone());
        registry.register("data_cutovers", "Logs cut over to another StorageCell", it.cutovers.clone());
        registry.register("data_shadow_reads", "Reads repeated at a copy, by how they compared", it.shadow.clone());
        it
    }

    pub(super) fn shadowed(&self, outcome: &'static str) {
        self.shadow.get_or_create(&ByOutcome { outcome }).inc();
    }

    pub(super) fn refused(&self, reason: Reason) {
        self.refusals.get_or_create(&ByReason { reason: reason.label() }).inc();
    }

    pub(super) fn store_failed(&self, outcome: &'static str) {
        self.store_errors.get_or_create(&ByOutcome { outcome }).inc();
    }
}
