//! From an HTTP request to a verb and back: authentication, discovery, media types, bounds. It decides which door a request takes; what
//! lies behind is in `verbs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::access::User;
use super::api::{Api, Call, Door, MAX_BODY, Strictness};
use super::request::{Query, Route, Target, route};
use super::status::{Reason, Refusal};
use super::tables::{self, Format, Renderer};
use super::verbs::scale::Wish;
use super::verbs::{Reply, apply, delete, list, pods, post, read, reviews, scale, watch};
use super::{backup, discovery, object, openapi, protobuf};

/// How long a request may take; watches and logs only until their answer begins.
const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// How long a request waits for its turn when too many are being worked on.
const TURN_DEADLINE: Duration = Duration::from_millis(500);

/// A body: what came in from the network.
pub type Incoming = hyper::body::Incoming;

/// Answers one request of one connection.
pub async fn answer(api: Arc<Api>, connection: Arc<AtomicUsize>, request: Request<Incoming>) -> Response<Body> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = refuse_or(&api, tokio::time::timeout(REQUEST_DEADLINE, handle(&api, &connection, request)).await);
    api.counters.requests.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(%method, path, code = response.status().as_u16(), "request answered");
    response
}

type Handled = Result<Result<Response<Body>, Refusal>, tokio::time::error::Elapsed>;

fn refuse_or(api: &Api, handled: Handled) -> Response<Body> {
    let refusal = match handled {
        Ok(Ok(response)) => return response,
        Ok(Err(refusal)) => refusal,
        Err(_) => {
            Refusal::new(Reason::Timeout, format!("the request took longer than {} s", REQUEST_DEADLINE.as_secs()))
        }
    };
    if refusal.reason == Reason::InternalError {
        api.counters.internal_errors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(error = %refusal, "request failed");
    }
    refused(&refusal)
}

