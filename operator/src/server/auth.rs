//! Who may call, and what. Kubernetes decides both: TokenReview says whose token it is, SubjectAccessReview whether that user may. No
//! right is judged here; a positive answer is kept for a few seconds, a refusal never, so that a new rule works at once.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// How long a positive answer is kept: how long a revoked token or rule still works here.
const KEEP: Duration = Duration::from_secs(10);
/// Most answers kept, of tokens and of rights each.
const MOST_KEPT: usize = 1024;
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest token looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// What an endpoint asks for: a verb on a resource of the group `cellplane.dev`, in the fleet's namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Right {
    pub(super) verb: &'static str,
    pub(super) resource: &'static str,
}

impl Right {
    pub(super) const READ_MOVES: Self = Self { verb: "get", resource: "moves" };
    pub(super) const START_MOVES: Self = Self { verb: "create", resource: "moves" };
    /// A dedicated cell is made by whoever starts a move to it.
    pub(super) const MAKE_CELLS: Self = Self { verb: "create", resource: "cells" };
    pub(super) const CHANGE_MOVES: Self = Self { verb: "update", resource: "moves" };
    pub(super) const READ_MIGRATIONS: Self = Self { verb: "get", resource: "storagemigrations" };
    pub(super) const START_MIGRATIONS: Self = Self { verb: "create", resource: "storagemigrations" };
    pub(super) const READ_FLEETS: Self = Self { verb: "get", resource: "fleets" };
    pub(super) const CHANGE_FLEETS: Self = Self { verb: "update", resource: "fleets" };
    /// No such resource is served: the rule alone says who may speak as any user of the chat.
    pub(super) const ISSUE_TOKENS: Self = Self { verb: "create", resource: "tokens" };
}

type TokenHash = [u8; 32];

/// Positive answers, each for a short while. Bounded: a full one forgets what has run out, and everything if that is not enough.
struct Kept<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K: Eq + Hash, V: Clone> Kept<K, V> {
    fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.0.lock().get(key).filter(|(_, until)| *until > now).map(|(value, _)| value.clone())
    }

    fn put(&self, key: K, value: V, now: Instant) {
        let mut kept = self.0.lock();
        if kept.len() >= MOST_KEPT {
            kept.retain(|_, (_, until)| *until > now);
        }
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(key, (value, now + KEEP));
    }
}

pub(super) struct Reviewer {
    client: Client,
    namespace: String,
    users: Kept<TokenHash, UserInfo>,
    rights: Kept<(TokenHash, Right), ()>,
}

impl Reviewer {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned(), users: Kept::new(), rights: Kept::new() }
    }

    /// Lets the bearer of `header`'s token through if it may do what `right` says.
    pub(super) async fn check(&self, header: Option<&str>, right: Right) -> Result<(), ApiError> {
        let token = header.and_then(|header| header.strip_prefix("Bearer ")).map(str::trim).unwrap_or_default();
        if token.is_empty() {
            return Err(unknown("send the kubeconfig's token as `Authorization: Bearer <token>`"));
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(unknown("the token is longer than any this API looks at"));
        }
        let hash: TokenHash = Sha256::digest(token).into();
        let now = Instant::now();
        if self.rights.get(&(hash, right), now).is_some() {
            return Ok(());
        }
        let user = match self.users.get(&hash, now) {
            Some(user) => user,
            None => {
                let user = self.identify(token).await?;
                self.users.put(hash, user.clone(), now);
                user
            }
        };
        self.authorise(&user, right).await?;
        self.rights.put((hash, right), (), now);
        Ok(())
    }

    async fn identify(&self, token: &str) -> Result<UserInfo, ApiError> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let status = self.ask(&review, "Kubernetes did not review the token").await?.status.unwrap_or_default();
        match status.user {
            Some(user) if status.authenticated == Some(true) => Ok(user),
            _ => Err(unknown("Kubernetes does not know this token; use the one of your kubeconfig")),
        }
    }

    async fn authorise(&self, user: &UserInfo, right: Right) -> Result<(), ApiError> {
        let review = SubjectAccessReview { spec: question(user, right, &self.namespace), ..Default::default() };
        let status = self.ask(&review, "Kubernetes did not review the access").await?.status.unwrap_or_default();
        if status.allowed && status.denied != Some(true) {
            return Ok(());
        }
        let name = user.username.clone().unwrap_or_default();
        tracing::info!(user = name, verb = right.verb, resource = right.resource, "a caller was refused");
        Err(refused(&name, right, &self.namespace, status.reason.as_deref().unwrap_or_default()))
    }

    async fn ask<K>(&self, review: &K, what: &str) -> Result<K, ApiError>
    where
        K: kube::Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let unavailable = |message: String| ApiError::new(503, "RequestFailed", what, message);
        let api: Api<K> = Api::all(self.client.clone());
        let answer = tokio::time::timeout(DEADLINE, api.create(&PostParams::default(), review)).await;
        answer
            .map_err(|_| unavailable(format!("no answer within {} s", DEADLINE.as_secs())))?
            .map_err(|error| unavailable(error.to_string()))
    }
}

