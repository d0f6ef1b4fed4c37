//! What the gateway counts, with bounded labels: every bound anywhere has its counter here.

use std::sync::atomic::AtomicU64;

use cell_proto::v1::Reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::guilds::fanout::Delivered;
use crate::guilds::follow::Verdict;
use crate::session::machine::{Ended, ResumeRefusal};
use crate::wire::close::CloseCode;

/// One reason or outcome of a closed set.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Labelled {
    /// The reason's name.
    pub reason: &'static str,
}

/// A REST answer.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct Answered {
    /// The route's pattern.
    pub route: String,
    /// The HTTP method.
    pub method: String,
    /// The status.
    pub status: u16,
}

type ByReason = Family<Labelled, Counter>;

/// All of them.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Sessions held, connected or not.
    pub sessions: Gauge,
    /// Open websocket connections.
    pub connections: Gauge,
    /// Guilds followed.
    pub guilds: Gauge,
    /// Commands being held because admission is closed somewhere.
    pub held_commands: Gauge,
    identifies: ByReason,
    resumes: ByReason,
    ended: ByReason,
    closes: ByReason,
    unserved: ByReason,
    refused_events: ByReason,
    retries: ByReason,
    /// Events that fell off a session's buffer.
    pub buffer_overflows: Counter,
    /// Connections closed because their writer lagged.
    pub lag_closes: Counter,
    /// Events delivered to sessions.
    pub fanout_events: Counter,
    /// Events turned into client payloads, once per process.
    pub fanout_batches: Counter,
    /// Events that had been applied before.
    pub duplicate_events: Counter,
    /// Links reset because they overflowed or their peer was stale.
    pub link_resets: Counter,
    /// Links that broke.
    pub link_losses: Counter,
    /// Answers given before the own replica had caught up.
    pub slow_replicas: Counter,
    /// Connections refused because the gateway is full or drains.
    pub refused_connections: Counter,
    /// Connections that sent no head, and requests that sent no body, in time.
    pub slow_senders: Counter,
    /// REST requests refused because too many commands are held.
    pub refused_commands: Counter,
    /// Acknowledgements of what was read.
    pub acks: Counter,
    /// Commands that they became.
    pub ack_writes: Counter,
    /// READYs that left read states out: the user has too many.
    pub cut_read_states: Counter,
    answered: Family<Answered, Counter>,
    command_seconds: CommandSeconds,
}

#[derive(Debug)]
struct CommandSeconds(Histogram);

impl Default for CommandSeconds {
    /// 1 ms (a local commit) to about 16 s (the command deadline).
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(0.001, 2.0, 15)))
    }
}

