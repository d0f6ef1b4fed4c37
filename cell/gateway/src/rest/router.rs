//! Which route is served by what, under each of the base paths libraries use; the websocket entry is every other upgrade.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Query, Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};

use super::auth::Standing;
use super::error::ApiError;
use super::{bulk, channels, guilds, invites, members, messages, meta, reading, roles, users};
use crate::gateway::Gateway;
use crate::socket::handshake::Handshake;
use crate::socket::upgrade;

/// The base paths of REST.
const BASES: [&str; 3] = ["/api/v10", "/api/v9", "/api"];

/// Everything on the HTTP port.
pub fn router(gateway: Arc<Gateway>) -> Router {
    let mut router = Router::new();
    for base in BASES {
        router = router.nest(base, rest());
    }
    router.fallback(fallback).layer(from_fn_with_state(gateway.clone(), count)).with_state(gateway)
}

fn rest() -> Router<Arc<Gateway>> {
    Router::new()
        .route("/gateway", get(meta::gateway))
        .route("/gateway/bot", get(meta::gateway_bot))
        .route("/oauth2/applications/@me", get(users::own_application))
        .route("/applications/@me", get(users::own_application))
        .route("/users/@me", get(users::me))
        .route("/users/@me/channels", post(users::open_direct_message))
        .route("/users/@me/guilds", get(users::guilds))
        .route("/users/@me/guilds/{guild_id}", delete(guilds::leave))
        .route("/users/@me/guilds/{guild_id}/member", get(members::own))
        .route("/users/{user_id}", get(users::get))
        .route("/guilds", post(guilds::create))
        .route("/guilds/{guild_id}", get(guilds::get).patch(guilds::update).delete(guilds::delete))
        .route("/guilds/{guild_id}/channels", get(channels::list).post(channels::create))
        .route("/guilds/{guild_id}/invites", get(invites::list))
        .route("/guilds/{guild_id}/members", get(members::list))
        .route("/guilds/{guild_id}/members/@me", axum::routing::patch(members::update_own))
        .route("/guilds/{guild_id}/members/{user_id}", get(members::get).patch(members::update).delete(members::kick))
        .route(
            "/guilds/{guild_id}/members/{user_id}/roles/{role_id}",
            put(members::give_role).delete(members::take_role),
        )
        .route("/guilds/{guild_id}/roles", get(roles::list).post(roles::create))
        .route("/guilds/{guild_id}/roles/{role_id}", axum::routing::patch(roles::update).delete(roles::delete))
        .route("/channels/{channel_id}", get(channels::get).patch(channels::update).delete(channels::delete))
        .route("/channels/{channel_id}/invites", post(invites::create))
        .route("/channels/{channel_id}/messages", get(messages::list).post(messages::create))
        .route("/channels/{channel_id}/messages/bulk-delete", post(bulk::delete))
        .route("/channels/{channel_id}/messages/{message_id}/ack", post(reading::acknowledge))
        .route(
            "/channels/{channel_id}/messages/{message_id}",
            get(messages::get).patch(messages::edit).delete(messages::delete),
        )
        .route("/channels/{channel_id}/typing", post(messages::typing))
        .route("/invites/{code}", get(invites::get).post(invites::accept).delete(invites::delete))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
}

async fn no_route() -> ApiError {
    ApiError::no_route()
}

async fn no_method() -> ApiError {
    ApiError::no_method()
}

/// A websocket on any other path (libraries ask for `/`, none, or several slashes); anything else is not found.
async fn fallback(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let handshake = match Handshake::read(&mut parts) {
        Some(Ok(handshake)) => handshake,
        Some(Err(error)) => return error.into_response(),
        None => return ApiError::no_route().into_response(),
    };
    match Query::from_request_parts(&mut parts, &gateway).await {
        Ok(Query(parameters)) => upgrade::handle(gateway, &parameters, handshake),
        Err(_) => ApiError::bad(50_035, "the query string is not valid").into_response(),
    }
}

/// Counts answers by route pattern: bounded, unlike paths. Says how the caller's rate stands where the route does not.
async fn count(State(gateway): State<Arc<Gateway>>, mut request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let method = match *request.method() {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    };
    let standing = Standing::default();
    request.extensions_mut().insert(standing.clone());
    let mut response = next.run(request).await;
    let pattern = BASES.iter().find_map(|base| route.strip_prefix(base)).unwrap_or(&route);
    standing.write(response.headers_mut(), method, pattern);
    gateway.metrics.answered(&route, method, response.status().as_u16());
    response
}
