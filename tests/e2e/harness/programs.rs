//! Where the programs under test are: built once for the profile and into the target directory of this very test program, or those of
//! `CELLPLANE_E2E_PROGRAMS`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const PACKAGES: [&str; 4] = ["cellctl", "cell", "cell-operator", "cell-sandbox"];

/// The folder with `cellctl` and its sister programs.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = FOLDER.get_or_init(|| match std::env::var_os("CELLPLANE_E2E_PROGRAMS") {
        Some(folder) => std::path::absolute(folder).ok(),
        None => build(),
    });
    found.as_deref().expect("the programs build; what cargo said is above")
}

fn build() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().nth(2).expect("a test program is in <target>/<profile>/deps").to_owned();
    let target = folder.parent().unwrap();
    let lock = File::create(target.join("cellplane-e2e.lock")).unwrap();
    lock.lock().unwrap();
    let profile = match folder.file_name().and_then(|name| name.to_str()).unwrap() {
        "debug" => "dev",
        other => other,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--bins", "--profile", profile]);
    cargo.arg("--target-dir").arg(target);
    PACKAGES.iter().for_each(|package| {
        cargo.args(["-p", package]);
    });
    let status = cargo.stdin(Stdio::null()).status().expect("cargo runs");
    status.success().then_some(folder)
}
