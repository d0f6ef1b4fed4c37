//! Plain kubectl, where there is one; the tests say loudly when they do not run.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use super::{DEADLINE, Sandbox, widgets};

fn kubectl() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|d| d.join("kubectl")).find(|p| p.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: no kubectl in PATH, the kubectl tests did not run");
    }
    found
}

struct Kubectl<'a> {
    program: PathBuf,
    sandbox: &'a Sandbox,
}

impl Kubectl<'_> {
    async fn run(&self, arguments: &[&str], input: &str) -> (bool, String) {
        let mut child = tokio::process::Command::new(&self.program)
            .args(arguments)
            .env("KUBECONFIG", &self.sandbox.kube.kubeconfig)
            .env("HOME", self.sandbox.dir.path())
            .env_remove("KUBECTL_EXTERNAL_DIFF")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let done = tokio::time::timeout(DEADLINE, child.wait_with_output()).await.expect("kubectl in time").unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        (done.status.success(), text)
    }

    async fn ok(&self, arguments: &[&str], input: &str) -> String {
        let (success, text) = self.run(arguments, input).await;
        assert!(success, "kubectl {arguments:?}: {text}");
        text
    }
}

const APPLY: [&str; 4] = ["apply", "--server-side", "-f", "-"];
const WIDGET: &str = "apiVersion: example.dev/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 3}\n";

#[tokio::test]
async fn kubectl_applies_gets_describes_patches_waits_and_deletes() {
    let Some(program) = kubectl() else { return };
    let s = Sandbox::start().await;
    let k = Kubectl { program, sandbox: &s };
    assert!(Path::new(&s.kube.kubeconfig).is_file());
    let version = k.ok(&["version"], "").await;
    assert!(version.contains("cellplane-sandbox"), "{version}");
    assert!(k.ok(&APPLY, &widgets().to_string()).await.contains("serverside-applied"));
    k.ok(&["wait", "--for=condition=Established", "crd/widgets.example.dev", "--timeout=10s"], "").await;
    assert!(k.ok(&["api-resources"], "").await.contains("widgets"));
    k.ok(&APPLY, WIDGET).await;
    let table = k.ok(&["get", "wd", "-o", "wide"], "").await;
    let words = |line: usize| table.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    assert_eq!((words(0), words(1)), (vec!["NAME", "READY", "SIZE"], vec!["w", "3"]), "{table}");
    k.ok(&["patch", "wd", "w", "--type=merge", "-p", "{\"spec\":{\"size\":4}}"], "").await;
    assert_eq!(k.ok(&["get", "wd", "w", "-o", "jsonpath={.spec.size}"], "").await, "4");
    let (success, text) = k.run(&APPLY, WIDGET).await;
    assert!(!success && text.contains("conflict with \"kubectl-patch\""), "{text}");
    k.ok(&["apply", "--server-side", "--force-conflicts", "-f", "-"], WIDGET).await;
    assert!(k.ok(&["describe", "wd", "w"], "").await.contains("Size:"));
    k.ok(&["scale", "wd/w", "--replicas=7"], "").await;
    k.ok(&["wait", "--for=jsonpath={.spec.replicas}=7", "wd/w", "--timeout=10s"], "").await;
    let (success, text) = k.run(&["patch", "wd", "w", "-p", "{}"], "").await;
    assert!(!success && text.contains("strategic merge patch"), "{text}");
    k.ok(&["delete", "wd", "w"], "").await;
    k.ok(&["delete", "crd", "widgets.example.dev", "--timeout=15s"], "").await;
    s.stop().await;
}

#[tokio::test]
async fn kubectl_works_with_built_in_kinds() {
    let Some(program) = kubectl() else { return };
    let s = Sandbox::start().await;
    let k = Kubectl { program, sandbox: &s };
    let manifest = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n---\napiVersion: apps/v1\nkind: StatefulSet\n\
                    metadata: {name: web, namespace: team}\nspec:\n  serviceName: web\n  selector: {matchLabels: {app: web}}\n  \
                    template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: c, image: i}]}\n";
    k.ok(&APPLY, manifest).await;
    let all = k.ok(&["get", "all", "-n", "team"], "").await;
    assert!(all.contains("statefulset.apps/web") && all.contains("0/1"), "{all}");
    assert!(k.ok(&["describe", "sts", "web", "-n", "team"], "").await.contains("Pod Template"));
    assert!(k.ok(&["get", "ns", "team", "-o", "yaml"], "").await.contains("phase: Active"));
    let (success, text) = k.run(&["logs", "nobody"], "").await;
    assert!(!success && text.contains("not found"), "{text}");
    k.ok(&["delete", "ns", "team", "--timeout=15s"], "").await;
    let (success, text) = k.run(&["get", "ns", "team"], "").await;
    assert!(!success && text.contains("NotFound"), "{text}");
    s.stop().await;
}

