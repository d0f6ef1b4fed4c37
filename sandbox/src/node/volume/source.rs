//! Which folder each volume of a Pod is. It decides and makes folders; it never removes one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{HostPathVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use thiserror::Error;

use super::content::{self, ContentError};
use super::place::{self, PlaceError};
use crate::node::environment::Sources;

/// Why a volume cannot be had.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// Its content.
    #[error("volume {0}: {1}")]
    Content(String, ContentError),
    /// Its place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Its claim is not bound.
    #[error("volume {volume}: claim {claim} is not bound to a volume yet")]
    Unbound {
        /// The volume.
        volume: String,
        /// The claim.
        claim: String,
    },
    /// A kind of volume this agent does not know.
    #[error(
        "volume {0} is of a kind this node cannot mount: use emptyDir, configMap, secret, downwardAPI, projected, hostPath or a local claim"
    )]
    Kind(String),
    /// A host path that is not what it should be.
    #[error("volume {volume}: {path} is not there or not a {kind}")]
    HostPath {
        /// The volume.
        volume: String,
        /// The path.
        path: String,
        /// `Directory` or `File`.
        kind: &'static str,
    },
}

/// What volumes are resolved with.
pub struct Shelf<'a> {
    /// The folder that holds the Pod's own volumes.
    pub folder: &'a Path,
    /// Fields, ConfigMaps, Secrets.
    pub sources: &'a Sources<'a>,
    /// Claims of the Pod's namespace.
    pub claim: &'a (dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>> + Send + Sync),
    /// Persistent volumes.
    pub volume: &'a (dyn Fn(&str) -> Option<Arc<PersistentVolume>> + Send + Sync),
    /// Service account tokens by audience.
    pub token: &'a (dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync),
}

/// Makes every volume of the Pod ready and says where each is. Safe to repeat: unchanged content is not touched.
///
/// # Errors
/// [`VolumeError`] names the first volume that cannot be had.
pub fn ready(pod: &Pod, shelf: &Shelf<'_>) -> Result<BTreeMap<String, PathBuf>, VolumeError> {
    let mut found = BTreeMap::new();
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        found.insert(volume.name.clone(), one(volume, shelf)?);
    }
    Ok(found)
}

/// Writes changed content of the Pod's ConfigMap, Secret, downward API and projected volumes again; how many changed.
///
/// # Errors
/// [`VolumeError`] names the first volume that cannot be had; the old content stays.
pub fn refresh(pod: &Pod, shelf: &Shelf<'_>) -> Result<usize, VolumeError> {
    let mut changed = 0;
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let files = content::files(volume, shelf.sources, shelf.token)
            .map_err(|error| VolumeError::Content(volume.name.clone(), error))?;
        if let Some(files) = files {
            changed += usize::from(place::write_files(&shelf.folder.join(&volume.name), &files)?);
        }
    }
    Ok(changed)
}

fn one(volume: &Volume, shelf: &Shelf<'_>) -> Result<PathBuf, VolumeError> {
    let name = &volume.name;
    let own = shelf.folder.join(name);
    let files = content::files(volume, shelf.sources, shelf.token)
        .map_err(|error| VolumeError::Content(name.clone(), error))?;
    if let Some(files) = files {
        place::write_files(&own, &files)?;
        return Ok(own);
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        return claimed(name, &claim.claim_name, shelf);
    }
    if let Some(source) = &volume.host_path {
        return host_path(name, source);
    }
    if volume.empty_dir.is_some() {
        fs::create_dir_all(&own).map_err(|error| PlaceError::Files(own.display().to_string(), error))?;
        return Ok(own);
    }
    Err(VolumeError::Kind(name.clone()))
}

fn claimed(name: &str, claim: &str, shelf: &Shelf<'_>) -> Result<PathBuf, VolumeError> {
    let unbound = || VolumeError::Unbound { volume: name.to_owned(), claim: claim.to_owned() };
    let found = (shelf.claim)(claim).ok_or_else(unbound)?;
    let bound = found.spec.as_ref().and_then(|spec| spec.volume_name.clone()).ok_or_else(unbound)?;
    let volume = (shelf.volume)(&bound).ok_or_else(unbound)?;
    let spec = volume.spec.clone().unwrap_or_default();
    if let Some(local) = spec.local {
        let path = PathBuf::from(&local.path);
        let missing = || VolumeError::HostPath { volume: name.to_owned(), path: local.path.clone(), kind: "Directory" };
        return if path.is_dir() { Ok(path) } else { Err(missing()) };
    }
    match spec.host_path {
        Some(source) => host_path(name, &source),
        None => Err(VolumeError::Kind(name.to_owned())),
    }
}

fn host_path(name: &str, source: &HostPathVolumeSource) -> Result<PathBuf, VolumeError> {
    let path = PathBuf::from(&source.path);
    let failed = |error| PlaceError::Files(source.path.clone(), error);
    let kind = match source.type_.as_deref().unwrap_or("") {
        "DirectoryOrCreate" => {
            fs::create_dir_all(&path).map_err(failed)?;
            "Directory"
        }
        "FileOrCreate" => {
            fs::OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
            "File"
        }
        "Directory" => "Directory",
        "File" => "File",
        _ => return Ok(path),
    };
    let right = if kind == "Directory" { path.is_dir() } else { path.is_file() };
    if right {
        Ok(path)
    } else {
        Err(VolumeError::HostPath { volume: name.to_owned(), path: source.path.clone(), kind })
    }
}
