//! SIGKILL in the middle of writing: everything acknowledged is there afterwards, and nothing is there by half.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

const CHILD_DIR: &str = "CELL_STORE_KILL_TEST_DIR";

/// Large enough that the database flushes and leaves journals behind during the test.
const FILLER: usize = 32 * 1024;

/// The victim: writes as fast as it can from several tasks and says what was acknowledged.
#[test]
#[ignore = "started by the kill test as its own process"]
fn victim() {
    let Ok(dir) = std::env::var(CHILD_DIR) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = open(Path::new(&dir));
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let store = store.clone();
                tokio::spawn(async move {
                    let filler = "x".repeat(FILLER);
                    for number in 0.. {
                        let ops = ["left", "right"]
                            .map(|side| Op::Put(Put::new(format!("{side}/{writer}"), format!("{number} {filler}"))));
                        store.txn(Txn::always(ops.to_vec())).await.unwrap();
                        writeln!(std::io::stdout(), "acknowledged {writer} {number}").unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
    });
}

#[tokio::test]
async fn a_killed_process_loses_nothing_it_acknowledged_and_leaves_no_half_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = [-1i64; 8];
    for round in 1..=4u32 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::tests::kill::victim", "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD_DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut fresh = [-1i64; 8];
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        for line in lines {
            let line = line.unwrap();
            let mut words = line.split_whitespace();
            if words.next() != Some("acknowledged") {
                continue;
            }
            let writer: usize = words.next().unwrap().parse().unwrap();
            // The last line may be torn too.
            let Some(Ok(number)) = words.next().map(str::parse) else { continue };
            fresh[writer] = number;
            seen += 1;
            if seen == round * 150 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= round * 150, "the victim ended on its own");
        let store = open(dir.path());
        for (writer, number) in fresh.iter().enumerate() {
            let (left, right) = (value(&store, &format!("left/{writer}")), value(&store, &format!("right/{writer}")));
            assert_eq!(left, right, "half a transaction of writer {writer}");
            let stored: i64 = left.map_or(-1, |left| left.split_once(' ').unwrap().0.parse().unwrap());
            assert!(stored >= *number || *number < 0, "writer {writer}: {number} acknowledged, {stored} stored");
            acknowledged[writer] = stored;
        }
        store.close().await;
    }
    assert!(acknowledged.iter().any(|number| *number >= 0));
}
