//! Starts a run by its shim, waits for its end, signals it. It trusts no pid without its start time.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use thiserror::Error;
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::record::{Found, RunExit, RunFolder, RunRecord, RunSpec};
use super::{proc_fs, strays};
use crate::node::machine::container::{Exit, LOST};

/// Why a run could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// Its files could not be written.
    #[error("prepare the run in {0}: {1}")]
    Files(String, io::Error),
    /// The shim could not be started.
    #[error("start the shim {0}: {1}")]
    Shim(String, io::Error),
    /// The shim neither recorded a process nor an end in time.
    #[error("the shim wrote no record within {0:?}")]
    Silent(Duration),
}

/// How long a shim may take to record its process.
const RECORD_DEADLINE: Duration = Duration::from_secs(15);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AT_PROC: Duration = Duration::from_secs(2);

/// What starting a run led to.
#[derive(Debug)]
pub enum Outcome {
    /// Its process runs.
    Running(RunRecord),
    /// It ended already.
    Ended(RunExit),
}

/// Starts `spec` in `folder` by a shim of `program` (this very program).
///
/// # Errors
/// [`StartError`]; no process is left behind that a later look would not find.
pub async fn start(program: &Path, folder: &RunFolder, spec: &RunSpec) -> Result<Outcome, StartError> {
    let files = |error| StartError::Files(folder.0.display().to_string(), error);
    std::fs::create_dir_all(&folder.0).map_err(files)?;
    let lock = folder.take_lock().map_err(files)?;
    folder.write("spec.json", spec).map_err(files)?;
    let mut child = Command::new(program)
        .arg("shim")
        .arg(&folder.0)
        .stdin(Stdio::from(lock))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| StartError::Shim(program.display().to_string(), error))?;
    tokio::spawn(async move {
        let _ = child.wait().await;
    });
    await_record(folder, &spec.pod_uid).await
}

/// Waits until a beginning run is recorded or ended.
///
/// # Errors
/// [`StartError::Silent`] after the deadline.
pub async fn await_record(folder: &RunFolder, uid: &str) -> Result<Outcome, StartError> {
    let until = Instant::now() + RECORD_DEADLINE;
    loop {
        match folder.find(uid) {
            Found::Running(record) => return Ok(Outcome::Running(record)),
            Found::Ended(exit) => return Ok(Outcome::Ended(exit)),
            Found::Lost(_) | Found::Abandoned(_) | Found::Beginning if Instant::now() >= until => {
                return Err(StartError::Silent(RECORD_DEADLINE));
            }
            _ => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// Waits until the run's shim is gone and says how the run ended. A process nobody keeps is killed.
pub async fn wait_for_end(folder: &RunFolder, record: &RunRecord) -> Exit {
    wait_for_shim(folder, record).await;
    match folder.find(&record.pod_uid) {
        Found::Ended(exit) => exit_of(&exit),
        _ => {
            signal(record, Signal::KILL);
            wait_for_process(record.pid, record.start_ticks).await;
            // The shim would have ended them.
            let run = folder.spec().map(|spec| spec.mark());
            let _ = tokio::task::spawn_blocking(move || run.is_some_and(|run| end_marked(&run))).await;
            lost(record.started_ms)
        }
    }
}

/// Returns when the shim is gone: it holds the run's pipe open as long as it lives, and the kernel closes it whatever ends it. A pipe
/// opened after the shim's end tells nothing, so /proc is looked at too, now and then.
async fn wait_for_shim(folder: &RunFolder, record: &RunRecord) {
    let Ok(pipe) = pipe::OpenOptions::new().open_receiver(folder.alive_path()) else {
        return wait_for_process(record.shim_pid, record.shim_ticks).await;
    };
    let mut byte = [0_u8; 1];
    while proc_fs::is_alive(record.shim_pid, record.shim_ticks) {
        if tokio::time::timeout(LOOK_AT_PROC, pipe.readable()).await.is_ok()
            && !matches!(pipe.try_read(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        {
            break;
        }
    }
    wait_for_process(record.shim_pid, record.shim_ticks).await;
}

async fn wait_for_process(pid: i32, ticks: u64) {
    while proc_fs::is_alive(pid, ticks) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Ends every process whose mark begins so; false when some would not end.
pub fn end_marked(mark: &str) -> bool {
    let ended = strays::end(|| strays::marked(mark), || ());
    if !ended {
        tracing::warn!(mark, "processes of a container that would not end are left");
    }
    ended
}

/// Sends a signal to the run's process group; false when the process is not the one recorded any more.
pub fn signal(record: &RunRecord, signal: Signal) -> bool {
    proc_fs::is_alive(record.pid, record.start_ticks)
        && Pid::from_raw(record.pid).is_some_and(|pid| kill_process_group(pid, signal).is_ok())
}

/// A recorded end in the machine's words.
pub fn exit_of(exit: &RunExit) -> Exit {
    let reason = match (&exit.start_error, exit.code) {
        (Some(_), _) => "StartError",
        (None, 0) => "Completed",
        (None, _) => "Error",
    };
    Exit {
        code: exit.code,
        signal: exit.signal,
        reason,
        message: exit.start_error.clone().or_else(|| exit.message.clone()),
        started_ms: exit.started_ms,
        finished_ms: exit.finished_ms,
    }
}

/// The end of a run nobody saw end: a power cut, or a killed shim.
pub fn lost(started_ms: i64) -> Exit {
    let finished_ms = k8s_openapi::jiff::Timestamp::now().as_millisecond();
    Exit {
        code: 137,
        signal: None,
        reason: LOST,
        message: Some("the process was gone and nobody saw it end".into()),
        started_ms,
        finished_ms,
    }
}
