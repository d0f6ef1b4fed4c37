//! The client of the control-plane API. One request a call, each with a deadline; it retries nothing: the caller knows what is safe.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::migrations::{MigrationPlan, MigrationReport, MigrationRequest, MigrationStarted};
use crate::moves::{Automation, Location, MovePlan, MoveRequest, Run};
use crate::paths;
use crate::problem::Problem;
use crate::tokens::{IssueToken, IssuedToken};

/// Largest answer read, in bytes.
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The API refused or failed, and said so.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// The API could not be reached; the request may or may not have arrived.
    #[error("failed to reach the control-plane API at {address}: {message}")]
    Unreachable {
        /// Its address.
        address: String,
        /// The transport's words.
        message: String,
    },
    /// No answer in time; the request may have arrived.
    #[error("the control-plane API at {address} did not answer within {seconds} s")]
    Deadline {
        /// Its address.
        address: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The answer is not of the shape this version knows.
    #[error("the control-plane API at {address} answered what this version cannot read: {message}")]
    Malformed {
        /// Its address.
        address: String,
        /// What is wrong.
        message: String,
    },
    /// The address is not an http URL.
    #[error("control-plane address {0:?} is not an http URL; see Fleet.status.controlPlaneAddress")]
    InvalidAddress(String),
}

/// A client for one API address and one bearer token.
#[derive(Clone)]
pub struct Client {
    base: String,
    token: String,
    deadline: Duration,
    http: HttpClient<HttpConnector, Full<Bytes>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Client {
    /// `base` is `Fleet.status.controlPlaneAddress`; `token` the caller's Kubernetes bearer token.
    ///
    /// # Errors
    /// [`ClientError::InvalidAddress`].
    pub fn new(base: &str, token: &str, deadline: Duration) -> Result<Self, ClientError> {
        let invalid = || ClientError::InvalidAddress(base.to_owned());
        let uri: Uri = base.parse().map_err(|_| invalid())?;
        if uri.scheme_str() != Some("http") || uri.authority().is_none() {
            return Err(invalid());
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        Ok(Self {
            base: base.trim_end_matches('/').to_owned(),
            token: token.to_owned(),
            deadline,
            http: HttpClient::builder(TokioExecutor::new()).build(connector),
        })
    }

    /// What a move would do.
    ///
    /// # Errors
    /// [`ClientError`], for this and every further call.
    pub async fn plan_move(&self, request: &MoveRequest) -> Result<MovePlan, ClientError> {
        self.call(Method::POST, paths::PLAN_MOVE, Some(request)).await
    }

    /// Starts a move.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn start_move(&self, request: &MoveRequest) -> Result<Run, ClientError> {
        self.call(Method::POST, paths::MOVES, Some(request)).await
    }

    /// All runs.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn runs(&self) -> Result<Vec<Run>, ClientError> {
        self.call(Method::GET, paths::MOVES, None::<&()>).await
    }

