//! Storage migrations through the API: planned and started as `StorageMigration` resources, and reported without secrets. What a run
//! is told later, people tell its resource.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use cell_api::{
    Check, MigrationFinding, MigrationPlan, MigrationRange, MigrationReport, MigrationRequest, MigrationStarted,
    ShadowWish, WorkersWish,
};
use cell_crds::condition::{find as find_condition, is_ready};
use cell_crds::storage_cell::FlaggedRange;
use cell_crds::{
    ConditionType, MigrationScope, Reason, ShadowRead, StorageMigration, StorageMigrationSpec, TargetStage, WorkersSpec,
};
use cell_plan::migrations::{Response, Spec};
use cell_proto::v1::{MigrateState, RangeFinding};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::Api;
use super::error::{ApiError, Body};
use crate::controllers::migration::cells_of;
use crate::directory::Link;
use crate::names::{labels, manager};
use crate::rpc::MigrateCaller;

const STAGES: [&str; 8] =
    ["Prepare", "DualWrite", "Backfill", "Verify", "ShadowRead", "Cutover", "Reverse", "Complete"];
/// Bounds and default, as the schema has them.
const ROLLBACK_SECONDS: (i32, i32, i32) = (0, 2_592_000, 3_600);
const MOST_UNITS: usize = 256;

pub(super) async fn plan(
    State(api): State<Api>,
    Body(request): Body<MigrationRequest>,
) -> Result<Json<MigrationPlan>, ApiError> {
    Ok(Json(make(&api, &request).await?.0))
}

fn spec_of(request: &MigrationRequest) -> Result<StorageMigrationSpec, ApiError> {
    for (field, name) in [("source", &request.source), ("target", &request.target)] {
        if name.is_empty() || name.len() > 40 {
            return Err(ApiError::invalid(field, "the name of a StorageCell, 1–40 characters"));
        }
    }
    if request.source == request.target {
        return Err(ApiError::invalid("target", "source and target are the same StorageCell"));
    }
    if request.units.len() > MOST_UNITS {
        return Err(ApiError::invalid("units", "at most 256; leave them out to carry everything"));
    }
    if let Some(unit) = request.units.iter().find(|unit| !is_bucket(unit)) {
        return Err(ApiError::invalid("units", &format!("{unit} is not a bucket (b0000–b4095)")));
    }
    let stage = request.target_stage.clone().unwrap_or_else(|| "ShadowRead".into());
    let target_stage: TargetStage = serde_json::from_value(json!(stage))
        .map_err(|_| ApiError::invalid("targetStage", &format!("{stage} is not a stage that can be a goal")))?;
    let (least, most, default) = ROLLBACK_SECONDS;
    let window = request.rollback_window_seconds.unwrap_or(default);
    if !(least..=most).contains(&window) {
        return Err(ApiError::invalid("rollbackWindowSeconds", &format!("{window} is not in {least}–{most}")));
    }
    let mut units = request.units.clone();
    units.sort();
    units.dedup();
    let minimal = json!({"source": request.source, "target": request.target});
    let spec: StorageMigrationSpec =
        serde_json::from_value(minimal).map_err(|error| ApiError::invalid("source", &error.to_string()))?;
    let shadow_read = shadow_of(&request.shadow, &spec.shadow_read)?;
    let workers = workers_of(&request.workers, &spec.workers)?;
    let scope = MigrationScope { units };
    Ok(StorageMigrationSpec { scope, target_stage, rollback_window_seconds: window, shadow_read, workers, ..spec })
}

/// A number within the schema's bounds; the default where none was asked for.
fn within(
    field: &str,
    wanted: Option<i32>,
    bounds: std::ops::RangeInclusive<i32>,
    default: i32,
) -> Result<i32, ApiError> {
    let number = wanted.unwrap_or(default);
    if bounds.contains(&number) {
        return Ok(number);
    }
    Err(ApiError::invalid(field, &format!("{number} is not in {}–{}", bounds.start(), bounds.end())))
}

