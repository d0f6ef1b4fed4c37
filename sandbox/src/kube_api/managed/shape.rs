//! How the parts of an object merge: by the schema for custom resources, by a table of known lists for built-in kinds.

use super::super::schema::{Additional, ListKind, Schema};

/// The merge behaviour at one place of an object.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'a> {
    /// A custom resource's schema node.
    Custom(&'a Schema),
    /// A built-in kind: the field name and the name of the field above it.
    BuiltIn {
        /// Name of this field.
        field: &'a str,
        /// Name of the parent field.
        above: &'a str,
        /// Kind of the object, where a name alone does not decide.
        kind: &'a str,
    },
    /// Nothing known: maps merge, lists are replaced.
    Unknown,
}

impl<'a> Shape<'a> {
    /// The root of a built-in kind.
    pub fn built_in(kind: &'a str) -> Self {
        Self::BuiltIn { field: "", above: "", kind }
    }

    /// The shape of a field.
    pub fn field(self, name: &'a str) -> Self {
        match self {
            // Metadata merges as in every kind, whatever the definition says about it.
            Self::Custom(schema) => match schema.field(name) {
                Some(child) if name != "metadata" || !child.properties.is_empty() => Self::Custom(child),
                _ if name == "metadata" => Self::BuiltIn { field: "metadata", above: "", kind: "" },
                _ => Self::Unknown,
            },
            Self::BuiltIn { field, kind, .. } => Self::BuiltIn { field: name, above: field, kind },
            Self::Unknown => Self::Unknown,
        }
    }

    /// The shape of a list's items.
    pub fn item(self) -> Self {
        match self {
            Self::Custom(schema) => schema.items.as_deref().map_or(Self::Unknown, Self::Custom),
            other => other,
        }
    }

    /// How a list here is merged.
    pub fn list_kind(self) -> ListKind {
        match self {
            Self::Custom(schema) => schema.list.clone(),
            Self::BuiltIn { field, above, kind } => known_list(field, above, kind),
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
            Self::BuiltIn { field, .. } => known_atomic_map(field),
            Self::Unknown => false,
        }
    }

    /// The default of a list map's key, for kinds where a key may be left out.
    pub fn key_default(self, key: &str) -> Option<serde_json::Value> {
        match self {
            Self::Custom(schema) => schema.items.as_deref()?.properties.get(key)?.default.clone(),
            Self::BuiltIn { field: "ports", .. } if key == "protocol" => Some("TCP".into()),
            _ => None,
        }
    }
}

fn keys(names: &[&str]) -> ListKind {
    ListKind::Map(names.iter().map(|n| (*n).to_owned()).collect())
}

fn known_list(field: &str, above: &str, kind: &str) -> ListKind {
    match (field, above) {
        ("finalizers", _) => ListKind::Set,
        ("ownerReferences", _) => keys(&["uid"]),
        (
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "env"
            | "volumes"
            | "imagePullSecrets"
            | "secrets",
            _,
        ) => keys(&["name"]),
        ("volumeMounts", _) => keys(&["mountPath"]),
        ("volumeDevices", _) => keys(&["devicePath"]),
        ("ports", "spec") if kind == "Service" => keys(&["port", "protocol"]),
        ("ports", "containers" | "initContainers" | "ephemeralContainers") => keys(&["containerPort", "protocol"]),
        ("conditions", "status") => keys(&["type"]),
        ("addresses", "status") if kind == "Node" => keys(&["type"]),
        ("hostAliases" | "podIPs" | "hostIPs", _) => keys(&["ip"]),
        ("topologySpreadConstraints", _) => keys(&["topologyKey", "whenUnsatisfiable"]),
        ("resourceClaims" | "schedulingGates", _) => keys(&["name"]),
        _ => ListKind::Atomic,
    }
}

fn known_atomic_map(field: &str) -> bool {
    matches!(
        field,
        "selector"
            | "nodeSelector"
            | "labelSelector"
            | "fieldRef"
            | "resourceFieldRef"
            | "configMapKeyRef"
            | "secretKeyRef"
            | "secretRef"
            | "configMapRef"
            | "involvedObject"
            | "regarding"
    )
}
