//! What a Pod can do to its node, and what its node owes it: trees of processes, endless logs, hooks, init containers, deadlines, taints,
//! and logs read as a real API server reads them. Real processes against the sandbox's API.

#![allow(clippy::unwrap_used)]

mod cluster;

use std::path::Path;
use std::sync::Arc;

use cell_sandbox::controllers::pods::phase;
use cell_sandbox::node::process::strays;
use cluster::{Cluster, PODS, address, eventually, ready, shell_pod};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn mark(pod: &Pod) -> String {
    format!("{}/", pod.uid().unwrap())
}

async fn gone(cluster: &Cluster, name: &str) {
    eventually(&format!("pod {name} gone"), || async {
        cluster.pods().get_opt(name).await.ok()?.is_none().then_some(())
    })
    .await;
}

fn ended(pod: &Pod) -> ContainerStateTerminated {
    let statuses = pod.status.clone().unwrap().container_statuses.unwrap();
    statuses[0].state.clone().unwrap().terminated.unwrap()
}

async fn lines_of(path: &Path, count: usize) -> Vec<String> {
    eventually(&format!("{count} lines in {}", path.display()), || async {
        let text = std::fs::read_to_string(path).ok()?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() >= count).then_some(lines)
    })
    .await
}

#[tokio::test]
async fn everything_a_pod_forked_ends_with_it() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    // Forty that each make a new process whenever the last one is gone, in sessions of their own, deaf to SIGTERM.
    let script = "trap '' TERM; n=0; while [ $n -lt 40 ]; do n=$((n+1)); \
                  setsid sh -c 'trap \"\" TERM; while :; do setsid sleep 0.05 & wait; done' & done; touch full; while :; do sleep 1; done";
    cluster.apply(PODS, shell_pod("bomb", script, json!({ "terminationGracePeriodSeconds": 1 }))).await;
    let pod = cluster.pod_when("bomb", "ready", ready).await;
    let mark = mark(&pod);
    eventually("the bomb", || async { (strays::marked(&mark).len() > 40).then_some(()) }).await;
    cluster.pods().delete("bomb", &DeleteParams::default()).await.unwrap();
    gone(&cluster, "bomb").await;
    assert_eq!(strays::marked(&mark), Vec::<i32>::new());
}

#[tokio::test]
async fn a_container_of_too_many_processes_is_killed_and_says_why() {
    let mut cluster = Cluster::start().await;
    cluster.agent_with(1, "a", &["--max-processes", "30"]);
    let script = "n=0; while [ $n -lt 50 ]; do n=$((n+1)); setsid sleep 1000 & done; wait";
    cluster.apply(PODS, shell_pod("many", script, json!({ "restartPolicy": "Never" }))).await;
    let pod = cluster.pod_when("many", "failed", |pod| phase(pod) == "Failed").await;
    let end = ended(&pod);
    assert_eq!(end.exit_code, 137);
    assert!(end.message.as_deref().unwrap().contains("more than 30 processes"), "{end:?}");
    assert_eq!(strays::marked(&mark(&pod)), Vec::<i32>::new());
}

#[tokio::test]
async fn a_pod_that_kills_its_keeper_ends_with_all_its_processes() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let script = "setsid sleep 1000 & setsid sh -c 'sleep 1001 & wait' & while ! test -e go; do sleep 0.05; done; \
                  kill -9 $PPID; while :; do sleep 1; done";
    cluster.apply(PODS, shell_pod("rebel", script, json!({ "restartPolicy": "Never" }))).await;
    let pod = cluster.pod_when("rebel", "ready", ready).await;
    std::fs::write(cluster.state(1).join("pods").join(pod.uid().unwrap()).join("go"), "").unwrap();
    let pod = cluster.pod_when("rebel", "failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(ended(&pod).reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(strays::marked(&mark(&pod)), Vec::<i32>::new());
}

#[tokio::test]
async fn a_log_of_one_endless_line_stays_bounded_and_readable() {
    let mut cluster = Cluster::start().await;
    cluster.agent_with(1, "a", &["--log-bytes", "65536", "--log-files", "3"]);
    let script = "echo first; while :; do printf '%01000d' 7; done";
    cluster.apply(PODS, shell_pod("endless", script, json!({ "terminationGracePeriodSeconds": 1 }))).await;
    let pod = cluster.pod_when("endless", "ready", ready).await;
    let folder = cluster.state(1).join("logs").join(pod.uid().unwrap()).join("main");
    let sizes = || -> Vec<u64> {
        let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        files.filter_map(|file| Some(file.metadata().ok()?.len())).collect()
    };
    eventually("three files, the first line gone", || async {
        let sizes = sizes();
        let bounded = sizes.iter().all(|size| *size < 65_536 + 20_000) && sizes.len() <= 3;
        assert!(bounded, "{sizes:?}");
        let oldest = std::fs::read_to_string(folder.join("0.log.2")).ok()?;
        (!oldest.contains("first")).then_some(())
    })
    .await;
    let (shim, _) = cluster.processes(1)[0];
    let status = std::fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    let peak: u64 =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok()).unwrap();
    assert!(peak < 64 * 1024, "the keeper took {peak} KiB");
    let text =
        cluster.pods().logs("endless", &kube::api::LogParams { tail_lines: Some(1), ..Default::default() }).await;
    let text = text.unwrap();
    assert!(text.len() >= 16_000 && text.bytes().all(|byte| byte == b'0' || byte == b'7'), "{} bytes", text.len());
    cluster.pods().delete("endless", &DeleteParams::default()).await.unwrap();
    gone(&cluster, "endless").await;
}

