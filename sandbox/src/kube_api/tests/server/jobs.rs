//! What the API itself does for Jobs.

use serde_json::json;

use super::Sandbox;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job(name: &str) -> serde_json::Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "main", "image": "x:1"}]}}}})
}

#[tokio::test]
async fn a_job_is_tied_to_its_pods_by_its_uid_and_shown_as_kubectl_users_know_it() {
    let s = Sandbox::start().await;
    let made = s.post(JOBS, job("copy")).await.ok();
    let uid = made["metadata"]["uid"].clone();
    assert_eq!(made["spec"]["selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    let labels = &made["spec"]["template"]["metadata"]["labels"];
    assert_eq!((&labels["job-name"], &labels["batch.kubernetes.io/controller-uid"]), (&json!("copy"), &uid));
    let spec = &made["spec"];
    let filled = json!([spec["completions"], spec["parallelism"], spec["backoffLimit"], spec["podReplacementPolicy"]]);
    assert_eq!(filled, json!([1, 1, 6, "TerminatingOrFailed"]));
    let status = json!({"status": {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:05Z", "succeeded": 1,
        "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}, {"type": "Complete", "status": "True"}]}});
    s.merge(&format!("{JOBS}/copy/status"), status).await.ok();
    let request = http::Request::get(JOBS).header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
    let table = s.request(request.body(Vec::new()).unwrap()).await.ok();
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..4], ["copy", "Complete", "1/1", "65s"].map(|cell| json!(cell)));
    s.stop().await;
}

#[tokio::test]
async fn a_job_that_could_not_run_is_refused_with_the_field() {
    let s = Sandbox::start().await;
    let with = |field: &str, value: serde_json::Value| {
        let mut job = job("bad");
        job["spec"][field] = value;
        job
    };
    let mut always = job("bad");
    always["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    let cases = [
        (always, "spec.template.spec.restartPolicy"),
        (with("completionMode", json!("Odd")), "spec.completionMode"),
        (with("parallelism", json!(-1)), "spec.parallelism"),
        (with("backoffLimitPerIndex", json!(1)), "spec.backoffLimitPerIndex"),
    ];
    for (job, field) in cases {
        let refused = s.post(JOBS, job).await.refused(422, "Invalid");
        assert_eq!(refused["details"]["causes"][0]["field"], field, "{refused}");
    }
    s.post(JOBS, job("fixed")).await.ok();
    s.merge(&format!("{JOBS}/fixed"), json!({"spec": {"parallelism": 2}})).await.ok();
    s.merge(&format!("{JOBS}/fixed"), json!({"spec": {"completions": 2}})).await.refused(422, "Invalid");
    s.delete(&format!("{JOBS}/fixed"), json!({})).await.ok();
    s.until_gone(&format!("{JOBS}/fixed")).await;
    s.stop().await;
}
