//! Container logs: one file a run, a line a record (`time stream F|P text`), rotated by size.

pub mod access;
pub mod certificate;
pub mod listen;
pub mod query;
pub mod read;
pub mod server;
#[cfg(test)]
mod tests;
pub mod write;

use std::path::{Path, PathBuf};

/// The log file of one run of one container.
pub fn log_path(state: &Path, uid: &str, container: &str, attempt: u32) -> PathBuf {
    state.join("logs").join(uid).join(container).join(format!("{attempt}.log"))
}

/// The name of the `age`th rotated file of a log; 0 is the log itself.
pub fn rotated(path: &Path, age: u32) -> PathBuf {
    if age == 0 {
        return path.to_owned();
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    PathBuf::from(name)
}
