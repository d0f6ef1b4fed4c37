//! Reconciles a `Fleet`: claims its prefix, makes the entry and the token keys, shares the buckets once, and reports.

mod bootstrap;
mod observe;
mod validate;

use std::time::Duration;

use cell_crds::{Fleet, FleetStatus, Reason};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use rand::Rng;
use serde_json::json;

use super::Outcome;
use crate::apply::Finalizer;
use crate::build;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::names::{manager, token_keys};
use crate::report::{Standing, announce, is_transition};

/// How a fleet's reconcile ended, and whether others should look again.
pub struct FleetEnd {
    /// How.
    pub outcome: Outcome,
    /// The fleet's standing changed: what depends on it looks again.
    pub changed: bool,
}

const SOON: Duration = Duration::from_secs(1);
const NOW_AND_THEN: Duration = Duration::from_secs(30);

/// Bytes of a new token key.
const KEY_BYTES: usize = 48;

/// One pass.
///
/// # Errors
/// [`ReconcileError`], retried with back-off.
pub async fn reconcile(fleet: &Fleet, context: &Context) -> Result<FleetEnd, ReconcileError> {
    if fleet.metadata.deletion_timestamp.is_some() {
        return release(fleet, context).await;
    }
    // observe (client required)
    let seen = observe::observe(fleet, context).await?;
    // validate (pure)
    let standing = match validate::validate(fleet, &seen) {
        Err(refused) => refused,
        Ok(()) => {
            // apply (client required)
            apply(fleet, context).await?;
            // plan and apply the one-time sharing of buckets (client required)
            bootstrap::bootstrap(fleet, context, &seen).await?
        }
    };
    // report (client required)
    report(fleet, context, &seen, &standing).await
}

/// The prefix is free for a fleet that is made anew. An etcd that is away does not hold the deletion up.
async fn release(fleet: &Fleet, context: &Context) -> Result<FleetEnd, ReconcileError> {
    if let Some(uid) = fleet.uid() {
        let link = context.hub.link_to(&fleet.spec.etcd);
        if let Err(error) = link.release_prefix(&uid).await {
            tracing::warn!(%error, key = link.keys().fleet(), "the prefix stays claimed; delete the key to use it again");
        }
    }
    context.applier.finalizer(fleet, Finalizer::Released).await?;
    Ok(FleetEnd { outcome: Outcome::Settled, changed: true })
}

async fn apply(fleet: &Fleet, context: &Context) -> Result<(), ReconcileError> {
    context.applier.finalizer(fleet, Finalizer::Held).await?;
    context.applier.apply(&manager("fleet", "entry"), &build::fleet::entry(fleet)).await?;
    if fleet.spec.token_keys_ref.is_none() {
        let name = token_keys(&fleet.name_any());
        if context.applier.get::<Secret>(&name).await?.is_none() {
            let mut key = [0_u8; KEY_BYTES];
            rand::rng().fill(&mut key[..]);
            // Created, never replaced: tokens signed with an existing key stay valid.
            context.applier.create(&manager("fleet", "token-keys"), &build::fleet::keys(fleet, &key)).await?;
        }
    }
    Ok(())
}

async fn report(
    fleet: &Fleet,
    context: &Context,
    seen: &observe::Seen,
    standing: &Standing,
) -> Result<FleetEnd, ReconcileError> {
    let before = fleet.status.clone().unwrap_or_default();
    let rules = !seen.is_second;
    let bootstrapped = matches!(standing, Standing::Ready(..)) || seen.has_buckets;
    let entry = &fleet.spec.entry;
    let status = FleetStatus {
        observed_generation: fleet.metadata.generation,
        conditions: standing.conditions(&before.conditions, fleet.metadata.generation),
        version: Some(context.settings.version.clone()),
        cells: i32::try_from(seen.cells.len()).ok(),
        bootstrapped: Some(bootstrapped && rules),
        control_plane_address: rules.then(|| context.settings.control_plane_address.clone()),
        entry_url: rules.then(|| format!("http://{}:{}", entry.host, entry.port)),
    };
    let changed = status != before;
    if changed {
        context.applier.status(&manager("fleet", "status"), fleet, json!(status)).await?;
        if is_transition(&before.conditions, &status.conditions) {
            announce(&context.recorder, fleet, standing, "Reconcile").await;
        }
    }
    let outcome = match standing {
        // A cell that went is told by no event that reaches the fleet: a look now and then keeps their number true.
        Standing::Ready(..) => Outcome::Waiting(NOW_AND_THEN),
        Standing::Reconciling(..) => Outcome::Waiting(SOON),
        Standing::Stalled(Reason::Paused | Reason::NotSupported, _) => Outcome::Settled,
        Standing::Stalled(..) => Outcome::Waiting(NOW_AND_THEN),
    };
    Ok(FleetEnd { outcome, changed })
}
