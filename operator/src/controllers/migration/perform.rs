//! Performs one request of a migration: by the directory, by Kubernetes objects, or by a call to a process. It decides nothing.

use cell_crds::condition::is_ready;
use cell_crds::storage_cell::FlaggedRange;
use cell_crds::{Cell, Engine, Fleet, StorageCell, StorageMigration};
use cell_plan::migrations::{Finding, Record, Request, Response, Side};
use cell_proto::directory::{Migration, Role};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::{Resource, ResourceExt};
use serde_json::json;

use super::super::databases::{self, Probe, carried, needed, serving};
use crate::apply::Object;
use crate::build::migration::{MigrationInput, coordinator_service, coordinator_set, worker_deployment};
use crate::build::probe::ProbeInput;
use crate::build::storage;
use crate::context::Context;
use crate::directory::Link;
use crate::error::ReconcileError;
use crate::names::{coordinator, manager, migration_probe_job, migration_secret, workers};
use crate::rpc::{Control, MigrateCaller};

/// Most ranges shown at a StorageCell, as its schema bounds them.
const MOST_FLAGGED: usize = 100;

/// Everything a request is performed with.
pub(super) struct Hands<'a> {
    pub(super) one: &'a StorageMigration,
    pub(super) context: &'a Context,
    pub(super) fleet: &'a Fleet,
    pub(super) link: &'a Link,
}

/// Names of the cells on either StorageCell of a run.
pub fn cells_of(context: &Context, source: &str, target: &str) -> Vec<String> {
    let touches = |cell: &Cell| {
        let needed = needed(cell, &[]);
        needed.contains(source) || needed.contains(target)
    };
    context.stores.all_cells().iter().filter(|cell| touches(cell)).map(ResourceExt::name_any).collect()
}

