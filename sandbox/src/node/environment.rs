//! A container's environment, command and arguments: references resolved and `$(NAME)` expanded as Kubernetes does. Pure: ConfigMaps
//! and Secrets are looked up through what the caller gives.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, ResourceFieldSelector, Secret};
use kube::ResourceExt;
use thiserror::Error;

use crate::controllers::quantity;

/// Why a container cannot be configured. Kubernetes shows it as `CreateContainerConfigError`.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum EnvironmentError {
    /// A ConfigMap or Secret that must exist does not.
    #[error("{kind} \"{name}\" not found")]
    Missing {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// It has no such key.
    #[error("couldn't find key {key} in {kind} {name}")]
    MissingKey {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// A field this agent cannot give.
    #[error(
        "field {0} is not supported: use metadata, spec.nodeName, spec.serviceAccountName, status.podIP or status.hostIP"
    )]
    Field(String),
    /// A resource this agent cannot give.
    #[error("resource {0} is not supported: use limits or requests of cpu or memory")]
    Resource(String),
}

/// Where references are looked up.
pub struct Sources<'a> {
    /// The Pod.
    pub pod: &'a Pod,
    /// The Pod's address.
    pub pod_ip: &'a str,
    /// The node's address.
    pub host_ip: &'a str,
    /// CPU (thousandths) and memory (bytes) of the node, for containers without limits.
    pub node_size: (i64, i64),
    /// ConfigMaps of the Pod's namespace.
    pub config_map: &'a (dyn Fn(&str) -> Option<Arc<ConfigMap>> + Send + Sync),
    /// Secrets of the Pod's namespace.
    pub secret: &'a (dyn Fn(&str) -> Option<Arc<Secret>> + Send + Sync),
}

/// A container's command line and environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// `command`, expanded; empty when the image's program is meant.
    pub command: Vec<String>,
    /// `args`, expanded.
    pub args: Vec<String>,
    /// Environment in order, later ones hiding earlier ones already removed.
    pub env: BTreeMap<String, String>,
}

/// Resolves one container; `base` is what every container gets, hidden by what it sets itself.
///
/// # Errors
/// [`EnvironmentError`] names what is missing.
pub fn resolve(
    container: &Container,
    sources: &Sources<'_>,
    base: BTreeMap<String, String>,
) -> Result<Resolved, EnvironmentError> {
    let mut env = base;
    env_from(container, sources, &mut env)?;
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(from)) => match value_from(container, from, sources)? {
                Some(value) => value,
                None => continue,
            },
            (Some(value), None) => expand(value, &env),
            (None, None) => String::new(),
        };
        env.insert(variable.name.clone(), value);
    }
    let all = |words: &Option<Vec<String>>| words.iter().flatten().map(|word| expand(word, &env)).collect();
    Ok(Resolved { command: all(&container.command), args: all(&container.args), env: env.clone() })
}

fn env_from(
    container: &Container,
    sources: &Sources<'_>,
    env: &mut BTreeMap<String, String>,
) -> Result<(), EnvironmentError> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or("");
        if let Some(reference) = &from.config_map_ref {
            match (sources.config_map)(&reference.name) {
                Some(map) => {
                    env.extend(map.data.iter().flatten().map(|(key, value)| (format!("{prefix}{key}"), value.clone())));
                }
                None if reference.optional == Some(true) => {}
                None => return Err(missing("configmap", &reference.name)),
            }
        }
        if let Some(reference) = &from.secret_ref {
            match (sources.secret)(&reference.name) {
                Some(secret) => {
                    env.extend(
                        secret.data.iter().flatten().map(|(key, value)| {
                            (format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned())
                        }),
                    )
                }
                None if reference.optional == Some(true) => {}
                None => return Err(missing("secret", &reference.name)),
            }
        }
    }
    Ok(())
}

fn missing(kind: &'static str, name: &str) -> EnvironmentError {
    EnvironmentError::Missing { kind, name: name.to_owned() }
}