impl Metrics {
    /// Registers all of them.
    pub fn register(&self, registry: &mut Registry) {
        let gauges: [(&str, &str, &Gauge); 4] = [
            ("gateway_sessions", "Sessions held, connected or resumable", &self.sessions),
            ("gateway_connections", "Open websocket connections", &self.connections),
            ("gateway_guilds", "Guilds followed by this process", &self.guilds),
            ("gateway_held_commands", "Commands that wait for admission", &self.held_commands),
        ];
        for (name, help, metric) in gauges {
            registry.register(name, help, metric.clone());
        }
        let families: [(&str, &str, &ByReason); 7] = [
            ("gateway_identifies", "Identifies by outcome", &self.identifies),
            ("gateway_resumes", "Resumes by outcome", &self.resumes),
            ("gateway_sessions_ended", "Sessions that cannot be resumed any more, by reason", &self.ended),
            ("gateway_closes", "Connections closed by this side, by close code", &self.closes),
            ("gateway_unserved_frames", "Frames that are understood but not served", &self.unserved),
            ("gateway_refused_events", "Guild events refused: stale term or gap", &self.refused_events),
            ("gateway_command_retries", "Commands and reads tried again, by the refusal's reason", &self.retries),
        ];
        for (name, help, metric) in families {
            registry.register(name, help, metric.clone());
        }
        let counters: [(&str, &str, &Counter); 14] = [
            ("gateway_buffer_overflows", "Events that fell off a session's buffer", &self.buffer_overflows),
            ("gateway_lag_closes", "Connections closed because their writer lagged", &self.lag_closes),
            ("gateway_fanout_events", "Events delivered to sessions", &self.fanout_events),
            ("gateway_fanout_batches", "Events serialised once and fanned out", &self.fanout_batches),
            ("gateway_duplicate_events", "Guild events that had been applied before", &self.duplicate_events),
            ("gateway_link_resets", "Links reset: overflow or a stale peer", &self.link_resets),
            ("gateway_link_losses", "Links that broke", &self.link_losses),
            ("gateway_slow_replicas", "Answers given before the own replica had caught up", &self.slow_replicas),
            ("gateway_refused_connections", "Connections refused: full or draining", &self.refused_connections),
            (
                "gateway_slow_senders",
                "Connections closed, or requests refused: no head or body in time",
                &self.slow_senders,
            ),
            ("gateway_refused_commands", "Commands refused: too many are held", &self.refused_commands),
            ("gateway_acks", "Acknowledgements of what was read", &self.acks),
            ("gateway_ack_writes", "Commands that acknowledgements became", &self.ack_writes),
            ("gateway_cut_read_states", "READYs that left read states out: too many", &self.cut_read_states),
        ];
        for (name, help, metric) in counters {
            registry.register(name, help, metric.clone());
        }
        registry.register("gateway_rest_requests", "REST answers by route, method and status", self.answered.clone());
        registry.register(
            "gateway_command_seconds",
            "Time from a command's first try to its commit; above 1 s it was held",
            self.command_seconds.0.clone(),
        );
    }

    /// An identify was decided.
    pub fn identified(&self, reason: &'static str) {
        self.identifies.get_or_create(&Labelled { reason }).inc();
    }

    /// A resume was decided.
    pub fn resumed(&self, outcome: Result<(), ResumeRefusal>) {
        let reason = outcome.err().map_or("Resumed", ResumeRefusal::label);
        self.resumes.get_or_create(&Labelled { reason }).inc();
    }

    /// A session ended.
    pub fn sessions_ended(&self, why: Ended) {
        self.ended.get_or_create(&Labelled { reason: why.label() }).inc();
    }

    /// A connection was closed by this side.
    pub fn closed(&self, code: CloseCode) {
        self.closes.get_or_create(&Labelled { reason: code.label() }).inc();
    }

    /// A frame that is not served.
    pub fn unserved(&self, what: &'static str) {
        self.unserved.get_or_create(&Labelled { reason: what }).inc();
    }

    /// A guild event was refused.
    pub fn refused_events(&self, verdict: Verdict) {
        let reason = if verdict == Verdict::StaleTerm { "StaleTerm" } else { "Gap" };
        self.refused_events.get_or_create(&Labelled { reason }).inc();
    }

    /// A command or read is tried again.
    pub fn retried(&self, reason: Reason) {
        self.retries.get_or_create(&Labelled { reason: reason.label() }).inc();
    }

    /// An event was fanned out.
    pub fn fanned_out(&self, delivered: Delivered) {
        self.fanout_batches.inc();
        self.fanout_events.inc_by(delivered.sessions as u64);
    }

    /// A REST request was answered.
    pub fn answered(&self, route: &str, method: &str, status: u16) {
        self.answered.get_or_create(&Answered { route: route.to_owned(), method: method.to_owned(), status }).inc();
    }

    /// A command was committed after this many seconds.
    pub fn committed(&self, seconds: f64) {
        self.command_seconds.0.observe(seconds);
    }
}

/// Numbers for connections of one process.
#[derive(Debug, Default)]
pub struct Counter64(AtomicU64);

impl Counter64 {
    /// The next number, from 1.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
    }
}