#[tokio::test]
async fn a_pre_stop_hook_runs_before_the_signal_and_within_the_grace() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let said = cluster.dir.path().join("said");
    let path = said.display();
    let script = format!("trap 'echo term >> {path}; exit 0' TERM; while :; do sleep 0.1; done");
    let hook = |action: serde_json::Value| json!({ "container": { "lifecycle": { "preStop": action } } });
    let exec = hook(json!({ "exec": { "command": ["/bin/sh", "-c", format!("sleep 0.3; echo hook >> {path}")] } }));
    cluster.apply(PODS, shell_pod("orderly", &script, exec)).await;
    cluster.pod_when("orderly", "ready", ready).await;
    // One that never ends uses up its grace; the container is told and has a little time then.
    let stuck = hook(json!({ "exec": { "command": ["/bin/sh", "-c", "setsid sleep 1000 & sleep 1001"] } }));
    cluster.apply(PODS, shell_pod("stuck", &script, stuck)).await;
    let pod = cluster.pod_when("stuck", "ready", ready).await;
    cluster.pods().delete("orderly", &DeleteParams::default()).await.unwrap();
    gone(&cluster, "orderly").await;
    assert_eq!(lines_of(&said, 2).await, ["hook", "term"]);
    cluster.pods().delete("stuck", &DeleteParams::default().grace_period(1)).await.unwrap();
    gone(&cluster, "stuck").await;
    assert_eq!(lines_of(&said, 3).await[2], "term", "told to end after the hook, not killed");
    assert_eq!(strays::marked(&mark(&pod)), Vec::<i32>::new(), "the hook's processes ended with the pod");
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    eventually("the hook's failure told", || async {
        let list = events.list(&ListParams::default()).await.ok()?;
        list.items.iter().any(|event| event.reason.as_deref() == Some("FailedPreStopHook")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pre_stop_request_reaches_the_pod_before_it_ends() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let hook = json!({ "httpGet": { "path": "/drain?now=1", "port": "admin" } });
    let container = json!({ "ports": [{ "name": "admin", "containerPort": 8081 }], "lifecycle": { "preStop": hook } });
    let script = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    cluster.apply(PODS, shell_pod("asked", script, json!({ "container": container }))).await;
    let pod = cluster.pod_when("asked", "ready", ready).await;
    let listener = TcpListener::bind((address(&pod), 8081)).await.unwrap();
    let heard = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let count = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        String::from_utf8_lossy(&request[..count]).into_owned()
    });
    cluster.pods().delete("asked", &DeleteParams::default()).await.unwrap();
    gone(&cluster, "asked").await;
    assert!(heard.await.unwrap().starts_with("GET /drain?now=1 HTTP/1.1"));
}

#[tokio::test]
async fn a_job_with_init_containers_runs_them_in_turn_and_again_after_a_failure() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let said = cluster.dir.path().join("said");
    let say = |word: &str, then: &str| json!(["-c", format!("echo {word} >> {}; {then}", said.display())]);
    let step = |name: &str, args: serde_json::Value| json!({ "name": name, "image": "sh:test", "args": args });
    let job = json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "steps" }, "spec": {
        "template": { "spec": {
            "restartPolicy": "OnFailure",
            "initContainers": [step("one", say("one", "test -e seen || { touch seen; exit 3; }")), step("two", say("two", "exit 0"))],
            "containers": [step("main", say("main", "exit 0"))],
        } },
    } });
    cluster.apply("/apis/batch/v1/namespaces/default/jobs", job).await;
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = Api::namespaced(cluster.client.clone(), "default");
    eventually("the job's success", || async {
        let job = jobs.get("steps").await.ok()?;
        (job.status?.succeeded == Some(1)).then_some(())
    })
    .await;
    assert_eq!(lines_of(&said, 4).await, ["one", "one", "two", "main"]);
    let pod = cluster.pods().list(&ListParams::default()).await.unwrap().items.remove(0);
    let inits = pod.status.unwrap().init_container_statuses.unwrap();
    assert_eq!((inits[0].restart_count, inits[1].restart_count), (1, 0));
}

