//! The node agent with real processes against the sandbox's API: start, stop, probes, restarts, adoption, logs, volumes, entry.

#![allow(clippy::unwrap_used)]

mod cluster;

use std::path::PathBuf;

use cluster::{Cluster, PODS, address, eventually, kill, ready, restarts, shell_pod};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Runs until it is told to stop, and says so.
const OBEDIENT: &str = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done";

fn pod_folder(cluster: &Cluster, number: u8, pod: &Pod) -> PathBuf {
    cluster.state(number).join("pods").join(pod.uid().unwrap())
}

#[tokio::test]
async fn a_pod_runs_in_its_folder_with_its_fields_files_and_volumes() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "settings" }, "data": { "colour": "red" } });
    cluster.apply("/api/v1/namespaces/default/configmaps", map.clone()).await;
    let script = "echo $IP $NAME $(cat etc/settings/colour) > out/facts; while :; do sleep 0.1; done";
    let pod = shell_pod(
        "facts",
        script,
        json!({
            "container": {
                "env": [
                    { "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } },
                    { "name": "NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                ],
                "volumeMounts": [{ "name": "settings", "mountPath": "/etc/settings" }, { "name": "out", "mountPath": "/out" }],
                "readinessProbe": { "exec": { "command": ["/bin/sh", "-c", "test -s out/facts"] }, "periodSeconds": 1 },
            },
            "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }, { "name": "out", "emptyDir": {} }],
        }),
    );
    cluster.apply(PODS, pod).await;
    let pod = cluster.pod_when("facts", "ready", ready).await;
    let folder = pod_folder(&cluster, 1, &pod);
    let facts = std::fs::read_to_string(folder.join("out/facts")).unwrap();
    assert_eq!(facts, format!("{} facts red\n", address(&pod)));
    let mut changed = map;
    changed["data"]["colour"] = json!("blue");
    cluster.apply("/api/v1/namespaces/default/configmaps", changed).await;
    eventually("the new colour in the file", || async {
        (std::fs::read_to_string(folder.join("etc/settings/colour")).ok()? == "blue").then_some(())
    })
    .await;
    cluster.pods().delete("facts", &DeleteParams::default()).await.unwrap();
    eventually("the pod gone with its folder", || async {
        let gone = cluster.pods().get_opt("facts").await.ok()?.is_none();
        (gone && !folder.exists()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_deaf_process_is_killed_after_its_grace_and_its_children_too() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let script =
        "trap '' TERM; (trap '' TERM; sleep 1000) & setsid sleep 1001 & echo $! > stray; while :; do sleep 0.1; done";
    cluster.apply(PODS, shell_pod("deaf", script, json!({ "terminationGracePeriodSeconds": 1 }))).await;
    let pod = cluster.pod_when("deaf", "ready", ready).await;
    let stray = pod_folder(&cluster, 1, &pod).join("stray");
    let stray: i32 =
        eventually("the stray's pid", || async { std::fs::read_to_string(&stray).ok()?.trim().parse().ok() }).await;
    let ticks = cell_sandbox::node::process::proc_fs::start_ticks(stray).unwrap();
    let (_, process) = cluster.processes(1)[0];
    cluster.pods().delete("deaf", &DeleteParams::default()).await.unwrap();
    eventually("everything of the pod gone", || async {
        let gone = cluster.pods().get_opt("deaf").await.ok()?.is_none();
        let alive = cell_sandbox::node::process::proc_fs::start_ticks(process).is_some();
        let stray_alive = cell_sandbox::node::process::proc_fs::is_alive(stray, ticks);
        (gone && !alive && !stray_alive).then_some(())
    })
    .await;
}

#[tokio::test]
async fn pods_outlive_the_agent_and_are_adopted_without_a_restart() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let probe = json!({ "container": { "readinessProbe": { "exec": { "command": ["/bin/sh", "-c", "true"] }, "periodSeconds": 1, "timeoutSeconds": 30 } } });
    cluster.apply(PODS, shell_pod("stays", OBEDIENT, probe)).await;
    let before = cluster.pod_when("stays", "ready", ready).await;
    let processes = cluster.processes(1);
    cluster.kill_agent(1);
    cluster.agent(1, "a");
    let second = shell_pod("second", OBEDIENT, json!({}));
    cluster.apply(PODS, second).await;
    cluster.pod_when("second", "ready, so the new agent works", ready).await;
    let after = cluster.pods().get("stays").await.unwrap();
    assert!(ready(&after));
    assert_eq!(restarts(&after), 0);
    let id = |pod: &Pod| pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].container_id.clone();
    assert_eq!(id(&before), id(&after));
    assert!(cluster.processes(1).contains(&processes[0]), "the very same processes");
    cluster.pods().delete("stays", &DeleteParams::default()).await.unwrap();
    eventually("the adopted pod gone", || async {
        cluster.pods().get_opt("stays").await.ok()?.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_exit_that_nobody_watched_is_still_known_afterwards() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let pod = shell_pod("ends", "while ! test -e go; do sleep 0.05; done; exit 7", json!({ "restartPolicy": "Never" }));
    cluster.apply(PODS, pod).await;
    let pod = cluster.pod_when("ends", "ready", ready).await;
    let (shim, process) = cluster.processes(1)[0];
    cluster.kill_agent(1);
    std::fs::write(pod_folder(&cluster, 1, &pod).join("go"), "").unwrap();
    eventually("shim and process gone", || async {
        let gone = |pid| cell_sandbox::node::process::proc_fs::start_ticks(pid).is_none();
        (gone(shim) && gone(process)).then_some(())
    })
    .await;
    cluster.agent(1, "a");
    let ended = cluster.pod_when("ends", "failed", |pod| cell_sandbox::controllers::pods::phase(pod) == "Failed").await;
    let state = ended.status.unwrap().container_statuses.unwrap()[0].state.clone().unwrap();
    assert_eq!(state.terminated.unwrap().exit_code, 7);
}

#[tokio::test]
async fn after_a_power_cut_every_pod_comes_back_by_itself() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    for name in ["one", "two"] {
        cluster.apply(PODS, shell_pod(name, OBEDIENT, json!({}))).await;
        cluster.pod_when(name, "ready", ready).await;
    }
    cluster.cut_power(1);
    cluster.agent(1, "a");
    for name in ["one", "two"] {
        let pod = cluster.pod_when(name, "ready again", |pod| ready(pod) && restarts(pod) == 1).await;
        let last = pod.status.unwrap().container_statuses.unwrap()[0].last_state.clone().unwrap();
        assert_eq!(last.terminated.unwrap().reason.as_deref(), Some("ContainerStatusUnknown"));
    }
}

#[tokio::test]
async fn pods_run_and_restart_while_the_api_is_away() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    cluster.apply(PODS, shell_pod("alone", OBEDIENT, json!({}))).await;
    cluster.pod_when("alone", "ready", ready).await;
    let (_, before) = cluster.processes(1)[0];
    cluster.stop_api().await;
    kill(before);
    eventually("a new process without the API", || async {
        cluster.processes(1).iter().any(|(_, process)| *process != before).then_some(())
    })
    .await;
    cluster.start_api().await;
    cluster.pod_when("alone", "reported as restarted", |pod| ready(pod) && restarts(pod) == 1).await;
}

#[tokio::test]
async fn a_failing_liveness_probe_restarts_and_an_unknown_image_waits() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let liveness = json!({ "container": { "livenessProbe": {
        "exec": { "command": ["/bin/sh", "-c", "! test -e ill"] }, "periodSeconds": 1, "failureThreshold": 1,
        "timeoutSeconds": 30,
    } } });
    let script = "rm -f ill; touch up; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    cluster.apply(PODS, shell_pod("ill", script, liveness)).await;
    let pod = cluster.pod_when("ill", "ready", ready).await;
    let folder = pod_folder(&cluster, 1, &pod);
    eventually("the script at its loop", || async { folder.join("up").exists().then_some(()) }).await;
    std::fs::write(folder.join("ill"), "").unwrap();
    cluster.pod_when("ill", "restarted and ready", |pod| ready(pod) && restarts(pod) == 1).await;
    let mut strange = shell_pod("strange", "true", json!({}));
    strange["spec"]["containers"][0]["image"] = json!("nobody/knows:1");
    cluster.apply(PODS, strange).await;
    cluster.pod_when("strange", "waiting for its image", |pod| waiting_reason(pod) == "ErrImageNeverPull").await;
}

fn waiting_reason(pod: &Pod) -> String {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone()).unwrap_or_default();
    let waiting = statuses.first().and_then(|one| one.state.clone()?.waiting);
    waiting.and_then(|waiting| waiting.reason).unwrap_or_default()
}

#[tokio::test]
async fn a_crash_loop_backs_off_and_init_containers_come_first() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    cluster.apply(PODS, shell_pod("loops", "exit 3", json!({}))).await;
    let init =
        json!({ "initContainers": [{ "name": "first", "image": "sh:test", "args": ["-c", "echo ready > made"] }] });
    let script = "test -s made && trap 'exit 0' TERM && while :; do sleep 0.1; done";
    cluster.apply(PODS, shell_pod("inits", script, init)).await;
    let looping = cluster.pod_when("loops", "in back-off", |pod| waiting_reason(pod) == "CrashLoopBackOff").await;
    let last = looping.status.unwrap().container_statuses.unwrap()[0].last_state.clone().unwrap();
    assert_eq!(last.terminated.unwrap().exit_code, 3);
    let pod = cluster.pod_when("inits", "ready", ready).await;
    assert_eq!(restarts(&pod), 0);
    let init = pod.status.unwrap().init_container_statuses.unwrap()[0].state.clone().unwrap();
    assert_eq!(init.terminated.unwrap().reason.as_deref(), Some("Completed"));
}

