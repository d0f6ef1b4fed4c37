//! A sandbox's state directory: its layout, its settings and the records of its processes. One command at a time changes it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::network::{self, Network};
use super::process::ProcessRecord;

/// Name of the sandbox that commands mean when none is given.
pub const DEFAULT_NAME: &str = "default";
const VERSION: u32 = 1;

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Neither `XDG_STATE_HOME` nor `HOME` says where to keep it.
    #[error("neither XDG_STATE_HOME nor HOME is set; give --state-dir")]
    NoHome,
    /// The name cannot be a folder's or a context's name.
    #[error("sandbox name {0:?} must be 1–40 of a–z, 0–9 and -, starting with a letter")]
    Name(String),
    /// A file cannot be used.
    #[error("failed to use {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{path} cannot be read: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Written by a newer cellctl.
    #[error("{path} was written by a newer cellctl (version {found}, this one knows {VERSION}); use that one")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Another command works on the sandbox.
    #[error("another cellctl works on the sandbox in {0}; wait for it")]
    Busy(PathBuf),
}

/// What a sandbox was made with; later `up`s keep it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Of this file's layout.
    pub version: u32,
    /// Of the sandbox.
    pub name: String,
    /// How many node agents.
    pub nodes: u8,
    /// Port of the etcd API.
    pub etcd_port: u16,
    /// Port of the Kubernetes API.
    pub kubernetes_port: u16,
    /// Port of the entry on every node's address.
    pub entry_port: u16,
}

/// The ports of a new sandbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// Of the etcd API.
    pub etcd: u16,
    /// Of the Kubernetes API.
    pub kubernetes: u16,
    /// Of the entry; a NodePort.
    pub entry: u16,
}

impl Default for Ports {
    /// The ports everybody expects.
    fn default() -> Self {
        Self { etcd: 2379, kubernetes: 6443, entry: 30_080 }
    }
}

impl Settings {
    /// Settings of a new sandbox.
    pub fn new(name: &str, nodes: u8, ports: Ports) -> Self {
        let Ports { etcd, kubernetes, entry } = ports;
        let name = name.to_owned();
        Self { version: VERSION, name, nodes, etcd_port: etcd, kubernetes_port: kubernetes, entry_port: entry }
    }
}

/// The state directory of one sandbox.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateDir {
    root: PathBuf,
}

/// Held while a command changes the sandbox.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateDir {
    /// The directory given by `--state-dir`, else the one of the named sandbox.
    ///
    /// # Errors
    /// [`StateError::NoHome`], [`StateError::Name`], [`StateError::Io`] for a relative path without a current directory.
    pub fn find(name: &str, given: Option<&Path>) -> Result<Self, StateError> {
        check_name(name)?;
        if let Some(path) = given {
            let root = std::path::absolute(path).map_err(|source| StateError::Io { path: path.to_owned(), source })?;
            return Ok(Self { root });
        }
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = var("XDG_STATE_HOME").or_else(|| var("HOME").map(|home| home.join(".local/state")));
        Ok(Self { root: base.ok_or(StateError::NoHome)?.join("cellplane/sandbox").join(name) })
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether a sandbox was ever made here.
    pub fn exists(&self) -> bool {
        self.root.join("settings.json").exists()
    }

    /// State of the process that serves etcd and Kubernetes.
    pub fn control(&self) -> PathBuf {
        self.root.join("control")
    }

    /// State of a node agent.
    pub fn node(&self, component: &str) -> PathBuf {
        self.root.join(component)
    }

    /// The kubeconfig for people: context and namespace set.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// Where a process writes.
    pub fn log(&self, component: &str) -> PathBuf {
        self.root.join("logs").join(format!("{component}.log"))
    }

    /// The reserved network.
    pub fn network(&self) -> Option<Network> {
        network::recorded(&self.root)
    }

    /// Makes the folders and locks out other commands.
    ///
    /// # Errors
    /// [`StateError::Busy`], [`StateError::Io`].
    pub fn lock(&self) -> Result<StateLock, StateError> {
        for folder in [self.root.join("logs"), self.root.join("processes")] {
            fs::create_dir_all(&folder).map_err(|source| StateError::Io { path: folder, source })?;
        }
        let path = self.root.join("lock");
        let failed = |source| StateError::Io { path: path.clone(), source };
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(StateLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StateError::Busy(self.root.clone())),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// The settings, if a sandbox was made here.
    ///
    /// # Errors
    /// [`StateError::Corrupt`], [`StateError::Newer`], [`StateError::Io`].
    pub fn settings(&self) -> Result<Option<Settings>, StateError> {
        let path = self.root.join("settings.json");
        let Some(settings) = read::<serde_json::Value>(&path)? else { return Ok(None) };
        let found = settings["version"].as_u64().unwrap_or(0) as u32;
        if found > VERSION {
            return Err(StateError::Newer { path, found });
        }
        serde_json::from_value(settings)
            .map(Some)
            .map_err(|error| StateError::Corrupt { path, reason: error.to_string() })
    }

    /// Writes the settings.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn write_settings(&self, settings: &Settings) -> Result<(), StateError> {
        write(&self.root.join("settings.json"), settings)
    }

    /// The record of a process, if there is one that can be read. An unreadable one (a power cut while writing) counts as none.
    pub fn process(&self, component: &str) -> Option<ProcessRecord> {
        read(&self.process_path(component)).ok().flatten()
    }

    /// All records, by name.
    pub fn processes(&self) -> Vec<ProcessRecord> {
        let Ok(entries) = fs::read_dir(self.root.join("processes")) else { return Vec::new() };
        let mut records: Vec<ProcessRecord> =
            entries.flatten().filter_map(|entry| read(&entry.path()).ok().flatten()).collect();
        records.sort_by(|a, b| a.component.cmp(&b.component));
        records
    }

    /// Remembers a process.
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn write_process(&self, record: &ProcessRecord) -> Result<(), StateError> {
        write(&self.process_path(&record.component), record)
    }

    /// Forgets a process.
    pub fn forget_process(&self, component: &str) {
        let _ = fs::remove_file(self.process_path(component));
    }

    fn process_path(&self, component: &str) -> PathBuf {
        self.root.join("processes").join(format!("{component}.json"))
    }
}