const WEB: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 2\n  selector: {matchLabels: {app: web}}\n  \
                   template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n      - {name: a, image: 'a:1'}\n      \
                   - {name: b, image: 'b:1', ports: [{containerPort: 80}]}\n";

#[tokio::test]
async fn kubectl_applies_from_its_side_diffs_edits_explains_and_rolls() {
    let Some(program) = kubectl() else { return };
    let s = Sandbox::start().await;
    let k = Kubectl { program, sandbox: &s };
    assert!(k.ok(&["apply", "-f", "-"], WEB).await.contains("web created"));
    assert!(k.ok(&["apply", "-f", "-"], WEB).await.contains("web unchanged"));
    let (same, text) = k.run(&["diff", "-f", "-"], WEB).await;
    assert!(same, "{text}");
    let newer = WEB.replace("b:1", "b:2").replace("      - {name: a, image: 'a:1'}\n", "");
    let (same, text) = k.run(&["diff", "-f", "-"], &newer).await;
    assert!(!same && text.contains("+      - image: b:2") && text.contains("-      - image: a:1"), "{text}");
    assert!(k.ok(&["apply", "-f", "-"], &newer).await.contains("web configured"));
    let images = ["get", "deploy", "web", "-o", "jsonpath={.spec.template.spec.containers[*].image}"];
    assert_eq!(k.ok(&images, "").await, "b:2", "the container taken out of the file is gone");
    k.ok(&["set", "image", "deploy/web", "b=b:3"], "").await;
    k.ok(
        &[
            "patch",
            "deploy",
            "web",
            "-p",
            "{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"c:1\"}]}}}}",
        ],
        "",
    )
    .await;
    assert_eq!(k.ok(&images, "").await.split(' ').collect::<std::collections::BTreeSet<_>>(), ["b:3", "c:1"].into());
    k.ok(&["rollout", "restart", "deploy/web"], "").await;
    k.ok(&["label", "deploy", "web", "colour=red"], "").await;
    k.ok(&["annotate", "deploy", "web", "note=x"], "").await;
    let (good, text) = k.run(&["apply", "-f", "-"], &WEB.replace("replicas", "replicass")).await;
    assert!(!good && text.contains("unknown field \"spec.replicass\""), "{text}");
    let explained = k.ok(&["explain", "deployment.spec.strategy"], "").await;
    assert!(explained.contains("rollingUpdate") && explained.contains("KIND:       Deployment"), "{explained}");
    k.ok(&["apply", "-f", "-"], &widgets().to_string()).await;
    k.ok(&["wait", "--for=condition=Established", "crd/widgets.example.dev", "--timeout=10s"], "").await;
    assert!(k.ok(&["explain", "widget.spec"], "").await.contains("size\t<integer> -required-"));
    k.ok(&["apply", "-f", "-"], WIDGET).await;
    assert!(k.ok(&["apply", "-f", "-"], &WIDGET.replace('3', "5")).await.contains("configured"));
    let (good, text) = k.run(&["apply", "-f", "-"], &WIDGET.replace("size", "sise")).await;
    assert!(!good && text.contains("unknown field"), "{text}");
    assert!(
        k.ok(&["create", "job", "once", "--image=x:1", "--dry-run=server", "-o", "name"], "").await.contains("once")
    );
    k.ok(&["create", "job", "once", "--image=x:1"], "").await;
    assert!(k.ok(&["describe", "job", "once"], "").await.contains("Parallelism:"));
    for made in [
        "namespace team",
        "configmap cm --from-literal=a=b",
        "secret generic sec --from-literal=a=b",
        "sa robot",
        "deployment d --image=x:1",
    ] {
        let words: Vec<&str> = std::iter::once("create").chain(made.split(' ')).collect();
        k.ok(&words, "").await;
    }
    assert!(k.ok(&["create", "token", "robot"], "").await.len() > 20);
    assert_eq!(k.ok(&["get", "secret", "sec", "-o", "jsonpath={.data.a}"], "").await, "Yg==");
    k.ok(&["scale", "deploy/d", "--replicas=0"], "").await;
    assert_eq!(k.ok(&["get", "deploy", "d", "-o", "jsonpath={.spec.replicas}"], "").await, "0");
    k.ok(&["expose", "deploy/d", "--port=80"], "").await;
    k.ok(&["events"], "").await;
    k.ok(&["auth", "can-i", "get", "pods"], "").await;
    k.ok(&["auth", "whoami"], "").await;
    assert!(k.ok(&["auth", "can-i", "--list"], "").await.contains("*.*"));
    k.ok(&["get", "deploy,jobs,wd", "--chunk-size=1"], "").await;
    k.ok(&["delete", "deploy/web", "job/once", "wd/w"], "").await;
    s.stop().await;
}
