//! Reviews: who a token belongs to, who the caller is, whether the caller may. Nothing is stored.

use serde_json::{Value, json};

use super::Reply;
use crate::kube_api::access::{Claims, MAX_TOKEN_SECONDS, User};
use crate::kube_api::api::{Api, Call};
use crate::kube_api::object::{self, at, list, text};
use crate::kube_api::status::Refusal;

/// Answers a review, or none if this is not one.
pub fn review(api: &Api, group: &str, plural: &str, sent: &Value, user: &User) -> Option<Result<Reply, Refusal>> {
    match (group, plural) {
        ("authentication.k8s.io", "tokenreviews") => Some(token_review(api, sent)),
        ("authentication.k8s.io", "selfsubjectreviews") => {
            Some(Ok(answer(sent, "authentication.k8s.io/v1", "SelfSubjectReview", json!({"userInfo": user.to_json()}))))
        }
        ("authorization.k8s.io", "selfsubjectaccessreviews") => {
            let reason = "the sandbox does not enforce authorization: every authenticated caller may do everything";
            let status = json!({"allowed": true, "reason": reason});
            Some(Ok(answer(sent, "authorization.k8s.io/v1", "SelfSubjectAccessReview", status)))
        }
        ("authorization.k8s.io", "selfsubjectrulesreviews") => {
            let everything = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
            let paths = json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
            let status = json!({"resourceRules": [everything], "nonResourceRules": [paths], "incomplete": false});
            Some(Ok(answer(sent, "authorization.k8s.io/v1", "SelfSubjectRulesReview", status)))
        }
        ("authorization.k8s.io", "subjectaccessreviews") => Some(access_review(sent, "SubjectAccessReview")),
        ("authorization.k8s.io", "localsubjectaccessreviews") => Some(access_review(sent, "LocalSubjectAccessReview")),
        _ => None,
    }
}

fn answer(sent: &Value, api_version: &str, kind: &str, status: Value) -> Reply {
    let spec = sent.get("spec").cloned().unwrap_or_else(|| json!({}));
    let body = json!({"apiVersion": api_version, "kind": kind, "metadata": {"creationTimestamp": null}, "spec": spec, "status": status});
    Reply::Plain { code: 201, body }
}

/// Whether somebody may do something, for programs that ask before they act: the group that no rule can take anything from may,
/// everybody else would need rules, which the sandbox does not evaluate.
fn access_review(sent: &Value, kind: &str) -> Result<Reply, Refusal> {
    let groups = list(sent, &["spec", "groups"]);
    if text(sent, &["spec", "user"]).is_empty() && groups.is_empty() {
        return Err(Refusal::bad_request("spec.user: at least one of user or group must be specified"));
    }
    let asks = |what: &str| at(sent, &["spec", what]).is_some_and(Value::is_object);
    if asks("resourceAttributes") == asks("nonResourceAttributes") {
        let what =
            "spec.resourceAttributes: exactly one of nonResourceAttributes or resourceAttributes must be specified";
        return Err(Refusal::bad_request(what));
    }
    let allowed = groups.iter().any(|group| group.as_str() == Some("system:masters"));
    let reason = if allowed {
        "the group system:masters may do everything"
    } else {
        "the sandbox does not evaluate RBAC rules: only the group system:masters is known to be allowed"
    };
    Ok(answer(sent, "authorization.k8s.io/v1", kind, json!({"allowed": allowed, "reason": reason})))
}

fn token_review(api: &Api, sent: &Value) -> Result<Reply, Refusal> {
    let token = text(sent, &["spec", "token"]);
    if token.is_empty() {
        return Err(Refusal::bad_request("spec.token is required"));
    }
    let wanted: Vec<&str> = list(sent, &["spec", "audiences"]).iter().filter_map(Value::as_str).collect();
    let status = match api.access.identify(token, object::now()) {
        None => json!({"authenticated": false, "error": "invalid bearer token"}),
        Some((user, audiences)) => {
            let agreed: Vec<&str> =
                wanted.iter().copied().filter(|w| audiences.is_empty() || audiences.iter().any(|a| a == w)).collect();
            if wanted.is_empty() || !agreed.is_empty() {
                json!({"authenticated": true, "user": user.to_json(), "audiences": agreed})
            } else {
                json!({"authenticated": false, "error": "the token is not meant for any of the audiences"})
            }
        }
    };
    // The token itself is not sent back.
    let mut shown = sent.clone();
    object::child(&mut shown, "spec").remove("token");
    Ok(answer(&shown, "authentication.k8s.io/v1", "TokenReview", status))
}

/// POST serviceaccounts/NAME/token: a TokenRequest.
pub fn issue(call: &Call<'_>, sent: &Value) -> Result<Reply, Refusal> {
    let name = &call.target.name;
    let account = call.api.objects.get(&call.key(name))?.ok_or_else(|| call.not_found(name))?;
    let seconds = at(sent, &["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or(3600);
    if !(600..=MAX_TOKEN_SECONDS).contains(&seconds) {
        let what = format!("spec.expirationSeconds must be between 600 and {MAX_TOKEN_SECONDS}, not {seconds}");
        return Err(Refusal::bad_request(what));
    }
    let ends = object::plus_seconds(call.time, seconds);
    let audiences: Vec<String> =
        list(sent, &["spec", "audiences"]).iter().filter_map(|a| a.as_str().map(str::to_owned)).collect();
    let token = call.api.access.issue(&Claims {
        namespace: call.target.namespace.clone(),
        account: name.clone(),
        uid: object::uid(&account.object).to_owned(),
        audiences,
        expires: ends.as_second(),
    });
    let status = json!({"token": token, "expirationTimestamp": object::rfc3339(ends)});
    Ok(answer(sent, "authentication.k8s.io/v1", "TokenRequest", status))
}
