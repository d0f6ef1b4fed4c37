//! Tokens for bots and users. The user is created in its bucket's log first; the same kind and name always give the same user.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use cell_api::{IssueToken, IssuedToken, TokenKind};
use cell_crds::Reason as CrdReason;
use cell_proto::unit::{Unit, user_id_of_name};
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::query_reply::Answer;
use cell_proto::v1::query_request::Query;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{Change, QueryRequest, Reason, Refusal, SubmitRequest, User, UserCreated, UserQuery};
use cell_runtime::route::data_member;
use cell_runtime::tokens::{Bearer, Identity, TokenKeys};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use sha2::{Digest, Sha256};
use tonic::transport::Channel;

use super::Api;
use super::error::{ApiError, Body};
use crate::directory::Link;
use crate::names::token_keys;

/// How long the whole call may take.
const DEADLINE: Duration = Duration::from_secs(20);
const CALL: Duration = Duration::from_secs(5);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(150);
const NAME_CHARACTERS: std::ops::RangeInclusive<usize> = 2..=32;

pub(super) async fn issue(
    State(api): State<Api>,
    Body(request): Body<IssueToken>,
) -> Result<Json<IssuedToken>, ApiError> {
    let name = request.name.trim().to_owned();
    if !NAME_CHARACTERS.contains(&name.chars().count()) || name.chars().any(char::is_control) {
        return Err(ApiError::invalid("name", "2–32 characters, none of them a control character"));
    }
    let (fleet, link) = api.fleet()?;
    let secret_name = fleet.spec.token_keys_ref.clone().unwrap_or_else(|| token_keys(&fleet.name_any()));
    let keys = read_keys(&api, &secret_name).await?;
    let (word, bearer) = match request.kind {
        TokenKind::Bot => ("bot", Bearer::Bot),
        TokenKind::User => ("user", Bearer::User),
    };
    let user = User {
        id: user_id_of_name(word, &name),
        name: name.clone(),
        bot: request.kind == TokenKind::Bot,
        global_name: String::new(),
    };
    let user_id = user.id;
    let operation = Sha256::digest(format!("create-user\u{0}{word}\u{0}{name}"))[..16].to_vec();
    let creation = Creation { link: &link, log: Unit::bucket(user_id).log(), user, operation };
    let created = tokio::time::timeout(DEADLINE, creation.ensure()).await.map_err(|_| {
        let detail = format!("{} did not settle within {} s; try again", creation.log, DEADLINE.as_secs());
        ApiError::new(504, "DeadlinePassed", "the user was not created in time", detail)
    })??;
    let token = keys
        .sign(Identity { user_id, bearer }, cell_runtime::unix_ms())
        .map_err(|error| ApiError::new(500, "Internal", "signing failed", error.to_string()))?;
    tracing::info!(user_id, kind = word, created, "a token was issued");
    Ok(Json(IssuedToken { token, user_id: user_id.to_string(), created }))
}

async fn read_keys(api: &Api, name: &str) -> Result<TokenKeys, ApiError> {
    let missing = |detail: String| ApiError::new(503, CrdReason::ReferenceNotFound.label(), "no token keys", detail);
    let secret = api.context.applier.get::<Secret>(name).await?;
    let secret = secret.ok_or_else(|| missing(format!("Secret {name} does not exist yet")))?;
    let mut data = secret.data.unwrap_or_default();
    let current = data.remove("current").ok_or_else(|| missing(format!("Secret {name} has no key `current`")))?;
    let previous = data.remove("previous").map(|bytes| bytes.0);
    TokenKeys::new(current.0, previous).map_err(|error| missing(format!("Secret {name}: {error}")))
}

struct Creation<'a> {
    link: &'a Link,
    log: String,
    user: User,
    operation: Vec<u8>,
}

impl Creation<'_> {
    /// Asks until it is settled whether the user exists; `true` when this call made it. The caller bounds the time.
    async fn ensure(&self) -> Result<bool, ApiError> {
        loop {
            if let Some(found) = self.look().await? {
                return if found.name == self.user.name && found.bot == self.user.bot {
                    Ok(false)
                } else {
                    let detail = "name: its id belongs to a user with another name; choose another";
                    Err(ApiError::new(409, "AlreadyExists", "name is taken", detail).field("name", "taken"))
                };
            }
            if let Some(created) = self.create().await? {
                return Ok(created);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn client(&self) -> Option<DataServiceClient<Channel>> {
        let address = data_member(&self.link.directory.view(), &self.log)?.grpc_address.clone();
        Some(DataServiceClient::new(self.link.channels.get(&address).ok()?))
    }

    /// The user, if there is one. Asks until the owner answers.
    async fn look(&self) -> Result<Option<User>, ApiError> {
        loop {
            if let Some(mut client) = self.client() {
                let deadline_unix_ms = cell_runtime::unix_ms() + 4_000;
                let query = Some(Query::User(UserQuery { user_id: self.user.id }));
                let request =
                    QueryRequest { log: self.log.clone(), deadline_unix_ms, query, ..QueryRequest::default() };
                match tokio::time::timeout(CALL, client.query(request)).await {
                    Ok(Ok(reply)) => match reply.into_inner().answer {
                        Some(Answer::User(user)) => return Ok(Some(user)),
                        Some(Answer::Refusal(refusal)) if refusal.why() == Reason::NotFound => return Ok(None),
                        Some(Answer::Refusal(refusal)) => self.heed(&refusal)?,
                        _ => return Ok(None),
                    },
                    Ok(Err(status)) => tracing::debug!(log = self.log, %status, "the user's owner did not answer"),
                    Err(_) => tracing::debug!(log = self.log, "the user's owner did not answer in time"),
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One try; `None` when it is to be looked at again.
    async fn create(&self) -> Result<Option<bool>, ApiError> {
        let Some(mut client) = self.client() else { return Ok(None) };
        let change = Change { kind: Some(Kind::UserCreated(UserCreated { user: Some(self.user.clone()) })) };
        let request = SubmitRequest {
            log: self.log.clone(),
            operation_id: self.operation.clone(),
            deadline_unix_ms: cell_runtime::unix_ms() + 60_000,
            change: Some(change),
            ..SubmitRequest::default()
        };
        match tokio::time::timeout(CALL, client.submit(request)).await {
            Ok(Ok(reply)) => match reply.into_inner().outcome {
                Some(Outcome::Committed(committed)) => Ok(Some(!committed.duplicate)),
                Some(Outcome::Refusal(refusal)) if refusal.why() == Reason::AlreadyExists => Ok(None),
                Some(Outcome::Refusal(refusal)) => self.heed(&refusal).map(|()| None),
                None => Ok(None),
            },
            // Unknown: the next look tells.
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }

    /// Learns from a redirect; a refusal that no retry can change ends the call.
    fn heed(&self, refusal: &Refusal) -> Result<(), ApiError> {
        if let Some(route) = &refusal.route {
            self.link.directory.correct(route);
        }
        let detail = format!("{}: {}", self.log, refusal.message);
        // Longer than anybody waits.
        if refusal.why() == Reason::StoreFull {
            return Err(ApiError::new(507, refusal.why().label(), "the user was not created", detail));
        }
        if refusal.why().is_retryable() || refusal.why() == Reason::DeadlinePassed {
            return Ok(());
        }
        Err(ApiError::new(422, refusal.why().label(), "the user was not created", detail))
    }
}
