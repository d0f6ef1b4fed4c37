//! The admin port of a role: `/livez`, `/readyz` and `/metrics`. It decides nothing: roles say whether they are ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Whether the role can do its work, and why not.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ready: AtomicBool,
    why: Mutex<String>,
}

impl Readiness {
    /// Not ready, for this reason.
    pub fn not_ready(why: impl Into<String>) -> Self {
        Self(Arc::new(Inner { ready: AtomicBool::new(false), why: Mutex::new(why.into()) }))
    }

    /// Ready from now on.
    pub fn set_ready(&self) {
        self.0.ready.store(true, Ordering::Release);
    }

    /// Not ready from now on.
    pub fn set_not_ready(&self, why: impl Into<String>) {
        *self.0.why.lock() = why.into();
        self.0.ready.store(false, Ordering::Release);
    }

    /// Whether it is ready now.
    pub fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::Acquire)
    }
}

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    readiness: Readiness,
    registry: Arc<Registry>,
}

impl Admin {
    /// `registry` holds the role's metrics, registered once at start.
    pub fn new(readiness: Readiness, registry: Registry) -> Self {
        Self { readiness, registry: Arc::new(registry) }
    }

    /// Serves until `shutdown`.
    ///
    /// # Errors
    /// The system's, when the listener fails.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) -> std::io::Result<()> {
        let router = Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self);
        axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.cancelled().await }).await
    }
}

async fn readyz(State(admin): State<Admin>) -> Response {
    if admin.readiness.is_ready() {
        return "ok\n".into_response();
    }
    let why = admin.readiness.0.why.lock().clone();
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
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

    #[tokio::test]
    async fn readyz_says_why_until_the_role_is_ready() {
        let readiness = Readiness::not_ready("the store is not reached");
        let admin = Admin::new(readiness.clone(), Registry::default());
        let response = readyz(State(admin.clone())).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        readiness.set_ready();
        assert_eq!(readyz(State(admin)).await.status(), StatusCode::OK);
    }
}
