//! Backups from the command line: of a running sandbox through its API, of a stopped one from its directory. A file appears under its
//! name only when it is whole.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use http_body_util::BodyExt;

use crate::server::{ServerError, client};
use crate::store::backup::{self, BackupError, BackupInfo};
use crate::store::{OpenError, Store, StoreOptions};

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("{} exists: give another file or --overwrite", path.display())]
    Exists { path: PathBuf },
    #[error("no sandbox in {}: its store is not there", path.display())]
    NoStore { path: PathBuf },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error("read backup of the running sandbox: {0}")]
    Running(String),
    #[error("read backup of the running sandbox: {0}")]
    Server(#[from] ServerError),
}

/// Writes a backup of the sandbox in `state_dir` to `file`.
///
/// # Errors
/// [`CopyError`].
pub async fn backup(state_dir: &Path, file: &Path, overwrite: bool) -> Result<BackupInfo, CopyError> {
    let store = state_dir.join("store");
    if !store.join("FORMAT").exists() {
        return Err(CopyError::NoStore { path: state_dir.to_owned() });
    }
    if file.exists() && !overwrite {
        return Err(CopyError::Exists { path: file.to_owned() });
    }
    let failed = |source| CopyError::File { path: file.to_owned(), source };
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let mut out = BufWriter::new(private(&unfinished).map_err(failed)?);
    match Store::open(&store, StoreOptions::sandbox()) {
        Ok(store) => drop(store.backup(&mut out)?),
        Err(OpenError::Locked { .. }) => fetch(&state_dir.join("kubeconfig"), &mut out).await?,
        Err(error) => return Err(BackupError::from(error).into()),
    }
    let written = out.into_inner().map_err(|error| failed(error.into_error()))?;
    written.sync_all().map_err(failed)?;
    let info = backup::check(&mut BufReader::new(File::open(&unfinished).map_err(failed)?))?;
    fs::rename(&unfinished, file).map_err(failed)?;
    Ok(info)
}

/// It holds Secrets.
fn private(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let _ = fs::remove_file(path);
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

async fn fetch(kubeconfig: &Path, out: &mut impl Write) -> Result<(), CopyError> {
    let failed = |error: &dyn std::fmt::Display| CopyError::Running(error.to_string());
    let client = client(kubeconfig).await?;
    let request = http::Request::get("/sandbox/backup").body(kube::client::Body::empty());
    let answer = client.send(request.map_err(|error| failed(&error))?).await.map_err(|error| failed(&error))?;
    if !answer.status().is_success() {
        return Err(failed(&format!("it answered {}", answer.status())));
    }
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(|error| failed(&error))?.into_data() {
            out.write_all(&piece).map_err(|error| failed(&error))?;
        }
    }
    Ok(())
}

/// Makes the sandbox in `state_dir`, stopped or new, hold what `file` does.
///
/// # Errors
/// [`CopyError`]; whatever it is, the sandbox is as it was.
pub fn restore(state_dir: &Path, file: &Path, overwrite: bool) -> Result<BackupInfo, CopyError> {
    let failed = |source| CopyError::File { path: file.to_owned(), source };
    let mut from = BufReader::new(File::open(file).map_err(failed)?);
    fs::create_dir_all(state_dir).map_err(|source| CopyError::File { path: state_dir.to_owned(), source })?;
    Ok(backup::restore(&state_dir.join("store"), &mut from, overwrite)?)
}