fn refused(refusal: &Refusal) -> Response<Body> {
    let mut response = json_response(refusal.reason.code(), &refusal.to_status());
    if let Some(seconds) = refusal.details.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    warn(&mut response, &refusal.details.warnings);
    if refusal.reason == Reason::Unauthorized {
        response.headers_mut().insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
}

fn json_response(code: u16, body: &Value) -> Response<Body> {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn handle(
    api: &Arc<Api>,
    connection: &Arc<AtomicUsize>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let (parts, body) = request.into_parts();
    let wanted = route(parts.uri.path());
    match wanted {
        Route::Health if parts.method == Method::GET => return Ok(Response::new(Body::from("ok"))),
        Route::Version if parts.method == Method::GET => return Ok(json_response(200, &discovery::version())),
        _ => {}
    }
    let user = authenticate(api, &parts.headers)?;
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let format = tables::format(header(&parts.headers, &ACCEPT), query.get("includeObject"))?;
    let target = match wanted {
        Route::Resource(target) => target,
        Route::Metrics if parts.method == Method::GET => return Ok(Response::new(Body::from(api.metrics()))),
        Route::Backup if parts.method == Method::GET => return backup::stream(api, &user),
        Route::OpenApi(part) if parts.method == Method::GET => return describe(api, &part),
        other => return discover(api, &parts.method, other, format),
    };
    let Ok(Ok(_turn)) = tokio::time::timeout(TURN_DEADLINE, api.requests.acquire()).await else {
        api.counters.busy_refusals.fetch_add(1, Ordering::Relaxed);
        return Err(Refusal::too_many("too many requests at once: try again", 1));
    };
    if target.name.is_empty() && parts.method == Method::POST && is_review(&target) {
        let sent = read_object(&parts.headers, body).await?;
        let reply = reviews::review(api, &target.group, &target.plural, &sent, &user);
        return reply.unwrap_or_else(|| Err(Refusal::no_such_path())).and_then(render_plain);
    }
    let resource =
        api.registry.served().find(&target.group, &target.version, &target.plural).ok_or_else(Refusal::no_such_path)?;
    let call = open(api, resource, target, query, &parts.headers)?;
    let watching = parts.method == Method::GET && call.target.subresource.is_empty() && call.query.flag("watch")?;
    if watching {
        return finish(&call, watch::watch(&call, api, connection, format).await?, format);
    }
    let reply = if call.target.subresource.is_empty() {
        plain(&call, &parts.method, &parts.headers, body).await?
    } else {
        subresource(&call, &parts.method, &parts.headers, body).await?
    };
    finish(&call, reply, format)
}

fn authenticate(api: &Api, headers: &HeaderMap) -> Result<User, Refusal> {
    let value = header(headers, &AUTHORIZATION);
    let token = value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")).map(str::trim);
    token
        .and_then(|t| api.access.identify(t, object::now()))
        .map(|(user, _)| user)
        .ok_or_else(|| Refusal::new(Reason::Unauthorized, "Unauthorized"))
}

/// The OpenAPI documents: the list of them, or one.
fn describe(api: &Api, part: &str) -> Result<Response<Body>, Refusal> {
    let definitions =
        api.objects.all(&super::objects::prefix("apiextensions.k8s.io", "customresourcedefinitions", ""))?;
    let definitions: Vec<Value> = definitions.items.into_iter().map(|stored| stored.object).collect();
    let served = api.registry.served();
    let body = if part.is_empty() {
        Some(openapi::index(&served, &definitions))
    } else {
        openapi::document(&served, &definitions, part)
    };
    body.map(|body| json_response(200, &body)).ok_or_else(Refusal::no_such_path)
}

/// All reviews are cluster-scoped but one.
fn is_review(target: &Target) -> bool {
    matches!(target.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io")
        && target.version == "v1"
        && target.namespace.is_empty() != (target.plural == "localsubjectaccessreviews")
}

fn header<'a>(headers: &'a HeaderMap, name: &http::header::HeaderName) -> &'a str {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
}

fn discover(api: &Api, method: &Method, route: Route, format: Format) -> Result<Response<Body>, Refusal> {
    if *method != Method::GET {
        return Err(Refusal::no_such_verb(method.as_str()));
    }
    let served = api.registry.served();
    let aggregated = |core: bool| {
        let mut response = json_response(200, &discovery::aggregated(&served, core));
        let kind = HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    };
    let body = match route {
        Route::CoreVersions if format == Format::Discovery => return Ok(aggregated(true)),
        Route::Groups if format == Format::Discovery => return Ok(aggregated(false)),
        Route::CoreVersions => Some(discovery::core_versions(&api.address)),
        Route::Groups => Some(discovery::groups(&served)),
        Route::Group(name) => discovery::group(&served, &name),
        Route::Resources { group, version } => discovery::resources(&served, &group, &version),
        _ => None,
    };
    body.map(|b| json_response(200, &b)).ok_or_else(Refusal::no_such_path)
}

fn open<'a>(
    api: &'a Arc<Api>,
    resource: Arc<super::kinds::Resource>,
    target: Target,
    query: Query,
    headers: &HeaderMap,
) -> Result<Call<'a>, Refusal> {
    if !resource.namespaced && !target.namespace.is_empty() {
        return Err(Refusal::no_such_path());
    }
    if resource.namespaced && target.namespace.is_empty() && !target.name.is_empty() {
        return Err(Refusal::no_such_path());
    }
    let dry_run = match query.get("dryRun") {
        "" => false,
        "All" => true,
        other => return Err(Refusal::bad_request(format!("dryRun={other:?} must be All"))),
    };
    let strictness = match query.get("fieldValidation") {
        "Strict" => Strictness::Strict,
        "" | "Warn" => Strictness::Warn,
        "Ignore" => Strictness::Ignore,
        other => return Err(Refusal::bad_request(format!("fieldValidation={other:?} must be Ignore, Warn or Strict"))),
    };
    let door = if target.subresource == "status" { Door::Status } else { Door::Main };
    let manager = match query.get("fieldManager") {
        "" => header(headers, &USER_AGENT)
            .split(['/', ' '])
            .next()
            .filter(|s| !s.is_empty())
            .unwrap_or("unknown")
            .to_owned(),
        named => named.to_owned(),
    };
    if manager.chars().count() > 128 || manager.chars().any(char::is_control) {
        return Err(Refusal::bad_request("fieldManager must be at most 128 printable characters"));
    }
    Ok(Call { api, resource, target, query, door, manager, dry_run, strictness, time: object::now() })
}

async fn plain(call: &Call<'_>, method: &Method, headers: &HeaderMap, body: Incoming) -> Result<Reply, Refusal> {
    let named = !call.target.name.is_empty();
    match (method.as_str(), named) {
        ("GET", true) => read::get(call),
        ("GET", false) => list::list(call).await,
        ("POST", false) => post::create(call, read_object(headers, body).await?).await,
        ("PUT", true) => post::replace(call, read_object(headers, body).await?).await,
        ("PATCH", true) => patch(call, headers, body).await,
        ("DELETE", named) => {
            if call.resource.namespaced && call.target.namespace.is_empty() {
                return Err(Refusal::no_such_verb("DELETE over all namespaces"));
            }
            let bytes = read_bytes(body).await?;
            let sent = if bytes.is_empty() { None } else { Some(parse(headers, &bytes)?) };
            let (options, dry) = delete::Options::parse(sent.as_ref(), &call.query)?;
            let call = Call {
                api: call.api,
                resource: call.resource.clone(),
                target: call.target.clone(),
                query: call.query.clone(),
                manager: call.manager.clone(),
                // Options in the body are all there are: those of the query count only without one, as with a real server.
                dry_run: if sent.is_some() { dry } else { call.dry_run },
                ..*call
            };
            if named { delete::delete(&call, &options).await } else { delete::delete_collection(&call, &options).await }
        }
        (other, _) => Err(Refusal::no_such_verb(other)),
    }
}