fn shadow_of(wish: &ShadowWish, default: &ShadowRead) -> Result<ShadowRead, ApiError> {
    Ok(ShadowRead {
        per_ten_thousand: within("shadow.perTenThousand", wish.per_ten_thousand, 0..=10_000, default.per_ten_thousand)?,
        min_samples: within("shadow.minSamples", wish.min_samples, 0..=1_000_000_000, default.min_samples)?,
        ..default.clone()
    })
}

fn workers_of(wish: &WorkersWish, default: &WorkersSpec) -> Result<WorkersSpec, ApiError> {
    let volume_size = wish.volume_size.clone().unwrap_or_else(|| default.volume_size.clone());
    let digits = volume_size.strip_suffix("Mi").or_else(|| volume_size.strip_suffix("Gi")).unwrap_or_default();
    if digits.is_empty() || volume_size.len() > 32 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ApiError::invalid("workers.volumeSize", "a whole number of Mi or Gi, such as 1Gi"));
    }
    let storage_class_name = wish.storage_class_name.clone();
    if storage_class_name.as_ref().is_some_and(|name| name.is_empty() || name.len() > 253) {
        return Err(ApiError::invalid("workers.storageClassName", "the name of a StorageClass, 1–253 characters"));
    }
    let replicas = within("workers.replicas", wish.replicas, 1..=256, default.replicas)?;
    Ok(WorkersSpec { replicas, volume_size, storage_class_name })
}

fn is_bucket(unit: &str) -> bool {
    unit.starts_with('b') && unit.parse::<cell_proto::unit::Unit>().is_ok()
}

async fn make(api: &Api, request: &MigrationRequest) -> Result<(MigrationPlan, StorageMigrationSpec), ApiError> {
    let spec = spec_of(request)?;
    let (_, link) = api.fleet()?;
    let cells = cells_of(&api.context, &spec.source, &spec.target);
    let mut checks = vec![storage(api, "source", &spec.source), storage(api, "target", &spec.target)];
    checks.push(free(&link, &spec).await?);
    let (logs, found) = logs(&link, &spec, &cells).await;
    checks.push(found);
    let plan = MigrationPlan {
        name: request.name.clone().unwrap_or_default(),
        source: spec.source.clone(),
        target: spec.target.clone(),
        units: spec.scope.units.clone(),
        logs,
        cells,
        stages: STAGES.map(str::to_owned).into(),
        target_stage: format!("{:?}", spec.target_stage),
        rollback_window_seconds: spec.rollback_window_seconds,
        shadow: ShadowWish {
            per_ten_thousand: Some(spec.shadow_read.per_ten_thousand),
            min_samples: Some(spec.shadow_read.min_samples),
        },
        workers: WorkersWish {
            replicas: Some(spec.workers.replicas),
            volume_size: Some(spec.workers.volume_size.clone()),
            storage_class_name: spec.workers.storage_class_name.clone(),
        },
        checks,
        hash: String::new(),
    };
    Ok((plan.sealed(), spec))
}

fn check(name: &str, found: Result<String, (Reason, String)>) -> Check {
    match found {
        Ok(message) => Check { name: name.to_owned(), ok: true, message, reason: None, next: None },
        Err((reason, message)) => {
            Check { name: name.to_owned(), ok: false, message, reason: Some(reason.label().to_owned()), next: None }
        }
    }
}

fn storage(api: &Api, side: &str, name: &str) -> Check {
    let Some(found) = api.context.stores.storage_cell(&api.context.settings.namespace, name) else {
        return check(side, Err((Reason::ReferenceNotFound, format!("StorageCell {name} does not exist; create it"))));
    };
    let conditions = found.status.clone().unwrap_or_default().conditions;
    if is_ready(&conditions, found.metadata.generation) {
        return check(side, Ok(format!("StorageCell {name} ({:?}) is Ready", found.spec.engine)));
    }
    let why =
        find_condition(&conditions, ConditionType::Ready).map_or("nothing is known of it", |ready| &ready.message);
    check(side, Err((Reason::Waiting, format!("StorageCell {name} is not Ready: {why}"))))
}