async fn logs(cluster: &Cluster, port: u16, rest: &str, token: &str) -> (u16, String) {
    let mut stream = TcpStream::connect((cluster.node_address(1), port)).await.unwrap();
    let request = format!(
        "GET /containerLogs/default/{rest} HTTP/1.1\r\nhost: n\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test]
async fn logs_need_the_token_and_show_this_run_and_the_one_before() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let script = "echo run of $HOSTNAME; echo aside >&2; if test -e again; then while :; do sleep 0.1; done; fi; touch again; exit 1";
    cluster.apply(PODS, shell_pod("talks", script, json!({}))).await;
    cluster.pod_when("talks", "ready in its second run", |pod| ready(pod) && restarts(pod) == 1).await;
    let token = cluster.token.clone();
    let (code, _) = logs(&cluster, 10250, "talks/main", "wrong").await;
    assert_eq!(code, 401);
    let whole = eventually("both lines", || async {
        let (code, text) = logs(&cluster, 10250, "talks/main", &token).await;
        (code == 200 && text.contains("run of talks") && text.contains("aside")).then_some(text)
    });
    whole.await;
    let (_, tail) = logs(&cluster, 10250, "talks/main?previous=true&tailLines=1", &token).await;
    assert_eq!(tail.matches('\n').count() - tail.matches("\r\n").count(), 1, "{tail}");
    assert_eq!(logs(&cluster, 10250, "talks/main?tailLines=x", &token).await.0, 400);
    assert_eq!(logs(&cluster, 10250, "talks/other", &token).await.0, 404);
}

#[tokio::test]
async fn entry_reaches_only_ready_pods_on_every_node_and_passes_half_closes() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    cluster.agent(2, "b");
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "front" }, "spec": {
        "type": "NodePort", "selector": { "app": "serves" }, "ports": [{ "port": 80, "targetPort": "http", "nodePort": 31080 }],
    } });
    cluster.apply("/api/v1/namespaces/default/services", service).await;
    let with_port = json!({ "container": { "ports": [{ "name": "http", "containerPort": 8080 }] }, "nodeName": "n2" });
    cluster.apply(PODS, shell_pod("serves", OBEDIENT, with_port.clone())).await;
    let pod = cluster.pod_when("serves", "ready", ready).await;
    let mut unready = shell_pod("unready", OBEDIENT, with_port);
    unready["metadata"]["labels"]["app"] = json!("serves");
    unready["spec"]["containers"][0]["readinessProbe"] = json!({ "exec": { "command": ["/bin/false"] } });
    cluster.apply(PODS, unready).await;
    let listener = TcpListener::bind((address(&pod), 8080)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).await.unwrap();
                stream.write_all(&[b"heard ", heard.as_slice()].concat()).await.unwrap();
            });
        }
    });
    for _ in 0..4 {
        let answer = eventually("an answer through the other node", || async {
            let mut stream = TcpStream::connect((cluster.node_address(1), 31080)).await.ok()?;
            stream.write_all(b"hello").await.ok()?;
            stream.shutdown().await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            (!answer.is_empty()).then_some(answer)
        })
        .await;
        assert_eq!(answer, "heard hello");
    }
}