async fn subresource(call: &Call<'_>, method: &Method, headers: &HeaderMap, body: Incoming) -> Result<Reply, Refusal> {
    let sub = call.target.subresource.as_str();
    if !call.resource.has(sub) {
        return match sub {
            "exec" | "attach" | "portforward" | "proxy" | "ephemeralcontainers" | "resize" | "finalize" => {
                Err(Refusal::not_built(&format!("{}/{sub}", call.resource.plural)))
            }
            _ => Err(Refusal::no_such_path()),
        };
    }
    match (sub, method.as_str()) {
        ("status", "GET") => read::get(call),
        ("status", "PUT") => post::replace(call, read_object(headers, body).await?).await,
        ("status", "PATCH") => patch(call, headers, body).await,
        ("scale", "GET") => scale::get(call),
        ("scale", "PUT") => scale::put(call, Wish::Replace(read_object(headers, body).await?)).await,
        ("scale", "PATCH") => {
            let sent = parse(headers, &read_bytes(body).await?)?;
            let shown = sent.clone();
            let done = match media_type(headers) {
                // A Scale has no list, so the two are the same.
                "application/merge-patch+json" | "application/strategic-merge-patch+json" => {
                    scale::put(call, Wish::Merge(sent)).await
                }
                "application/json-patch+json" => scale::put(call, Wish::Json(sent)).await,
                other => Err(Refusal::unsupported(other)),
            };
            done.map_err(|refusal| refusal.of_patch(&shown))
        }
        ("binding", "POST") => {
            let sent = read_object(headers, body).await?;
            let call = Call {
                api: call.api,
                resource: call.resource.clone(),
                target: call.target.clone(),
                query: call.query.clone(),
                manager: call.manager.clone(),
                door: Door::Server,
                ..*call
            };
            pods::bind(&call, &sent).await
        }
        ("eviction", "POST") => pods::evict(call, &read_object(headers, body).await?).await,
        ("log", "GET") => pods::log(call).await,
        ("token", "POST") => reviews::issue(call, &read_object(headers, body).await?),
        (_, other) => Err(Refusal::no_such_verb(other)),
    }
}

async fn patch(call: &Call<'_>, headers: &HeaderMap, body: Incoming) -> Result<Reply, Refusal> {
    let kind = media_type(headers);
    let strategic = kind == "application/strategic-merge-patch+json" && call.resource.custom().is_none();
    let known = ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
    if !strategic && !known.contains(&kind) {
        return Err(Refusal::unsupported(kind));
    }
    let sent = parse(headers, &read_bytes(body).await?)?;
    let shown = sent.clone();
    let done = match kind {
        "application/json-patch+json" => post::json_patch(call, sent).await,
        "application/merge-patch+json" => post::merge_patch(call, sent).await,
        "application/strategic-merge-patch+json" => post::strategic_patch(call, sent).await,
        _ => return apply::apply(call, sent).await,
    };
    done.map_err(|refusal| refusal.of_patch(&shown))
}

fn media_type(headers: &HeaderMap) -> &str {
    header(headers, &CONTENT_TYPE).split(';').next().unwrap_or_default().trim()
}

async fn read_bytes(body: Incoming) -> Result<bytes::Bytes, Refusal> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Refusal::new(Reason::RequestEntityTooLarge, format!("limit is {MAX_BODY} bytes")))
        }
        Err(error) => Err(Refusal::bad_request(format!("read body: {error}"))),
    }
}

async fn read_object(headers: &HeaderMap, body: Incoming) -> Result<Value, Refusal> {
    let kind = media_type(headers);
    if !matches!(kind, "" | "application/json" | "application/yaml" | PROTOBUF) {
        return Err(Refusal::unsupported(kind));
    }
    let sent = parse(headers, &read_bytes(body).await?)?;
    if sent.is_object() { Ok(sent) } else { Err(Refusal::bad_request("the object must be a map")) }
}

/// What typed clients send.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn parse(headers: &HeaderMap, bytes: &[u8]) -> Result<Value, Refusal> {
    if media_type(headers) == PROTOBUF {
        return protobuf::decode(bytes);
    }
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(_) if media_type(headers).ends_with("yaml") => {
            let text = std::str::from_utf8(bytes).map_err(|_| Refusal::bad_request("the body is not UTF-8"))?;
            serde_saphyr::from_str(text).map_err(|e| Refusal::bad_request(format!("the body is not YAML: {e}")))
        }
        Err(error) => Err(Refusal::bad_request(format!("the body is not JSON: {error}"))),
    }
}

fn render_plain(reply: Reply) -> Result<Response<Body>, Refusal> {
    match reply {
        Reply::Plain { code, body } => Ok(json_response(code, &body)),
        Reply::Raw(response) => Ok(response),
        Reply::Object { code, object, .. } => Ok(json_response(code, &object)),
        Reply::List(list) => Ok(json_response(200, &list)),
    }
}

fn finish(call: &Call<'_>, reply: Reply, format: Format) -> Result<Response<Body>, Refusal> {
    let mut renderer = Renderer::new(call.resource.clone(), format);
    match reply {
        Reply::Object { code, object, warnings } => {
            let mut response = json_response(code, &renderer.one(object));
            warn(&mut response, &warnings);
            Ok(response)
        }
        Reply::List(list) => Ok(json_response(200, &renderer.list(list))),
        other => render_plain(other),
    }
}
