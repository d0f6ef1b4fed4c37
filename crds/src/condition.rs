//! Condition types and reasons. One reason enum feeds the log, the event, the condition, the metric and the CLI's text.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition types, after kstatus: `Ready` always, the other two only while true.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ConditionType {
    /// The resource is as its spec asks.
    Ready,
    /// Work is under way.
    Reconciling,
    /// Work cannot go on without someone's help.
    Stalled,
}

impl ConditionType {
    /// The name on the wire.
    pub fn label(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Reconciling => "Reconciling",
            Self::Stalled => "Stalled",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why a condition is as it is.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The CamelCase name used in conditions, events, logs, metrics and by the CLI.
            pub fn label(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

reasons! {
    /// Everything is as the spec asks.
    AsDesired,
    /// Objects were created or changed and are not ready yet.
    Progressing,
    /// Pods are not ready.
    PodsNotReady,
    /// The fleet's etcd does not answer.
    DirectoryUnavailable,
    /// The etcd prefix belongs to another Fleet.
    PrefixClaimed,
    /// There is another Fleet in the namespace.
    SecondFleet,
    /// There is no Fleet in the namespace.
    NoFleet,
    /// `Fleet.spec.paused` is set.
    Paused,
    /// A bootstrap cell does not exist or is not Ready.
    WaitingForCells,
    /// The fleet's heads are being created.
    Bootstrapping,
    /// Heads exist although the directory is empty: they are adopted.
    Adopting,
    /// The field is understood but this version does not act on it.
    NotSupported,
    /// A resource that the spec names does not exist.
    ReferenceNotFound,
    /// The spec contradicts itself or another resource.
    InvalidSpec,
    /// A head still names the cell.
    HoldsUnits,
    /// A resource still refers to this one.
    StillReferenced,
    /// The cell takes no new units.
    Cordoned,
    /// Automation is paused.
    AutomationPaused,
    /// The guild has to be moved to where the spec wants it.
    MoveWanted,
    /// A Move for the unit is under way.
    Moving,
    /// Another run holds the unit.
    UnitBusy,
    /// The target cell is on another StorageCell.
    NeedsStorageMigration,
    /// Source and target are the same cell.
    SameCell,
    /// No such guild is known.
    GuildNotFound,
    /// A StorageCell that the resource needs is there and not usable.
    StorageNotReady,
    /// The StorageCell is being deleted and held; what is on it goes on.
    StorageDeleting,
    /// The cell was made for a guild that is elsewhere now: it has no unit, and nobody asks for it.
    Empty,
    /// The step waits for a process that does not answer.
    Waiting,
    /// The deadline passed before the commit point: the move undoes itself.
    DeadlineExceeded,
    /// Someone asked to abort.
    AbortRequested,
    /// Someone asked to roll back.
    RollbackRequested,
    /// The run was undone before the commit point because somebody asked for it.
    Aborted,
    /// The run could not be done and undid itself before the commit point.
    MoveFailed,
    /// The run was undone after the commit point.
    RolledBack,
    /// The run is complete.
    Completed,
    /// Its recorded step is of a version this operator does not know, or belongs to other content.
    StageUnknown,
    /// After the commit point only rollback is possible.
    TooLateToAbort,
    /// The rollback window is over.
    TooLateToRollback,
    /// A guild went over its promotion threshold for the hold time.
    Hot,
    /// The database did not answer as it must; the message says what to change.
    ProbeFailed,
    /// The database is being probed.
    Probing,
    /// Kubernetes does not serve a kind that another operator brings.
    OperatorMissing,
    /// A StorageMigration is under way.
    Migrating,
    /// The run has come as far as `targetStage` lets it.
    TargetStageReached,
    /// Nothing new is begun while the throttle says so.
    MigrationPaused,
    /// Both sides differ after a repair.
    ReceiptDirty,
    /// A receipt is too old, or was given before something changed.
    ReceiptStale,
    /// Shadow reads differ by more than is allowed.
    ShadowMismatch,
    /// Too few shadow reads were compared.
    ShadowSamplesMissing,
    /// The copies are behind.
    CopyBehind,
    /// The side that serves is dead, and entries may be lost.
    LossNotAccepted,
    /// A StorageMigration decided where the data is; the spec names another StorageCell.
    StorageRefOutdated,
    /// An API request failed and is retried.
    RequestFailed,
    /// The resource is being deleted.
    Deleting,
}

/// A condition, ready to be merged by [`merge`].
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// Which.
    pub kind: ConditionType,
    /// Its status.
    pub status: bool,
    /// Why.
    pub reason: Reason,
    /// For people: names the object, the reason and the next step.
    pub message: String,
}

/// Merges wanted conditions into the present ones: `lastTransitionTime` changes only when the status flips, abnormal-true conditions
/// that are not wanted go, the order is fixed. The result equals `present` when nothing changed.
pub fn merge(present: &[Condition], wanted: &[Wanted], generation: i64, now: Time) -> Vec<Condition> {
    let mut wanted: Vec<&Wanted> =
        wanted.iter().filter(|want| want.kind == ConditionType::Ready || want.status).collect();
    wanted.sort_by_key(|want| want.kind);
    wanted
        .into_iter()
        .map(|want| {
            let status = if want.status { "True" } else { "False" };
            let old = present.iter().find(|old| old.type_ == want.kind.label());
            let since = old.filter(|old| old.status == status).map(|old| old.last_transition_time.clone());
            Condition {
                type_: want.kind.label().to_owned(),
                status: status.to_owned(),
                reason: want.reason.label().to_owned(),
                message: want.message.clone(),
                observed_generation: Some(generation),
                last_transition_time: since.unwrap_or_else(|| now.clone()),
            }
        })
        .collect()
}

/// The condition of a type, if present.
pub fn find(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.label())
}

/// Whether `Ready` is true for this generation.
pub fn is_ready(conditions: &[Condition], generation: Option<i64>) -> bool {
    find(conditions, ConditionType::Ready).is_some_and(|ready| {
        ready.status == "True" && (generation.is_none() || ready.observed_generation == generation)
    })
}