#[tokio::test]
async fn twenty_runs_that_end_at_once_are_all_seen_to_end() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    for number in 0..20 {
        cluster.apply(PODS, shell_pod(&format!("brief-{number}"), "exit 0", json!({ "restartPolicy": "Never" }))).await;
    }
    for number in 0..20 {
        let done = |pod: &Pod| cell_sandbox::controllers::pods::phase(pod) == "Succeeded";
        cluster.pod_when(&format!("brief-{number}"), "succeeded", done).await;
    }
}

#[tokio::test]
async fn files_of_a_secret_follow_it_whole_while_the_pod_runs() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let secrets = "/api/v1/namespaces/default/secrets";
    let of = |word: &str| {
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "login" },
            "stringData": { "user": format!("{word}-user"), "password": format!("{word}-password") } })
    };
    cluster.apply(secrets, of("old")).await;
    // The Pod says what it reads, through one opened folder at a time, so that it can only see whole versions.
    let script = "trap 'exit 0' TERM; while :; do (cd -P etc/login/..data && cat user password 2>/dev/null | tr '\\n' ' ' && echo); \
                  sleep 0.05; done > seen";
    let pod = shell_pod(
        "reads",
        script,
        json!({
            "container": { "volumeMounts": [{ "name": "login", "mountPath": "/etc/login" }, { "name": "late", "mountPath": "/etc/late" }] },
            "volumes": [{ "name": "login", "secret": { "secretName": "login" } },
                { "name": "late", "projected": { "sources": [{ "secret": { "name": "late", "optional": true } }] } }],
        }),
    );
    cluster.apply(PODS, pod).await;
    let pod = cluster.pod_when("reads", "ready", ready).await;
    let folder = pod_folder(&cluster, 1, &pod);
    let seen = || std::fs::read_to_string(folder.join("seen")).unwrap_or_default();
    eventually("the old login read", || async { seen().contains("old-userold-password").then_some(()) }).await;
    cluster.apply(secrets, of("new")).await;
    let late = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "late" }, "stringData": { "key": "there" } });
    cluster.apply(secrets, late).await;
    eventually("the new login read", || async { seen().contains("new-usernew-password").then_some(()) }).await;
    eventually("the file of the secret that came late", || async {
        (std::fs::read_to_string(folder.join("etc/late/key")).ok()? == "there").then_some(())
    })
    .await;
    let mixed = seen().lines().any(|line| line.contains("old-") && line.contains("new-"));
    assert!(!mixed, "never half of one and half of the other");
    cluster
        .client
        .request::<serde_json::Value>(http::Request::delete(format!("{secrets}/login")).body(vec![]).unwrap())
        .await
        .unwrap();
    assert_eq!(
        std::fs::read_to_string(folder.join("etc/login/user")).unwrap(),
        "new-user",
        "a secret taken away leaves its files"
    );
    let after = cluster.pods().get("reads").await.unwrap();
    assert_eq!(restarts(&after), 0);
}
