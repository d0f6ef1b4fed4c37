//! Processes that outlive the command that started them: how they are started, recognised again and stopped. A process is known by
//! pid, start time and boot, so that a pid used again is never taken for ours, nor signalled.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// What is remembered of a started process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRecord {
    /// Its name in the sandbox, such as `sandbox` or `node-2`.
    pub component: String,
    /// Process id.
    pub pid: i32,
    /// Clock ticks from boot to its start.
    pub start_time: u64,
    /// The boot it was started in.
    pub boot: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments: a process with others is restarted.
    pub arguments: Vec<String>,
    /// When the program file was written, in milliseconds since the Unix epoch: a rebuilt program is started anew.
    #[serde(default)]
    pub program_written_ms: u64,
}

/// Why a process could not be started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program did not start.
    #[error("failed to start {program}: {source}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// A record or log file cannot be used.
    #[error("failed to use {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// It lives on after SIGKILL.
    #[error("{component} (pid {pid}) did not end after SIGKILL")]
    Unkillable {
        /// Its name in the sandbox.
        component: String,
        /// Process id.
        pid: i32,
    },
}

/// Start time of a live process in clock ticks since boot; `None` when there is none, or only a zombie.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

/// The command in field 2 may hold anything, parentheses and spaces too: what follows the last `)` is parsed.
fn parse_stat(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X" | "x") {
        return None;
    }
    fields.get(19)?.parse().ok()
}

/// When a program file was written, in milliseconds since the Unix epoch; 0 when that cannot be told.
pub fn written_ms(program: &Path) -> u64 {
    let written = fs::metadata(program).and_then(|metadata| metadata.modified()).ok();
    let since = written.and_then(|written| written.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_millis() as u64)
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

impl ProcessRecord {
    /// Whether this very process still runs.
    pub fn is_alive(&self) -> bool {
        self.boot == boot() && start_time(self.pid) == Some(self.start_time)
    }

    /// Sends a signal if the process still runs; says whether it did.
    pub fn signal(&self, signal: Signal) -> bool {
        self.is_alive() && Pid::from_raw(self.pid).is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// SIGTERM, then after `grace` SIGKILL; returns once it is gone.
    ///
    /// # Errors
    /// [`ProcessError::Unkillable`].
    pub async fn stop(&self, grace: Duration) -> Result<(), ProcessError> {
        self.signal(Signal::TERM);
        if self.ended_within(grace).await {
            return Ok(());
        }
        self.signal(Signal::KILL);
        if self.ended_within(Duration::from_secs(10)).await {
            return Ok(());
        }
        Err(ProcessError::Unkillable { component: self.component.clone(), pid: self.pid })
    }

    async fn ended_within(&self, limit: Duration) -> bool {
        let ended = async {
            while self.is_alive() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(limit, ended).await.is_ok()
    }
}

/// How to start a process.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// Its name in the sandbox.
    pub component: &'a str,
    /// The program.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where it writes; appended to.
    pub log: &'a Path,
}

/// Starts a process in a group of its own, so that Ctrl-C on the terminal does not reach it, with its output in its log.
///
/// # Errors
/// [`ProcessError::Start`], [`ProcessError::Io`].
pub fn start(launch: Launch<'_>) -> Result<ProcessRecord, ProcessError> {
    let io_error = |source| ProcessError::Io { path: launch.log.to_owned(), source };
    let log = OpenOptions::new().create(true).append(true).open(launch.log).map_err(io_error)?;
    let log_again = log.try_clone().map_err(io_error)?;
    let child = Command::new(launch.program)
        .args(&launch.arguments)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_again)
        .process_group(0)
        .spawn()
        .map_err(|source| ProcessError::Start { program: launch.program.to_owned(), source })?;
    let pid = child.id().cast_signed();
    // Reaps the child should it end before us; after us, init does.
    std::thread::spawn(move || {
        let mut child = child;
        let _ = child.wait();
    });
    Ok(ProcessRecord {
        component: launch.component.to_owned(),
        pid,
        // Already gone: a start time no process has.
        start_time: start_time(pid).unwrap_or(u64::MAX),
        boot: boot(),
        program: launch.program.to_owned(),
        arguments: launch.arguments,
        program_written_ms: written_ms(launch.program),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_confuse_the_start_time() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        assert_eq!(parse_stat(&format!("7 (a) b (c)) {tail}")), Some(4242));
        assert_eq!(parse_stat(&format!("7 (a) {}", tail.replacen('S', "Z", 1))), None);
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[tokio::test]
    async fn a_started_process_is_recognised_and_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let record = start(Launch {
            component: "sleeper",
            program: Path::new("/bin/sleep"),
            arguments: vec!["300".into()],
            log: &folder.path().join("log"),
        })
        .unwrap();
        assert!(record.is_alive());
        let stranger = ProcessRecord { start_time: record.start_time + 1, ..record.clone() };
        assert!(!stranger.is_alive());
        assert!(!stranger.signal(Signal::KILL), "a pid used again is never signalled");
        let other_boot = ProcessRecord { boot: "another".into(), ..record.clone() };
        assert!(!other_boot.is_alive());
        record.stop(Duration::from_secs(5)).await.unwrap();
        assert!(!record.is_alive());
    }

    #[tokio::test]
    async fn a_process_deaf_to_sigterm_is_killed_after_its_grace() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let record = start(Launch {
            component: "deaf",
            program: Path::new("/bin/sh"),
            arguments: vec!["-c".into(), "trap '' TERM; echo deaf; while true; do sleep 0.05; done".into()],
            log: &log,
        })
        .unwrap();
        let deaf = async {
            while fs::read_to_string(&log).unwrap_or_default().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), deaf).await.unwrap();
        record.stop(Duration::from_millis(100)).await.unwrap();
        assert!(!record.is_alive());
    }
}
