//! The shim: `cell-node shim DIR` runs one container's process, copies its output to the log, and writes how it ended. It lives in a
//! session of its own, so that it outlives the agent. It decides nothing about restarts and speaks to nobody.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, setsid, waitid};
use thiserror::Error;

use super::record::{RunExit, RunFolder, RunRecord, RunSpec};
use super::{proc_fs, strays};
use crate::node::logs::write::LogWriter;

/// Why a shim could not do its work.
#[derive(Debug, Error)]
pub enum ShimError {
    /// The run's folder holds no readable spec.
    #[error("{0}/spec.json is missing or unreadable: the agent writes it before it starts the shim")]
    NoSpec(String),
    /// A file of the run could not be written.
    #[error("write {0}: {1}")]
    Write(&'static str, io::Error),
}

/// Bytes of a message that are kept, as in Kubernetes.
const MOST_MESSAGE: u64 = 4096;
/// How often its processes are counted.
const COUNT: Duration = Duration::from_secs(1);
/// Output left in the pipes when the process ended is read for at most this long.
const DRAIN: Duration = Duration::from_secs(2);

/// Runs the container described in `folder` to its end. Standard input must be the run's lock, which is thereby held.
///
/// # Errors
/// [`ShimError`] when the run's files cannot be read or written.
pub fn run(folder: &Path) -> Result<(), ShimError> {
    // Already a session leader is as good: the agent's signals do not reach it then either.
    let _ = setsid();
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let _ = rustix::process::set_child_subreaper(Pid::from_raw(me));
    let folder = RunFolder(folder.to_owned());
    let spec = folder.spec().ok_or_else(|| ShimError::NoSpec(folder.0.display().to_string()))?;
    let _alive = hold_pipe(&folder);
    let started_ms = Timestamp::now().as_millisecond();
    let mut child = match spawn(&spec) {
        Ok(child) => child,
        Err(error) => {
            let exit = RunExit {
                code: 128,
                signal: None,
                start_error: Some(format!("{}: {error}", spec.program.display())),
                message: None,
                started_ms,
                finished_ms: started_ms,
            };
            return folder.write("exit.json", &exit).map_err(|error| ShimError::Write("exit.json", error));
        }
    };
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let record = RunRecord {
        pod_uid: spec.pod_uid.clone(),
        boot_id: proc_fs::boot_id(),
        pid,
        start_ticks: proc_fs::start_ticks(pid).unwrap_or(0),
        shim_pid: me,
        shim_ticks: proc_fs::start_ticks(me).unwrap_or(0),
        started_ms,
    };
    let recorded = folder.write("record.json", &record);
    if recorded.is_err() {
        kill_group(pid);
    }
    let copied = copy_output(&mut child, &spec);
    let overrun = keep_watch(me, pid, spec.most_processes);
    wait_without_reaping(pid);
    kill_group(pid);
    let status = child.wait();
    end_leftovers(me);
    drain(&copied);
    let message = if overrun.load(Ordering::Acquire) {
        Some(format!("killed: more than {} processes at once, as --max-processes allows", spec.most_processes))
    } else {
        message_of(&spec)
    };
    let exit = RunExit { message, ..describe(status, started_ms) };
    folder.write("exit.json", &exit).map_err(|error| ShimError::Write("exit.json", error))?;
    recorded.map_err(|error| ShimError::Write("record.json", error))
}

/// Opened for reading too, so that opening never waits for the agent.
fn hold_pipe(folder: &RunFolder) -> Option<fs::File> {
    let path = folder.alive_path();
    let _ = rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600), 0);
    fs::File::options().read(true).write(true).open(path).ok()
}

