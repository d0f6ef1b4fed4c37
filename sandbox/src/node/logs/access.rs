//! Who may read logs: whoever has the token of the agent's kubeconfig, and whoever shows a certificate of the clients' authority and may
//! `get nodes/proxy` of this node, as the API server is asked. It answers yes or why not, and remembers yes for a minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;
use parking_lot::Mutex;

use super::certificate::Subject;
use crate::controllers::act;
use crate::node::shared::Node;

/// How long a yes holds.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Most callers remembered.
const MOST_CALLERS: usize = 64;

/// Who sent a request, as the connection knows it.
#[derive(Debug, Clone, Default)]
pub struct Caller(pub Option<Subject>);

/// Judges callers.
#[derive(Debug, Default)]
pub struct Access {
    token: Option<String>,
    allowed: Mutex<HashMap<Subject, Instant>>,
}

impl Access {
    /// With the token that is good for everything.
    pub fn new(token: Option<String>) -> Self {
        Self { token, allowed: Mutex::default() }
    }

    /// Whether the caller may read.
    ///
    /// # Errors
    /// Status and words of the refusal.
    pub async fn judge(&self, node: &Node, caller: &Caller, headers: &HeaderMap) -> Result<(), (StatusCode, String)> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer "));
        if let (Some(given), Some(token)) = (given, &self.token)
            && same(given.as_bytes(), token.as_bytes())
        {
            return Ok(());
        }
        let Some(subject) = &caller.0 else {
            let words = "bearer token missing or wrong: use the node agent's kubeconfig token, or a certificate of its --client-ca\n";
            return Err((StatusCode::UNAUTHORIZED, words.into()));
        };
        if self.allowed.lock().get(subject).is_some_and(|at| at.elapsed() < REMEMBERED) {
            return Ok(());
        }
        match ask(node, subject).await {
            Ok(true) => {
                self.remember(subject);
                Ok(())
            }
            Ok(false) => {
                let words = format!("user {} may not get nodes/proxy of {}\n", subject.user, node.settings.node);
                Err((StatusCode::FORBIDDEN, words))
            }
            Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, format!("ask whether you may read logs: {error}\n"))),
        }
    }

    fn remember(&self, subject: &Subject) {
        let mut allowed = self.allowed.lock();
        if allowed.len() >= MOST_CALLERS {
            allowed.retain(|_, at| at.elapsed() < REMEMBERED);
        }
        if allowed.len() < MOST_CALLERS {
            allowed.insert(subject.clone(), Instant::now());
        }
    }
}

async fn ask(node: &Node, subject: &Subject) -> Result<bool, act::ActError> {
    let attributes = ResourceAttributes {
        verb: Some("get".into()),
        version: Some("v1".into()),
        resource: Some("nodes".into()),
        subresource: Some("proxy".into()),
        name: Some(node.settings.node.clone()),
        ..ResourceAttributes::default()
    };
    let spec = SubjectAccessReviewSpec {
        user: Some(subject.user.clone()),
        groups: Some(subject.groups.clone()),
        resource_attributes: Some(attributes),
        ..SubjectAccessReviewSpec::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(node.client.clone());
    let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    let answer = act::call("review access", api.create(&PostParams::default(), &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Compares in time that does not depend on where they differ.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