fn value_from(
    container: &Container,
    from: &EnvVarSource,
    sources: &Sources<'_>,
) -> Result<Option<String>, EnvironmentError> {
    if let Some(field) = &from.field_ref {
        return field_value(&field.field_path, sources).map(Some);
    }
    if let Some(resource) = &from.resource_field_ref {
        return resource_value(container, resource, sources.node_size).map(Some);
    }
    if let Some(key) = &from.config_map_key_ref {
        let found = (sources.config_map)(&key.name);
        let value = found.as_ref().and_then(|map| map.data.as_ref()?.get(&key.key).cloned());
        return keyed("configmap", &key.name, &key.key, key.optional, found.is_some(), value);
    }
    if let Some(key) = &from.secret_key_ref {
        let found = (sources.secret)(&key.name);
        let value = found.as_ref().and_then(|secret| {
            secret.data.as_ref()?.get(&key.key).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned())
        });
        return keyed("secret", &key.name, &key.key, key.optional, found.is_some(), value);
    }
    Err(EnvironmentError::Field("valueFrom without a known source".into()))
}

fn keyed(
    kind: &'static str,
    name: &str,
    key: &str,
    optional: Option<bool>,
    exists: bool,
    value: Option<String>,
) -> Result<Option<String>, EnvironmentError> {
    match value {
        Some(value) => Ok(Some(value)),
        None if optional == Some(true) => Ok(None),
        None if exists => Err(EnvironmentError::MissingKey { kind, name: name.to_owned(), key: key.to_owned() }),
        None => Err(missing(kind, name)),
    }
}

/// The value of a downward API field.
///
/// # Errors
/// [`EnvironmentError::Field`] for a field this agent cannot give.
pub fn field_value(path: &str, sources: &Sources<'_>) -> Result<String, EnvironmentError> {
    let pod = sources.pod;
    let spec = pod.spec.as_ref();
    let subscript = |map: &str| path.strip_prefix(map)?.strip_prefix("['")?.strip_suffix("']").map(str::to_owned);
    if let Some(key) = subscript("metadata.labels") {
        return Ok(pod.labels().get(&key).cloned().unwrap_or_default());
    }
    if let Some(key) = subscript("metadata.annotations") {
        return Ok(pod.annotations().get(&key).cloned().unwrap_or_default());
    }
    let listing = |map: &BTreeMap<String, String>| {
        map.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
    };
    match path {
        "metadata.name" => Ok(pod.name_any()),
        "metadata.namespace" => Ok(pod.namespace().unwrap_or_default()),
        "metadata.uid" => Ok(pod.uid().unwrap_or_default()),
        "metadata.labels" => Ok(listing(pod.labels())),
        "metadata.annotations" => Ok(listing(pod.annotations())),
        "spec.nodeName" => Ok(spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default()),
        "spec.serviceAccountName" => Ok(spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default()),
        "status.podIP" | "status.podIPs" => Ok(sources.pod_ip.to_owned()),
        "status.hostIP" | "status.hostIPs" => Ok(sources.host_ip.to_owned()),
        other => Err(EnvironmentError::Field(other.to_owned())),
    }
}

/// The value of a resource field: cores or bytes, divided by the divisor, rounded up.
///
/// # Errors
/// [`EnvironmentError::Resource`] for a resource this agent cannot give.
pub fn resource_value(
    container: &Container,
    field: &ResourceFieldSelector,
    node_size: (i64, i64),
) -> Result<String, EnvironmentError> {
    let bad = || EnvironmentError::Resource(field.resource.clone());
    let (side, resource) = field.resource.split_once('.').ok_or_else(bad)?;
    let resources = container.resources.clone().unwrap_or_default();
    let map = match side {
        "limits" => resources.limits,
        "requests" => resources.requests,
        _ => return Err(bad()),
    };
    let given = map.as_ref().and_then(|map| map.get(resource)).and_then(quantity::milli);
    let milli = match (resource, side, given) {
        (_, _, Some(milli)) => milli,
        ("cpu", "limits", None) => node_size.0,
        ("memory", "limits", None) => node_size.1.saturating_mul(1000),
        ("cpu" | "memory", _, None) => 0,
        _ => return Err(bad()),
    };
    let divisor = field.divisor.as_ref().and_then(quantity::milli).filter(|divisor| *divisor > 0).unwrap_or(1000);
    let whole = milli.div_euclid(divisor) + i64::from(milli.rem_euclid(divisor) != 0);
    Ok(whole.to_string())
}

/// Replaces `$(NAME)` by its value where it is known and leaves it where it is not; `$$` is one dollar.
pub fn expand(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match env.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
