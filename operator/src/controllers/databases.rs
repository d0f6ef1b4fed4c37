//! What processes must be told of databases: the files of StorageCells with the credentials their Secrets hold now, and what a probe
//! of one found. It reads Secrets by name only and keeps nothing of them.

use std::collections::{BTreeMap, BTreeSet};

use cell_crds::cell::CellStorage;
use cell_crds::{Cell, Engine, StorageCell, StorageMigration};
use cell_plan::migrations::Spec;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::build::probe::{ProbeInput, job};
use crate::build::storage::{self, Login};
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::{STORAGE_CELL_LABEL, manager};

/// Longest message of a probe that is looked at.
const MOST_MESSAGE: usize = 16 * 1024;

/// The StorageCell that serves a cell: what a completed migration decided, else what its spec names.
pub fn serving(cell: &Cell) -> String {
    let decided = cell.status.as_ref().and_then(|status| status.storage.as_ref()).map(|storage| &storage.serving);
    decided.filter(|serving| !serving.is_empty()).unwrap_or(&cell.spec.storage_cell_ref).clone()
}

/// StorageCells that a cell's data services must reach: its own, those that units were carried to, and both sides of every migration
/// under way that touches one of them. Pure.
pub fn needed(cell: &Cell, migrations: &[StorageMigration]) -> BTreeSet<String> {
    let mut needed = BTreeSet::from([serving(cell), cell.spec.storage_cell_ref.clone()]);
    let storage = cell.status.as_ref().and_then(|status| status.storage.clone());
    needed.extend(storage.into_iter().flat_map(|storage| storage.others));
    let under_way = migrations.iter().filter(|one| one.status.as_ref().is_none_or(|status| status.result.is_none()));
    let sides: Vec<[&String; 2]> = under_way.map(|one| [&one.spec.source, &one.spec.target]).collect();
    for [source, target] in sides {
        if needed.contains(source) || needed.contains(target) {
            needed.extend([source.clone(), target.clone()]);
        }
    }
    needed
}

/// Where a cell's data is once a run has completed: all of it went with the StorageCell that serves, or units of it, which may have come
/// from one that earlier units were carried to. Pure.
pub fn carried(storage: &mut CellStorage, spec: &Spec) {
    if spec.units.is_empty() && storage.serving == spec.source {
        storage.serving.clone_from(&spec.target);
    } else if storage.serving == spec.source || storage.others.contains(&spec.source) {
        let others: BTreeSet<String> = storage.others.iter().cloned().chain([spec.target.clone()]).collect();
        storage.others = others.into_iter().collect();
    }
}

/// The files of some StorageCells.
#[derive(Clone, Default)]
pub struct Files {
    /// By name: what processes are given.
    pub contents: BTreeMap<String, String>,
    /// The same without what Secrets say, and which version of which Secret was read: what a hash may be made of.
    versions: BTreeMap<String, String>,
}

/// The files of some StorageCells; the inner error says which Secret is missing.
///
/// # Errors
/// [`ReconcileError`].
pub async fn files<'a>(
    context: &Context,
    names: impl Iterator<Item = &'a String>,
) -> Result<Result<Files, String>, ReconcileError> {
    let mut files = Files::default();
    for name in names {
        let Some(found) = context.stores.storage_cell(&context.settings.namespace, name) else { continue };
        if found.spec.engine == Engine::Embedded {
            continue;
        }
        match login(context, &found).await? {
            Ok((login, version)) => {
                files.contents.extend(storage::file(&found, &login));
                let open =
                    storage::file(&found, &Login::default()).map(|(name, open)| (name, format!("{open} {version}")));
                files.versions.extend(open);
            }
            Err(missing) => return Ok(Err(missing)),
        }
    }
    Ok(Ok(files))
}