async fn free(link: &Link, spec: &StorageMigrationSpec) -> Result<Check, ApiError> {
    for side in [&spec.source, &spec.target] {
        if let Some(run_id) = link.run_of_storage(side).await? {
            let message = format!("StorageCell {side} is held by run {run_id}; finish it first");
            return Ok(check("free", Err((Reason::UnitBusy, message))));
        }
    }
    Ok(check("free", Ok("no other migration holds either side".into())))
}

async fn logs(link: &Link, spec: &StorageMigrationSpec, cells: &[String]) -> (u64, Check) {
    let run = Spec {
        run_id: String::new(),
        source: spec.source.clone(),
        target: spec.target.clone(),
        units: spec.scope.units.clone(),
        rollback_window_ms: 0,
    };
    let caller = MigrateCaller { link, spec: &run, name: "", cells };
    match caller.logs().await {
        Ok(Response::Logs(logs)) if !logs.is_empty() => {
            (logs.len() as u64, check("logs", Ok(format!("{} logs of cells {}", logs.len(), cells.join(", ")))))
        }
        Ok(_) => (0, check("logs", Err((Reason::InvalidSpec, "no log is in scope".into())))),
        Err(Response::Nobody { message } | Response::Unknown { message } | Response::Refused { message, .. }) => {
            (0, check("logs", Err((Reason::Waiting, message))))
        }
        Err(_) => (0, check("logs", Err((Reason::Waiting, "the logs could not be listed".into())))),
    }
}

pub(super) async fn start(
    State(api): State<Api>,
    Body(request): Body<MigrationRequest>,
) -> Result<Json<MigrationStarted>, ApiError> {
    let (fleet, _) = api.fleet()?;
    if fleet.spec.paused {
        let detail = "Fleet.spec.paused is set: nothing is started until it is unset";
        return Err(ApiError::new(409, Reason::Paused.label(), "the fleet is paused", detail));
    }
    let (plan, spec) = make(&api, &request).await?;
    if request.plan_hash.as_ref().is_some_and(|hash| *hash != plan.hash) {
        let detail = format!("planHash: the plan is {} by now; review it and start again", plan.hash);
        return Err(ApiError::new(409, "PlanChanged", "the plan has changed", detail)
            .next(format!("cellctl migration plan --from {} --to {}", plan.source, plan.target)));
    }
    if let Some(check) = plan.refusal() {
        let reason = check.reason.clone().unwrap_or_default();
        return Err(ApiError::new(409, &reason, "the migration is refused", check.message.clone()));
    }
    let mut one = StorageMigration::new(&plan.name, spec);
    one.metadata.labels = Some(labels(&plan.name, "storage-migration"));
    if !api.context.applier.create(&manager("api", "migration"), &one).await? {
        let detail = format!("a StorageMigration named {} exists", plan.name);
        return Err(ApiError::new(409, "AlreadyExists", "already started", detail)
            .next(format!("cellctl migration watch {}", plan.name)));
    }
    Ok(Json(MigrationStarted { name: plan.name, plan_hash: plan.hash }))
}

