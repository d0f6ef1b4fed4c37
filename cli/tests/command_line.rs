//! The program as people run it: exit codes, what goes to stdout and what to stderr, and what it asks the APIs for. The APIs are
//! scripted ones on a loopback port; nothing here needs a sandbox.

// The whole file is a test; outside of test functions clippy cannot know.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::{Value, json};

/// What a scripted API was asked, in order: method, path, body.
type Asked = Arc<Mutex<Vec<(Method, String, Value)>>>;
type Script = fn(&Method, &str, &Value, &str) -> Option<(StatusCode, Value)>;

struct Fake {
    folder: tempfile::TempDir,
    asked: Asked,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Clone)]
struct Served {
    asked: Asked,
    script: Script,
    base: String,
    entry: String,
}

impl Fake {
    /// Serves a Fleet whose control-plane API is the same server; `script` answers everything else.
    fn serve(script: Script) -> Self {
        Self::serve_fleet(script, None)
    }

    /// The same with another control-plane address in the Fleet's status.
    fn serve_fleet(script: Script, control_plane: Option<&str>) -> Self {
        Self::serve_at(script, control_plane, None)
    }

    /// The same with another entry, too.
    fn serve_at(script: Script, control_plane: Option<&str>, entry: Option<&str>) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let asked = Asked::default();
        let served = Served {
            asked: Arc::clone(&asked),
            script,
            base: control_plane.map_or_else(|| format!("http://{address}"), str::to_owned),
            entry: entry.map_or_else(|| format!("http://{address}"), str::to_owned),
        };
        let router = Router::new().fallback(answer).with_state(served);
        runtime.spawn(async move { axum::serve(listener, router).await });
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
        });
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self { folder, asked, _runtime: runtime }
    }

    fn run(&self, line: &str) -> Output {
        cellctl(line, &[("KUBECONFIG", self.folder.path().join("kubeconfig").to_str().unwrap())])
    }

    fn asked(&self, method: &Method, path: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(m, p, _)| m == method && p == path).map(|(_, _, body)| body.clone()).collect()
    }
}

async fn answer(State(served): State<Served>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let bytes: Bytes = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let path = parts.uri.path().to_owned();
    served.asked.lock().unwrap().push((parts.method.clone(), path.clone(), body.clone()));
    if path == "/api/v10/gateway" {
        return Json(json!({"url": "ws://x"})).into_response();
    }
    if parts.headers.get("authorization").is_none_or(|value| value != "Bearer secret") {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if path.ends_with("/fleets") {
        let fleet = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "main"},
            "spec": {"etcd": {"endpoints": ["e:1"], "prefix": "/p/"}, "entry": {"host": "h", "port": 1},
                "image": {"cell": "i"}, "bootstrapCells": ["a"]},
            "status": {"controlPlaneAddress": served.base, "entryUrl": served.entry, "observedGeneration": 1,
                "conditions": [{"type": "Ready", "status": "True", "reason": "AsDesired", "message": "m",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        return Json(
            json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "FleetList", "metadata": {}, "items": [fleet]}),
        )
        .into_response();
    }
    match (served.script)(&parts.method, &path, &body, &served.base) {
        Some((status, value)) => (status, Json(value)).into_response(),
        None => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404,
                "reason": "NotFound", "message": format!("{path} not found")});
            (StatusCode::NOT_FOUND, Json(status)).into_response()
        }
    }
}

