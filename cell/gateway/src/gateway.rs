//! One gateway process: what its sockets, REST routes and peers share. It holds state; it decides nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cell_proto::v1::LinkHello;
use cell_runtime::tokens::TokenKeys;
use cell_runtime::{CancellationToken, Channels, Directory};
use parking_lot::Mutex;

use crate::calls::Calls;
use crate::config::Config;
use crate::guilds::hosted::Shared;
use crate::guilds::hub::Hub;
use crate::guilds::link::Links;
use crate::joins::RecentJoins;
use crate::metrics::{Counter64, Metrics};
use crate::names::KnownUsers;
use crate::reading::{AcksTold, Writers};
use crate::rest::limit::RestLimits;
use crate::session::connection::ConnectionLimits;
use crate::session::limits::Starts;
use crate::session::registry::Registry;

/// Shared by everything in the process.
pub struct Gateway {
    /// What it was told.
    pub config: Config,
    /// Who is where.
    pub directory: Directory,
    /// gRPC channels.
    pub channels: Arc<Channels>,
    /// Verifies tokens.
    pub keys: TokenKeys,
    /// All sessions.
    pub registry: Arc<Registry>,
    /// All guilds followed.
    pub hub: Arc<Hub>,
    /// Requests to owners.
    pub calls: Calls,
    /// Users seen.
    pub users: Arc<KnownUsers>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Session starts.
    pub starts: Mutex<Starts>,
    /// REST rates.
    pub rest_limits: Mutex<RestLimits>,
    /// Joins of the last minutes.
    pub recent_joins: Mutex<RecentJoins>,
    /// Read states on their way into their users' logs.
    pub read_states: Mutex<Writers>,
    /// Read states that sessions were told.
    pub acks_told: Mutex<AcksTold>,
    /// Numbers connections.
    pub connections: Counter64,
    /// Cancelled when the gateway begins to drain.
    pub drain: CancellationToken,
    /// Cancelled when no further request is taken; those under way are finished.
    pub http_closes: CancellationToken,
    /// Cancelled when no request is under way any more.
    pub http_closed: CancellationToken,
    started: Instant,
}

/// Added to the monotonic clock, so that "long ago" is representable.
const CLOCK_OFFSET_MS: u64 = 1_000_000_000;

impl Gateway {
    /// Puts the parts together; nothing is listened on yet. Guild drivers end with `shutdown`.
    pub fn new(
        config: Config,
        directory: Directory,
        keys: TokenKeys,
        incarnation: u64,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        let metrics = Arc::new(Metrics::default());
        let channels = Arc::new(Channels::default());
        let registry = Arc::new(Registry::default());
        let users = Arc::new(KnownUsers::default());
        let hello = LinkHello { member_id: config.role.member_id.clone(), cell: config.role.cell.clone(), incarnation };
        let links = Arc::new(Links::new(channels.clone(), hello, metrics.clone()));
        let shared = Shared { registry: registry.clone(), users: users.clone(), metrics: metrics.clone() };
        let calls = Calls::new(directory.clone(), channels.clone(), metrics.clone(), config.limits.max_held_commands);
        Arc::new(Self {
            http_closes: shutdown.child_token(),
            http_closed: CancellationToken::new(),
            hub: Hub::new(links, directory.clone(), shared, shutdown),
            starts: Mutex::new(Starts::new(config.limits.starts)),
            rest_limits: Mutex::new(RestLimits::new(config.limits)),
            recent_joins: Mutex::default(),
            read_states: Mutex::default(),
            acks_told: Mutex::default(),
            connections: Counter64::default(),
            drain: CancellationToken::new(),
            started: Instant::now(),
            config,
            directory,
            channels,
            keys,
            registry,
            calls,
            users,
            metrics,
        })
    }

    /// The monotonic clock of the session machines, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        CLOCK_OFFSET_MS + self.started.elapsed().as_millis() as u64
    }

    /// What each connection is held to.
    pub fn connection_limits(&self) -> ConnectionLimits {
        ConnectionLimits {
            heartbeat_interval_ms: self.config.limits.heartbeat_interval_ms,
            frames_per_minute: self.config.limits.frames_per_minute,
            identify_within_ms: 60_000,
        }
    }

    /// How long a draining gateway spreads the closing of its connections.
    pub fn drain_window(&self) -> Duration {
        self.config.grace.mul_f64(0.6)
    }
}