    /// One run, by the Move's name or its run id.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn run(&self, name: &str) -> Result<Run, ClientError> {
        self.call(Method::GET, &paths::one_move(name), None::<&()>).await
    }

    /// Asks for an abort.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn abort(&self, name: &str) -> Result<Run, ClientError> {
        self.call(Method::POST, &paths::abort(name), None::<&()>).await
    }

    /// Asks for a rollback.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn rollback(&self, name: &str) -> Result<Run, ClientError> {
        self.call(Method::POST, &paths::rollback(name), None::<&()>).await
    }

    /// Where a guild is.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn locate(&self, guild_id: &str) -> Result<Location, ClientError> {
        self.call(Method::GET, &paths::location(guild_id), None::<&()>).await
    }

    /// What a migration would do.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn plan_migration(&self, request: &MigrationRequest) -> Result<MigrationPlan, ClientError> {
        self.call(Method::POST, paths::PLAN_MIGRATION, Some(request)).await
    }

    /// Starts a migration.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn start_migration(&self, request: &MigrationRequest) -> Result<MigrationStarted, ClientError> {
        self.call(Method::POST, paths::MIGRATIONS, Some(request)).await
    }

    /// Everything about a run that holds no secret.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn migration_report(&self, name: &str) -> Result<MigrationReport, ClientError> {
        self.call(Method::GET, &paths::migration_report(name), None::<&()>).await
    }

    /// A token for a user, made when absent.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn issue_token(&self, request: &IssueToken) -> Result<IssuedToken, ClientError> {
        self.call(Method::POST, paths::TOKENS, Some(request)).await
    }

    /// Whether automation is paused.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn automation(&self) -> Result<Automation, ClientError> {
        self.call(Method::GET, paths::AUTOMATION, None::<&()>).await
    }

    /// Pauses or resumes automation.
    ///
    /// # Errors
    /// See [`Client::plan_move`].
    pub async fn set_automation(&self, wanted: &Automation) -> Result<Automation, ClientError> {
        self.call(Method::PUT, paths::AUTOMATION, Some(wanted)).await
    }

    async fn call<B: Serialize, A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<A, ClientError> {
        tokio::time::timeout(self.deadline, self.exchange(method, path, body))
            .await
            .map_err(|_| ClientError::Deadline { address: self.base.clone(), seconds: self.deadline.as_secs() })?
    }

    async fn exchange<B: Serialize, A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<A, ClientError> {
        let malformed = |message: String| ClientError::Malformed { address: self.base.clone(), message };
        let unreachable = |message: String| ClientError::Unreachable { address: self.base.clone(), message };
        let bytes = body.map(serde_json::to_vec).transpose().map_err(|error| malformed(error.to_string()))?;
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(bytes.unwrap_or_default())))
            .map_err(|error| malformed(error.to_string()))?;
        let response = self.http.request(request).await.map_err(|error| unreachable(innermost(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY_BYTES)
            .collect()
            .await
            .map_err(|error| unreachable(error.to_string()))?
            .to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| malformed(error.to_string()));
        }
        let problem = serde_json::from_slice(&body).unwrap_or_else(|_| {
            let detail = String::from_utf8_lossy(&body).chars().take(300).collect::<String>();
            Problem::new(status.as_u16(), "RequestFailed", format!("HTTP {status}"), detail)
        });
        Err(ClientError::Problem(Box::new(problem)))
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut current = error;
    while let Some(source) = current.source() {
        current = source;
    }
    current.to_string()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::{get, post};

    use super::*;

    async fn serve(router: Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        format!("http://{address}")
    }

    fn client(base: &str) -> Client {
        Client::new(base, "secret", Duration::from_secs(5)).unwrap()
    }

    #[tokio::test]
    async fn a_problem_keeps_its_reason_and_fields() {
        let problem = Problem::new(409, "UnitBusy", "refused", "run 7 holds g5").field("guildId", "busy");
        let body = serde_json::to_string(&problem).unwrap();
        let router = Router::new().route(paths::MOVES, post(move || async move { (StatusCode::CONFLICT, body) }));
        let request = MoveRequest {
            guild_id: "5".into(),
            target: crate::Target::Cell("b".into()),
            deadline_seconds: None,
            rollback_window_seconds: None,
            plan_hash: None,
        };
        match client(&serve(router).await).start_move(&request).await {
            Err(ClientError::Problem(found)) => assert_eq!(*found, problem),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_token_is_sent_and_never_shown() {
        let router = Router::new().route(
            paths::AUTOMATION,
            get(|headers: axum::http::HeaderMap| async move {
                let ok = headers.get("authorization").is_some_and(|value| value == "Bearer secret");
                axum::Json(Automation { paused: ok, note: None })
            }),
        );
        let client = client(&serve(router).await);
        assert!(client.automation().await.unwrap().paused);
        assert!(!format!("{client:?}").contains("secret"));
    }

    #[tokio::test]
    async fn an_unreachable_api_is_named() {
        let error = client("http://127.0.0.1:1").runs().await.unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        assert!(Client::new("ftp://x", "t", Duration::from_secs(1)).is_err());
    }
}
