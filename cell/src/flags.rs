//! The flags of every role and what they become. Values out of range are refused by name, before anything is opened.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use cell_runtime::telemetry::LogFormat;
use cell_runtime::{DirectoryConfig, RoleConfig};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// One process of a cell.
#[derive(Parser)]
#[command(name = "cell", version, about = "One process of a cell: gateway, guild, data or store")]
pub struct Arguments {
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value = "json")]
    log_format: Format,
    #[command(subcommand)]
    pub role: Role,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Json,
    Text,
}

impl Arguments {
    /// How log lines look.
    pub fn log_format(&self) -> LogFormat {
        match self.log_format {
            Format::Json => LogFormat::Json,
            Format::Text => LogFormat::Text,
        }
    }

    /// What is logged where `RUST_LOG` says nothing. A run at a terminal has its own words for what goes well.
    pub fn log_level(&self) -> &'static str {
        match self.role {
            Role::Migrate(crate::migrate::Migrate::Run(_)) => "warn",
            _ => "info",
        }
    }
}

#[derive(Subcommand)]
pub enum Role {
    /// Sockets, sessions and REST.
    Gateway(GatewayFlags),
    /// One actor per guild.
    Guild(GuildFlags),
    /// Owns logs: orders, commits, applies.
    Data(DataFlags),
    /// The embedded engine of a StorageCell.
    Store(StoreFlags),
    /// Probes and migrations of StorageCells.
    #[command(subcommand)]
    Migrate(crate::migrate::Migrate),
}

/// What every role is told.
#[derive(Args)]
pub struct Common {
    /// The StorageCell that holds the cell's data.
    #[arg(long)]
    storage_cell: String,
    /// Unique in the fleet and stable across restarts: the Pod's name.
    #[arg(long, env = "POD_NAME")]
    member_id: String,
    /// Address that others dial.
    #[arg(long, env = "POD_IP")]
    address: IpAddr,
    /// Address to listen on; --address when not given.
    #[arg(long)]
    listen_address: Option<IpAddr>,
    /// Port of the gRPC services; 0 takes any free one.
    #[arg(long, default_value_t = 9000)]
    grpc_port: u16,
    /// Port of /livez, /readyz and /metrics; 0 takes any free one.
    #[arg(long, default_value_t = 9090)]
    admin_port: u16,
    /// host:port of each member of the fleet's etcd.
    #[arg(long, value_delimiter = ',', required = true)]
    etcd_endpoints: Vec<String>,
    /// Prefix of the fleet's keys.
    #[arg(long)]
    etcd_prefix: String,
    /// Folder of the directory's snapshot.
    #[arg(long)]
    state_dir: PathBuf,
    /// Allow listening beyond loopback without TLS.
    #[arg(long)]
    plaintext: bool,
}

impl Common {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.member_id.is_empty(), "--member-id (POD_NAME) is empty; name this process");
        ensure!(
            self.etcd_prefix.len() > 1,
            "--etcd-prefix {:?} is too short; it must name the fleet",
            self.etcd_prefix
        );
        for endpoint in &self.etcd_endpoints {
            let port = endpoint
                .rsplit_once(':')
                .and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?);
            ensure!(port.is_some(), "--etcd-endpoints {endpoint:?} is not host:port");
        }
        Ok(())
    }

    /// What the role is told; `cell` is the one it serves.
    fn role(self, cell: String) -> anyhow::Result<RoleConfig> {
        self.check()?;
        Ok(RoleConfig {
            cell,
            storage_cell: self.storage_cell,
            member_id: self.member_id,
            address: self.address,
            listen_address: self.listen_address.unwrap_or(self.address),
            grpc_port: self.grpc_port,
            admin_port: self.admin_port,
            directory: DirectoryConfig {
                endpoints: self.etcd_endpoints,
                prefix: self.etcd_prefix,
                state_dir: Some(self.state_dir),
            },
            plaintext: self.plaintext,
        })
    }
}

