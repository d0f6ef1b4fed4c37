//! The control-plane API: plans, starts, locates, runs, tokens. It is served by the leader; Kubernetes says of every caller who it is
//! and whether it may (TokenReview, SubjectAccessReview). It creates and patches resources and reads heads; it drives nothing.

mod auth;
mod automation;
mod door;
mod error;
mod locate;
mod migrations;
mod moves;
mod plan;
mod tokens;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post, put};
use axum::{Json, Router};
use cell_api::paths;
use cell_crds::{Fleet, Reason};
use cell_runtime::CancellationToken;
use tokio::net::TcpListener;

use self::auth::{Reviewer, Right};
pub use self::door::Door;
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
    let reviewer = Arc::new(Reviewer::new(client, &context.settings.namespace));
    let api = Api { context, reviewer };
    let allow = |right: Right, handlers: MethodRouter<Api>| {
        handlers.route_layer(from_fn_with_state((api.reviewer.clone(), right), authorise))
    };
    let reads = |handlers| allow(Right::READ_MOVES, handlers);
    Router::new()
        .route(paths::PLAN_MOVE, reads(post(plan::plan)))
        .route(paths::MOVES, allow(Right::START_MOVES, post(moves::start)).merge(reads(get(moves::list))))
        .route(&paths::one_move("{name}"), reads(get(moves::show)))
        .route(&paths::abort("{name}"), allow(Right::CHANGE_MOVES, post(moves::abort)))
        .route(&paths::rollback("{name}"), allow(Right::CHANGE_MOVES, post(moves::rollback)))
        .route(&paths::location("{guild_id}"), reads(get(locate::locate)))
        .route(paths::PLAN_MIGRATION, allow(Right::READ_MIGRATIONS, post(migrations::plan)))
        .route(paths::MIGRATIONS, allow(Right::START_MIGRATIONS, post(migrations::start)))
        .route(&paths::migration_report("{name}"), allow(Right::READ_MIGRATIONS, get(migrations::report)))
        .route(paths::TOKENS, allow(Right::ISSUE_TOKENS, post(tokens::issue)))
        .route(
            paths::AUTOMATION,
            allow(Right::READ_FLEETS, get(automation::show)).merge(allow(Right::CHANGE_FLEETS, put(automation::set))),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .route(paths::HEALTH, get(|| async { Json(serde_json::json!({"status": "ok"})) }))
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

async fn authorise(State((reviewer, right)): State<(Arc<Reviewer>, Right)>, request: Request, next: Next) -> Response {
    let header = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match reviewer.check(header, right).await {
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