/// What the Secrets of a StorageCell say, and their versions.
async fn login(context: &Context, found: &StorageCell) -> Result<Result<(Login, String), String>, ReconcileError> {
    let (mut login, mut version) = (Login::default(), String::new());
    let external = found.spec.external.as_ref();
    let managed = found.spec.managed.as_ref();
    let reference =
        external.and_then(|one| one.secret_ref.as_ref()).or(managed.and_then(|one| one.secret_ref.as_ref()));
    if let Some(name) = reference {
        let Some(secret) = context.applier.get::<Secret>(name).await? else {
            return Ok(Err(format!("Secret {name} of StorageCell {} does not exist; create it", found.name_any())));
        };
        let (Some(username), Some(password)) = (text(&secret, "username"), text(&secret, "password")) else {
            return Ok(Err(format!("Secret {name} lacks username or password")));
        };
        (login.username, login.password) = (username, password);
        version += &version_of(&secret);
    }
    if let Some(name) = external.and_then(|one| one.tls.as_ref()).map(|tls| &tls.ca_secret_ref) {
        let secret = context.applier.get::<Secret>(name).await?;
        let Some(ca) = secret.as_ref().and_then(|secret| text(secret, "ca.crt")) else {
            return Ok(Err(format!("Secret {name} with ca.crt does not exist or lacks it; create it")));
        };
        login.ca_pem = Some(ca);
        version += &secret.as_ref().map(version_of).unwrap_or_default();
    }
    Ok(Ok((login, version)))
}

/// Another text for another Secret or another content of it, which says nothing of the content.
fn version_of(secret: &Secret) -> String {
    let meta = &secret.metadata;
    format!("{}@{} ", meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref().unwrap_or_default())
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.0.clone()).ok().filter(|text| !text.is_empty())
}

/// A short hash of files, to notice that something changed. It is made of the versions of Secrets, never of what is in them: it is
/// shown in status, where guesses could be tried against it.
pub fn hash(files: &Files, salt: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(salt);
    for (name, content) in &files.versions {
        digest.update(name.len().to_be_bytes());
        digest.update(name);
        digest.update(content.len().to_be_bytes());
        digest.update(content);
    }
    digest.finalize().iter().take(5).map(|byte| format!("{byte:02x}")).collect()
}

/// What a probe says, as its process writes it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeReport {
    /// It can be used.
    pub ok: bool,
    /// Why not.
    #[serde(alias = "message")]
    pub error: String,
    /// Nodes that answer.
    #[serde(alias = "reachableNodes")]
    pub nodes: i32,
    /// Version of the database.
    pub version: String,
    /// Version of the tables' schema.
    pub schema_version: i32,
    /// Privileges that are lacking.
    pub missing_privileges: Vec<String>,
}

/// How a probe stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Its Job runs.
    Running,
    /// It has answered.
    Found(ProbeReport),
}

/// What is to be done about looking at a StorageCell.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum NextProbe<'a> {
    /// This Job looks at it: no other is begun meanwhile, since each brings the tables forward.
    Wait(&'a str),
    /// This Job has ended lately: what it found counts.
    Hear(&'a Job),
    /// Begin one.
    Begin,
}

/// Whose turn it is among the Jobs of a StorageCell: one at a time, and what the last one named `prefix…` found counts for `every_ms`
/// after its end. Pure.
pub fn next_probe<'a>(jobs: &'a [Job], prefix: &str, now_ms: i64, every_ms: i64) -> NextProbe<'a> {
    if let Some(running) = jobs.iter().find(|job| ended_ms(job).is_none()) {
        return NextProbe::Wait(running.metadata.name.as_deref().unwrap_or_default());
    }
    let ours = jobs.iter().filter(|job| job.name_any().starts_with(prefix));
    match ours.filter_map(|job| Some((ended_ms(job)?, job))).max_by_key(|(ended_ms, _)| *ended_ms) {
        Some((ended_ms, job)) if now_ms.saturating_sub(ended_ms) < every_ms => NextProbe::Hear(job),
        _ => NextProbe::Begin,
    }
}

/// When a Job ended, in Unix milliseconds; none while it runs.
fn ended_ms(job: &Job) -> Option<i64> {
    let status = job.status.as_ref()?;
    let over = status
        .conditions
        .iter()
        .flatten()
        .filter(|one| matches!(one.type_.as_str(), "Failed" | "Complete") && one.status == "True");
    let times = over.clone().filter_map(|one| one.last_transition_time.as_ref()).chain(&status.completion_time);
    let ended = status.succeeded.unwrap_or_default() > 0 || status.failed.unwrap_or_default() > 0 || over.count() > 0;
    let made = job.metadata.creation_timestamp.iter();
    ended.then(|| times.chain(made).map(|time| time.0.as_millisecond()).max().unwrap_or_default())
}

/// All Jobs that look at a StorageCell, whoever began them.
///
/// # Errors
/// [`ReconcileError`].
pub async fn probe_jobs(context: &Context, storage_cell: &str) -> Result<Vec<Job>, ReconcileError> {
    let labels = format!("{STORAGE_CELL_LABEL}={storage_cell},app.kubernetes.io/component=probe");
    let jobs = context.applier.api::<Job>().list(&ListParams::default().labels(&labels)).await;
    Ok(jobs.map_err(ReconcileError::request("list", "Job", storage_cell))?.items)
}

