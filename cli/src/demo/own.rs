//! The demo's own temporary sandbox: made fresh, deleted at the end. What a demo that was killed left behind, the next one clears.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cassandra::{self, Node};
use crate::commands::sandbox::{down, up};
use crate::exit::CommandError;
use crate::progress::Progress;
use crate::sandbox::objects::embedded_storage;
use crate::sandbox::process::start_time;
use crate::sandbox::state::StateDir;

const PREFIX: &str = "cellplane-demo-";
const NAME: &str = "demo";
const NODES: u8 = 3;

/// Whose sandbox it is.
#[derive(Serialize, Deserialize)]
struct Owner {
    pid: i32,
    start_time: u64,
    /// Left running on purpose.
    keep: bool,
}

/// The demo's sandbox.
#[derive(Debug)]
pub struct Own {
    /// Its state directory.
    pub state: StateDir,
    keep: bool,
    /// Of `--real`.
    databases: Vec<Node>,
}

impl Own {
    /// A folder for it below the system's temporary one; nothing runs yet.
    ///
    /// # Errors
    /// [`CommandError::Failed`].
    pub fn make(keep: bool) -> Result<Self, CommandError> {
        let pid = std::process::id().cast_signed();
        let root = std::env::temp_dir().join(format!("{PREFIX}{pid}"));
        let failed = |error: std::io::Error| anyhow::Error::from(error).context(format!("make {}", root.display()));
        fs::create_dir_all(&root).map_err(failed)?;
        let owner = Owner { pid, start_time: start_time(pid).unwrap_or(0), keep };
        let text = serde_json::to_vec(&owner).map_err(|error| anyhow::Error::from(error).context("write owner"))?;
        fs::write(root.join("owner.json"), text).map_err(failed)?;
        let state = StateDir::find(NAME, Some(&root)).map_err(anyhow::Error::from)?;
        Ok(Self { state, keep, databases: Vec::new() })
    }

    /// Brings it up.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn up(
        &mut self,
        build: bool,
        real: bool,
        timeout: Duration,
        progress: &Progress,
    ) -> Result<(), CommandError> {
        let mut storage = embedded_storage();
        if real {
            let network = up::reserve(&self.state, progress)?;
            self.databases = cassandra::start_two(network, self.state.root(), progress).await?;
            storage = self.storage(0);
        }
        up::up(&self.state, &up::Order { name: NAME, nodes: NODES, build, storage }, timeout, progress).await
    }

    /// The spec of StorageCell `number` (from 0).
    pub fn storage(&self, number: usize) -> Value {
        self.databases.get(number).map_or_else(embedded_storage, Node::storage)
    }

    /// Stops and deletes it, or says how to.
    ///
    /// # Errors
    /// [`CommandError`].
    pub async fn end(self, progress: &Progress) -> Result<(), CommandError> {
        if self.keep {
            let root = self.state.root().display();
            progress.say(&format!("kept: cellctl sandbox status --state-dir {root}"));
            progress.say(&format!("      cellctl sandbox down --delete --state-dir {root}"));
            for node in &self.databases {
                progress.say(&format!("      kill {}   (Cassandra at {})", node.pid(), node.contact_point()));
            }
            return Ok(());
        }
        if cassandra::any_below(self.state.root()) {
            // The cells need their databases until they have drained. An interrupt may have left one that was never ready.
            down::stop(&self.state, false, progress).await?;
            cassandra::stop_below(self.state.root()).await;
        }
        down::stop(&self.state, true, progress).await
    }
}

/// Clears what killed demos left behind.
pub async fn clear_abandoned(progress: &Progress) {
    for root in abandoned(&std::env::temp_dir()) {
        progress.say(&format!("clearing what an earlier demo left in {}", root.display()));
        cassandra::stop_below(&root).await;
        let Ok(state) = StateDir::find(NAME, Some(&root)) else { continue };
        if let Err(error) = down::stop(&state, true, progress).await {
            progress.say(&format!("warning: {error}"));
        }
    }
}

fn abandoned(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| is_demo(path) && !is_owned(path)).collect()
}

fn is_demo(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX))
}

/// An unreadable owner is left alone: it may belong to somebody else.
fn is_owned(path: &Path) -> bool {
    let owner = fs::read(path.join("owner.json")).ok().and_then(|bytes| serde_json::from_slice::<Owner>(&bytes).ok());
    owner.is_none_or(|owner| owner.keep || start_time(owner.pid) == Some(owner.start_time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_demo_left_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, owner: Option<Owner>| {
            let root = folder.path().join(name);
            fs::create_dir_all(&root).unwrap();
            if let Some(owner) = owner {
                fs::write(root.join("owner.json"), serde_json::to_vec(&owner).unwrap()).unwrap();
            }
        };
        let own = std::process::id().cast_signed();
        let start_time = start_time(own).unwrap();
        make("cellplane-demo-1", Some(Owner { pid: own, start_time, keep: false }));
        make("cellplane-demo-2", Some(Owner { pid: own, start_time: start_time + 1, keep: false }));
        make("cellplane-demo-3", Some(Owner { pid: own, start_time: start_time + 1, keep: true }));
        make("cellplane-demo-4", None);
        make("other-5", Some(Owner { pid: own, start_time: start_time + 1, keep: false }));
        assert_eq!(abandoned(folder.path()), vec![folder.path().join("cellplane-demo-2")]);
    }
}
