//! The control-plane API: plans, starts, locates, runs, tokens. It is served by the leader; every caller is checked by TokenReview. It
//! creates and patches resources and reads heads; it drives nothing.

mod auth;
mod automation;
mod error;
mod locate;
mod moves;
mod plan;
mod tokens;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use cell_api::paths;
use cell_crds::{Fleet, Reason};
use cell_runtime::CancellationToken;
use tokio::net::TcpListener;

use self::auth::Reviewer;
use self::error::ApiError;
use crate::context::Context;
use crate::directory::Link;

/// Largest body read, in bytes.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// What every handler is given.
#[derive(Clone)]
pub struct Api {
    context: Arc<Context>,
    reviewer: Arc<Reviewer>,
}

/// The API's routes.
pub fn router(context: Arc<Context>, client: kube::Client) -> Router {
    let api = Api { context, reviewer: Arc::new(Reviewer::new(client)) };
    let protected = Router::new()
        .route(paths::PLAN_MOVE, post(plan::plan))
        .route(paths::MOVES, post(moves::start).get(moves::list))
        .route(&paths::one_move("{name}"), get(moves::show))
        .route(&paths::abort("{name}"), post(moves::abort))
        .route(&paths::rollback("{name}"), post(moves::rollback))
        .route(&paths::location("{guild_id}"), get(locate::locate))
        .route(paths::TOKENS, post(tokens::issue))
        .route(paths::AUTOMATION, get(automation::show).put(automation::set))
        .layer(from_fn_with_state(api.clone(), authenticate))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    Router::new()
        .route(paths::HEALTH, get(|| async { Json(serde_json::json!({"status": "ok"})) }))
        .merge(protected)
        .fallback(|| async { ApiError::new(404, "NotFound", "no such path", "see the API's paths under /v1") })
        .with_state(api)
}

/// Serves until `shutdown`.
///
/// # Errors
/// The system's, when the listener fails.
pub async fn serve(router: Router, listener: TcpListener, shutdown: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.cancelled().await }).await
}

async fn authenticate(State(api): State<Api>, request: Request, next: Next) -> Response {
    let header = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match api.reviewer.check(header).await {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

impl Api {
    /// The fleet and the link to its etcd.
    fn fleet(&self) -> Result<(Fleet, Arc<Link>), ApiError> {
        let Some(fleet) = self.context.stores.fleet() else {
            let detail = format!("namespace {} has no Fleet; create one", self.context.settings.namespace);
            return Err(ApiError::new(409, Reason::NoFleet.label(), "no fleet", detail));
        };
        let link = self.context.hub.link_to(&fleet.spec.etcd);
        Ok((fleet, link))
    }
}
