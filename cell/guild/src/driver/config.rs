//! What the role is told at start. Flags are parsed by the binary.

use std::time::Duration;

use cell_runtime::RoleConfig;

use crate::machine::Limits;

/// Configuration of one guild node.
#[derive(Clone, Debug)]
pub struct Config {
    /// What every role is told.
    pub role: RoleConfig,
    /// How long a drain may take.
    pub drain_grace: Duration,
    /// Most guilds held at once; further ones are refused as overloaded.
    pub guild_limit: usize,
    /// Bounds of each guild.
    pub limits: Limits,
}

impl Config {
    /// Most guilds of one node unless told otherwise.
    pub const GUILD_LIMIT: usize = 20_000;
    /// Time for a drain unless told otherwise.
    pub const DRAIN_GRACE: Duration = Duration::from_secs(10);
}
