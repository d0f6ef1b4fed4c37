//! Where the sister programs are: beside cellctl, or, when cellctl was built in a checkout, built there first with cargo, for the
//! same profile and into the same target directory. Never downloads anything.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::progress::Progress;

/// Image of the cells' program.
pub const CELL_IMAGE: &str = "cellplane/cell:dev";
/// Image of the operator.
pub const OPERATOR_IMAGE: &str = "cellplane/operator:dev";

const NAMES: [&str; 4] = ["cell-sandbox", "cell-node", "cell-operator", "cell"];
const PACKAGES: [&str; 3] = ["cell-sandbox", "cell-operator", "cell"];

/// The programs a sandbox runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Programs {
    /// `cell-sandbox`.
    pub sandbox: PathBuf,
    /// `cell-node`.
    pub node: PathBuf,
    /// `cell-operator`.
    pub operator: PathBuf,
    /// `cell`.
    pub cell: PathBuf,
}

/// Why there are no programs.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// cellctl does not know where it is itself.
    #[error("failed to find cellctl's own program file: {0}")]
    OwnPath(std::io::Error),
    /// Not beside cellctl, and no checkout to build them in.
    #[error("{missing} not found in {folder}; install the programs beside cellctl, or run cellctl from a checkout")]
    Missing {
        /// Names, with commas.
        missing: String,
        /// Where they should be.
        folder: PathBuf,
    },
    /// cargo did not start.
    #[error("failed to run cargo: {0}; install Rust, or give --no-build to use the programs as they are")]
    Cargo(std::io::Error),
    /// cargo said no.
    #[error("cargo build ended with {0}; what it said is above")]
    Build(std::process::ExitStatus),
}

/// A checkout that a cellctl was built in.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Checkout {
    root: PathBuf,
    target: PathBuf,
    profile: String,
}

/// Finds the programs, building them first where cellctl stands in a checkout's target directory and `build` is set.
///
/// # Errors
/// [`ProgramsError`].
pub fn find(build: bool, progress: &Progress) -> Result<Programs, ProgramsError> {
    let own = std::env::current_exe().map_err(ProgramsError::OwnPath)?;
    let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
    if let Some(checkout) = checkout(&folder, Path::new(env!("CARGO_MANIFEST_DIR")))
        && build
    {
        run_cargo(&checkout, &PACKAGES, progress)?;
    }
    beside(&folder)
}

/// Finds `cell` alone, building it first as [`find`] does.
///
/// # Errors
/// [`ProgramsError`].
pub fn find_cell(build: bool, progress: &Progress) -> Result<PathBuf, ProgramsError> {
    let own = std::env::current_exe().map_err(ProgramsError::OwnPath)?;
    let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
    if let Some(checkout) = checkout(&folder, Path::new(env!("CARGO_MANIFEST_DIR")))
        && build
    {
        run_cargo(&checkout, &["cell"], progress)?;
    }
    let cell = folder.join("cell");
    if cell.is_file() { Ok(cell) } else { Err(ProgramsError::Missing { missing: "cell".to_owned(), folder }) }
}

/// Finds `cell-sandbox` alone, beside cellctl, as it is.
///
/// # Errors
/// [`ProgramsError`].
pub fn find_sandbox() -> Result<PathBuf, ProgramsError> {
    let own = std::env::current_exe().map_err(ProgramsError::OwnPath)?;
    let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
    let program = folder.join("cell-sandbox");
    if program.is_file() { Ok(program) } else { Err(ProgramsError::Missing { missing: "cell-sandbox".into(), folder }) }
}

fn beside(folder: &Path) -> Result<Programs, ProgramsError> {
    let missing: Vec<&str> = NAMES.into_iter().filter(|name| !folder.join(name).is_file()).collect();
    if !missing.is_empty() {
        return Err(ProgramsError::Missing { missing: missing.join(", "), folder: folder.to_owned() });
    }
    Ok(Programs {
        sandbox: folder.join("cell-sandbox"),
        node: folder.join("cell-node"),
        operator: folder.join("cell-operator"),
        cell: folder.join("cell"),
    })
}

/// A target directory holds `<profile>/cellctl` and cargo's tag file; `manifest` is where this crate was compiled from.
fn checkout(folder: &Path, manifest: &Path) -> Option<Checkout> {
    // Test programs live one folder deeper.
    let folder = if folder.ends_with("deps") { folder.parent()? } else { folder };
    let target = folder.parent()?;
    let root = manifest.parent()?;
    if !target.join("CACHEDIR.TAG").is_file() || !root.join("Cargo.toml").is_file() {
        return None;
    }
    // The folder of the profile `dev` is called `debug`.
    let profile = match folder.file_name()?.to_str()? {
        "debug" => "dev".to_owned(),
        other => other.to_owned(),
    };
    Some(Checkout { root: root.to_owned(), target: target.to_owned(), profile })
}

fn run_cargo(checkout: &Checkout, packages: &[&str], progress: &Progress) -> Result<(), ProgramsError> {
    progress.say(&format!("building {} (profile {})", packages.join(", "), checkout.profile));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&checkout.root).arg("build").args(["--profile", &checkout.profile]).arg("--target-dir");
    command.arg(&checkout.target).arg("--bins");
    for package in packages {
        command.args(["-p", package]);
    }
    // cargo's own progress is what people know; stdout is for data.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().map_err(ProgramsError::Cargo)?;
    if status.success() { Ok(()) } else { Err(ProgramsError::Build(status)) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn programs_that_are_missing_are_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cell"), "").unwrap();
        let error = beside(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("cell-sandbox, cell-node, cell-operator not found in "), "{error}");
    }

    #[test]
    fn a_checkout_is_known_by_cargos_tag_and_its_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let (root, target) = (folder.path().join("clone"), folder.path().join("elsewhere"));
        fs::create_dir_all(root.join("cli")).unwrap();
        fs::create_dir_all(target.join("debug")).unwrap();
        fs::write(root.join("Cargo.toml"), "").unwrap();
        assert_eq!(checkout(&target.join("debug"), &root.join("cli")), None, "an installed cellctl builds nothing");
        fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        let expected = Checkout { root: root.clone(), target: target.clone(), profile: "dev".into() };
        assert_eq!(checkout(&target.join("debug"), &root.join("cli")), Some(expected.clone()));
        assert_eq!(checkout(&target.join("debug/deps"), &root.join("cli")), Some(expected));
        fs::remove_file(root.join("Cargo.toml")).unwrap();
        assert_eq!(checkout(&target.join("debug"), &root.join("cli")), None, "the clone is gone");
    }
}
