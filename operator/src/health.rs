//! Whether the operator is alive and ready: ages of watches and reconciles feed `/livez`, `/readyz` and the metrics. It restarts
//! nothing itself; the kubelet does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use cell_runtime::{CancellationToken, Readiness};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::metrics::Metrics;

/// A kind whose watch or reconciles are older than this is wedged: several times the slowest regular interval.
pub const OLDEST: Duration = Duration::from_secs(900);

#[derive(Default)]
struct Marks {
    reconciled: Option<Instant>,
    watched: Option<Instant>,
}

/// When each kind was last reconciled and seen to be watched.
#[derive(Default)]
pub struct Ages(Mutex<BTreeMap<&'static str, Marks>>);

/// A kind with the ages of its reconciles and its watch, where known.
pub type KindAges = (&'static str, Option<Duration>, Option<Duration>);

impl Ages {
    /// A reconcile of the kind has completed.
    pub fn reconciled(&self, kind: &'static str) {
        self.0.lock().entry(kind).or_default().reconciled = Some(Instant::now());
    }

    /// The kind's watch agreed with the API server.
    pub fn watched(&self, kind: &'static str) {
        self.0.lock().entry(kind).or_default().watched = Some(Instant::now());
    }

    /// Nothing of the kind exists: there is nothing to reconcile.
    pub fn idle(&self, kind: &'static str) {
        self.0.lock().entry(kind).or_default().reconciled = None;
    }

    /// The ages of every kind.
    pub fn read(&self) -> Vec<KindAges> {
        let marks = self.0.lock();
        let age = |mark: Option<Instant>| mark.map(|mark| mark.elapsed());
        marks.iter().map(|(kind, marks)| (*kind, age(marks.reconciled), age(marks.watched))).collect()
    }
}

/// The first wedge, if any.
pub fn wedge(ages: &[KindAges], oldest: Duration) -> Option<String> {
    ages.iter().find_map(|(kind, reconcile, watch)| {
        let old = |age: &Option<Duration>| age.filter(|age| *age > oldest).map(|age| age.as_secs());
        if let Some(seconds) = old(watch) {
            return Some(format!("the watch of {kind} has not agreed with the API server for {seconds} s"));
        }
        old(reconcile).map(|seconds| format!("no {kind} was reconciled for {seconds} s"))
    })
}

/// What the admin port shows.
#[derive(Clone)]
pub struct Health {
    /// Whether this process can work: as standby once the API server was reached, as leader once its caches are filled too.
    pub readiness: Readiness,
    /// Ages of the kinds.
    pub ages: Arc<Ages>,
    /// The gauges that show the ages.
    pub metrics: Metrics,
    /// Everything registered.
    pub registry: Arc<Registry>,
}

impl Health {
    /// Serves until `shutdown`.
    ///
    /// # Errors
    /// The system's, when the listener fails.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) -> std::io::Result<()> {
        let router = Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self);
        axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.cancelled().await }).await
    }
}

async fn livez(State(health): State<Health>) -> Response {
    match wedge(&health.ages.read(), OLDEST) {
        None => "ok\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn readyz(State(health): State<Health>) -> Response {
    if health.readiness.is_ready() {
        return "ok\n".into_response();
    }
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "the Kubernetes API has not been reached, or the leader's caches are not filled yet\n",
    )
        .into_response()
}

async fn metrics(State(health): State<Health>) -> Response {
    health.metrics.show_ages(&health.ages);
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &health.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("failed to encode metrics: {error}\n")).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_or_reconcile_that_stands_still_is_named() {
        let second = Duration::from_secs(1);
        let oldest = Duration::from_secs(10);
        assert_eq!(wedge(&[("cell", Some(second), Some(second)), ("move", None, Some(second))], oldest), None);
        let watch = wedge(&[("cell", Some(second), Some(second * 11))], oldest).unwrap();
        assert!(watch.contains("watch of cell"), "{watch}");
        assert!(wedge(&[("move", Some(second * 11), None)], oldest).unwrap().contains("no move was reconciled"));
    }

    #[test]
    fn a_kind_without_objects_is_never_wedged() {
        let ages = Ages::default();
        ages.reconciled("move");
        ages.idle("move");
        assert_eq!(ages.read(), vec![("move", None, None)]);
    }
}
