//! Who may enter, reviews, discovery, and bounds.

use http::Request;
use serde_json::json;

use super::Sandbox;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// A client without a token.
async fn stranger(s: &Sandbox, token: Option<&str>) -> kube::Client {
    let read = kube::config::Kubeconfig::read_from(&s.kube.kubeconfig).unwrap();
    let mut config =
        kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await.unwrap();
    config.auth_info.token = token.map(|t| t.to_owned().into());
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

#[tokio::test]
async fn without_the_token_only_health_and_version_are_told() {
    let s = Sandbox::start().await;
    for token in [None, Some("wrong-token-wrong-token-wrong-token")] {
        let client = stranger(&s, token).await;
        let ask = |path: &str| client.send(Request::get(path).body(Vec::new().into()).unwrap());
        assert_eq!(ask("/api/v1/namespaces").await.unwrap().status(), 401);
        assert_eq!(ask("/apis").await.unwrap().status(), 401);
        assert_eq!(ask("/healthz").await.unwrap().status(), 200);
        assert_eq!(ask("/version").await.unwrap().status(), 200);
    }
    let stranger = stranger(&s, None).await;
    let error = stranger
        .request::<serde_json::Value>(Request::get("/api/v1/pods").body(Vec::new()).unwrap())
        .await
        .unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 401 && status.reason == "Unauthorized"));
    s.stop().await;
}

#[tokio::test]
async fn credentials_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let s = Sandbox::start().await;
    for file in ["token", "kubeconfig", "ca.key"] {
        let mode = std::fs::metadata(s.dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    s.stop().await;
}

#[tokio::test]
async fn token_reviews_tell_whose_token_it_is() {
    let s = Sandbox::start().await;
    let review = |token: &str| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let own = s.post(REVIEWS, review(s.kube.token())).await.ok();
    assert_eq!(
        (own["status"]["authenticated"].as_bool(), own["status"]["user"]["username"].as_str()),
        (Some(true), Some("cellplane-admin"))
    );
    assert!(own["spec"].get("token").is_none(), "a token is not sent back");
    let wrong = s.post(REVIEWS, review("x")).await.ok();
    assert_eq!(wrong["status"]["authenticated"], false);
    s.post(REVIEWS, review("")).await.refused(400, "BadRequest");

    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    s.post(accounts, json!({"metadata": {"name": "bot"}})).await.ok();
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600, "audiences": ["cells"]}});
    let issued = s.post(&format!("{accounts}/bot/token"), request).await.ok();
    let token = issued["status"]["token"].as_str().unwrap();
    let found = s.post(REVIEWS, review(token)).await.ok();
    assert_eq!(found["status"]["user"]["username"], "system:serviceaccount:default:bot");
    let mut elsewhere = review(token);
    elsewhere["spec"]["audiences"] = json!(["others"]);
    assert_eq!(s.post(REVIEWS, elsewhere).await.ok()["status"]["authenticated"], false);
    let client = stranger(&s, Some(token)).await;
    client.request::<serde_json::Value>(Request::get("/api/v1/pods").body(Vec::new()).unwrap()).await.unwrap();
    s.post(&format!("{accounts}/nobody/token"), json!({})).await.refused(404, "NotFound");
    s.post(&format!("{accounts}/bot/token"), json!({"spec": {"expirationSeconds": 1}}))
        .await
        .refused(400, "BadRequest");
    s.stop().await;
}

#[tokio::test]
async fn access_reviews_allow_the_administrators_group_and_say_that_rules_are_not_evaluated() {
    let s = Sandbox::start().await;
    let review = |groups: &[&str]| {
        let resource = json!({"group": "cellplane.dev", "resource": "moves", "verb": "create", "namespace": "fleet"});
        json!({"spec": {"user": "ada", "groups": groups, "resourceAttributes": resource}})
    };
    let group = "/apis/authorization.k8s.io/v1";
    for path in [format!("{group}/subjectaccessreviews"), format!("{group}/namespaces/fleet/localsubjectaccessreviews")]
    {
        let own = s.post(&path, review(&["system:masters", "system:authenticated"])).await.ok();
        assert_eq!(own["status"]["allowed"], true, "{path}");
        let other = s.post(&path, review(&["system:authenticated"])).await.ok();
        assert_eq!(other["status"]["allowed"], false, "{path}");
        assert!(other["status"]["reason"].as_str().unwrap().contains("does not evaluate RBAC"), "{other}");
    }
    let path = format!("{group}/subjectaccessreviews");
    s.post(&path, json!({"spec": {"resourceAttributes": {}}})).await.refused(400, "BadRequest");
    s.post(&path, json!({"spec": {"user": "ada"}})).await.refused(400, "BadRequest");
    let elsewhere = format!("{group}/namespaces/fleet/subjectaccessreviews");
    s.post(&elsewhere, review(&[])).await.refused(404, "NotFound");
    s.stop().await;
}

#[tokio::test]
async fn discovery_tells_what_is_served_in_both_forms() {
    let s = Sandbox::start().await;
    assert_eq!(s.get("/api").await.ok()["versions"], json!(["v1"]));
    let core = s.get("/api/v1").await.ok();
    let names: Vec<&str> = core["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    for name in ["pods", "pods/status", "pods/log", "pods/binding", "pods/eviction", "nodes", "secrets", "services"] {
        assert!(names.contains(&name), "{name}");
    }
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let request = Request::get("/apis").header("accept", accept).body(Vec::new()).unwrap();
    let answer = s.request(request).await;
    assert!(answer.headers["content-type"].to_str().unwrap().contains("APIGroupDiscoveryList"));
    let groups = answer.ok();
    let apps = groups["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "apps").unwrap();
    assert_eq!(apps["versions"][0]["version"], "v1");
    let discovery = kube::discovery::Discovery::new(s.client.clone()).run().await.unwrap();
    assert!(discovery.has_group("apps") && discovery.has_group("coordination.k8s.io"));
    s.get("/openapi/v2").await.refused(404, "NotFound");
    s.get("/apis/nope.dev").await.refused(404, "NotFound");
    s.stop().await;
}

#[tokio::test]
async fn figures_are_told_to_those_who_may_enter() {
    let s = Sandbox::start().await;
    s.get("/api/v1/pods").await.ok();
    let text = s.get("/metrics").await.ok();
    assert!(text.as_str().unwrap().contains("sandbox_kube_requests_total 1\n"), "{text}");
    s.stop().await;
}

#[tokio::test]
async fn more_requests_than_allowed_are_told_to_come_back() {
    let s = Sandbox::start().await;
    let all = crate::kube_api::api::MAX_REQUESTS as u32;
    let turns = s.kube.api().requests.clone().acquire_many_owned(all).await.unwrap();
    let answer = s.get("/api/v1/pods").await;
    assert_eq!(answer.headers["retry-after"], "1");
    answer.refused(429, "TooManyRequests");
    drop(turns);
    s.get("/api/v1/pods").await.ok();
    s.stop().await;
}

#[tokio::test]
async fn a_taken_port_is_a_clear_error() {
    let s = Sandbox::start().await;
    let dir = tempfile::tempdir().unwrap();
    let error = crate::kube_api::serve::serve(s.store.clone(), dir.path(), s.kube.address).await.err().unwrap();
    assert!(error.to_string().starts_with(&format!("listen on {}", s.kube.address)), "{error}");
    s.stop().await;
}
