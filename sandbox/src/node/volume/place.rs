//! Puts volumes and mounts on disk. Content is replaced whole: a new folder, then one rename of the `..data` link, so that a reader
//! sees the old files or the new ones. A mount is a link in the Pod's folder; readOnly is not enforced.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;

use super::content::Files;

/// Why a mount cannot be made.
#[derive(Debug, Error)]
pub enum PlaceError {
    /// A mount path that leaves the Pod's folder.
    #[error("mountPath {0:?} leaves the Pod's folder: use a path without ..")]
    Outside(String),
    /// Containers share one folder here, so one path cannot show two volumes.
    #[error(
        "two containers mount different volumes at {0}: on this node they share one folder, so give them different paths"
    )]
    Clash(String),
    /// A mount names a volume the Pod does not have.
    #[error("volumeMount {0} names no volume of the Pod")]
    NoVolume(String),
    /// The file system's error.
    #[error("{0}: {1}")]
    Files(String, io::Error),
}

/// What a link in the Pod's folder shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The volume's name.
    pub volume: String,
    /// The path in the volume, empty for its root.
    pub sub_path: String,
}

/// Every mount of every container, by its path relative to the Pod's folder, parents before children.
///
/// # Errors
/// [`PlaceError`] when paths leave the folder or clash.
pub fn mounts(pod: &Pod) -> Result<BTreeMap<PathBuf, Mount>, PlaceError> {
    let Some(spec) = pod.spec.as_ref() else { return Ok(BTreeMap::new()) };
    let volumes: Vec<_> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    let mut found = BTreeMap::new();
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    for mount in containers.flat_map(|container| container.volume_mounts.iter().flatten()) {
        if !volumes.contains(&mount.name.as_str()) {
            return Err(PlaceError::NoVolume(mount.name.clone()));
        }
        let path = relative(&mount.mount_path).ok_or_else(|| PlaceError::Outside(mount.mount_path.clone()))?;
        let sub_path = mount.sub_path.clone().unwrap_or_default();
        if !sub_path.is_empty() && relative(&sub_path).is_none() {
            return Err(PlaceError::Outside(sub_path));
        }
        let wanted = Mount { volume: mount.name.clone(), sub_path };
        if found.insert(path, wanted.clone()).is_some_and(|before| before != wanted) {
            return Err(PlaceError::Clash(mount.mount_path.clone()));
        }
    }
    Ok(found)
}

/// A path of the container as one relative to the Pod's folder; None when it is the root or leaves it.
pub fn relative(path: &str) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => out.push(name),
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    (!out.as_os_str().is_empty()).then_some(out)
}

/// Makes the links of `mounts` in `folder`; `volume` gives each volume's folder.
///
/// # Errors
/// [`PlaceError`] names the path.
pub fn link(
    folder: &Path,
    mounts: &BTreeMap<PathBuf, Mount>,
    volume: &dyn Fn(&str) -> Option<PathBuf>,
) -> Result<(), PlaceError> {
    for (path, mount) in mounts {
        let root = volume(&mount.volume).ok_or_else(|| PlaceError::NoVolume(mount.volume.clone()))?;
        let target = if mount.sub_path.is_empty() { root } else { root.join(&mount.sub_path) };
        let at = folder.join(path);
        let failed = |error| PlaceError::Files(at.display().to_string(), error);
        if fs::symlink_metadata(&target).is_err() {
            fs::create_dir_all(&target).map_err(failed)?;
        }
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        match fs::read_link(&at) {
            Ok(present) if present == target => continue,
            Ok(_) => fs::remove_file(&at).map_err(failed)?,
            Err(_) if at.is_dir() && at.read_dir().is_ok_and(|mut entries| entries.next().is_none()) => {
                fs::remove_dir(&at).map_err(failed)?;
            }
            Err(_) => {}
        }
        symlink(&target, &at).map_err(failed)?;
    }
    Ok(())
}

/// Makes the files of a volume be exactly `files`; true when anything was written. Unchanged content is not touched.
///
/// # Errors
/// [`PlaceError::Files`] names the folder.
pub fn write_files(volume: &Path, files: &Files) -> Result<bool, PlaceError> {
    let failed = |error| PlaceError::Files(volume.display().to_string(), error);
    let data = volume.join("..data");
    if same(&data, files) {
        return Ok(false);
    }
    fs::create_dir_all(volume).map_err(failed)?;
    let stamp = (0..u32::MAX)
        .map(|number| format!("..{number}"))
        .find(|name| !volume.join(name).exists())
        .unwrap_or_else(|| "..0".to_owned());
    let fresh = volume.join(&stamp);
    for (path, file) in files {
        let at = fresh.join(path);
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::write(&at, &file.bytes).map_err(failed)?;
        fs::set_permissions(&at, Permissions::from_mode(file.mode)).map_err(failed)?;
    }
    fs::create_dir_all(&fresh).map_err(failed)?;
    let swap = volume.join("..data_new");
    let _ = fs::remove_file(&swap);
    symlink(&stamp, &swap).and_then(|()| fs::rename(&swap, &data)).map_err(failed)?;
    link_names(volume, files).map_err(failed)?;
    remove_old(volume, Path::new(&stamp));
    Ok(true)
}

/// Folders of content that is no longer shown, also those an agent that was killed left half made.
fn remove_old(volume: &Path, shown: &Path) {
    for entry in fs::read_dir(volume).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let numbered =
            name.to_str().and_then(|name| name.strip_prefix("..")).is_some_and(|rest| rest.parse::<u32>().is_ok());
        if numbered && Path::new(&name) != shown {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The names people see are links through `..data`, one per first path component.
fn link_names(volume: &Path, files: &Files) -> io::Result<()> {
    let first = |path: &str| Path::new(path).components().next().map(|part| part.as_os_str().to_owned());
    let wanted: Vec<_> = files.keys().filter_map(|path| first(path)).collect();
    for name in &wanted {
        let at = volume.join(name);
        if fs::symlink_metadata(&at).is_err() {
            symlink(Path::new("..data").join(name), at)?;
        }
    }
    for entry in fs::read_dir(volume)?.flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with(".."));
        if !ours && !wanted.contains(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn same(data: &Path, files: &Files) -> bool {
    let mut present = Vec::new();
    list(data, Path::new(""), &mut present);
    data.exists()
        && present.len() == files.len()
        && files.iter().all(|(path, file)| {
            let at = data.join(path);
            fs::read(&at).is_ok_and(|bytes| bytes == file.bytes)
                && fs::metadata(&at).is_ok_and(|meta| meta.permissions().mode() & 0o777 == file.mode)
        })
}

fn list(root: &Path, under: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(root.join(under)) else { return };
    for entry in entries.flatten() {
        let path = under.join(entry.file_name());
        if entry.path().is_dir() {
            list(root, &path, out);
        } else {
            out.push(path);
        }
    }
}