/// Starts the Job of a probe.
///
/// # Errors
/// [`ReconcileError`].
pub async fn begin(context: &Context, input: &ProbeInput<'_>) -> Result<(), ReconcileError> {
    context.applier.create(&manager("storagecell", "probe"), &job(input)).await.map(drop)
}

/// Starts the Job of a probe if there is none of that name and no other looks at the StorageCell, and reads what it found.
///
/// # Errors
/// [`ReconcileError`].
pub async fn probe(context: &Context, input: &ProbeInput<'_>) -> Result<Probe, ReconcileError> {
    let Some(live) = context.applier.get::<Job>(input.job).await? else {
        let jobs = probe_jobs(context, input.storage_cell).await?;
        if jobs.iter().all(|job| ended_ms(job).is_some()) {
            begin(context, input).await?;
        }
        return Ok(Probe::Running);
    };
    if ended_ms(&live).is_none() {
        return Ok(Probe::Running);
    }
    found(context, &live).await.map(Probe::Found)
}

/// What a Job that has ended found.
///
/// # Errors
/// [`ReconcileError`].
pub async fn found(context: &Context, ended: &Job) -> Result<ProbeReport, ReconcileError> {
    let name = ended.name_any();
    let params = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    let pods = context.applier.api::<Pod>().list(&params).await;
    let pods = pods.map_err(ReconcileError::request("list", "Pod", &name))?;
    let Some(pod) = pods.items.last() else {
        return Ok(failure(format!("Job {name} ended without a Pod")));
    };
    let states = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let terminated = states.into_iter().flatten().find_map(|one| one.state.as_ref()?.terminated.clone());
    let said = terminated.as_ref().and_then(|one| one.message.clone()).filter(|text| !text.trim().is_empty());
    let said = match said {
        Some(said) => said,
        None => last_line(context, &pod.name_any()).await,
    };
    let exit = terminated.map_or(-1, |one| one.exit_code);
    Ok(read(&said, exit))
}

/// The last line of a Pod's log; empty when it cannot be had.
async fn last_line(context: &Context, pod: &str) -> String {
    let params = LogParams { tail_lines: Some(1), ..LogParams::default() };
    context.applier.api::<Pod>().logs(pod, &params).await.unwrap_or_default()
}

fn failure(error: String) -> ProbeReport {
    ProbeReport { error, ..ProbeReport::default() }
}

