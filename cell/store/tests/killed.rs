//! A store process killed with SIGKILL in the middle of its work: whatever it acknowledged is there when the folder is opened again,
//! and every append is there whole or not at all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use cell_proto::v1::{AppendRequest, OpenSegmentRequest, ReadSegmentRequest, Statics, StoredEntry};
use cell_store::{EmbeddedConfig, EmbeddedStore, Store};

const CHILD: &str = "CELLPLANE_TEST_STORE";
const BATCH: u64 = 3;

fn open(folder: &std::path::Path) -> EmbeddedStore {
    let config = EmbeddedConfig { data_dir: folder.join("data"), storage_cell: "main".into(), reserve_bytes: 0 };
    EmbeddedStore::open(config).unwrap()
}

fn append(last: u64) -> AppendRequest {
    let entry = |number| StoredEntry { number, body: vec![number as u8; 500], ..StoredEntry::default() };
    AppendRequest {
        log: "l".into(),
        segment: 1,
        term: 1,
        last,
        entries: (last + 1..=last + BATCH).map(entry).collect(),
        ..AppendRequest::default()
    }
}

/// Not a test of its own: the process that is killed. It says what was acknowledged.
#[tokio::test]
async fn child() {
    let Some(folder) = std::env::var_os(CHILD) else { return };
    let store = open(folder.as_ref());
    let statics = Some(Statics { term: 1, ..Statics::default() });
    store.open_segment(OpenSegmentRequest { log: "l".into(), segment: 1, statics }).await.unwrap();
    let request = ReadSegmentRequest { log: "l".into(), segment: 1, from: 0, limit: 0, bodies_from: 0 };
    let mut last = store.read_segment(request).await.unwrap().statics.unwrap().last;
    loop {
        assert!(store.append(append(last)).await.unwrap().applied);
        last += BATCH;
        println!("acknowledged {last}");
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_sigkill_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 1..=4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let goal = acknowledged + round * 20;
        for line in lines {
            if let Some(number) = line.unwrap().strip_prefix("acknowledged ") {
                acknowledged = number.parse().unwrap();
            }
            if acknowledged >= goal {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(acknowledged >= goal, "the child ended by itself");

        let store = open(folder.path());
        let request = ReadSegmentRequest { log: "l".into(), segment: 1, from: 0, limit: 1_000_000, bodies_from: 0 };
        let reply = store.read_segment(request).await.unwrap();
        let last = reply.statics.unwrap().last;
        assert!(last >= acknowledged, "{acknowledged} was acknowledged and {last} is left");
        assert_eq!(last % BATCH, 0, "half an append");
        let numbers: Vec<u64> = reply.entries.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>());
        acknowledged = last;
        store.close();
    }
}
