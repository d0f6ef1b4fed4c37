//! A StorageCell whose database is Scylla or Cassandra: built by the Scylla operator where it is managed, then probed by a Job: at
//! once when its spec or a Secret changed, and now and then.

use cell_crds::{Fleet, Reason, StorageCell};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};

use super::super::databases::{self, NextProbe, ProbeReport};
use super::Seen;
use crate::apply::covers;
use crate::build::probe::ProbeInput;
use crate::build::{scylla, storage as files};
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::{manager, probe_job, probe_jobs, probe_secret};
use crate::report::Standing;

/// How long after a look ended a database that answered is looked at again, and one that did not.
const WELL_EVERY_MS: i64 = 600_000;
const ILL_EVERY_MS: i64 = 60_000;

pub(super) async fn look(
    storage: &StorageCell,
    context: &Context,
    fleet: &Fleet,
    users: &[String],
) -> Result<Seen, ReconcileError> {
    if storage.spec.managed.is_some()
        && let Err(standing) = managed(storage, context).await?
    {
        return Ok(Seen::of(standing));
    }
    let name = storage.name_any();
    let names = [name.clone()];
    let found = match databases::files(context, names.iter()).await? {
        Ok(found) => found,
        Err(missing) => return Ok(Seen::of(Standing::Stalled(Reason::ReferenceNotFound, missing))),
    };
    let content = databases::hash(&found, &fleet.spec.image.cell);
    let secret = files::secret(&probe_secret(&name), &name, storage.controller_owner_ref(&()), found.contents);
    context.applier.apply(&manager("storagecell", "probe"), &secret).await?;
    let well = storage.status.as_ref().and_then(|status| status.probed_hash.as_ref()) == Some(&content);
    let every_ms = if well { WELL_EVERY_MS } else { ILL_EVERY_MS };
    let now_ms = cell_runtime::unix_ms();
    let jobs = databases::probe_jobs(context, &name).await?;
    let job = match databases::next_probe(&jobs, &probe_jobs(&name, &content), now_ms, every_ms) {
        NextProbe::Hear(job) => {
            let report = databases::found(context, job).await?;
            let standing = standing(&report, users);
            let probed_hash = report.ok.then_some(content);
            return Ok(Seen { standing, report: Some(report), probed_hash });
        }
        NextProbe::Wait(job) => job.to_owned(),
        NextProbe::Begin => {
            let job = probe_job(&name, &content, now_ms / 60_000);
            let input = ProbeInput {
                job: &job,
                storage_cell: &name,
                secret: &probe_secret(&name),
                owner: storage.controller_owner_ref(&()),
                fleet,
            };
            databases::begin(context, &input).await?;
            job
        }
    };
    // What was found before still stands while it is looked at again.
    Ok(Seen::of(if well {
        before(storage, users)
    } else {
        Standing::Reconciling(Reason::Probing, format!("Job {job} looks at the database"))
    }))
}

fn ready(report: &ProbeReport, users: &[String]) -> Standing {
    let message = format!("{} nodes of {} answer; used by {}", report.nodes, report.version, users.len());
    Standing::Ready(Reason::AsDesired, message)
}

fn standing(report: &ProbeReport, users: &[String]) -> Standing {
    if report.ok {
        return ready(report, users);
    }
    let lacking = match report.missing_privileges.as_slice() {
        [] => String::new(),
        lacking => format!("; grant {}", lacking.join(", ")),
    };
    Standing::Reconciling(Reason::ProbeFailed, format!("{}{lacking}", report.error))
}

fn before(storage: &StorageCell, users: &[String]) -> Standing {
    let status = storage.status.clone().unwrap_or_default();
    let report = ProbeReport {
        nodes: status.reachable_nodes.unwrap_or_default(),
        version: status.version.unwrap_or_default(),
        ..ProbeReport::default()
    };
    ready(&report, users)
}

/// Makes the ScyllaCluster as wanted; the inner error says how it stands while it is not up.
async fn managed(storage: &StorageCell, context: &Context) -> Result<Result<(), Standing>, ReconcileError> {
    let name = storage.name_any();
    let Some(wanted) = scylla::cluster(storage) else { return Ok(Ok(())) };
    if !context.applier.serves(scylla::GROUP_VERSION, scylla::PLURAL).await? {
        let message = format!(
            "spec.managed needs the Scylla operator: this cluster does not serve ScyllaCluster ({}); install it, or use spec.external",
            scylla::GROUP_VERSION
        );
        return Ok(Err(Standing::Stalled(Reason::OperatorMissing, message)));
    }
    let api = context.applier.dynamic(&scylla::resource());
    let failed = |verb| ReconcileError::request(verb, "ScyllaCluster", &name);
    let mut live = api.get_opt(&name).await.map_err(failed("read"))?;
    let as_wanted =
        |live: &kube::api::DynamicObject| serde_json::to_value(live).is_ok_and(|live| covers(&live, &wanted));
    if !live.as_ref().is_some_and(as_wanted) {
        let params = PatchParams::apply(&manager("storagecell", "scylla")).force();
        live = Some(api.patch(&name, &params, &Patch::Apply(&wanted)).await.map_err(failed("apply"))?);
        context.metrics.wrote("ScyllaCluster", "apply");
    }
    let live = serde_json::to_value(live).unwrap_or_default();
    Ok(scylla::readiness(&live, storage).map(|_| ()).map_err(|why| Standing::Reconciling(Reason::PodsNotReady, why)))
}

/// `deletionPolicy: Delete`: the database goes too.
pub(super) async fn delete(storage: &StorageCell, context: &Context) -> Result<(), ReconcileError> {
    if !context.applier.serves(scylla::GROUP_VERSION, scylla::PLURAL).await? {
        return Ok(());
    }
    let name = storage.name_any();
    match context.applier.dynamic(&scylla::resource()).delete(&name, &DeleteParams::default()).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(ReconcileError::request("delete", "ScyllaCluster", &name)(error)),
    }
}