fn spawn(spec: &RunSpec) -> io::Result<Child> {
    fs::create_dir_all(&spec.directory)?;
    if let Some(parent) = spec.message.as_deref().and_then(Path::parent) {
        fs::create_dir_all(parent)?;
    }
    // What an earlier run left says nothing of this one.
    let _ = spec.message.as_ref().map(fs::remove_file);
    Command::new(&spec.program)
        .args(&spec.args)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&spec.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// What the run left for people; none when it left nothing.
fn message_of(spec: &RunSpec) -> Option<String> {
    let mut left = Vec::new();
    fs::File::open(spec.message.as_ref()?).ok()?.take(MOST_MESSAGE).read_to_end(&mut left).ok()?;
    let text = String::from_utf8_lossy(&left).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

struct Copied {
    done: std::sync::mpsc::Receiver<()>,
    streams: usize,
}

fn copy_output(child: &mut Child, spec: &RunSpec) -> Copied {
    let log = Arc::new(Mutex::new(LogWriter::new(spec.log.clone(), spec.log_bytes, spec.log_files)));
    let (sender, done) = channel();
    let mut streams = 0;
    let mut copy = |stream: Option<Box<dyn Read + Send>>, name: &'static str| {
        if let Some(stream) = stream {
            streams += 1;
            let (log, sender) = (log.clone(), sender.clone());
            thread::spawn(move || copy_lines(stream, name, &log, sender));
        }
    };
    copy(child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>), "stdout");
    copy(child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>), "stderr");
    Copied { done, streams }
}

const LINE_BYTES: usize = 16 * 1024;

fn copy_lines(mut stream: Box<dyn Read + Send>, name: &'static str, log: &Mutex<LogWriter>, done: Sender<()>) {
    let mut buffer = vec![0_u8; LINE_BYTES];
    let mut line = Vec::new();
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        let mut log = log.lock();
        for byte in &buffer[..count] {
            if *byte == b'\n' {
                log.line(name, true, &line);
                line.clear();
            } else {
                line.push(*byte);
                if line.len() >= LINE_BYTES {
                    log.line(name, false, &line);
                    line.clear();
                }
            }
        }
        log.flush();
    }
    if !line.is_empty() {
        let mut log = log.lock();
        log.line(name, true, &line);
        log.flush();
    }
    let _ = done.send(());
}

fn drain(copied: &Copied) {
    let until = Instant::now() + DRAIN;
    for _ in 0..copied.streams {
        let left = until.saturating_duration_since(Instant::now());
        if copied.done.recv_timeout(left).is_err() {
            return;
        }
    }
}

/// Waits for the end but leaves the zombie, so that its group id cannot be used again before the group is killed.
fn wait_without_reaping(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(error) if error == rustix::io::Errno::INTR => {}
            _ => return,
        }
    }
}

fn kill_group(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Processes that left the group were handed to the shim, their nearest subreaper: they end with their container, also such that go on
/// forking. What cannot be ended, as a process that waits for a dead disk, keeps nobody waiting.
fn end_leftovers(me: i32) {
    strays::end(
        || strays::descendants(me),
        || while matches!(waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG), Ok(Some(_))) {},
    );
}

/// Buries the orphans that were handed to the shim, counts the container's processes now and then, and ends them all when there are more
/// than `most`; 0 for no bound. True in what it returns says that it did.
fn keep_watch(me: i32, main: i32, most: u32) -> Arc<AtomicBool> {
    let overrun = Arc::new(AtomicBool::new(false));
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let told = overrun.clone();
    // Ends with the shim.
    thread::spawn(move || {
        loop {
            thread::sleep(COUNT);
            bury_orphans(me, main);
            if most > 0 && strays::count(me, most) > most {
                told.store(true, Ordering::Release);
                strays::end(|| strays::descendants(me), || bury_orphans(me, main));
            }
        }
    });
    overrun
}

/// All but the container's main process, whose zombie keeps its group's id from being used again.
fn bury_orphans(me: i32, main: i32) {
    for orphan in proc_fs::listed_children(me).into_iter().filter(|child| *child != main) {
        if let Some(orphan) = Pid::from_raw(orphan) {
            let _still_living = waitid(WaitId::Pid(orphan), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

fn describe(status: io::Result<ExitStatus>, started_ms: i64) -> RunExit {
    let finished_ms = Timestamp::now().as_millisecond();
    let (code, signal) = match status {
        Ok(status) => {
            let signal = status.signal();
            (status.code().unwrap_or_else(|| 128 + signal.unwrap_or(0)), signal)
        }
        Err(_) => (255, None),
    };
    RunExit { code, signal, start_error: None, message: None, started_ms, finished_ms }
}
