//! Finds and ends every process that a container left or still makes: by descent from its shim, or by the mark in its environment when
//! the shim itself was killed. Whoever forks while it is ended is stopped first, so that nothing new comes while the rest dies.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::proc_fs;

/// The variable that says which run a process belongs to, as `POD-UID/CONTAINER/ATTEMPT`.
pub const MARK: &str = "CELL_NODE_RUN";

/// How long ending may take; a machine whose process table is full needs several rounds.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Living descendants of a process, itself not among them.
pub fn descendants(root: i32) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
    for (pid, parent, alive) in proc_fs::all() {
        children.entry(parent).or_default().push((pid, alive));
    }
    let (mut found, mut open) = (Vec::new(), vec![root]);
    while let Some(parent) = open.pop() {
        for (pid, alive) in children.remove(&parent).unwrap_or_default() {
            open.push(pid);
            found.extend(alive.then_some(pid));
        }
    }
    found
}

/// How many processes descend from `root`, counted no further than `most` + 1. Cheap, and may miss one that comes or goes just now.
pub fn count(root: i32, most: usize) -> usize {
    let (mut seen, mut open) = (0, vec![root]);
    while let Some(parent) = open.pop() {
        for pid in proc_fs::listed_children(parent) {
            seen += 1;
            open.push(pid);
            if seen > most {
                return seen;
            }
        }
    }
    seen
}

/// Living processes whose mark begins with `prefix`.
pub fn marked(prefix: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={prefix}");
    let bears = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(wanted.as_bytes()))
    };
    proc_fs::all().into_iter().filter(|(pid, _, alive)| *alive && bears(*pid)).map(|(pid, ..)| pid).collect()
}

/// Ends everything `find` finds, again and again until it finds nothing; false when time ran out first. `reap` is called after each
/// round.
pub fn end(find: impl Fn() -> Vec<i32>, reap: impl Fn()) -> bool {
    let until = Instant::now() + PATIENCE;
    loop {
        let stopped = stop_all(&find, until);
        if stopped.is_empty() {
            return true;
        }
        stopped.iter().for_each(|pid| send(*pid, Signal::KILL));
        reap();
        if Instant::now() >= until {
            return find().is_empty();
        }
    }
}

/// Stops what is found until nothing new is: who is stopped forks no more.
fn stop_all(find: &impl Fn() -> Vec<i32>, until: Instant) -> BTreeSet<i32> {
    let mut stopped = BTreeSet::new();
    loop {
        let fresh: Vec<i32> = find().into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if fresh.is_empty() {
            return stopped;
        }
        for pid in fresh {
            send(pid, Signal::STOP);
            stopped.insert(pid);
        }
        if Instant::now() >= until {
            return stopped;
        }
    }
}

fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Ended however the test ends: the shell, and what bears its mark.
    struct Tree(Child, String);

    impl Drop for Tree {
        fn drop(&mut self) {
            end(|| marked(&self.1), || ());
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn tree(script: &str, mark: &str) -> Tree {
        let mark = format!("{mark}-{}", std::process::id());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env(MARK, &mark).stdin(Stdio::null()).stdout(Stdio::null());
        Tree(command.spawn().unwrap(), mark)
    }

    fn eventually(what: &str, holds: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(30);
        while !holds() {
            assert!(Instant::now() < until, "not seen in time: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_counted_no_further_than_asked() {
        let tree = tree("(sleep 1000 & (sleep 1000 & wait) & wait) & wait", "deep");
        let root = i32::try_from(tree.0.id()).unwrap();
        eventually("four descendants", || descendants(root).len() == 4);
        assert_eq!((count(root, 100), count(root, 2)), (4, 3));
        assert_eq!(marked(&tree.1).len(), 5, "the shell bears the mark, too");
    }

    #[test]
    fn who_forks_while_being_ended_is_ended() {
        // Each of a dozen makes a new one whenever its last one is gone, in a session of its own.
        let script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do setsid sh -c 'while :; do setsid sleep 0.01 & wait; done' & done; wait";
        let tree = tree(script, "bomb");
        eventually("the bomb", || marked(&tree.1).len() > 12);
        assert!(end(|| marked(&tree.1), || ()));
        assert!(marked(&tree.1).is_empty());
    }
}
