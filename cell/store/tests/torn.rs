//! A store whose last write was cut anywhere by a power cut or a kill: it opens, with everything that was acknowledged before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use cell_proto::v1::{AppendRequest, OpenSegmentRequest, ReadSegmentRequest, Statics, StoredEntry};
use cell_store::{EmbeddedConfig, EmbeddedStore, Store, StoreError};

fn open(folder: &Path) -> Result<EmbeddedStore, StoreError> {
    EmbeddedStore::open(EmbeddedConfig { data_dir: folder.into(), storage_cell: "main".into(), reserve_bytes: 0 })
}

async fn append(store: &EmbeddedStore, last: u64) {
    let entries = vec![StoredEntry { number: last + 1, body: b"body".to_vec(), ..StoredEntry::default() }];
    let request = AppendRequest { log: "l".into(), segment: 1, term: 1, last, entries, ..AppendRequest::default() };
    assert!(store.append(request).await.unwrap().applied);
}

async fn last(store: &EmbeddedStore) -> u64 {
    let request = ReadSegmentRequest { log: "l".into(), segment: 1, from: 0, limit: 1000, bodies_from: 0 };
    let reply = store.read_segment(request).await.unwrap();
    let last = reply.statics.unwrap().last;
    let numbers: Vec<u64> = reply.entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "what is there is whole");
    last
}

fn journal(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join("fjall")).unwrap().map(|entry| entry.unwrap().path());
    let mut journals: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|kind| kind == "jnl")).collect();
    assert_eq!(journals.len(), 1, "{journals:?}");
    journals.remove(0)
}

/// Where the zeros begin that the database reserves.
fn written(journal: &Path) -> usize {
    fs::read(journal).unwrap().iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// A copy of the store whose journal holds only its first bytes, then zeros up to `length`.
fn copy(from: &Path, to: &Path, kept: usize, length: usize) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() {
            copy(&path, &target, kept, length);
        } else if path.extension().is_some_and(|kind| kind == "jnl") {
            let mut file = fs::File::create(&target).unwrap();
            file.write_all(&fs::read(&path).unwrap()[..kept]).unwrap();
            file.set_len(length as u64).unwrap();
            file.seek(SeekFrom::End(0)).unwrap();
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[tokio::test]
async fn a_store_cut_at_every_byte_of_its_last_write_opens_with_all_that_was_acknowledged_before() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let store = open(&whole).unwrap();
    let statics = Some(Statics { term: 1, ..Statics::default() });
    store.open_segment(OpenSegmentRequest { log: "l".into(), segment: 1, statics }).await.unwrap();
    for number in 0..5 {
        append(&store, number).await;
    }
    let before = written(&journal(&whole));
    append(&store, 5).await;
    store.close();
    let end = written(&journal(&whole));
    assert!(end > before, "the last write is in the journal");
    let mut kept_last = 0;
    for cut in before..=end {
        // By turns as a file that ends there and as one whose reserved space follows.
        let length = if cut % 2 == 0 { cut } else { end + 8192 };
        let torn = folder.path().join(format!("torn-{cut}"));
        copy(&whole, &torn, cut, length);
        let store = open(&torn).unwrap_or_else(|error| panic!("cut at {cut} of {before}..{end}: {error}"));
        let found = last(&store).await;
        assert!(found == 5 || (found == 6 && cut == end), "cut at {cut} of {before}..{end}: {found}");
        kept_last = kept_last.max(found);
        append(&store, found).await;
        store.close();
        // What was cut is gone for good, and what came after it is there.
        if cut % 8 == 0 {
            let store = open(&torn).unwrap();
            assert_eq!(last(&store).await, found + 1);
            store.close();
        }
        fs::remove_dir_all(&torn).unwrap();
    }
    assert_eq!(kept_last, 6, "an untorn journal keeps everything");
}
