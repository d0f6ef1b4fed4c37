//! What a gateway is told at start.

use std::path::PathBuf;
use std::time::Duration;

use cell_runtime::RoleConfig;

use crate::session::limits::StartLimits;

/// Everything a gateway needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    /// What every role is told.
    pub role: RoleConfig,
    /// Port of REST and websockets.
    pub http_port: u16,
    /// Where clients reach the fleet, `http://host:port`.
    pub public_url: String,
    /// Folder with `current` and optionally `previous`.
    pub token_keys_dir: PathBuf,
    /// How long a drain may take.
    pub grace: Duration,
    /// How long new connections are still taken once the drain has begun: whoever sends clients here hears of it after the gateway.
    pub linger: Duration,
    /// Bounds and rates.
    pub limits: Limits,
}

/// Bounds and rates of one gateway.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// REST requests of one user in a second, over all routes.
    pub rest_global_per_second: u32,
    /// Messages of one user into one channel in 5 seconds.
    pub rest_messages_per_5s: u32,
    /// Session starts.
    pub starts: StartLimits,
    /// Frames of one connection in a minute.
    pub frames_per_minute: u32,
    /// As told in Hello, in milliseconds.
    pub heartbeat_interval_ms: u64,
    /// How long a session without a connection can be resumed, in milliseconds.
    pub session_lease_ms: u64,
    /// Most connections that speak HTTP at once; websockets are sessions, not these.
    pub max_http_connections: usize,
    /// How long a client may take over the head of a request, or between two. Longer than libraries keep idle connections.
    pub http_head_timeout: Duration,
    /// How long a client may take over the body of a request.
    pub http_body_timeout: Duration,
    /// Most sessions held.
    pub max_sessions: usize,
    /// Most commands held because admission is closed somewhere.
    pub max_held_commands: usize,
    /// Privileged intent bits that are allowed.
    pub privileged_intents: u32,
    /// How often a connected user's list of guilds is read again, in seconds.
    pub guild_list_check_seconds: u64,
}

impl Limits {
    /// What a fleet gets when nobody says otherwise.
    pub fn standard() -> Self {
        Self {
            rest_global_per_second: 50,
            rest_messages_per_5s: 50,
            starts: StartLimits { daily: 1000, max_concurrency: 16, burst: 16 },
            frames_per_minute: 120,
            heartbeat_interval_ms: 41_250,
            session_lease_ms: 180_000,
            max_http_connections: 20_000,
            http_head_timeout: Duration::from_secs(20),
            http_body_timeout: Duration::from_secs(20),
            max_sessions: 100_000,
            max_held_commands: 10_000,
            privileged_intents: crate::wire::intents::all_privileged(),
            guild_list_check_seconds: 120,
        }
    }
}

impl Config {
    /// What clients dial for the websocket: no trailing slash, or some libraries ask for a path of several.
    pub fn websocket_url(&self) -> String {
        let base = self.public_url.trim_end_matches('/');
        match base.split_once("://") {
            Some(("https", rest)) => format!("wss://{rest}"),
            Some((_, rest)) => format!("ws://{rest}"),
            None => format!("ws://{base}"),
        }
    }
}
