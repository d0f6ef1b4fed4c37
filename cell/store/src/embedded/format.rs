//! The format file: which version wrote a data folder. A newer one is refused before anything is touched.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::StoreError;
use crate::engine::FORMAT;

const FILE: &str = "CELLPLANE_STORE";
const TEMPORARY: &str = "CELLPLANE_STORE.new";
const WORD: &str = "cellplane-store";

/// Checks the folder, and marks an empty one as ours.
pub(super) fn check(data_dir: &Path) -> Result<(), StoreError> {
    let failed = |message: String| StoreError::Open { path: data_dir.display().to_string(), message };
    fs::create_dir_all(data_dir).map_err(|error| failed(format!("failed to create it: {error}")))?;
    let path = data_dir.join(FILE);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let found = text.trim().strip_prefix(WORD).and_then(|rest| rest.trim().parse::<u32>().ok());
            let found =
                found.ok_or_else(|| failed(format!("{FILE} does not name a format; restore it from a backup")))?;
            if found < FORMAT {
                // Its rows do not lie by token, so they would not be found.
                return Err(failed(format!(
                    "it has format {found} and this version reads {FORMAT} only; start the version that wrote it and \
                     migrate its data to a new StorageCell, or give an empty folder with --data-dir"
                )));
            }
            if found > FORMAT {
                return Err(StoreError::NewerVersion {
                    path: data_dir.display().to_string(),
                    found,
                    supported: FORMAT,
                });
            }
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut entries = fs::read_dir(data_dir).map_err(|error| failed(error.to_string()))?;
            // A crash while marking leaves the temporary file; a volume of its own has `lost+found`.
            let ours = |name: &std::ffi::OsStr| name == TEMPORARY || name == "lost+found";
            if entries.any(|entry| !entry.is_ok_and(|entry| ours(&entry.file_name()))) {
                return Err(failed(format!("it is not empty and has no {FILE}; give an empty folder with --data-dir")));
            }
            create(data_dir).map_err(|error| failed(format!("failed to write {FILE}: {error}")))
        }
        Err(error) => Err(failed(format!("failed to read {FILE}: {error}"))),
    }
}

fn create(data_dir: &Path) -> std::io::Result<()> {
    let temporary = data_dir.join(TEMPORARY);
    let mut file = fs::File::create(&temporary)?;
    writeln!(file, "{WORD} {FORMAT}")?;
    file.sync_all()?;
    fs::rename(&temporary, data_dir.join(FILE))?;
    fs::File::open(data_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_format_is_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "cellplane-store 99\n").unwrap();
        let error = check(folder.path()).unwrap_err();
        assert!(matches!(error, StoreError::NewerVersion { found: 99, .. }));
        assert!(error.to_string().contains("start the newer version"), "{error}");
    }

    #[test]
    fn an_older_format_is_refused_and_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "cellplane-store 1\n").unwrap();
        let error = check(folder.path()).unwrap_err().to_string();
        assert!(error.contains("format 1") && error.contains("--data-dir"), "{error}");
    }

    #[test]
    fn a_folder_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("precious.txt"), "x").unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("--data-dir"));
    }

    #[test]
    fn a_crash_while_marking_leaves_a_folder_that_can_be_marked() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(TEMPORARY), "cellpl").unwrap();
        check(folder.path()).unwrap();
        check(folder.path()).unwrap();
    }
}