/// Runs the program in an environment of its own.
fn cellctl(line: &str, environment: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_cellctl"))
        .args(line.split_whitespace())
        .env_clear()
        .env("HOME", home.path())
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_wrong_command_line_exits_2_and_says_nothing_on_stdout() {
    for line in ["", "get", "get wombats", "frobnicate", "locate abc", "status --timeout 1x", "sandbox up --name ../x"]
    {
        let output = cellctl(line, &[]);
        assert_eq!(code(&output), 2, "{line}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{line}");
        assert!(!stderr(&output).is_empty(), "{line}");
    }
}

#[test]
fn help_version_and_completion_are_data() {
    for (line, part) in
        [("--help", "Exit codes:"), ("version", "cellplane.dev/v1alpha1"), ("completion bash", "cellctl")]
    {
        let output = cellctl(line, &[]);
        assert_eq!((code(&output), stderr(&output).as_str()), (0, ""), "{line}");
        assert!(stdout(&output).contains(part), "{line}");
    }
    let version: Value = serde_json::from_str(&stdout(&cellctl("version -o json", &[]))).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn without_a_cluster_reads_are_refused_with_the_next_command() {
    for line in ["get cells", "status", "locate 5", "token issue --bot a", "guild move plan 5 --to a"] {
        let output = cellctl(line, &[]);
        assert_eq!(code(&output), 3, "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains("next: cellctl sandbox up"), "{line}: {}", stderr(&output));
    }
    assert_eq!(code(&cellctl("get cells --kubeconfig /nowhere", &[])), 3);
}

#[test]
fn a_sandbox_that_is_not_there_is_said_to_be_absent() {
    let output = cellctl("sandbox status", &[]);
    assert_eq!(code(&output), 3);
    assert!(stderr(&output).contains("there is no sandbox"), "{}", stderr(&output));
    assert_eq!(code(&cellctl("sandbox kubeconfig", &[])), 3);
    for line in
        ["sandbox backup /tmp/nowhere/b", "sandbox faults list", "sandbox faults start", "sandbox faults add cut"]
    {
        assert_eq!(code(&cellctl(line, &[])), 3, "{line}");
    }
    assert_eq!(code(&cellctl("sandbox faults add", &[])), 2, "a rule is needed");
    let output = cellctl("sandbox down -o json", &[]);
    assert_eq!((code(&output), stdout(&output).contains("absent")), (0, true));
}

/// A sandbox's state as `sandbox down` or a power cut leaves it.
fn stopped_sandbox() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".local/state/cellplane/sandbox/default");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("kubeconfig"), "{}").unwrap();
    std::fs::write(folder.join("settings.json"), "{}").unwrap();
    home
}

#[test]
fn a_stopped_sandbox_is_said_to_be_stopped_and_how_it_starts() {
    let home = stopped_sandbox();
    for line in ["status", "get moves", "locate 5", "token issue --bot a"] {
        let output = cellctl(line, &[("HOME", home.path().to_str().unwrap())]);
        assert_eq!((code(&output), stdout(&output).as_str()), (3, ""), "{line}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("blocked: sandbox default: it does not run"), "{}", stderr(&output));
        assert!(stderr(&output).contains("next: cellctl sandbox up"), "{}", stderr(&output));
    }
}

#[test]
fn torn_settings_of_a_sandbox_are_no_reason_to_delete_it() {
    let home = stopped_sandbox();
    let settings = home.path().join(".local/state/cellplane/sandbox/default/settings.json");
    for torn in ["", "{\"version\": 1, \"na", "{\"version\": 1, \"etcdPort\": -1}"] {
        std::fs::write(&settings, torn).unwrap();
        let output = cellctl("sandbox up --no-build", &[("HOME", home.path().to_str().unwrap())]);
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains(&format!("next: rm {}", settings.display())) && !said.contains("delete"), "{said}");
        assert_eq!(std::fs::read_to_string(&settings).unwrap(), torn, "it is left as it was");
    }
}

#[test]
fn colours_never_reach_a_pipe() {
    let output = cellctl("get cells", &[]);
    assert!(!stderr(&output).contains('\u{1b}') && !stdout(&output).contains('\u{1b}'));
}

fn plan(term: u64) -> Value {
    let plan = cell_api::MovePlan {
        guild_id: "5".into(),
        unit: "b0001".into(),
        from: "a".into(),
        to: "b".into(),
        term,
        steps: vec!["Validate".into(), "Switch".into()],
        checks: vec![],
        deadline_seconds: 600,
        rollback_window_seconds: 30,
        sessions: None,
        hash: String::new(),
    };
    serde_json::to_value(plan.sealed()).unwrap()
}

fn run(result: Value) -> Value {
    json!({"name": "m-1", "runId": "r", "guildId": "5", "from": "a", "to": "b", "step": "Warm", "result": result,
        "reason": "Waiting", "message": "guild node b-guild-0 does not answer", "blockedBy": "guild node b-guild-0"})
}

