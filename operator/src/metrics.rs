//! The operator's metrics, registered once. Labels are bounded: kinds, outcomes and verbs, never names.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::health::Ages;

/// A reconcile's kind and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Ended {
    /// `fleet`, `cell`, …
    pub kind: &'static str,
    /// `settled`, `waiting`, `failed`, `undecodable`.
    pub outcome: &'static str,
}

/// Only a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfKind {
    /// `fleet`, `cell`, …
    pub kind: &'static str,
}

/// A write and its verb.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Write {
    /// Kind of the object written.
    pub kind: String,
    /// `apply`, `status`, `create`, `delete`.
    pub verb: &'static str,
}

/// A request of a run and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Asked {
    /// The request.
    pub request: &'static str,
    /// `done`, `refused`, `unknown`, `nobody`.
    pub outcome: &'static str,
}

/// All of them.
#[derive(Clone)]
pub struct Metrics {
    /// Reconciles by kind and outcome.
    pub reconciles: Family<Ended, Counter>,
    /// How long reconciles took.
    pub reconcile_seconds: Family<OfKind, Histogram>,
    /// Writes to Kubernetes by kind and verb.
    pub writes: Family<Write, Counter>,
    /// Requests of runs.
    pub requests: Family<Asked, Counter>,
    /// 1 while this process leads.
    pub leader: Gauge,
    /// Seconds since the last complete reconcile of a kind.
    pub reconcile_age: Family<OfKind, Gauge<f64, AtomicU64>>,
    /// Seconds since a kind's watch was last seen to agree with the API server.
    pub watch_age: Family<OfKind, Gauge<f64, AtomicU64>>,
}

fn reconcile_histogram() -> Histogram {
    // From a cached no-op to the bound of one pass over a move.
    Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0])
}

impl Metrics {
    /// Registers all metrics in a new registry.
    pub fn new() -> (Self, Registry) {
        let metrics = Self {
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(reconcile_histogram as fn() -> Histogram),
            writes: Family::default(),
            requests: Family::default(),
            leader: Gauge::default(),
            reconcile_age: Family::default(),
            watch_age: Family::default(),
        };
        let mut registry = Registry::with_prefix("cellplane_operator");
        registry.register("reconciles", "Reconciles by kind and outcome", metrics.reconciles.clone());
        registry.register_with_unit(
            "reconcile_duration",
            "How long a reconcile took",
            Unit::Seconds,
            metrics.reconcile_seconds.clone(),
        );
        registry.register("writes", "Writes to Kubernetes; none while nothing changes", metrics.writes.clone());
        registry.register("run_requests", "Requests of moves to cells, by outcome", metrics.requests.clone());
        registry.register("leader", "1 while this process leads", metrics.leader.clone());
        registry.register_with_unit(
            "reconcile_age",
            "Time since the last complete reconcile of a kind; rising means a wedge",
            Unit::Seconds,
            metrics.reconcile_age.clone(),
        );
        registry.register_with_unit(
            "watch_age",
            "Time since a kind's watch was last seen to agree with the API server; rising means a wedge",
            Unit::Seconds,
            metrics.watch_age.clone(),
        );
        (metrics, registry)
    }

    /// Notes the end of a reconcile.
    pub fn ended(&self, kind: &'static str, outcome: &'static str, took: Duration) {
        self.reconciles.get_or_create(&Ended { kind, outcome }).inc();
        self.reconcile_seconds.get_or_create(&OfKind { kind }).observe(took.as_secs_f64());
    }

    /// Notes a write.
    pub fn wrote(&self, kind: &str, verb: &'static str) {
        self.writes.get_or_create(&Write { kind: kind.to_owned(), verb }).inc();
    }

    /// Brings the age gauges up to date.
    pub fn show_ages(&self, ages: &Arc<Ages>) {
        for (kind, reconcile, watch) in ages.read() {
            if let Some(age) = reconcile {
                self.reconcile_age.get_or_create(&OfKind { kind }).set(age.as_secs_f64());
            }
            if let Some(age) = watch {
                self.watch_age.get_or_create(&OfKind { kind }).set(age.as_secs_f64());
            }
        }
    }
}
