//! What every role shares: its start and end, telemetry, the admin port, the directory client with its snapshot, routing, tokens and
//! permissions. It holds no role's decisions.

pub mod admin;
pub mod channels;
pub mod clock;
pub mod directory;
pub mod listen;
pub mod policy;
pub mod retry;
pub mod role;
pub mod route;
pub mod telemetry;
pub mod tokens;

pub use admin::{Admin, Readiness};
pub use channels::Channels;
pub use clock::unix_ms;
pub use directory::{Directory, DirectoryConfig, View};
pub use role::{RoleConfig, RoleError};
pub use tokio_util::sync::CancellationToken;