/// A run whose undo somebody asked for.
fn asked(result: &str) -> Value {
    let mut run = run(result.into());
    run["reason"] = result.into();
    run
}

fn missing() -> Value {
    let detail = "guild 404: its bucket b0001 in cell a has no such guild; check the id";
    serde_json::to_value(cell_api::Problem::new(404, "GuildNotFound", "guild not found", detail)).unwrap()
}

fn problem(reason: &str, detail: &str) -> Value {
    let problem = cell_api::Problem::new(409, reason, "refused", detail).next("cellctl guild move plan 5 --to b");
    serde_json::to_value(problem).unwrap()
}

/// Starts only the plan of term 3.
fn moves(method: &Method, path: &str, body: &Value, _base: &str) -> Option<(StatusCode, Value)> {
    match (method.as_str(), path) {
        ("POST", "/v1/move-plans") => Some((StatusCode::OK, plan(3))),
        ("POST", "/v1/moves") if body["planHash"] == plan(3)["hash"] => Some((StatusCode::OK, run(Value::Null))),
        ("POST", "/v1/moves") => Some((StatusCode::CONFLICT, problem("PlanChanged", "the plan is another one by now"))),
        ("GET", "/v1/moves/m-1") => Some((StatusCode::OK, run(Value::Null))),
        ("GET", "/v1/moves/m-done") => Some((StatusCode::OK, run("Completed".into()))),
        ("GET", "/v1/moves/m-undone") => Some((StatusCode::OK, run("Aborted".into()))),
        ("GET", "/v1/moves/m-aborted") => Some((StatusCode::OK, asked("Aborted"))),
        ("GET", "/v1/moves/m-back") => Some((StatusCode::OK, asked("RolledBack"))),
        ("GET", "/v1/guilds/404/location") => Some((StatusCode::NOT_FOUND, missing())),
        _ => None,
    }
}

#[test]
fn the_hash_of_a_plan_starts_exactly_that_plan() {
    let fake = Fake::serve(moves);
    let output = fake.run("guild move plan 5 --to b -o json");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let shown: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(shown, plan(3), "the JSON is the API's type");
    let hash = shown["hash"].as_str().unwrap();

    let output = fake.run(&format!("guild move start 5 --to b --plan-hash {hash} -o json"));
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(
        fake.asked(&Method::POST, "/v1/moves"),
        [json!({"guildId": "5", "target": {"cell": "b"}, "planHash": hash})]
    );
    assert_eq!(fake.asked(&Method::POST, "/v1/move-plans").len(), 1, "start with a hash plans nothing itself");
}

#[test]
fn another_plan_by_now_is_refused() {
    let fake = Fake::serve(moves);
    let stale = plan(2)["hash"].as_str().unwrap().to_owned();
    let output = fake.run(&format!("guild move start 5 --to b --plan-hash {stale}"));
    assert_eq!(code(&output), 3);
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("refused: PlanChanged: the plan is another one by now"), "{}", stderr(&output));
    assert!(stderr(&output).contains("next: cellctl guild move plan 5 --to b"), "{}", stderr(&output));
}

#[test]
fn without_a_hash_nothing_starts_unconfirmed() {
    let fake = Fake::serve(moves);
    let output = fake.run("guild move start 5 --to b");
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(fake.asked(&Method::POST, "/v1/moves").is_empty());
    let output = fake.run("guild move start 5 --to b --yes");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(fake.asked(&Method::POST, "/v1/moves")[0]["planHash"], plan(3)["hash"], "what runs is what was planned");
}

#[test]
fn watching_ends_as_the_run_does_or_at_its_timeout() {
    let fake = Fake::serve(moves);
    assert_eq!(code(&fake.run("guild move watch m-done")), 0);
    assert_eq!(code(&fake.run("guild move watch m-undone")), 1, "it undid itself");
    for name in ["m-aborted", "m-back"] {
        let output = fake.run(&format!("guild move watch {name}"));
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert!(stderr(&output).contains("was undone, as asked"), "{}", stderr(&output));
    }
    assert_eq!(code(&fake.run("guild move watch m-absent")), 1);
    let output = fake.run("guild move watch m-1 --timeout 50ms");
    assert_eq!(code(&output), 4);
    assert!(stderr(&output).contains("blocked by: Warm: guild node b-guild-0"), "{}", stderr(&output));
}

