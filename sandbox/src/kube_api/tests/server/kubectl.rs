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

const APPLY: [&str; 5] = ["apply", "--server-side", "--validate=false", "-f", "-"];
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
    k.ok(&["apply", "--server-side", "--validate=false", "--force-conflicts", "-f", "-"], WIDGET).await;
    assert!(k.ok(&["describe", "wd", "w"], "").await.contains("Size:"));
    k.ok(&["scale", "wd/w", "--replicas=7"], "").await;
    k.ok(&["wait", "--for=jsonpath={.spec.replicas}=7", "wd/w", "--timeout=10s"], "").await;
    let (success, text) = k.run(&["patch", "wd", "w", "-p", "{}"], "").await;
    assert!(!success && text.contains("strategic"), "{text}");
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