pub(super) async fn report(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<MigrationReport>, ApiError> {
    let found = if name.len() <= 40 { api.context.applier.get::<StorageMigration>(&name).await? } else { None };
    let Some(one) = found else {
        let detail = format!("no StorageMigration has the name {name}");
        return Err(ApiError::new(404, "NotFound", "no such migration", detail).next("cellctl get storagemigrations"));
    };
    let (_, link) = api.fleet()?;
    let status = one.status.clone().unwrap_or_default();
    let sides = [&one.spec.source, &one.spec.target].map(|side| {
        let found = api.context.stores.storage_cell(&api.context.settings.namespace, side);
        found.map_or_else(
            || json!({"name": side}),
            |found| json!({"name": side, "spec": found.spec, "status": found.status}),
        )
    });
    let mut report = MigrationReport {
        name: one.name_any(),
        spec: json!(one.spec),
        status: json!(status),
        storage_cells: sides.into(),
        coordinator: None,
        ranges: Vec::new(),
        findings: status.findings.iter().map(finding).collect(),
        positions: positions(&link, status.run_id.as_deref()).await,
        missing: Vec::new(),
    };
    let spec = Spec {
        run_id: status.run_id.unwrap_or_default(),
        source: one.spec.source.clone(),
        target: one.spec.target.clone(),
        units: Vec::new(),
        rollback_window_ms: 0,
    };
    let caller = MigrateCaller { link: &link, spec: &spec, name: &report.name.clone(), cells: &[] };
    match caller.state().await {
        Ok(state) => fill(&mut report, &state),
        Err(error) => report.missing.push(format!("coordinator: {error}")),
    }
    match caller.ranges().await {
        Ok(rows) => report.ranges = rows.into_iter().map(range).collect(),
        Err(error) => report.missing.push(format!("ranges: {error}")),
    }
    Ok(Json(report))
}

/// Where the logs stood; nothing when the run's record is gone or cannot be read.
async fn positions(link: &Link, run_id: Option<&str>) -> BTreeMap<String, u64> {
    let Some(run_id) = run_id else { return BTreeMap::new() };
    let Ok(Some(run)) = link.migration_run(run_id).await else { return BTreeMap::new() };
    let record = run.record;
    record.logs.iter().map(|log| log.name.clone()).zip(record.positions.iter().copied()).collect()
}

fn finding(found: &FlaggedRange) -> MigrationFinding {
    MigrationFinding {
        table: found.table.clone(),
        first_token: found.first_token,
        last_token: found.last_token,
        partition: found.partition.clone().unwrap_or_default(),
        kind: found.kind.clone(),
        message: found.message.clone(),
    }
}

fn range(row: cell_proto::v1::RangeRow) -> MigrationRange {
    let cell_proto::v1::RangeRow { table, first_token, last_token, state, rows, attempts, failure } = row;
    MigrationRange { table, first_token, last_token, state, rows, attempts, failure }
}

fn of_coordinator(found: RangeFinding) -> MigrationFinding {
    let RangeFinding { table, first_token, last_token, partition, kind, message } = found;
    MigrationFinding { table, first_token, last_token, partition, kind, message }
}

fn is_same(one: &MigrationFinding, other: &MigrationFinding) -> bool {
    let place = |found: &MigrationFinding| (found.first_token, found.last_token);
    one.kind == other.kind && one.table == other.table && place(one) == place(other)
}

fn fill(report: &mut MigrationReport, state: &MigrateState) {
    let receipt: Option<Value> = state.receipt.as_ref().map(|receipt| {
        json!({
            "round": receipt.round,
            "beganUnixMs": receipt.began_unix_ms,
            "endedUnixMs": receipt.ended_unix_ms,
            "source": receipt.source,
            "target": receipt.target,
            "ranges": receipt.ranges,
            "rowsCompared": receipt.rows_compared,
            "mismatches": receipt.mismatches,
            "repaired": receipt.repaired,
            "clean": receipt.clean,
            "tables": receipt.tables.iter().map(|one| json!({
                "table": one.table, "unit": one.unit, "rows": one.rows, "source": one.source, "target": one.target,
            })).collect::<Vec<_>>(),
        })
    });
    report.coordinator = Some(json!({
        "phase": state.phase().as_str_name(),
        "round": state.round,
        "donePpm": state.done_ppm,
        "rangesDone": state.ranges_done,
        "rangesFailed": state.ranges_failed,
        "rangesInFlight": state.ranges_in_flight,
        "rangesTotal": state.ranges_total,
        "rows": state.rows,
        "rowsRead": state.rows_read,
        "rowsPerSecond": state.rows_per_second,
        "redone": state.redone,
        "throttle": state.throttle,
        "throttleReason": state.throttle_reason,
        "workers": state.workers,
        "paused": state.paused,
        "complete": state.complete,
        "receipt": receipt,
    }));
    // The coordinator knows those of its phase; those of phases before are in the status.
    let now: Vec<MigrationFinding> = state.findings.iter().cloned().map(of_coordinator).collect();
    report.findings.retain(|found| !now.iter().any(|other| is_same(found, other)));
    report.findings.splice(0..0, now);
}
