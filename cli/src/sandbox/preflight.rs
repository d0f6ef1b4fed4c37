//! What the machine must offer before a sandbox starts. Raises what it may (the soft file limit), refuses what cannot work, and says
//! both.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::exit::CommandError;

/// Files that one process of a sandbox needs at rest.
pub const LEAST_FILES: u64 = 1024;
/// Bytes that must be free where the state is kept.
pub const LEAST_DISK: u64 = 512 * 1024 * 1024;

/// What the file limit became.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLimit {
    /// In force now.
    pub now: u64,
    /// Before.
    pub before: u64,
}

/// Raises the soft limit of open files to the hard one; processes started later inherit it.
pub fn raise_file_limit() -> FileLimit {
    let limit = getrlimit(Resource::Nofile);
    let before = limit.current.unwrap_or(u64::MAX);
    if limit.current == limit.maximum {
        return FileLimit { now: before, before };
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let now = if raised.is_ok() { limit.maximum.unwrap_or(u64::MAX) } else { before };
    FileLimit { now, before }
}

/// Refuses a file limit that no sandbox can live with.
///
/// # Errors
/// [`CommandError::Refused`].
pub fn check_files(limit: FileLimit) -> Result<(), CommandError> {
    if limit.now >= LEAST_FILES {
        return Ok(());
    }
    Err(CommandError::refused(
        "open files",
        format!("a process may open {} files, a sandbox needs {LEAST_FILES}", limit.now),
        format!(
            "raise the hard limit (as root: prlimit --pid $$ --nofile={LEAST_FILES}:{LEAST_FILES}), then run it again"
        ),
    ))
}

/// Refuses a state directory on a disk without room.
///
/// # Errors
/// [`CommandError::Refused`].
pub fn check_disk(path: &Path) -> Result<(), CommandError> {
    let Ok(disk) = rustix::fs::statvfs(path) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free >= LEAST_DISK {
        return Ok(());
    }
    Err(CommandError::refused(
        "--state-dir",
        format!("{} has {} MiB free, a sandbox needs {}", path.display(), free >> 20, LEAST_DISK >> 20),
        "free some space, or give a --state-dir on another disk",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_reaches_the_hard_one() {
        let limit = raise_file_limit();
        assert!(limit.now >= limit.before);
        assert_eq!(raise_file_limit(), FileLimit { now: limit.now, before: limit.now });
    }

    #[test]
    fn a_low_limit_is_refused_with_what_to_do() {
        let error = check_files(FileLimit { now: 256, before: 256 }).unwrap_err();
        assert!(error.report().contains("may open 256 files"), "{}", error.report());
        assert!(error.report().contains("next: raise"));
        assert!(check_files(FileLimit { now: LEAST_FILES, before: 1 }).is_ok());
    }
}