fn unknown(detail: &str) -> ApiError {
    ApiError::new(401, "Unauthorized", "not authenticated", detail)
}

/// The reviewed user as Kubernetes described it: nothing is left out, since a rule may hang on any of it.
fn question(user: &UserInfo, right: Right, namespace: &str) -> SubjectAccessReviewSpec {
    let extra: BTreeMap<String, Vec<String>> = user.extra.clone().unwrap_or_default();
    SubjectAccessReviewSpec {
        resource_attributes: Some(ResourceAttributes {
            group: Some(cell_crds::GROUP.to_owned()),
            resource: Some(right.resource.to_owned()),
            verb: Some(right.verb.to_owned()),
            version: Some(cell_crds::VERSION.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ResourceAttributes::default()
        }),
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: Some(extra).filter(|extra| !extra.is_empty()),
        ..SubjectAccessReviewSpec::default()
    }
}

fn refused(name: &str, right: Right, namespace: &str, why: &str) -> ApiError {
    let Right { verb, resource } = right;
    let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
    let group = cell_crds::GROUP;
    let detail = format!(
        "{name:?} may not {verb} {resource}.{group} in namespace {namespace}{why}; bind it to a Role there with the rule {{apiGroups: [{group}], resources: [{resource}], verbs: [{verb}]}}"
    );
    ApiError::new(403, "Forbidden", "not allowed", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> UserInfo {
        UserInfo {
            username: Some("ada".into()),
            uid: Some("u1".into()),
            groups: Some(vec!["ops".into()]),
            extra: Some([("scopes".to_owned(), vec!["moves".to_owned()])].into()),
        }
    }

    #[test]
    fn kubernetes_is_asked_about_the_whole_user_and_one_resource_of_the_fleets_namespace() {
        let asked = question(&user(), Right::CHANGE_MOVES, "fleet");
        assert_eq!((asked.user.as_deref(), asked.uid.as_deref()), (Some("ada"), Some("u1")));
        assert_eq!((asked.groups, asked.extra), (Some(vec!["ops".to_owned()]), user().extra));
        let resource = asked.resource_attributes.unwrap();
        assert_eq!(
            (resource.verb.as_deref(), resource.resource.as_deref(), resource.group.as_deref()),
            (Some("update"), Some("moves"), Some("cellplane.dev"))
        );
        assert_eq!((resource.namespace.as_deref(), resource.name), (Some("fleet"), None));
    }

    #[test]
    fn an_answer_is_kept_for_seconds_and_for_one_right_only() {
        let kept = Kept::new();
        let now = Instant::now();
        kept.put(([1; 32], Right::READ_MOVES), (), now);
        assert!(kept.get(&([1; 32], Right::READ_MOVES), now + KEEP - Duration::from_millis(1)).is_some());
        assert!(kept.get(&([1; 32], Right::READ_MOVES), now + KEEP).is_none());
        assert!(kept.get(&([1; 32], Right::ISSUE_TOKENS), now).is_none());
        assert!(kept.get(&([2; 32], Right::READ_MOVES), now).is_none());
        assert!(KEEP <= Duration::from_secs(10));
    }

    #[test]
    fn no_number_of_tokens_makes_the_kept_answers_grow_without_bound() {
        let kept = Kept::new();
        let now = Instant::now();
        for number in 0..MOST_KEPT * 3 {
            kept.put(number, (), now);
            assert!(kept.0.lock().len() <= MOST_KEPT);
        }
        assert!(kept.get(&(MOST_KEPT * 3 - 1), now).is_some(), "the newest is there");
    }

    /// A Kubernetes that knows every token, and lets its bearer create `moves` and nothing else.
    fn kubernetes() -> Client {
        use axum::body::{Body, to_bytes};
        let answer = |request: http::Request<kube::client::Body>| async move {
            let body = to_bytes(Body::new(request.into_body()), 1 << 16).await?;
            let mut review: serde_json::Value = serde_json::from_slice(&body)?;
            review["status"] = match review["kind"].as_str() {
                Some("TokenReview") => serde_json::json!({"authenticated": true, "user": {"username": "ada"}}),
                _ => {
                    let asked = &review["spec"]["resourceAttributes"];
                    serde_json::json!({"allowed": asked["resource"] == "moves" && asked["verb"] == "create"})
                }
            };
            Ok::<_, tower::BoxError>(http::Response::new(Body::from(review.to_string())))
        };
        Client::new(tower::service_fn(answer), "fleet")
    }

    #[tokio::test]
    async fn who_may_start_moves_may_not_thereby_make_cells() {
        let reviewer = Reviewer::new(kubernetes(), "fleet");
        assert!(reviewer.check(Some("Bearer t"), Right::START_MOVES).await.is_ok());
        let refused = reviewer.check(Some("Bearer t"), Right::MAKE_CELLS).await.unwrap_err();
        let said = format!("{refused:?}");
        assert!(said.contains("403") && said.contains("resources: [cells], verbs: [create]"), "{said}");
    }
}