#[test]
fn an_interrupted_watch_says_that_the_move_goes_on_and_how_to_look_at_it_again() {
    let fake = Fake::serve(moves);
    let mut watch = Command::new(env!("CARGO_BIN_EXE_cellctl"));
    watch.args(["guild", "move", "watch", "m-1"]).env_clear().env("HOME", fake.folder.path());
    watch.env("KUBECONFIG", fake.folder.path().join("kubeconfig"));
    let watch = watch.stderr(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while fake.asked(&Method::GET, "/v1/moves/m-1").is_empty() {
        assert!(std::time::Instant::now() < deadline, "it never asked for the move");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_raw(i32::try_from(watch.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = watch.wait_with_output().unwrap();
    assert_eq!((code(&output), stdout(&output).as_str()), (1, ""), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("move m-1 goes on") && said.contains("next: cellctl guild move watch m-1"), "{said}");
}

#[test]
fn nobody_is_asked_to_confirm_what_cannot_be_done() {
    let fake = Fake::serve(moves);
    for verb in ["abort", "rollback"] {
        let output = fake.run(&format!("guild move {verb} m-absent"));
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(!stderr(&output).contains("confirm"), "{}", stderr(&output));
        let output = fake.run(&format!("guild move {verb} m-done"));
        assert_eq!(code(&output), 3);
        assert!(stderr(&output).contains("has ended as Completed"), "{}", stderr(&output));
        let output = fake.run(&format!("guild move {verb} m-1"));
        assert_eq!(code(&output), 3, "one that runs needs the confirmation");
        assert!(stderr(&output).contains("--yes"), "{}", stderr(&output));
    }
}

#[test]
fn a_guild_that_does_not_exist_is_said_to_be_missing_by_its_reason() {
    let output = Fake::serve(moves).run("locate 404");
    assert_eq!((code(&output), stdout(&output).as_str()), (1, ""));
    assert!(stderr(&output).starts_with("error: GuildNotFound: guild 404"), "{}", stderr(&output));
}

#[test]
fn a_pause_says_what_it_stops_and_what_it_does_not() {
    let help = stdout(&cellctl("automation pause --help", &[]));
    assert!(help.contains("starts all the same") && help.contains("guild move start"), "{help}");
    assert!(help.contains("waits") && help.contains("guild pin"), "{help}");
}

/// A fleet at work: its entry and its control-plane API are this very server.
fn fleet_at_work(method: &Method, path: &str, _body: &Value, _base: &str) -> Option<(StatusCode, Value)> {
    let list = |kind: &str, items: Value| {
        let kind = format!("{kind}List");
        json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": kind, "metadata": {}, "items": items})
    };
    let cell = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Cell", "metadata": {"name": "a", "generation": 1},
        "spec": {"storageCellRef": "main"}, "status": {"observedGeneration": 1, "blockedBy": "PodsNotReady: guild 1/2",
            "conditions": [{"type": "Ready", "status": "False", "reason": "PodsNotReady"},
                {"type": "Reconciling", "status": "True", "reason": "PodsNotReady"}]}});
    let answer = match path.rsplit('/').next()? {
        "cells" => list("Cell", json!([cell])),
        "storagecells" => list("StorageCell", json!([])),
        "storagemigrations" => list("StorageMigration", json!([])),
        "guilds" => list("Guild", json!([])),
        "moves" => list("Move", json!([])),
        "automation" => json!({"paused": false}),
        _ => return None,
    };
    (method == Method::GET).then_some((StatusCode::OK, answer))
}

#[test]
fn status_calls_work_under_way_waiting_and_has_names_for_a_pipe() {
    let fake = Fake::serve(fleet_at_work);
    let output = fake.run("status");
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).starts_with("waiting: "), "{}", stderr(&output));
    assert!(!stderr(&output).contains("refused"), "{}", stderr(&output));
    let names = stdout(&fake.run("status -o name"));
    assert_eq!(names, "fleet.cellplane.dev/main\ncell.cellplane.dev/a\n");
}