fn check_name(name: &str) -> Result<(), StateError> {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let starts = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    if starts && name.len() <= 40 && name.bytes().all(legal) {
        Ok(())
    } else {
        Err(StateError::Name(name.chars().take(60).collect()))
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| StateError::Corrupt { path: path.to_owned(), reason: error.to_string() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StateError::Io { path: path.to_owned(), source }),
    }
}

/// Written beside and renamed, so that a power cut leaves the old or the new.
fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let text = serde_json::to_vec_pretty(value)
        .map_err(|error| StateError::Corrupt { path: path.to_owned(), reason: error.to_string() })?;
    write_private(path, &text)
}

/// Writes a file that only its owner may read, whole or not at all.
///
/// # Errors
/// [`StateError::Io`].
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    let beside = path.with_extension("new");
    let written = (|| {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    written.map_err(|source| StateError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> (tempfile::TempDir, StateDir) {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::find("default", Some(folder.path())).unwrap();
        (folder, state)
    }

    #[test]
    fn names_that_make_no_folder_are_refused() {
        for name in ["", "..", "a/b", "A", "1a", "-a", &"a".repeat(41), "ä"] {
            assert!(matches!(StateDir::find(name, None), Err(StateError::Name(_))), "{name}");
        }
    }

    #[test]
    fn two_commands_cannot_change_one_sandbox_at_once() {
        let (_folder, state) = state();
        let held = state.lock().unwrap();
        assert!(matches!(state.lock(), Err(StateError::Busy(_))));
        drop(held);
        assert!(state.lock().is_ok());
    }

    #[test]
    fn settings_of_a_newer_version_are_refused_and_kept() {
        let (_folder, state) = state();
        let _lock = state.lock().unwrap();
        assert_eq!(state.settings().unwrap(), None);
        state.write_settings(&Settings { version: 9, ..Settings::new("default", 3, Ports::default()) }).unwrap();
        assert!(matches!(state.settings(), Err(StateError::Newer { found: 9, .. })));
        fs::write(state.root().join("settings.json"), "{").unwrap();
        assert!(matches!(state.settings(), Err(StateError::Corrupt { .. })));
    }

    #[test]
    fn a_torn_process_record_counts_as_none() {
        let (_folder, state) = state();
        let _lock = state.lock().unwrap();
        fs::write(state.root().join("processes/sandbox.json"), "{\"pid\":").unwrap();
        assert_eq!(state.process("sandbox"), None);
        assert_eq!(state.processes(), vec![]);
    }
}
