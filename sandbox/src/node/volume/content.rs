//! The files of ConfigMap, Secret, downward API and projected volumes. Pure.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, Pod, ProjectedVolumeSource, Secret, Volume,
};
use thiserror::Error;

use crate::node::environment::{EnvironmentError, Sources, field_value, resource_value};

/// Why a volume has no content.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ContentError {
    /// A source that must exist does not, or a field is not known.
    #[error(transparent)]
    Source(#[from] EnvironmentError),
    /// A path that leaves the volume.
    #[error("path {0:?} is not inside the volume: use a relative path without ..")]
    Path(String),
    /// A container named by a resource field does not exist.
    #[error("no container named {0:?} for a resource field: set containerName")]
    Container(String),
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    /// Bytes.
    pub bytes: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// Files by their path in the volume.
pub type Files = BTreeMap<String, FileContent>;

const PLAIN_MODE: u32 = 0o644;
const SECRET_MODE: u32 = 0o400;

/// The files of a volume, or None when it is not made of API content. `token` gives the service account token for an audience;
/// a token that cannot be had is left out.
///
/// # Errors
/// [`ContentError`] names what is missing or wrong.
pub fn files(
    volume: &Volume,
    sources: &Sources<'_>,
    token: &(dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync),
) -> Result<Option<Files>, ContentError> {
    let mut files = Files::new();
    if let Some(source) = &volume.config_map {
        let found = (sources.config_map)(&source.name);
        let mode = mode(source.default_mode, PLAIN_MODE);
        from_config_map(&mut files, &source.name, found.as_deref(), (source.items.as_deref(), source.optional), mode)?;
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.clone().unwrap_or_default();
        let found = (sources.secret)(&name);
        let mode = mode(source.default_mode, SECRET_MODE);
        from_secret(&mut files, &name, found.as_deref(), (source.items.as_deref(), source.optional), mode)?;
    } else if let Some(source) = &volume.downward_api {
        let mode = mode(source.default_mode, PLAIN_MODE);
        from_fields(&mut files, source.items.as_deref().unwrap_or(&[]), sources, mode)?;
    } else if let Some(source) = &volume.projected {
        from_projected(&mut files, source, sources, token)?;
    } else {
        return Ok(None);
    }
    Ok(Some(files))
}

fn mode(given: Option<i32>, otherwise: u32) -> u32 {
    given.map_or(otherwise, |mode| mode.unsigned_abs() & 0o777)
}

type Wanted<'a> = (Option<&'a [KeyToPath]>, Option<bool>);

fn from_config_map(
    files: &mut Files,
    name: &str,
    found: Option<&ConfigMap>,
    wanted: Wanted<'_>,
    mode: u32,
) -> Result<(), ContentError> {
    let all = found.map(|map| {
        let text = map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
        let binary = map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
        text.chain(binary).collect()
    });
    choose(files, ("configmap", name), all, wanted, mode)
}

fn from_secret(
    files: &mut Files,
    name: &str,
    found: Option<&Secret>,
    wanted: Wanted<'_>,
    mode: u32,
) -> Result<(), ContentError> {
    let all =
        found.map(|secret| secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect());
    choose(files, ("secret", name), all, wanted, mode)
}

fn choose(
    files: &mut Files,
    (kind, name): (&'static str, &str),
    all: Option<BTreeMap<String, Vec<u8>>>,
    (items, optional): Wanted<'_>,
    default_mode: u32,
) -> Result<(), ContentError> {
    let optional = optional == Some(true);
    let Some(mut all) = all else {
        let missing = EnvironmentError::Missing { kind, name: name.to_owned() };
        return if optional { Ok(()) } else { Err(missing.into()) };
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        files.extend(all.into_iter().map(|(key, bytes)| (key, FileContent { bytes, mode: default_mode })));
        return Ok(());
    };
    for item in items {
        match all.remove(&item.key) {
            Some(bytes) => {
                files.insert(inside(&item.path)?, FileContent { bytes, mode: mode(item.mode, default_mode) });
            }
            None if optional => {}
            None => {
                let (name, key) = (name.to_owned(), item.key.clone());
                return Err(EnvironmentError::MissingKey { kind, name, key }.into());
            }
        }
    }
    Ok(())
}

fn from_fields(
    files: &mut Files,
    items: &[DownwardAPIVolumeFile],
    sources: &Sources<'_>,
    default_mode: u32,
) -> Result<(), ContentError> {
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(&field.field_path, sources)?,
            (None, Some(resource)) => {
                let name = resource.container_name.clone().unwrap_or_default();
                let container = container(sources.pod, &name).ok_or(ContentError::Container(name))?;
                resource_value(container, resource, sources.node_size)?
            }
            (None, None) => return Err(EnvironmentError::Field("downward API item without a source".into()).into()),
        };
        files
            .insert(inside(&item.path)?, FileContent { bytes: text.into_bytes(), mode: mode(item.mode, default_mode) });
    }
    Ok(())
}

fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a k8s_openapi::api::core::v1::Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|container| container.name == name)
}

fn from_projected(
    files: &mut Files,
    source: &ProjectedVolumeSource,
    sources: &Sources<'_>,
    token: &(dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync),
) -> Result<(), ContentError> {
    let mode = mode(source.default_mode, PLAIN_MODE);
    for projection in source.sources.iter().flatten() {
        if let Some(map) = &projection.config_map {
            // The root certificate map is made by a controller some API servers lack; its absence must not hold the Pod back.
            let optional = if map.name == "kube-root-ca.crt" { Some(true) } else { map.optional };
            let found = (sources.config_map)(&map.name);
            from_config_map(files, &map.name, found.as_deref(), (map.items.as_deref(), optional), mode)?;
        }
        if let Some(secret) = &projection.secret {
            let found = (sources.secret)(&secret.name);
            from_secret(files, &secret.name, found.as_deref(), (secret.items.as_deref(), secret.optional), mode)?;
        }
        if let Some(fields) = &projection.downward_api {
            from_fields(files, fields.items.as_deref().unwrap_or(&[]), sources, mode)?;
        }
        if let Some(wanted) = &projection.service_account_token
            && let Some(bytes) = token(wanted.audience.as_deref().unwrap_or(""))
        {
            files.insert(inside(&wanted.path)?, FileContent { bytes, mode: 0o600 });
        }
    }
    Ok(())
}

/// A path that stays inside the volume.
///
/// # Errors
/// [`ContentError::Path`] when it does not.
pub fn inside(path: &str) -> Result<String, ContentError> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if plain && !path.is_empty() && !path.starts_with("..") {
        Ok(path.to_owned())
    } else {
        Err(ContentError::Path(path.to_owned()))
    }
}
