//! What Kubernetes publishes about the fields of its built-in kinds: which lists are maps or sets and by which keys, which maps are
//! replaced as a whole, how a strategic merge patch goes, key defaults. `built_in.json` is taken from the OpenAPI documents of
//! Kubernetes 1.37; this only reads it. Plain fields are not in it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

/// A type: its fields that are more than a plain value.
#[derive(Debug, Default, Deserialize)]
pub struct Type {
    /// `atomic` when a map of this type is replaced as a whole.
    #[serde(rename = "@", default)]
    replaced: Option<String>,
    #[serde(flatten)]
    fields: BTreeMap<String, Field>,
}

/// A field.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Field {
    /// The type of the object, or of a list's items.
    #[serde(rename = "type")]
    of: Option<String>,
    /// The type of a free map's values.
    values: Option<String>,
    /// `map`, `set` or `atomic`.
    pub list: Option<String>,
    /// What names an item of a list map.
    pub keys: Vec<String>,
    map: Option<String>,
    /// Words of the patch strategy: `merge`, `retainKeys`, `replace`.
    pub patch: Option<String>,
    /// What names an item in a strategic merge patch.
    pub patch_key: Option<String>,
    /// The value when it is absent.
    pub default: Option<Value>,
}

static TYPES: LazyLock<BTreeMap<String, Type>> =
    LazyLock::new(|| serde_json::from_str(include_str!("built_in.json")).unwrap_or_default());

/// The type of a built-in kind.
pub fn of_kind(group: &str, kind: &str) -> Option<&'static Type> {
    named(&short_name(group, kind))
}

/// `apps.v1.Deployment` and the like.
pub fn short_name(group: &str, kind: &str) -> String {
    let package = match group {
        "" => "core",
        "apiextensions.k8s.io" => "ext",
        other => other.split('.').next().unwrap_or_default(),
    };
    format!("{package}.v1.{kind}")
}

/// A type by its short name.
pub fn named(name: &str) -> Option<&'static Type> {
    TYPES.get(name)
}

impl Type {
    /// A field that is more than a plain value.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.get(name)
    }

    /// Every such field.
    pub fn fields(&self) -> impl Iterator<Item = (&String, &Field)> {
        self.fields.iter()
    }

    /// Whether an object of this type is replaced as a whole.
    pub fn is_atomic(&self) -> bool {
        self.replaced.is_some()
    }
}

impl Field {
    /// The type of the object, or of a list's items.
    pub fn of(&self) -> Option<&'static Type> {
        self.of.as_deref().and_then(named)
    }

    /// The type of a free map's values.
    pub fn values(&self) -> Option<&'static Type> {
        self.values.as_deref().and_then(named)
    }

    /// Whether the map is replaced as a whole.
    pub fn is_atomic_map(&self) -> bool {
        self.map.is_some()
    }

    /// Whether the patch strategy has this word.
    pub fn strategy(&self, word: &str) -> bool {
        self.patch.as_deref().is_some_and(|patch| patch.split(',').any(|one| one == word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::built_in;

    #[test]
    fn every_served_kind_is_described_and_every_name_leads_somewhere() {
        for kind in built_in::KINDS {
            assert!(of_kind(kind.group, kind.kind).is_some(), "{} {}", kind.group, kind.kind);
        }
        for (name, known) in TYPES.iter() {
            for (field, described) in known.fields() {
                for wanted in [&described.of, &described.values].into_iter().flatten() {
                    assert!(named(wanted).is_some(), "{name}.{field} names {wanted}");
                }
            }
        }
        let containers = of_kind("", "Pod").unwrap().field("spec").unwrap().of().unwrap().field("containers").unwrap();
        assert_eq!((containers.keys.as_slice(), containers.strategy("merge")), (["name".to_owned()].as_slice(), true));
    }
}
