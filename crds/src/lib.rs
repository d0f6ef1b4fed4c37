//! The custom resources of Cellplane (`cellplane.dev/v1alpha1`), their conditions and reasons. Types and schemas only: nothing here
//! decides anything. The field docs become `kubectl explain`.

pub mod cell;
pub mod condition;
pub mod fleet;
pub mod guild;
pub mod moves;
pub mod storage_cell;
pub mod storage_migration;

pub use cell::{Availability, Cell, CellSpec, CellStatus, EvacuationPolicy, RoleSpec, Roles};
pub use condition::{ConditionType, Reason};
pub use fleet::{DedicatedTemplate, EntrySpec, EtcdSpec, Fleet, FleetSpec, FleetStatus, ImageSpec};
pub use guild::{Dedicated, Guild, GuildLimits, GuildSpec, GuildStatus, Hotness, Placement, Promotion};
pub use moves::{Move, MoveCause, MoveResult, MoveSpec, MoveStatus, RollbackReadiness};
pub use storage_cell::{
    Consistency, DeletionPolicy, EmbeddedSpec, Engine, ExternalSpec, ManagedSpec, StorageCell, StorageCellSpec,
    StorageCellStatus, TlsSpec,
};
pub use storage_migration::{
    MigrationResult, MigrationScope, ShadowRead, StorageMigration, StorageMigrationSpec, StorageMigrationStatus,
    TargetStage, Throttle, WorkersSpec,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The API group.
pub const GROUP: &str = "cellplane.dev";
/// The version served and stored.
pub const VERSION: &str = "v1alpha1";
/// The category of every kind. It equals no plural, singular or short name: `kubectl delete cells --all` must never reach a Guild.
pub const CATEGORY: &str = "cellplane";
/// Finalizer of resources that may hold units, data or a run.
pub const FINALIZER: &str = "cellplane.dev/hold";

/// All definitions, in the order they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![Fleet::crd(), StorageCell::crd(), Cell::crd(), Guild::crd(), Move::crd(), StorageMigration::crd()]
}

#[cfg(test)]
mod tests;
