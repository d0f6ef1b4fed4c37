//! The files that describe one run of one container, under `run/<pod uid>/<container>/<attempt>/`: `spec.json` (what to run),
//! `lock` and the pipe `alive` (held while the shim lives), `record.json` (the process) and `exit.json` (its end). It decides what a run found on disk
//! is; it starts and ends nothing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::proc_fs;
use crate::node::machine::backoff::Backoff;

/// What to run, written by the agent for the shim.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunSpec {
    /// The Pod's UID.
    pub pod_uid: String,
    /// Container name.
    pub container: String,
    /// Which run, 0 the first.
    pub attempt: u32,
    /// Back-off in milliseconds that preceded this run.
    pub backoff_ms: u64,
    /// Exits in a row before this run.
    pub exits: u32,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: Vec<(String, String)>,
    /// Its working directory.
    pub directory: PathBuf,
    /// Where it may leave a message about its end. Containers of a Pod share the folder, so two should name two files.
    #[serde(default)]
    pub message: Option<PathBuf>,
    /// Its log file.
    pub log: PathBuf,
    /// Rotate the log at this size, in bytes.
    pub log_bytes: u64,
    /// Log files kept, the current one among them.
    pub log_files: u32,
    /// Processes it may have at once; 0 is no bound.
    #[serde(default)]
    pub most_processes: u32,
}

impl RunSpec {
    /// What its processes bear in their environment.
    pub fn mark(&self) -> String {
        format!("{}/{}/{}", self.pod_uid, self.container, self.attempt)
    }

    /// The back-off this run was started with.
    pub fn backoff(&self) -> Backoff {
        Backoff { wait_ms: self.backoff_ms, exits: self.exits }
    }
}

/// The process of a run, written by the shim.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunRecord {
    /// The Pod's UID.
    pub pod_uid: String,
    /// The boot it belongs to.
    pub boot_id: String,
    /// The container's process, leader of its own group.
    pub pid: i32,
    /// Its start time in clock ticks since boot.
    pub start_ticks: u64,
    /// The shim's process.
    pub shim_pid: i32,
    /// The shim's start time.
    pub shim_ticks: u64,
    /// Unix milliseconds of the start.
    pub started_ms: i64,
}

/// The end of a run, written by the shim.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RunExit {
    /// Exit code; 128 + signal when a signal ended it; 128 when it never started.
    pub code: i32,
    /// The signal.
    pub signal: Option<i32>,
    /// Why it never started.
    pub start_error: Option<String>,
    /// What it left for people, cut short.
    #[serde(default)]
    pub message: Option<String>,
    /// Unix milliseconds of the start.
    pub started_ms: i64,
    /// Unix milliseconds of the end.
    pub finished_ms: i64,
}

/// What a run found on disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The shim lives but has not yet written its record.
    Beginning,
    /// Shim and process live.
    Running(RunRecord),
    /// The process lives but nobody keeps it: it must be ended.
    Abandoned(RunRecord),
    /// It ended and the end is known.
    Ended(RunExit),
    /// It is gone and nobody saw how.
    Lost(Option<RunRecord>),
}

/// The folder of one run.
#[derive(Debug, Clone)]
pub struct RunFolder(pub PathBuf);

impl RunFolder {
    /// The folder of a run under the agent's state directory.
    pub fn of(state: &Path, uid: &str, container: &str, attempt: u32) -> Self {
        Self(state.join("run").join(uid).join(container).join(attempt.to_string()))
    }

