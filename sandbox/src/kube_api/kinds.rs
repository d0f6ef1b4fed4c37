//! The words for a served resource: its names, scope, subresources and model. It decides nothing; `built_in` and `custom` make them.

use std::sync::Arc;

use super::built_in::BuiltIn;
use super::custom::CustomVersion;
use super::managed::Shape;

/// One resource as served under one group and version.
#[derive(Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// `status`, `scale` and others that have their own path.
    pub subresources: Vec<String>,
    /// Paths field selectors may name.
    pub selectable: Vec<String>,
    /// Group and plural the objects are stored under.
    pub stored_as: (String, String),
    pub model: Model,
}

/// Where a resource's rules come from.
#[derive(Debug, Clone)]
pub enum Model {
    BuiltIn(&'static BuiltIn),
    Custom(Arc<CustomVersion>),
}

impl Resource {
    /// `group/version`, or `version` for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether a subresource is served.
    pub fn has(&self, subresource: &str) -> bool {
        self.subresources.iter().any(|s| s == subresource)
    }

    /// How its objects merge.
    pub fn shape(&self) -> Shape<'_> {
        match &self.model {
            Model::BuiltIn(kind) => Shape::built_in(kind.group, kind.kind),
            Model::Custom(custom) => Shape::Custom(&custom.schema),
        }
    }

    /// The definition behind a custom resource.
    pub fn custom(&self) -> Option<&CustomVersion> {
        match &self.model {
            Model::Custom(custom) => Some(custom),
            Model::BuiltIn(_) => None,
        }
    }

    /// Whether this is the built-in kind of that group and name.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    /// Whether its objects carry `metadata.generation`.
    pub fn counts_generations(&self) -> bool {
        match &self.model {
            Model::BuiltIn(kind) => kind.generation,
            Model::Custom(_) => true,
        }
    }

    /// The key of an object in the store; `namespace` is ignored for cluster-scoped resources.
    pub fn key(&self, namespace: &str, name: &str) -> Vec<u8> {
        let mut key = self.prefix(if self.namespaced { namespace } else { "" });
        key.extend_from_slice(name.as_bytes());
        key
    }

    /// The prefix of a collection's keys: of one namespace, or of all when empty.
    pub fn prefix(&self, namespace: &str) -> Vec<u8> {
        let (group, plural) = &self.stored_as;
        super::objects::prefix(group, plural, namespace)
    }
}
