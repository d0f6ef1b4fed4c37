//! The control-plane API's wire types and its client. Knows nothing of ours: the operator converts from its own types. Ids are
//! decimal strings.

pub mod client;
pub mod migrations;
pub mod moves;
pub mod problem;
pub mod tokens;

pub use client::{Client, ClientError};
pub use migrations::{
    MigrationFinding, MigrationPlan, MigrationRange, MigrationReport, MigrationRequest, MigrationStarted, ShadowWish,
    WorkersWish,
};
pub use moves::{Automation, Check, Location, MovePlan, MoveRequest, Run, Target};
pub use problem::{FieldError, Problem};
pub use tokens::{IssueToken, IssuedToken, TokenKind};

/// Where each endpoint is, below the base URL.
pub mod paths {
    /// POST [`crate::MoveRequest`] → [`crate::MovePlan`].
    pub const PLAN_MOVE: &str = "/v1/move-plans";
    /// POST [`crate::MoveRequest`] → [`crate::Run`] (`planHash` set: only if the plan is still that one); GET → list of runs.
    pub const MOVES: &str = "/v1/moves";
    /// POST [`crate::MigrationRequest`] → [`crate::MigrationPlan`].
    pub const PLAN_MIGRATION: &str = "/v1/migration-plans";
    /// POST [`crate::MigrationRequest`] → [`crate::MigrationStarted`] (`planHash` set: only if the plan is still that one).
    pub const MIGRATIONS: &str = "/v1/migrations";
    /// GET [`crate::Automation`]; PUT to change it.
    pub const AUTOMATION: &str = "/v1/automation";
    /// POST [`crate::IssueToken`] → [`crate::IssuedToken`].
    pub const TOKENS: &str = "/v1/tokens";
    /// GET → 200 when the API is up; needs no token.
    pub const HEALTH: &str = "/healthz";

    /// GET → [`crate::Run`], by the Move's name or its run id.
    pub fn one_move(name: &str) -> String {
        format!("{MOVES}/{name}")
    }

    /// POST → [`crate::Run`].
    pub fn abort(name: &str) -> String {
        format!("{MOVES}/{name}/abort")
    }

    /// POST → [`crate::Run`].
    pub fn rollback(name: &str) -> String {
        format!("{MOVES}/{name}/rollback")
    }

    /// GET → [`crate::MigrationReport`].
    pub fn migration_report(name: &str) -> String {
        format!("{MIGRATIONS}/{name}/report")
    }

    /// GET → [`crate::Location`].
    pub fn location(guild_id: &str) -> String {
        format!("/v1/guilds/{guild_id}/location")
    }
}
