//! How the parts of an object merge: by the schema for custom resources, by what Kubernetes publishes for built-in kinds.

use super::super::schema::{Additional, ListKind, Schema};
use super::super::types::{self, Field, Type};

/// The merge behaviour at one place of an object.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'a> {
    /// A custom resource's schema node.
    Custom(&'a Schema),
    /// A place in a built-in kind.
    BuiltIn {
        /// What is known of the field itself.
        field: Option<&'static Field>,
        /// The type of the object here, or of the items of the list here.
        of: Option<&'static Type>,
    },
    /// Nothing known: maps merge, lists are replaced.
    Unknown,
}

impl<'a> Shape<'a> {
    /// The root of a built-in kind.
    pub fn built_in(group: &str, kind: &str) -> Self {
        Self::BuiltIn { field: None, of: types::of_kind(group, kind) }
    }

    /// The shape of a field.
    pub fn field(self, name: &'a str) -> Self {
        match self {
            // Metadata merges as in every kind, whatever the definition says about it.
            Self::Custom(schema) => match schema.field(name) {
                Some(child) if name != "metadata" || !child.properties.is_empty() => Self::Custom(child),
                _ if name == "metadata" => Self::BuiltIn { field: None, of: types::named("meta.v1.ObjectMeta") },
                _ => Self::Unknown,
            },
            Self::BuiltIn { field, of } => {
                if let Some(values) = field.and_then(Field::values) {
                    return Self::BuiltIn { field: None, of: Some(values) };
                }
                let field = of.and_then(|of| of.field(name));
                Self::BuiltIn { field, of: field.and_then(Field::of) }
            }
            Self::Unknown => Self::Unknown,
        }
    }

    /// Whether the kind itself names the field: the others are items of a free map. Of built-in kinds only free maps of objects are known;
    /// the items of the rest are plain values, which are owned either way.
    pub fn declares(self, name: &str) -> bool {
        match self {
            Self::Custom(schema) => schema.properties.contains_key(name) || name == "metadata",
            Self::BuiltIn { field, .. } => field.is_none_or(|field| field.values().is_none()),
            Self::Unknown => false,
        }
    }

    /// The shape of a list's items.
    pub fn item(self) -> Self {
        match self {
            Self::Custom(schema) => schema.items.as_deref().map_or(Self::Unknown, Self::Custom),
            Self::BuiltIn { of, .. } => Self::BuiltIn { field: None, of },
            Self::Unknown => Self::Unknown,
        }
    }

    /// How a list here is merged.
    pub fn list_kind(self) -> ListKind {
        match self {
            Self::Custom(schema) => schema.list.clone(),
            Self::BuiltIn { field, .. } => match field.map(|field| (field.list.as_deref(), field)) {
                Some((Some("map"), field)) => ListKind::Map(field.keys.clone()),
                Some((Some("set"), _)) => ListKind::Set,
                _ => ListKind::Atomic,
            },
            Self::Unknown => ListKind::Atomic,
        }
    }

    /// Whether a map here is replaced as a whole.
    pub fn atomic_map(self) -> bool {
        match self {
            Self::Custom(schema) => {
                schema.atomic_map
                    || (schema.preserve
                        && schema.properties.is_empty()
                        && matches!(schema.additional, Additional::None)
                        && schema.kind.is_none())
            }
            Self::BuiltIn { field, of } => field.is_some_and(Field::is_atomic_map) || of.is_some_and(Type::is_atomic),
            Self::Unknown => false,
        }
    }

    /// The default of a list map's key, for kinds where a key may be left out.
    pub fn key_default(self, key: &str) -> Option<serde_json::Value> {
        match self {
            Self::Custom(schema) => schema.items.as_deref()?.properties.get(key)?.default.clone(),
            Self::BuiltIn { of, .. } => of?.field(key)?.default.clone(),
            Self::Unknown => None,
        }
    }
}
