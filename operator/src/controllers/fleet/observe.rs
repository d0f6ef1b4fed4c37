//! What a fleet's reconcile looks at: the other fleets, the cells, and who has the prefix.

use cell_crds::{Cell, Fleet};
use kube::ResourceExt;

use crate::context::Context;
use crate::directory::LinkError;
use crate::error::ReconcileError;

/// Everything the later stages decide on.
pub(super) struct Seen {
    /// An older fleet rules the namespace.
    pub(super) is_second: bool,
    /// All cells.
    pub(super) cells: Vec<Cell>,
    /// Who has the prefix, if not this fleet; or why it is not known.
    pub(super) prefix: Prefix,
    /// The bootstrap assignment is in etcd.
    pub(super) has_buckets: bool,
    /// The Secret that `tokenKeysRef` names is missing.
    pub(super) missing_keys: Option<String>,
}

/// What etcd says of the prefix.
pub(super) enum Prefix {
    /// It is this fleet's.
    Ours,
    /// Another fleet's UID.
    Theirs(String),
    /// etcd does not answer.
    Unknown(String),
    /// Not looked at.
    NotAsked,
}

pub(super) async fn observe(fleet: &Fleet, context: &Context) -> Result<Seen, ReconcileError> {
    let uid = fleet.uid().unwrap_or_default();
    let ruling = context.stores.fleet();
    let is_second = ruling.is_some_and(|ruling| ruling.uid() != fleet.uid());
    let mut seen = Seen {
        is_second,
        cells: context.stores.all_cells(),
        prefix: Prefix::NotAsked,
        has_buckets: false,
        missing_keys: None,
    };
    if is_second || fleet.spec.etcd.secret_ref.is_some() {
        return Ok(seen);
    }
    if let Some(name) = &fleet.spec.token_keys_ref
        && context.applier.get::<k8s_openapi::api::core::v1::Secret>(name).await?.is_none()
    {
        seen.missing_keys = Some(name.clone());
    }
    let link = context.hub.link_to(&fleet.spec.etcd);
    seen.prefix = match link.claim_prefix(&uid).await {
        Ok(Ok(())) => Prefix::Ours,
        Ok(Err(holder)) => Prefix::Theirs(holder),
        Err(LinkError::Unavailable { message, .. }) => Prefix::Unknown(message),
        Err(error) => return Err(error.into()),
    };
    if matches!(seen.prefix, Prefix::Ours) {
        seen.has_buckets = link.read(&link.keys().buckets()).await?.is_some();
    }
    Ok(seen)
}