#[test]
fn status_does_not_say_that_all_is_well_while_the_control_plane_does_not_answer() {
    let fake = Fake::serve_fleet(fleet_at_work, Some("http://127.0.0.1:1"));
    let output = fake.run("status -o json");
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let shown: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let blocked = shown["blockedBy"].as_array().unwrap();
    assert!(blocked.iter().any(|one| one["resource"] == "fleet/control-plane"), "{shown}");
}

#[test]
fn status_does_not_say_that_all_is_well_while_the_entry_does_not_answer() {
    fn quiet(method: &Method, path: &str, body: &Value, base: &str) -> Option<(StatusCode, Value)> {
        let (status, mut answer) = fleet_at_work(method, path, body, base)?;
        if path.ends_with("/cells") {
            answer["items"] = json!([]);
        }
        Some((status, answer))
    }
    let well = Fake::serve(quiet).run("status");
    assert_eq!((code(&well), stderr(&well).as_str()), (0, ""), "{}", stdout(&well));
    let output = Fake::serve_at(quiet, None, Some("http://127.0.0.1:1")).run("status");
    assert_eq!(code(&output), 3, "{}", stdout(&output));
    let said = stderr(&output);
    assert!(said.starts_with("waiting: fleet/entry: http://127.0.0.1:1/api/v10/gateway does not answer"), "{said}");
}

const CELL: &str = "/apis/cellplane.dev/v1alpha1/namespaces/ns/cells/";
const GUILD: &str = "/apis/cellplane.dev/v1alpha1/namespaces/ns/guilds/g-5";

/// A guild whose placement GitOps owns.
fn owned_guild(method: &Method, path: &str, _body: &Value, _base: &str) -> Option<(StatusCode, Value)> {
    let guild = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Guild",
        "metadata": {"name": "g-5", "namespace": "ns", "resourceVersion": "7", "managedFields": [
            {"manager": "argocd", "operation": "Apply", "fieldsV1": {"f:spec": {"f:placement": {"f:cell": {}}}}}]},
        "spec": {"guildId": "5", "placement": {"cell": "a"}}});
    if method == Method::GET && ["a", "b"].map(|name| format!("{CELL}{name}")).contains(&path.to_owned()) {
        let cell = json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Cell",
            "metadata": {"name": path.rsplit('/').next()?, "namespace": "ns"}, "spec": {"storageCellRef": "main"}});
        return Some((StatusCode::OK, cell));
    }
    (path == GUILD && (method == Method::GET || method == Method::PATCH)).then_some((StatusCode::OK, guild))
}

#[test]
fn a_guild_is_not_pinned_to_a_cell_that_is_not_there() {
    let fake = Fake::serve(owned_guild);
    let output = fake.run("guild pin 5 --cell nope --override --yes");
    assert_eq!((code(&output), stdout(&output).as_str()), (3, ""), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("--cell: there is no Cell \"nope\"") && said.contains("next: cellctl get cells"), "{said}");
    assert!(fake.asked(&Method::PATCH, GUILD).is_empty());
}

#[test]
fn a_field_of_another_manager_is_left_alone_and_the_patch_for_git_printed() {
    let fake = Fake::serve(owned_guild);
    let output = fake.run("guild pin 5 --cell b");
    assert_eq!(code(&output), 3);
    let said = stderr(&output);
    assert!(said.contains("Guild.spec.placement: g-5 is managed by argocd"), "{said}");
    assert!(said.contains("placement:\n    cell: b"), "{said}");
    assert!(said.contains("--override"), "{said}");
    assert!(fake.asked(&Method::PATCH, GUILD).is_empty());

    let output = fake.run("guild dedicate 5 --override --yes");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stderr(&output).contains("warning"), "{}", stderr(&output));
    let patch = &fake.asked(&Method::PATCH, GUILD)[0];
    assert_eq!(patch["spec"], json!({"placement": {"cell": null, "dedicated": {}}}));
    assert_eq!(patch["metadata"]["resourceVersion"], "7", "only what was judged is changed");
}