    /// The lock file, held by whoever keeps the run.
    pub fn lock_path(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// The named pipe the shim holds open as long as it lives.
    pub fn alive_path(&self) -> PathBuf {
        self.0.join("alive")
    }

    /// Opens and takes the lock.
    ///
    /// # Errors
    /// When it cannot be opened or somebody holds it.
    pub fn take_lock(&self) -> io::Result<File> {
        let file = File::options().create(true).truncate(false).write(true).open(self.lock_path())?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(file)
    }

    fn kept(&self) -> bool {
        match File::open(self.lock_path()) {
            Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
            Err(_) => false,
        }
    }

    /// Reads `spec.json`.
    pub fn spec(&self) -> Option<RunSpec> {
        read(&self.0.join("spec.json"))
    }

    /// Reads `record.json`.
    pub fn record(&self) -> Option<RunRecord> {
        read(&self.0.join("record.json"))
    }

    /// Reads `exit.json`.
    pub fn exit(&self) -> Option<RunExit> {
        read(&self.0.join("exit.json"))
    }

    /// Writes one of the files whole or not at all.
    ///
    /// # Errors
    /// The file system's.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let temporary = self.0.join(format!(".{name}.new"));
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(value)?)?;
        file.flush()?;
        fs::rename(temporary, self.0.join(name))
    }

    /// Decides what this run is now. A record of another Pod UID or another boot is never taken for a live process.
    pub fn find(&self, uid: &str) -> Found {
        let kept = self.kept();
        if let Some(exit) = self.exit() {
            return Found::Ended(exit);
        }
        let record = self.record();
        let Some(found) = record.filter(|record| record.pod_uid == uid && record.boot_id == proc_fs::boot_id()) else {
            return if kept { Found::Beginning } else { Found::Lost(None) };
        };
        let shim = kept && proc_fs::is_alive(found.shim_pid, found.shim_ticks);
        let process = proc_fs::is_alive(found.pid, found.start_ticks);
        match (shim, process) {
            (true, _) => Found::Running(found),
            (false, true) => Found::Abandoned(found),
            (false, false) => self.exit().map_or(Found::Lost(Some(found)), Found::Ended),
        }
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The runs of a container found under the state directory, oldest first.
pub fn attempts(state: &Path, uid: &str, container: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(state.join("run").join(uid).join(container)) else { return Vec::new() };
    let mut found: Vec<u32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> (i32, u64) {
        let pid = i32::try_from(std::process::id()).unwrap();
        (pid, proc_fs::start_ticks(pid).unwrap())
    }

    fn record(change: impl FnOnce(&mut RunRecord)) -> RunRecord {
        let (pid, ticks) = me();
        let mut record = RunRecord {
            pod_uid: "u".into(),
            boot_id: proc_fs::boot_id(),
            pid,
            start_ticks: ticks,
            shim_pid: pid,
            shim_ticks: ticks,
            started_ms: 7,
        };
        change(&mut record);
        record
    }

    fn found(record: &RunRecord, kept: bool) -> Found {
        let state = tempfile::tempdir().unwrap();
        let folder = RunFolder(state.path().to_owned());
        let lock = folder.take_lock().unwrap();
        let _held = kept.then_some(lock);
        folder.write("record.json", record).unwrap();
        folder.find("u")
    }

    #[test]
    fn a_run_is_taken_over_only_by_uid_boot_pid_and_start_time() {
        let live = record(|_| {});
        assert_eq!(found(&live, true), Found::Running(live.clone()));
        assert_eq!(found(&live, false), Found::Abandoned(live), "it lives but nobody keeps it");
        let reused = record(|record| record.start_ticks += 1);
        assert_eq!(found(&reused, false), Found::Lost(Some(reused)), "that pid is another process now");
        assert_eq!(found(&record(|record| record.pod_uid = "other".into()), false), Found::Lost(None));
        assert_eq!(found(&record(|record| record.boot_id = "earlier".into()), false), Found::Lost(None));
    }

    #[test]
    fn a_held_lock_without_a_record_is_a_beginning_and_an_end_is_an_end() {
        let state = tempfile::tempdir().unwrap();
        let folder = RunFolder(state.path().to_owned());
        assert_eq!(folder.find("u"), Found::Lost(None));
        let lock = folder.take_lock().unwrap();
        assert_eq!(folder.find("u"), Found::Beginning);
        assert!(folder.take_lock().is_err(), "one keeper at a time");
        drop(lock);
        let exit = RunExit { code: 3, signal: None, start_error: None, message: None, started_ms: 1, finished_ms: 2 };
        folder.write("exit.json", &exit).unwrap();
        assert_eq!(folder.find("u"), Found::Ended(exit));
    }

    #[test]
    fn a_half_written_record_is_no_record() {
        let state = tempfile::tempdir().unwrap();
        let folder = RunFolder(state.path().to_owned());
        fs::write(state.path().join("record.json"), b"{\"podUid\":").unwrap();
        assert_eq!(folder.find("u"), Found::Lost(None));
    }
}