impl Hands<'_> {
    /// One request, one answer. What Kubernetes or etcd did not take is unknown, and asked again.
    pub(super) async fn perform(&self, record: &Record, request: &Request) -> Response {
        let spec = &record.spec;
        let cells = cells_of(self.context, &spec.source, &spec.target);
        let name = self.one.name_any();
        let caller = MigrateCaller { link: self.link, spec, name: &name, cells: &cells };
        let called = match request {
            Request::Ship { log } => caller.ship(log).await,
            Request::CutOver { log, from, term, restarts, accept_loss } => {
                caller.cut_over(log, *from, (*term, *restarts), *accept_loss).await
            }
            Request::EndCopy { log } => caller.end_copy(log).await,
            Request::List => caller.logs().await,
            Request::Copies => caller.copies().await,
            Request::Control { phase, round, again, rows_per_second, paused } => {
                let wanted = Control {
                    phase: *phase,
                    round: *round,
                    again: again.clone(),
                    rows_per_second: *rows_per_second,
                    paused: *paused,
                };
                let answer = caller.control(wanted).await;
                if let Ok(Response::Coordinator(fact)) = &answer
                    && fact.covers_all()
                {
                    self.flag(&fact.findings, &spec.source).await;
                }
                answer
            }
            Request::Probe { side, round } => self.probe(record, *side, *round).await.map_err(unknown),
            Request::Announce { ship, shadow_per_10000 } => {
                self.announce(record, Some((*ship, *shadow_per_10000))).await.map_err(unknown)
            }
            Request::Retract => self.announce(record, None).await.map_err(unknown),
            Request::Staff => self.staff(record).await.map_err(unknown),
            Request::Serve => self.serve(record, &cells).await.map_err(unknown),
            Request::Dismiss => self.dismiss().await.map_err(unknown),
        };
        called.unwrap_or_else(|answer| answer)
    }

    /// What a finished phase found slow or full of tombstones is shown at the StorageCell it was read from. Losing it is harmless.
    async fn flag(&self, findings: &[Finding], source: &str) {
        let flagged: Vec<FlaggedRange> = findings.iter().take(MOST_FLAGGED).map(super::status::flagged).collect();
        let Ok(Some(storage)) = self.context.applier.get::<StorageCell>(source).await else { return };
        let mut status = storage.status.clone().unwrap_or_default();
        if flagged.is_empty() || status.flagged_ranges == flagged {
            return;
        }
        status.flagged_ranges = flagged;
        let written = self.context.applier.status(&manager("storagecell", "status"), &storage, json!(status)).await;
        if let Err(error) = written {
            tracing::debug!(%error, source, "flagged ranges were not written");
        }
    }

    async fn announce(&self, record: &Record, wanted: Option<(bool, u32)>) -> Result<Response, ReconcileError> {
        let spec = &record.spec;
        let hint = wanted.map(|(ship, shadow_per_10000)| Migration {
            run_id: spec.run_id.clone(),
            source: spec.source.clone(),
            target: spec.target.clone(),
            units: spec.units.clone(),
            ship,
            shadow_per_10000,
        });
        self.link.announce(&spec.run_id, hint.as_ref()).await?;
        Ok(Response::Done)
    }

    /// The Secret with the files of both sides.
    async fn secret(&self, record: &Record) -> Result<Result<String, String>, ReconcileError> {
        let spec = &record.spec;
        let names = [spec.source.clone(), spec.target.clone()];
        let files = match databases::files(self.context, names.iter()).await? {
            Ok(files) => files,
            Err(missing) => return Ok(Err(missing)),
        };
        let hash = databases::hash(&files, "");
        let name = self.one.name_any();
        let secret =
            storage::secret(&migration_secret(&name), &name, self.one.controller_owner_ref(&()), files.contents);
        self.context.applier.apply(&manager("migration", "storage"), &secret).await?;
        Ok(Ok(hash))
    }

    async fn probe(&self, record: &Record, side: Side, round: u32) -> Result<Response, ReconcileError> {
        let name = record.spec.name_of(side);
        let probed = |ok, message: String| Ok(Response::Probed { ok, message });
        let Some(storage) = self.context.stores.storage_cell(&self.context.settings.namespace, name) else {
            return probed(false, format!("StorageCell {name} does not exist; create it"));
        };
        let status = storage.status.clone().unwrap_or_default();
        if storage.spec.engine == Engine::Embedded {
            let view = self.link.directory.view();
            let live = view.members_of(Role::Store, name).next().is_some();
            let ready = is_ready(&status.conditions, storage.metadata.generation);
            return match (ready, live) {
                (true, true) => probed(true, format!("the store of StorageCell {name} is live")),
                (false, _) => {
                    probed(false, format!("StorageCell {name} is not Ready; see cellctl describe storagecell {name}"))
                }
                (true, false) => probed(false, format!("the store of StorageCell {name} is not in the directory")),
            };
        }
        let hash = match self.secret(record).await? {
            Ok(hash) => hash,
            Err(missing) => return probed(false, missing),
        };
        let letter = if side == Side::Source { 's' } else { 't' };
        let job = migration_probe_job(&self.one.name_any(), letter, round, &hash);
        let input = ProbeInput {
            job: &job,
            storage_cell: name,
            secret: &migration_secret(&self.one.name_any()),
            owner: self.one.controller_owner_ref(&()),
            fleet: self.fleet,
        };
        Ok(match databases::probe(self.context, &input).await? {
            Probe::Running => Response::Pending { message: format!("Job {job} looks at StorageCell {name}") },
            Probe::Found(report) if report.ok => {
                Response::Probed { ok: true, message: format!("{} nodes of {} answer", report.nodes, report.version) }
            }
            Probe::Found(report) => {
                Response::Probed { ok: false, message: format!("StorageCell {name}: {}", report.error) }
            }
        })
    }

    async fn staff(&self, record: &Record) -> Result<Response, ReconcileError> {
        if let Err(missing) = self.secret(record).await? {
            return Ok(Response::Pending { message: missing });
        }
        let input = MigrationInput {
            migration: self.one,
            run_id: &record.spec.run_id,
            fleet: self.fleet,
            common: self.context.common(self.fleet),
        };
        let applier = &self.context.applier;
        applier.apply(&manager("migration", "service"), &coordinator_service(&input)).await?;
        applier.apply(&manager("migration", "coordinator"), &coordinator_set(&input)).await?;
        applier.apply(&manager("migration", "workers"), &worker_deployment(&input)).await?;
        let name = self.one.name_any();
        let view = self.link.directory.view();
        if view.members_of(Role::Migrate, &name).next().is_some() {
            return Ok(Response::Done);
        }
        Ok(Response::Pending { message: format!("StatefulSet {} has no live coordinator yet", coordinator(&name)) })
    }

    /// The cells' status says where their data is; their controllers follow it.
    async fn serve(&self, record: &Record, cells: &[String]) -> Result<Response, ReconcileError> {
        let spec = &record.spec;
        for name in cells {
            let Some(cell) = self.context.applier.get::<Cell>(name).await? else { continue };
            let mut status = cell.status.clone().unwrap_or_default();
            let mut storage = status.storage.clone().unwrap_or_default();
            let before = storage.clone();
            storage.serving = serving(&cell);
            carried(&mut storage, spec);
            if storage != before {
                status.storage = Some(storage);
                self.context.applier.status(&manager("cell", "status"), &cell, json!(status)).await?;
            }
        }
        Ok(Response::Done)
    }

    async fn dismiss(&self) -> Result<Response, ReconcileError> {
        let name = self.one.name_any();
        let mut left = self.delete::<Deployment>(&workers(&name)).await?;
        left |= self.delete::<StatefulSet>(&coordinator(&name)).await?;
        left |= self.delete::<Service>(&coordinator(&name)).await?;
        left |= self.delete::<Secret>(&migration_secret(&name)).await?;
        if left {
            return Ok(Response::Pending { message: "coordinator and workers are going".into() });
        }
        Ok(Response::Done)
    }

    /// Deletes one of our objects; answers whether it was still there.
    async fn delete<K: Object>(&self, name: &str) -> Result<bool, ReconcileError> {
        let Some(found) = self.context.applier.get::<K>(name).await? else { return Ok(false) };
        let ours = found.owner_references().iter().any(|owner| Some(&owner.uid) == self.one.uid().as_ref());
        if !ours {
            return Ok(false);
        }
        if found.meta().deletion_timestamp.is_none() {
            self.context.applier.delete(&found).await?;
        }
        Ok(true)
    }
}

fn unknown(error: ReconcileError) -> Response {
    Response::Unknown { message: error.to_string() }
}
