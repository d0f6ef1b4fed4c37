//! Rules of the tree that no compiler checks: how long files are, that every file is compiled, which way dependencies point, and
//! what must never be committed. There is no list of exceptions.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test's own helpers stop the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const MAX_PRODUCTION_LINES: usize = 400;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Files of the repository, tracked or about to be, relative to the root.
fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is needed to list the tree");
    let listed = String::from_utf8(output.stdout).unwrap();
    listed.lines().map(PathBuf::from).filter(|path| root().join(path).is_file()).collect()
}

fn rust_files() -> Vec<PathBuf> {
    files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_default()
}

/// Whether a file holds only tests or benchmarks.
fn is_test(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let parts: Vec<&str> = text.split('/').collect();
    parts.iter().any(|part| matches!(*part, "tests" | "benches" | "bench" | "tests.rs"))
        || parts.last().is_some_and(|name| name.ends_with("_tests.rs"))
}

/// Lines above the inline test module.
fn production_lines(text: &str) -> usize {
    let inline_tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..inline_tests].lines().count()
}

#[test]
fn no_file_has_more_than_400_production_lines() {
    let long: Vec<String> = rust_files()
        .iter()
        .filter(|path| !is_test(path))
        .map(|path| (production_lines(&read(path)), path))
        .filter(|(lines, _)| *lines > MAX_PRODUCTION_LINES)
        .map(|(lines, path)| format!("{}: {lines} lines", path.display()))
        .collect();
    assert!(long.is_empty(), "split these by phase or noun:\n{}", long.join("\n"));
}

#[test]
fn every_file_says_what_it_decides() {
    let silent: Vec<String> = rust_files()
        .iter()
        .filter(|path| !is_test(path) && !read(path).starts_with("//!"))
        .map(|path| path.display().to_string())
        .collect();
    assert!(silent.is_empty(), "these lack a //! that says what they decide:\n{}", silent.join("\n"));
}

#[test]
fn every_file_is_reachable_from_a_mod_line() {
    let all: BTreeSet<PathBuf> = rust_files().into_iter().collect();
    let orphans: Vec<String> = all
        .iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "src"))
        .filter(|path| !is_crate_root(path) && !is_declared(path))
        .map(|path| path.display().to_string())
        .collect();
    assert!(orphans.is_empty(), "no mod line names these, so nothing compiles them:\n{}", orphans.join("\n"));
}

fn is_crate_root(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
    (parent == "src" && (name == "lib.rs" || name == "main.rs")) || parent == "bin"
}

fn is_declared(path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = path.parent().unwrap_or(Path::new(""));
    let (module, home) = if stem == "mod" {
        (
            folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            folder.parent().unwrap_or(Path::new("")),
        )
    } else {
        (stem, folder)
    };
    let parents = [home.join("mod.rs"), home.join("lib.rs"), home.join("main.rs"), home.with_extension("rs")];
    let bins =
        std::fs::read_dir(root().join(home)).into_iter().flatten().flatten().map(|entry| home.join(entry.file_name()));
    let in_bin = home.file_name().is_some_and(|name| name == "bin");
    parents
        .into_iter()
        .chain(bins.filter(|_| in_bin))
        .any(|parent| read(&parent).lines().any(|line| declares(line, &module)))
}

fn declares(line: &str, module: &str) -> bool {
    let line = line.trim();
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub(super) ")).unwrap_or(line);
    line.strip_prefix("mod ").is_some_and(|rest| rest.trim_end_matches([';', ' ', '{']) == module)
}

/// For each crate, what of ours it may depend on directly (dev-dependencies aside).
fn allowed() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("cell-crds", [].as_slice()),
        ("cell-api", &[]),
        ("cell-plan", &[]),
        ("cell-proto", &[]),
        ("cell-sandbox", &["journal-mend"]),
        ("journal-mend", &[]),
        ("cell-ledger", &[]),
        ("cell-runtime", &["cell-proto"]),
        ("cell-store", &["cell-proto", "cell-runtime", "journal-mend"]),
        ("cell-data", &["cell-proto", "cell-runtime", "cell-store"]),
        ("cell-guild", &["cell-proto", "cell-runtime"]),
        ("cell-migrate", &["cell-data", "cell-proto", "cell-runtime", "cell-store"]),
        ("cell-gateway", &["cell-proto", "cell-runtime"]),
        (
            "cell",
            &["cell-data", "cell-gateway", "cell-guild", "cell-migrate", "cell-proto", "cell-runtime", "cell-store"],
        ),
        ("cell-operator", &["cell-api", "cell-crds", "cell-plan", "cell-proto", "cell-runtime"]),
        ("cellctl", &["cell-api", "cell-crds", "cell-ledger", "cell-proto"]),
        ("cell-tests", &[]),
        ("cell-model", &[]),
        (
            "cell-bench",
            &[
                "cell-crds",
                "cell-data",
                "cell-gateway",
                "cell-guild",
                "cell-operator",
                "cell-proto",
                "cell-runtime",
                "cell-sandbox",
                "cell-store",
            ],
        ),
    ])
}

fn metadata() -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

#[test]
fn dependencies_point_one_way() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let allowed = allowed();
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let Some(may) = allowed.get(name) else {
            wrong.push(format!("{name} has no line in tests/tidy.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let other = dependency["name"].as_str().unwrap();
            if dependency["kind"].as_str() != Some("dev") && ours.contains(other) && !may.contains(&other) {
                wrong.push(format!("{name} must not depend on {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn features_are_named_in_the_workspace_only() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = std::fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        for line in manifest.lines().filter(|line| line.contains("features = [") && line.contains("workspace = true")) {
            wrong.push(format!("{}: {line}", package["name"].as_str().unwrap()));
        }
    }
    assert!(wrong.is_empty(), "a member that names features builds its dependencies twice:\n{}", wrong.join("\n"));
}

/// Asserts that no package but `allowed` depends on one of `crates` itself.
fn assert_linked_only_by(crates: &[&str], allowed: &[&str]) {
    let metadata = metadata();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let mut dependencies = package["dependencies"].as_array().unwrap().iter();
        let linked =
            dependencies.find_map(|dependency| dependency["name"].as_str().filter(|name| crates.contains(name)));
        assert!(linked.is_none() || allowed.contains(&name), "{name} links {}", linked.unwrap_or_default());
    }
}

#[test]
fn only_stores_and_the_sandbox_link_a_storage_engine() {
    assert_linked_only_by(&["fjall", "redb", "rusqlite"], &["cell-store", "cell-sandbox", "cell-migrate"]);
}

#[test]
fn only_the_data_service_and_migrations_link_a_database_driver() {
    assert_linked_only_by(&["scylla", "scylla-cql", "cdrs-tokio"], &["cell-data", "cell-migrate"]);
}

#[test]
fn nothing_names_a_machine_or_a_registry_host() {
    // Assembled so that this file does not hold what it looks for.
    let forbidden = [
        ["/wo", "rk/"].concat(),
        ["/ro", "ot/"].concat(),
        ["crates", ".io/api"].concat(),
        ["proxy.go", "lang"].concat(),
    ];
    let mut wrong = Vec::new();
    for path in files() {
        if path.file_name().is_some_and(|name| name == "Cargo.lock" || name == "go.sum") {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            if forbidden.iter().any(|word| line.contains(word.as_str())) {
                wrong.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