#[test]
fn what_is_already_so_is_not_written_again() {
    let fake = Fake::serve(owned_guild);
    let output = fake.run("guild pin 5 --cell a -o json");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("unchanged"));
    assert!(fake.asked(&Method::PATCH, GUILD).is_empty());
}

fn tokens(method: &Method, path: &str, body: &Value, _base: &str) -> Option<(StatusCode, Value)> {
    let issued = json!({"token": format!("jwt-of-{}", body["name"].as_str()?), "userId": "42", "created": true});
    (method == Method::POST && path == "/v1/tokens").then_some((StatusCode::OK, issued))
}

#[test]
fn a_token_goes_to_stdout_and_nowhere_else() {
    let fake = Fake::serve(tokens);
    let output = fake.run("token issue --bot echo -o json");
    let value: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&value["token"], &value["userId"]), (&json!("jwt-of-echo"), &json!("42")));
    assert_eq!(stderr(&output), "");
    assert_eq!(fake.asked(&Method::POST, "/v1/tokens"), [json!({"kind": "bot", "name": "echo"})]);
}

#[test]
fn the_token_is_not_sent_over_plain_http_to_another_machine() {
    let fake = Fake::serve_fleet(|_, _, _, _| None, Some("http://control-plane.invalid:8443"));
    let refused = fake.run("locate 5");
    assert_eq!(code(&refused), 3, "{}", stderr(&refused));
    let said = stderr(&refused);
    assert!(said.contains("Fleet.status.controlPlaneAddress") && said.contains("--plaintext"), "{said}");
    let told = fake.run("locate 5 --plaintext");
    assert_eq!(code(&told), 1, "it is tried then, and nobody is there: {}", stderr(&told));
}

#[test]
fn a_release_merges_a_guild_that_has_a_log_of_its_own_in_its_buckets_cell() {
    fn plan(unit: &str) -> Value {
        json!({"guildId": "5", "unit": unit, "from": "a", "to": "a", "term": 3, "steps": ["Validate", "Merge"],
            "checks": [{"name": "unit", "ok": unit == "g5", "message": "m"}], "deadlineSeconds": 1,
            "rollbackWindowSeconds": 0, "hash": "h"})
    }
    fn script(unit: &str, method: &Method, path: &str) -> Option<(StatusCode, Value)> {
        match (method.as_str(), path) {
            ("POST", "/v1/move-plans") => Some((StatusCode::OK, plan(unit))),
            ("POST", "/v1/moves") => Some((StatusCode::OK, run(Value::Null))),
            _ => None,
        }
    }
    let own = Fake::serve(|method, path, _, _| script("g5", method, path));
    let released = own.run("guild release 5 -o json");
    assert_eq!(code(&released), 0, "{}", stderr(&released));
    let started = own.asked(&Method::POST, "/v1/moves");
    assert_eq!(started.len(), 1);
    assert_eq!((&started[0]["target"], &started[0]["planHash"]), (&json!("bucket"), &json!("h")));
    let in_bucket = Fake::serve(|method, path, _, _| script("b0042", method, path));
    let released = in_bucket.run("guild release 5");
    assert_eq!(code(&released), 0, "{}", stderr(&released));
    assert!(in_bucket.asked(&Method::POST, "/v1/moves").is_empty(), "there is nothing to do");
}

#[test]
fn a_file_limit_that_is_too_low_is_said_before_anything_is_started() {
    let home = tempfile::tempdir().unwrap();
    let script = format!("ulimit -n 256 && exec {} sandbox up --no-build", env!("CARGO_BIN_EXE_cellctl"));
    let output = Command::new("sh").args(["-c", &script]).env_clear().env("HOME", home.path()).output().unwrap();
    assert_eq!((code(&output), stdout(&output).as_str()), (3, ""), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("may open 256 files, a sandbox needs 1024") && said.contains("next: raise"), "{said}");
    assert!(!home.path().join(".local").exists(), "nothing was made");
}
