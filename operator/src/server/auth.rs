//! Who may call: whoever Kubernetes says is authenticated, by TokenReview. Answers are kept for a short while, by the token's hash.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::error::ApiError;

/// How long a positive answer is kept: how long a revoked token still works here.
const KEEP: Duration = Duration::from_secs(30);
/// Most answers kept.
const MOST_KEPT: usize = 1024;
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest token looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

pub(super) struct Reviewer {
    client: Client,
    known: Mutex<HashMap<[u8; 32], Instant>>,
}

impl Reviewer {
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    pub(super) async fn check(&self, header: Option<&str>) -> Result<(), ApiError> {
        let denied = |detail: &str| ApiError::new(401, "Forbidden", "not authenticated", detail);
        let token = header.and_then(|header| header.strip_prefix("Bearer ")).map(str::trim).unwrap_or_default();
        if token.is_empty() {
            return Err(denied("send the kubeconfig's token as `Authorization: Bearer <token>`"));
        }
        if token.len() > MAX_TOKEN_BYTES {
            return Err(denied("the token is longer than any this API looks at"));
        }
        let hash: [u8; 32] = Sha256::digest(token).into();
        if self.known.lock().get(&hash).is_some_and(|until| *until > Instant::now()) {
            return Ok(());
        }
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let answer = tokio::time::timeout(DEADLINE, api.create(&PostParams::default(), &review)).await;
        let unavailable =
            |message: String| ApiError::new(503, "RequestFailed", "Kubernetes did not review the token", message);
        let answer = answer
            .map_err(|_| unavailable(format!("no answer within {} s", DEADLINE.as_secs())))?
            .map_err(|error| unavailable(error.to_string()))?;
        if answer.status.is_none_or(|status| status.authenticated != Some(true)) {
            return Err(denied("Kubernetes does not know this token; use the one of your kubeconfig"));
        }
        let mut known = self.known.lock();
        if known.len() >= MOST_KEPT {
            known.clear();
        }
        known.insert(hash, Instant::now() + KEEP);
        Ok(())
    }
}
