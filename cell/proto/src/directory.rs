//! The directory's layout in etcd: which keys there are and what JSON they hold. All of it is a hint; heads decide.

use serde::{Deserialize, Serialize};

/// The roles a member can have; also the word in its key and flag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sockets, sessions, REST.
    Gateway,
    /// Guild actors.
    Guild,
    /// Logs.
    Data,
    /// The embedded engine of a StorageCell.
    Store,
    /// The coordinator of a storage migration; its cell is the migration's name.
    Migrate,
}

impl Role {
    /// The word used in keys, flags, metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Guild => "guild",
            Self::Data => "data",
            Self::Store => "store",
            Self::Migrate => "migrate",
        }
    }
}

/// One live process, kept under a lease at [`Keys::member`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// The Pod's name: unique in the fleet, and stable across restarts.
    pub id: String,
    /// Its role.
    pub role: Role,
    /// The cell it serves; for a store, the StorageCell's name.
    pub cell: String,
    /// The StorageCell its cell is on.
    pub storage_cell: String,
    /// Differs at every start of the process.
    pub incarnation: u64,
    /// host:port of its gRPC services.
    pub grpc_address: String,
    /// host:port of its client entry (gateways only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_address: Option<String>,
    /// host:port of its admin port.
    pub admin_address: String,
    /// Finishing: gets nothing new.
    #[serde(default)]
    pub draining: bool,
}

/// Which cell each of the 4096 buckets was bootstrapped into, one value at [`Keys::buckets`]; overridden per log by routes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Buckets {
    /// Cell names.
    pub cells: Vec<String>,
    /// For each bucket the index in `cells`.
    pub assignment: Vec<u16>,
}

impl Buckets {
    /// The cell that bucket was bootstrapped into.
    pub fn cell_of(&self, bucket: u16) -> Option<&str> {
        self.cells.get(usize::from(*self.assignment.get(usize::from(bucket))?)).map(String::as_str)
    }
}

/// The hint of one log at [`Keys::route`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteHint {
    /// The cell the head named.
    pub cell: String,
    /// The head's term; a hint with a lower one never replaces one with a higher.
    pub term: u64,
    /// Member id of the data owner; empty when unknown.
    #[serde(default)]
    pub data_owner: String,
    /// Member id of the guild owner (logs of one guild only).
    #[serde(default)]
    pub guild_owner: String,
    /// The log is sealed: its guild went back to its bucket.
    #[serde(default)]
    pub merged: bool,
}

/// The busiest guilds of one guild node, kept under its lease at [`Keys::load`]; at most [`LOAD_GUILDS`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Load {
    /// Busiest first.
    pub guilds: Vec<GuildLoad>,
}

/// How many guilds a node reports.
pub const LOAD_GUILDS: usize = 256;

/// How busy one guild is.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GuildLoad {
    /// Decimal guild id.
    pub guild_id: String,
    /// Connected sessions.
    pub sessions: i64,
    /// Messages a second, averaged over the last 10 s.
    pub messages_per_second: i64,
}

/// A storage migration under way, at [`Keys::migration`]: what data services should keep copies of. Like all of the directory it is a
/// hint: a data service that misses it lets its copies lag, and a cutover waits for them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Migration {
    /// Names the run.
    pub run_id: String,
    /// The StorageCell the data is brought from.
    pub source: String,
    /// The StorageCell it is brought to.
    pub target: String,
    /// Bucket units by name; empty: all. A bucket's split guilds go with it.
    #[serde(default)]
    pub units: Vec<String>,
    /// Copies are kept; false: the run only prepares, or has ended.
    pub ship: bool,
    /// Reads of 10,000 that also go to the copy.
    #[serde(default)]
    pub shadow_per_10000: u32,
}

/// The keys below a fleet's prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// `prefix` is used as given, with one trailing slash.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: format!("{}/", prefix.trim_end_matches('/')) }
    }

    /// The prefix, with its trailing slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The fleet that claimed the prefix: its resource's UID.
    pub fn fleet(&self) -> String {
        format!("{}fleet", self.prefix)
    }

    /// All members.
    pub fn members(&self) -> String {
        format!("{}members/", self.prefix)
    }

    /// One member.
    pub fn member(&self, role: Role, cell: &str, id: &str) -> String {
        format!("{}members/{}/{cell}/{id}", self.prefix, role.label())
    }

    /// The bootstrap assignment.
    pub fn buckets(&self) -> String {
        format!("{}buckets", self.prefix)
    }

    /// All route hints.
    pub fn routes(&self) -> String {
        format!("{}routes/", self.prefix)
    }

    /// One route hint.
    pub fn route(&self, log: &str) -> String {
        format!("{}routes/{log}", self.prefix)
    }

    /// All loads.
    pub fn loads(&self) -> String {
        format!("{}load/", self.prefix)
    }

    /// One guild node's load.
    pub fn load(&self, member_id: &str) -> String {
        format!("{}load/{member_id}", self.prefix)
    }

    /// All operations.
    pub fn operations(&self) -> String {
        format!("{}operations/", self.prefix)
    }

    /// The step record of one run.
    pub fn operation(&self, run_id: &str) -> String {
        format!("{}operations/{run_id}", self.prefix)
    }

    /// Which run holds a unit.
    pub fn unit_run(&self, unit: &str) -> String {
        format!("{}runs/{unit}", self.prefix)
    }

    /// The highest fencing token (leaseTransitions) an operator has written with.
    pub fn fencing(&self) -> String {
        format!("{}fencing", self.prefix)
    }

    /// All storage migrations under way.
    pub fn migrations(&self) -> String {
        format!("{}migrations/", self.prefix)
    }

    /// One storage migration: what data services should keep copies of.
    pub fn migration(&self, run_id: &str) -> String {
        format!("{}migrations/{run_id}", self.prefix)
    }

    /// Whether automation is paused.
    pub fn automation(&self) -> String {
        format!("{}automation", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_below_the_prefix() {
        let keys = Keys::new("/cellplane/prod//");
        assert_eq!(
            keys.member(Role::Data, "shared-1", "shared-1-data-0"),
            "/cellplane/prod/members/data/shared-1/shared-1-data-0"
        );
        assert!(keys.member(Role::Data, "c", "m").starts_with(&keys.members()));
        assert!(keys.route("b0001").starts_with(&keys.routes()));
    }

    #[test]
    fn a_bucket_outside_the_assignment_has_no_cell() {
        let buckets = Buckets { cells: vec!["a".into()], assignment: vec![0, 7] };
        assert_eq!((buckets.cell_of(0), buckets.cell_of(1), buckets.cell_of(2)), (Some("a"), None, None));
    }
}
