//! What /proc says about a process: whether it lives and when it started. A pid alone is never trusted: pids are used again.

use std::fs;

/// True when a process of this pid, started at this time (clock ticks since boot), lives and is no zombie.
pub fn is_alive(pid: i32, start_ticks: u64) -> bool {
    read_stat(pid).is_some_and(|stat| stat.start_ticks == start_ticks && stat.state != 'Z' && stat.state != 'X')
}

/// The start time of a process in clock ticks since boot; None when there is no such process.
pub fn start_ticks(pid: i32) -> Option<u64> {
    read_stat(pid).map(|stat| stat.start_ticks)
}

/// The id of this boot: records of an earlier one are stale whatever their pids.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Every process: its pid, its parent, and whether it lives and is no zombie.
pub fn all() -> Vec<(i32, i32, bool)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| read_stat(pid).map(|stat| (pid, stat.parent, !matches!(stat.state, 'Z' | 'X'))))
        .collect()
}

/// Pids that the kernel lists as children of any thread of `parent`, zombies among them. Reads only what is of `parent`.
pub fn listed_children(parent: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()).collect()
}

struct Stat {
    state: char,
    parent: i32,
    start_ticks: u64,
}

fn read_stat(pid: i32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields after the program name, which may itself hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, start_ticks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_does_not_mislead() {
        let tail = (0..40).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let stat = parse_stat(&format!("7 (a) b) S 3 {tail}")).unwrap();
        assert_eq!((stat.state, stat.parent, stat.start_ticks), ('S', 3, 17));
    }

    #[test]
    fn this_process_is_alive_only_under_its_own_start_time() {
        let me = i32::try_from(std::process::id()).unwrap();
        let ticks = start_ticks(me).unwrap();
        assert!(is_alive(me, ticks));
        assert!(!is_alive(me, ticks + 1), "a pid used again is another process");
    }
}