#[tokio::test]
async fn a_pod_that_may_not_take_longer_is_ended_and_says_so() {
    let mut cluster = Cluster::start().await;
    cluster.agent(1, "a");
    let script = "trap '' TERM; while :; do sleep 0.1; done";
    let bounded = json!({ "activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1 });
    cluster.apply(PODS, shell_pod("late", script, bounded)).await;
    let pod = cluster.pod_when("late", "failed", |pod| phase(pod) == "Failed").await;
    assert_eq!(pod.status.as_ref().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(ended(&pod).exit_code, 137);
    assert_eq!(strays::marked(&mark(&pod)), Vec::<i32>::new());
}

#[tokio::test]
async fn taints_keep_pods_away_and_send_away_who_does_not_tolerate_them() {
    let mut cluster = Cluster::start().await;
    cluster.agent_with(1, "a", &["--taint", "reserved=yes:NoSchedule"]);
    cluster.nodes_ready(1).await;
    let script = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let plain = shell_pod("plain", script, json!({}));
    cluster.apply(PODS, plain).await;
    let here = json!({ "key": "reserved", "operator": "Exists" });
    let with = |more: serde_json::Value| json!({ "tolerations": [here, more] });
    let evil = |seconds: Option<i64>| json!({ "key": "evil", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds });
    cluster.apply(PODS, shell_pod("stays", script, with(evil(None)))).await;
    cluster.apply(PODS, shell_pod("lingers", script, with(evil(Some(2))))).await;
    cluster.apply(PODS, shell_pod("goes", script, json!({ "tolerations": [here] }))).await;
    for name in ["stays", "lingers", "goes"] {
        cluster.pod_when(name, "ready", ready).await;
    }
    cluster
        .pod_when("plain", "unschedulable", |pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
            conditions.iter().any(|one| one.reason.as_deref() == Some("Unschedulable"))
        })
        .await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let mut taints = nodes.get("n1").await.unwrap().spec.unwrap().taints.unwrap();
    assert_eq!(taints.len(), 1, "registered with its own");
    taints.push(k8s_openapi::api::core::v1::Taint {
        key: "evil".into(),
        effect: "NoExecute".into(),
        ..Default::default()
    });
    let patch = Patch::Merge(json!({ "spec": { "taints": taints } }));
    nodes.patch("n1", &PatchParams::default(), &patch).await.unwrap();
    gone(&cluster, "goes").await;
    gone(&cluster, "lingers").await;
    assert!(ready(&cluster.pods().get("stays").await.unwrap()));
}

/// A certificate of an authority, as PEM files' contents: the authority's, and a client's with its key.
struct Clients {
    authority: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Clients {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = parameters.self_signed(&key).unwrap().pem();
        Self { authority, issuer: Issuer::new(parameters, key) }
    }

    fn connector(&self, user: &str, group: &str) -> tokio_rustls::TlsConnector {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::OrganizationName, group);
        parameters.distinguished_name.push(DnType::CommonName, user);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = trusting().with_client_auth_cert(vec![certificate.der().clone()], private).unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config))
    }
}

/// As an API server without --kubelet-certificate-authority.
fn trusting() -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
}

#[derive(Debug)]
struct Anybody(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

async fn get(cluster: &Cluster, tls: &tokio_rustls::TlsConnector, path: &str) -> std::io::Result<(u16, String)> {
    let address = cluster.node_address(1);
    let socket = tokio::net::TcpStream::connect((address, 10250)).await?;
    let mut stream = tls.connect(ServerName::from(address), socket).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: n\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default();
    Ok((code, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()))
}

#[tokio::test]
async fn logs_are_read_over_tls_by_a_certificate_that_the_api_server_lets_in() {
    let mut cluster = Cluster::start().await;
    let (clients, strangers) = (Clients::new(), Clients::new());
    let authority = cluster.dir.path().join("clients.crt");
    std::fs::write(&authority, &clients.authority).unwrap();
    cluster.agent_with(1, "a", &["--client-ca", authority.to_str().unwrap()]);
    cluster.apply(PODS, shell_pod("talks", "echo one; echo two; while :; do sleep 0.1; done", json!({}))).await;
    cluster.pod_when("talks", "ready", ready).await;
    let path = "/containerLogs/default/talks/main?tailLines=1";
    let server = clients.connector("kube-apiserver", "system:masters");
    eventually("the last line", || async {
        let (code, text) = get(&cluster, &server, path).await.unwrap();
        (code == 200 && text.contains("two") && !text.contains("one")).then_some(())
    })
    .await;
    let (code, words) = get(&cluster, &clients.connector("ada", "people"), path).await.unwrap();
    assert!(code == 403 && words.contains("user ada may not get nodes/proxy of n1"), "{code} {words}");
    let nobody = tokio_rustls::TlsConnector::from(Arc::new(trusting().with_no_client_auth()));
    assert_eq!(get(&cluster, &nobody, path).await.unwrap().0, 401);
    let stranger = strangers.connector("kube-apiserver", "system:masters");
    assert!(get(&cluster, &stranger, path).await.is_err(), "a certificate of another authority");
}
