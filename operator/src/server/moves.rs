//! Moves through the API: started as `Move` resources, so that GitOps, kubectl and this API see the same thing; aborted and rolled
//! back by the fields that are made for it.

use axum::Json;
use axum::extract::{Path, State};
use cell_api::{MovePlan, MoveRequest, Run, Target};
use cell_crds::condition::find as find_condition;
use cell_crds::{ConditionType, Move, MoveCause, MoveSpec, Reason};
use http::HeaderMap;
use kube::ResourceExt;
use serde_json::json;

use super::auth::Right;
use super::error::{ApiError, Body};
use super::{Api, plan};
use crate::build;
use crate::error::ReconcileError;
use crate::names::{GUILD_LABEL, labels, manager};

pub(super) async fn list(State(api): State<Api>) -> Json<Vec<Run>> {
    Json(api.context.stores.all_moves().iter().map(run_of).collect())
}

pub(super) async fn show(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Run>, ApiError> {
    Ok(Json(run_of(&get(&api, &name).await?)))
}

/// By name from the API server, so that a caller sees what it just made; by run id from the cache.
async fn get(api: &Api, name: &str) -> Result<Move, ApiError> {
    if name.len() <= 63
        && let Some(found) = api.context.applier.get::<Move>(name).await?
    {
        return Ok(found);
    }
    let by_run = |one: &Move| one.status.as_ref().and_then(|status| status.run_id.as_deref()) == Some(name);
    api.context.stores.all_moves().into_iter().find(by_run).ok_or_else(|| {
        ApiError::new(404, "NotFound", "no such run", format!("no Move has the name or run id {name}"))
            .next("cellctl get moves")
    })
}

pub(super) async fn start(
    State(api): State<Api>,
    headers: HeaderMap,
    Body(request): Body<MoveRequest>,
) -> Result<Json<Run>, ApiError> {
    let (fleet, _) = api.fleet()?;
    if fleet.spec.paused {
        let detail = "Fleet.spec.paused is set: nothing is started until it is unset";
        return Err(ApiError::new(409, Reason::Paused.label(), "the fleet is paused", detail));
    }
    let plan = plan::make(&api, &request).await?;
    if request.plan_hash.as_ref().is_some_and(|hash| *hash != plan.hash) {
        let detail = format!("planHash: the plan is {} by now; review it and start again", plan.hash);
        let next = format!("cellctl guild move plan {}", plan.guild_id);
        return Err(ApiError::new(409, "PlanChanged", "the plan has changed", detail).next(next));
    }
    if let Some(check) = plan.refusal() {
        let reason = check.reason.clone().unwrap_or_default();
        let status = if reason == "UnitBusy" { 409 } else { 422 };
        let refusal = ApiError::new(status, &reason, "the move is refused", check.message.clone());
        return Err(match &check.next {
            Some(next) => refusal.next(next.clone()),
            None => refusal,
        });
    }
    if request.target == Target::Dedicated {
        make_dedicated(&api, &headers, &plan).await?;
    }
    let one = build_move(&plan, &request.target);
    let name = one.name_any();
    if !api.context.applier.create(&manager("api", "move"), &one).await? {
        let detail = format!("a Move named {name} exists: this very plan was started before");
        return Err(ApiError::new(409, "AlreadyExists", "already started", detail)
            .next(format!("cellctl guild move watch {name}")));
    }
    Ok(Json(run_of(&get(&api, &name).await?)))
}

/// The cell of a guild's own, if it is not there yet. It is made for the caller, who must have the right to make it.
async fn make_dedicated(api: &Api, headers: &HeaderMap, plan: &MovePlan) -> Result<(), ApiError> {
    let stores = &api.context.stores;
    let namespace = &api.context.settings.namespace;
    if stores.cell(namespace, &plan.to).is_some() {
        return Ok(());
    }
    let bearer = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    api.reviewer.check(bearer, Right::MAKE_CELLS).await?;
    let Some(source) = stores.cell(namespace, &plan.from) else {
        let detail = format!("cell {} serves the guild and has no Cell resource", plan.from);
        return Err(ApiError::new(409, Reason::ReferenceNotFound.label(), "no such cell", detail));
    };
    let guild = stores.guild(namespace, &format!("g-{}", plan.guild_id));
    let own = guild.and_then(|guild| guild.spec.placement?.dedicated?.template);
    let fleet = stores.fleet().and_then(|fleet| fleet.spec.dedicated_template);
    let roles = own.or_else(|| fleet.map(|template| template.roles)).unwrap_or_default();
    let cell = build::fleet::dedicated(&plan.guild_id, &source.spec.storage_cell_ref, &roles);
    api.context.applier.create(&manager("api", "dedicated"), &cell).await?;
    Ok(())
}

/// Named for the plan: starting one plan twice starts one move.
fn build_move(plan: &MovePlan, target: &Target) -> Move {
    let cause = if *target == Target::Bucket { MoveCause::Release } else { MoveCause::Requested };
    let spec = MoveSpec {
        units: None,
        guild: Some(plan.guild_id.clone()),
        from: plan.from.clone(),
        to: plan.to.clone(),
        cause,
        deadline_seconds: plan.deadline_seconds,
        rollback_window_seconds: plan.rollback_window_seconds,
        ttl_after_finished_seconds: None,
        merge_into_bucket: *target == Target::Bucket,
        abort: false,
        rollback: false,
    };
    let short: String = plan.hash.chars().take(10).collect();
    let mut one = Move::new(&format!("g-{}-{short}", plan.guild_id), spec);
    let mut labels = labels(&format!("g-{}", plan.guild_id), "move");
    labels.insert(GUILD_LABEL.into(), plan.guild_id.clone());
    one.metadata.labels = Some(labels);
    one
}

pub(super) async fn abort(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Run>, ApiError> {
    let one = unfinished(&api, &name, Reason::TooLateToAbort).await?;
    let ready = one.status.as_ref().and_then(|status| status.rollback_readiness);
    if ready.is_some_and(|ready| ready != cell_crds::RollbackReadiness::NotYet) {
        let detail = "the commit point is behind: the head names the target";
        return Err(ApiError::new(409, Reason::TooLateToAbort.label(), "too late to abort", detail)
            .next(format!("cellctl guild move rollback {name}")));
    }
    set(&api, &one, "abort").await
}

pub(super) async fn rollback(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Run>, ApiError> {
    let one = unfinished(&api, &name, Reason::TooLateToRollback).await?;
    match one.status.as_ref().and_then(|status| status.rollback_readiness) {
        Some(cell_crds::RollbackReadiness::Ready) => set(&api, &one, "rollback").await,
        Some(cell_crds::RollbackReadiness::Over) => {
            let detail = "the rollback window is over; plan a move back";
            Err(ApiError::new(409, Reason::TooLateToRollback.label(), "too late to roll back", detail))
        }
        _ => {
            let detail = "the commit point is not reached";
            Err(ApiError::new(409, "TooEarlyToRollback", "nothing to roll back", detail)
                .next(format!("cellctl guild move abort {name}")))
        }
    }
}

async fn unfinished(api: &Api, name: &str, reason: Reason) -> Result<Move, ApiError> {
    let one = get(api, name).await?;
    if let Some(result) = one.status.as_ref().and_then(|status| status.result) {
        let detail = format!("the run has ended: {result:?}");
        return Err(ApiError::new(409, reason.label(), "the run has ended", detail));
    }
    Ok(one)
}

/// Sets one wish under a field manager of its own. A field that another manager owns is not taken over.
async fn set(api: &Api, one: &Move, field: &str) -> Result<Json<Run>, ApiError> {
    let body = json!({"metadata": {"uid": one.uid()}, "spec": {field: true}});
    match api.context.applier.share::<Move>(&manager("api", field), &one.name_any(), body).await {
        Ok(patched) => Ok(Json(run_of(&patched))),
        Err(error) => Err(owned_by_another(&error, one, field).unwrap_or_else(|| error.into())),
    }
}

/// The refusal for a conflict about who owns the field; none if the error is another.
fn owned_by_another(error: &ReconcileError, one: &Move, field: &str) -> Option<ApiError> {
    let ReconcileError::Request { source, .. } = error else { return None };
    let kube::Error::Api(status) = &**source else { return None };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let owner = causes.iter().find(|cause| cause.reason == "FieldManagerConflict")?;
    let name = one.name_any();
    let namespace = one.namespace().unwrap_or_default();
    let patch = json!({"spec": {field: true}});
    let said = &owner.message;
    let detail = format!(
        "spec.{field} of Move {name} belongs to another field manager ({said}) and is not taken over; set it there: {patch}"
    );
    let command = format!("kubectl patch move {name} --namespace {namespace} --type merge --patch '{patch}'");
    let refusal = ApiError::new(409, "FieldConflict", "the field has another owner", detail);
    Some(refusal.field(&format!("spec.{field}"), said.clone()).next(command))
}

fn run_of(one: &Move) -> Run {
    let status = one.status.clone().unwrap_or_default();
    let ready = find_condition(&status.conditions, ConditionType::Ready);
    Run {
        name: one.name_any(),
        run_id: status.run_id.clone().unwrap_or_default(),
        guild_id: one.spec.guild.clone().unwrap_or_default(),
        from: one.spec.from.clone(),
        to: one.spec.to.clone(),
        step: status.step.clone().unwrap_or_else(|| "Validate".into()),
        result: status.result.map(|result| format!("{result:?}")),
        reason: ready.map_or_else(|| Reason::Progressing.label().into(), |ready| ready.reason.clone()),
        message: ready.map_or_else(|| "the operator has not begun yet".into(), |ready| ready.message.clone()),
        blocked_by: status.blocked_by.clone(),
        held_microseconds: status.held_microseconds,
        rollback_readiness: status.rollback_readiness.map(|readiness| format!("{readiness:?}")),
        cause: format!("{:?}", one.spec.cause),
        finished_at: status.finished_at.map(|time| time.0.to_string()),
    }
}
