//! What the role is told at start. Flags are parsed by the binary.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::machine::Limits;

/// Configuration of one guild node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cell it serves.
    pub cell: String,
    /// The StorageCell its cell is on.
    pub storage_cell: String,
    /// The Pod's name.
    pub member_id: String,
    /// What others dial.
    pub address: IpAddr,
    /// Where it listens; the address itself when not given.
    pub listen_address: Option<IpAddr>,
    /// Port of the gRPC services; 0 takes any.
    pub grpc_port: u16,
    /// Port of `/livez`, `/readyz` and `/metrics`; 0 takes any.
    pub admin_port: u16,
    /// host:port of each etcd member.
    pub etcd_endpoints: Vec<String>,
    /// The fleet's prefix in etcd.
    pub etcd_prefix: String,
    /// Where the directory's snapshot goes.
    pub state_dir: PathBuf,
    /// Listening beyond loopback without TLS was allowed.
    pub plaintext: bool,
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
