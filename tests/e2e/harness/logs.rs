//! Logs of a sandbox's processes: what of them is an error, and their ends for a person who looks into a failure.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

const TAIL: usize = 25;
const LONGEST: usize = 400;

/// Log files below a state directory, sorted.
fn files(state: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![state.join("logs")];
    folders.extend(entries(state).into_iter().map(|node| node.join("logs")));
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log") {
                found.push(path);
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The lines that speak of an error or a panic, each behind the name of its file, except those that hold an allowed text.
pub fn errors(state: &Path, allowed: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for path in files(state) {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
        let name = path.strip_prefix(state).unwrap_or(&path).display().to_string();
        let bad = text.lines().filter(|line| is_error(line) && !allowed.iter().any(|text| line.contains(text)));
        found.extend(bad.map(|line| format!("{name}: {}", short(line))));
    }
    found
}

fn is_error(line: &str) -> bool {
    let record = line.find('{').and_then(|start| serde_json::from_str::<Value>(&line[start..]).ok());
    match record {
        Some(record) => record["level"] == "ERROR",
        None => line.contains("panicked at"),
    }
}

fn short(line: &str) -> String {
    line.chars().take(LONGEST).collect()
}

/// Prints the end of every log that says anything above INFO, and of the sandbox's own processes.
pub fn print_tails(state: &Path) {
    for path in files(state) {
        let text = String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        println!("--- {}", path.strip_prefix(state).unwrap_or(&path).display());
        lines[lines.len().saturating_sub(TAIL)..].iter().for_each(|line| println!("{}", short(line)));
    }
}

#[test]
fn errors_and_panics_are_found_in_logs_of_pods_and_processes_unless_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("logs/sandbox.log", "{\"level\":\"INFO\",\"message\":\"ERROR\"}\nthread 'main' panicked at x\n");
    write("node-1/logs/uid/data/0.log", "2026 stderr F {\"level\":\"ERROR\",\"message\":\"away\"}\n");
    assert_eq!(errors(folder.path(), &[]).len(), 2);
    assert_eq!(errors(folder.path(), &["away"]).len(), 1);
}
