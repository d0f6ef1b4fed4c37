//! A scenario as data: what several clients ask of one namespace, in order. It says nothing of which server is asked, so that the same text
//! can be replayed against any.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kinds that scenarios are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    ConfigMap,
    Secret,
    Lease,
    Service,
    StatefulSet,
    Deployment,
    PodDisruptionBudget,
    /// Ours, defined by `definition`.
    Gizmo,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::ConfigMap,
        Kind::Secret,
        Kind::Lease,
        Kind::Service,
        Kind::StatefulSet,
        Kind::Deployment,
        Kind::PodDisruptionBudget,
        Kind::Gizmo,
    ];

    pub fn api_version(self) -> &'static str {
        match self {
            Kind::ConfigMap | Kind::Secret | Kind::Service => "v1",
            Kind::Lease => "coordination.k8s.io/v1",
            Kind::StatefulSet | Kind::Deployment => "apps/v1",
            Kind::PodDisruptionBudget => "policy/v1",
            Kind::Gizmo => "differential.example.dev/v1",
        }
    }

    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// The path of the collection.
    pub fn path(self, namespace: &str) -> String {
        let version = self.api_version();
        let root = if version.contains('/') { "apis" } else { "api" };
        let plural = match self {
            Kind::PodDisruptionBudget => "poddisruptionbudgets".to_owned(),
            other => format!("{}s", other.name().to_lowercase()),
        };
        format!("/{root}/{version}/namespaces/{namespace}/{plural}")
    }
}

/// How a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    Get,
    /// GET as a table.
    Table,
    Post,
    Put,
    Merge,
    Json,
    Strategic,
    Apply,
    Delete,
}

/// One step of one client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Op {
    pub client: u8,
    pub act: Act,
}

/// What is done. Texts may hold `$uid(NAME)` and `$version(NAME)`: what this client last saw of an object of the same kind; and `$mark`: the
/// version of the collection when it was last marked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Act {
    /// One request: to the collection if the name is empty.
    Send { verb: Verb, kind: Kind, name: String, sub: String, query: String, body: Value },
    /// PUT of what this client last saw of the object, with a merge patch done to it.
    Edit { kind: Kind, name: String, sub: String, query: String, change: Value },
    /// A list in pages, to its end.
    Pages { kind: Kind, limit: usize, query: String },
    /// Remembers the version of a collection: at the end a watch with this query is opened from there.
    Mark { kind: Kind, query: String },
    /// Gives the definition of Gizmo one of its schemas, and waits until it is in force.
    Define { schema: usize },
}

/// What can be replayed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scenario(pub Vec<Op>);

impl Scenario {
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}