/// What a finished probe said. An exit that is not 0 is never ok, whatever was written.
fn read(said: &str, exit: i32) -> ProbeReport {
    let bounded: String = said.chars().take(MOST_MESSAGE).collect();
    let line = bounded.lines().rev().find(|line| line.trim_start().starts_with('{')).unwrap_or(&bounded);
    match serde_json::from_str::<ProbeReport>(line.trim()) {
        Ok(mut report) => {
            report.ok &= exit == 0 || exit == -1;
            if !report.ok && report.error.is_empty() {
                report.error = format!("the probe exited with {exit} and gave no reason");
            }
            report
        }
        Err(_) => failure(format!(
            "the probe exited with {exit} and said: {}",
            bounded.trim().chars().take(300).collect::<String>()
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::cell;

    fn migration(source: &str, target: &str, result: Option<&str>) -> StorageMigration {
        let spec = serde_json::from_value(json!({"source": source, "target": target})).unwrap();
        let mut one = StorageMigration::new("m", spec);
        one.status = Some(serde_json::from_value(json!({"result": result})).unwrap());
        one
    }

    #[test]
    fn a_cell_needs_its_own_storage_and_both_sides_of_what_touches_it() {
        let mut one = cell("a", "main");
        let names = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>().join(" ");
        assert_eq!(names(needed(&one, &[])), "main");
        assert_eq!(names(needed(&one, &[migration("main", "next", None), migration("x", "y", None)])), "main next");
        assert_eq!(names(needed(&one, &[migration("main", "next", Some("Aborted"))])), "main");
        let storage = CellStorage { serving: "next".into(), others: vec!["third".into()] };
        one.status = Some(cell_crds::CellStatus { storage: Some(storage), ..Default::default() });
        assert_eq!(serving(&one), "next");
        assert_eq!(names(needed(&one, &[])), "main next third", "the spec's stays reachable: pointers are in it");
    }

    #[test]
    fn a_cell_goes_on_reaching_what_units_were_carried_to_however_often_they_are_carried_on() {
        let spec = |source: &str, target: &str, units: &[&str]| Spec {
            run_id: "r".into(),
            source: source.into(),
            target: target.into(),
            units: units.iter().map(|unit| (*unit).to_owned()).collect(),
            rollback_window_ms: 0,
        };
        let mut storage = CellStorage { serving: "main".into(), others: vec![] };
        let mut after = |spec: Spec| {
            carried(&mut storage, &spec);
            format!("{} {}", storage.serving, storage.others.join(","))
        };
        assert_eq!(after(spec("main", "first", &["b0001"])), "main first");
        assert_eq!(after(spec("first", "second", &["b0001"])), "main first,second");
        assert_eq!(after(spec("elsewhere", "third", &["b0001"])), "main first,second");
        assert_eq!(after(spec("second", "fourth", &[])), "main first,fourth,second");
        assert_eq!(after(spec("main", "next", &[])), "next first,fourth,second");
    }

    fn looked(name: &str, status: serde_json::Value) -> Job {
        serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap()
    }

    #[test]
    fn a_look_that_takes_long_is_waited_for_and_heard_and_no_other_is_begun_meanwhile() {
        let done = json!({"succeeded": 1, "completionTime": "1970-01-01T00:10:00Z"});
        let failed = json!({"failed": 1, "conditions": [
            {"type": "Failed", "status": "True", "lastTransitionTime": "1970-01-01T00:20:00Z"}
        ]});
        let at = |minute: i64, jobs: &[Job]| match next_probe(jobs, "main-probe-abc-", minute * 60_000, 60_000) {
            NextProbe::Wait(job) => format!("wait {job}"),
            NextProbe::Hear(job) => format!("hear {}", job.name_any()),
            NextProbe::Begin => "begin".to_owned(),
        };
        assert_eq!(at(0, &[]), "begin");
        let running = looked("main-probe-abc-1", json!({"active": 1}));
        assert_eq!(at(500, std::slice::from_ref(&running)), "wait main-probe-abc-1");
        let other = looked("m-probe-s123", json!({}));
        assert_eq!(at(500, &[looked("main-probe-abc-1", done.clone()), other]), "wait m-probe-s123");
        let jobs = [looked("main-probe-abc-1", done.clone()), looked("main-probe-old-1", failed.clone())];
        assert_eq!(at(10, &jobs), "hear main-probe-abc-1", "what another content led to does not count");
        assert_eq!(at(11, &jobs), "begin");
        let jobs = [looked("main-probe-abc-1", done), looked("main-probe-abc-2", failed)];
        assert_eq!(at(20, &jobs), "hear main-probe-abc-2");
    }

    #[test]
    fn a_probe_that_failed_is_never_ok() {
        assert!(read(r#"{"ok":true,"nodes":3,"version":"5.0"}"#, 0).ok);
        let failed = read(r#"{"ok":true,"nodes":3}"#, 1);
        assert!(!failed.ok && failed.error.contains("exited with 1"), "{failed:?}");
        let noise = read("panic at the disco", 101);
        assert!(!noise.ok && noise.error.contains("disco"));
        let logged = read("starting\n{\"ok\":false,\"message\":\"no such keyspace\"}\n", 1);
        assert_eq!(logged.error, "no such keyspace");
    }

    #[test]
    fn a_hash_follows_every_byte_and_the_version_of_every_secret_but_not_what_is_in_it() {
        let files = |text: &str| Files {
            contents: BTreeMap::new(),
            versions: BTreeMap::from([("a.json".to_owned(), text.to_owned())]),
        };
        assert_ne!(hash(&files("1"), "s"), hash(&files("2"), "s"));
        assert_ne!(hash(&files("1"), "s"), hash(&files("1"), "t"));
        assert_eq!(hash(&files("1"), "s").len(), 10);
        let secret = |version: &str, password: &str| -> Secret {
            let data = json!({"password": password});
            serde_json::from_value(json!({"metadata": {"uid": "u", "resourceVersion": version}, "stringData": data}))
                .unwrap()
        };
        assert_eq!(version_of(&secret("1", "a")), version_of(&secret("1", "b")));
        assert_ne!(version_of(&secret("1", "a")), version_of(&secret("2", "a")));
    }
}