#[derive(Args)]
pub struct GatewayFlags {
    /// The cell this process serves.
    #[arg(long)]
    cell: String,
    #[command(flatten)]
    common: Common,
    /// Port of REST and websockets.
    #[arg(long, default_value_t = 8080)]
    http_port: u16,
    /// Where clients reach the fleet, http://host:port.
    #[arg(long)]
    public_url: String,
    /// Folder with the token keys: `current`, optionally `previous`.
    #[arg(long)]
    token_keys_dir: PathBuf,
    /// REST requests of one user in a second, over all routes.
    #[arg(long, default_value_t = 50)]
    rest_global_per_second: u32,
    /// Messages of one user into one channel in 5 seconds.
    #[arg(long, default_value_t = 50)]
    rest_messages_per_5s: u32,
    /// Longest time for a drain, in seconds.
    #[arg(long, default_value_t = 20)]
    drain_grace_seconds: u64,
    /// How long a drain still takes new connections, in seconds: whoever sends clients here learns of it that much later.
    #[arg(long, default_value_t = 3)]
    drain_linger_seconds: u64,
}

impl GatewayFlags {
    /// What the role takes.
    pub fn config(self) -> anyhow::Result<cell_gateway::Config> {
        let url = &self.public_url;
        ensure!(url.starts_with("http://") || url.starts_with("https://"), "--public-url {url:?} is not an http URL");
        let mut limits = cell_gateway::Limits::standard();
        limits.rest_global_per_second = self.rest_global_per_second.max(1);
        limits.rest_messages_per_5s = self.rest_messages_per_5s.max(1);
        Ok(cell_gateway::Config {
            role: self.common.role(self.cell)?,
            http_port: self.http_port,
            public_url: self.public_url,
            token_keys_dir: self.token_keys_dir,
            grace: Duration::from_secs(self.drain_grace_seconds),
            linger: Duration::from_secs(self.drain_linger_seconds),
            limits,
        })
    }
}

#[derive(Args)]
pub struct GuildFlags {
    /// The cell this process serves.
    #[arg(long)]
    cell: String,
    #[command(flatten)]
    common: Common,
    /// Most guilds held at once.
    #[arg(long, default_value_t = cell_guild::Config::GUILD_LIMIT)]
    guild_limit: usize,
}

impl GuildFlags {
    /// What the role takes.
    pub fn config(self) -> anyhow::Result<cell_guild::Config> {
        ensure!(self.guild_limit > 0, "--guild-limit must be at least 1");
        Ok(cell_guild::Config {
            role: self.common.role(self.cell)?,
            drain_grace: cell_guild::Config::DRAIN_GRACE,
            guild_limit: self.guild_limit,
            limits: cell_guild::machine::Limits::default(),
        })
    }
}

#[derive(Args)]
pub struct DataFlags {
    /// The cell this process serves.
    #[arg(long)]
    cell: String,
    #[command(flatten)]
    common: Common,
    /// Folder with one file for each CQL StorageCell, `<name>.json`; all others are found by the directory.
    #[arg(long)]
    storage_dir: Option<PathBuf>,
}

impl DataFlags {
    /// What the role takes.
    pub fn config(self) -> anyhow::Result<cell_data::Config> {
        Ok(cell_data::Config { role: self.common.role(self.cell)?, storage_dir: self.storage_dir })
    }
}

#[derive(Args)]
pub struct StoreFlags {
    #[command(flatten)]
    common: Common,
    /// Folder of the store's files.
    #[arg(long)]
    data_dir: PathBuf,
    /// Refuse writes while less than this is free on the volume, in bytes.
    #[arg(long, default_value_t = 64 * 1024 * 1024)]
    reserve_bytes: u64,
}

impl StoreFlags {
    /// What the role takes.
    pub fn config(self) -> anyhow::Result<cell_store::Config> {
        let cell = self.common.storage_cell.clone();
        Ok(cell_store::Config {
            role: self.common.role(cell)?,
            data_dir: self.data_dir,
            reserve_bytes: self.reserve_bytes,
        })
    }
}
