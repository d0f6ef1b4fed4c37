//! Which resources are served right now: the built-in kinds and every accepted CustomResourceDefinition. It decides name conflicts
//! between definitions; it never reads the store itself.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

use super::kinds::Resource;
use super::object::{list, text};
use super::{built_in, custom};

/// A consistent view of what is served.
#[derive(Debug, Default)]
pub struct Served {
    resources: Vec<Arc<Resource>>,
    index: HashMap<(String, String, String), Arc<Resource>>,
}

impl Served {
    /// The resource of a group, version and plural.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.index.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// The resource of a group and kind, in any version.
    pub fn find_kind(&self, group: &str, kind: &str) -> Option<Arc<Resource>> {
        self.resources.iter().find(|r| r.group == group && r.kind == kind).cloned()
    }

    /// Every resource, in a stable order.
    pub fn all(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    fn new(resources: Vec<Arc<Resource>>) -> Self {
        let key = |r: &Resource| (r.group.clone(), r.version.clone(), r.plural.clone());
        let index = resources.iter().map(|r| (key(r), r.clone())).collect();
        Self { resources, index }
    }
}

/// The registry.
#[derive(Debug)]
pub struct Registry {
    served: RwLock<Arc<Served>>,
}

impl Default for Registry {
    fn default() -> Self {
        let resources = built_in::resources().into_iter().map(Arc::new).collect();
        Self { served: RwLock::new(Arc::new(Served::new(resources))) }
    }
}

impl Registry {
    /// The view of this moment.
    pub fn served(&self) -> Arc<Served> {
        self.served.read().clone()
    }

    /// Serves exactly these definitions beside the built-in kinds. A definition that does not compile is left out and logged: it was
    /// accepted by an older program.
    pub fn reload(&self, definitions: &[Value]) {
        let mut resources: Vec<Arc<Resource>> = built_in::resources().into_iter().map(Arc::new).collect();
        for definition in definitions.iter().filter(|d| established(d)) {
            match custom::resources(definition) {
                Ok(more) => resources.extend(more.into_iter().map(Arc::new)),
                Err(errors) => {
                    let name = super::object::name(definition);
                    tracing::warn!(
                        definition = name,
                        errors = errors.len(),
                        "definition is not served: it does not compile"
                    );
                }
            }
        }
        *self.served.write() = Arc::new(Served::new(resources));
    }
}

/// Whether a definition is served.
pub fn established(definition: &Value) -> bool {
    list(definition, &["status", "conditions"])
        .iter()
        .any(|c| text(c, &["type"]) == "Established" && text(c, &["status"]) == "True")
}

/// The name another definition or built-in kind of the group already has, if any.
pub fn name_conflict(definition: &Value, served: &Served) -> Option<String> {
    let group = text(definition, &["spec", "group"]);
    let own = super::object::name(definition);
    let name = |key: &str| text(definition, &["spec", "names", key]).to_owned();
    let mut wanted = vec![name("plural"), name("singular"), name("kind").to_lowercase()];
    wanted.extend(
        list(definition, &["spec", "names", "shortNames"]).iter().filter_map(|v| v.as_str().map(str::to_owned)),
    );
    wanted.retain(|w| !w.is_empty());
    let others = served.all().iter().filter(|r| r.group == group && r.custom().is_none_or(|c| c.definition != own));
    for other in others {
        let taken = wanted.iter().find(|w| {
            **w == other.plural
                || **w == other.singular
                || **w == other.kind.to_lowercase()
                || other.short_names.contains(w)
        });
        if let Some(taken) = taken {
            return Some(taken.clone());
        }
    }
    None
}
