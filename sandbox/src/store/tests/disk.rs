//! What the directory keeps: restarts, torn files, a full disk, strangers and newer formats.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::super::journal::{DiskJournal, Journal, JournalError};
use super::super::mvcc::{CompactionPlan, LeaseWrite, Revision};
use super::*;

#[tokio::test]
async fn a_restart_keeps_revision_versions_history_and_leases() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    put(&store, "a", "1").await;
    put(&store, "a", "2").await;
    let grant = LeaseGrant { id: Some(7), ttl_seconds: 60, owner: LeaseOwner::Etcd };
    store.lease_grant(grant).await.unwrap();
    let leased = Put::new("b", "leased").lease(7);
    store.txn(Txn::always(vec![Op::Put(leased), Op::Delete(Delete::single("a"))])).await.unwrap();
    store.lease_grant(LeaseGrant { id: Some(8), ..grant }).await.unwrap();
    store.lease_revoke(8).await.unwrap();
    let before = store.range(&Range::prefix("")).unwrap();
    store.close().await;
    drop(store);

    let store = open(dir.path());
    assert_eq!(store.range(&Range::prefix("")).unwrap(), before);
    assert_eq!(store.revision(), 4);
    assert_eq!(store.range(&Range::single("a").at(3)).unwrap().kvs[0].version, 2);
    assert_eq!(store.leases(LeaseOwner::Etcd), [7]);
    assert_eq!(store.lease(7).unwrap().keys, ["b"]);
    let mut watch = store.watch(WatchFrom { prev_kv: true, ..WatchFrom::prefix("", Some(4)) }).unwrap();
    let batch = soon(watch.next()).await.unwrap();
    let events: Vec<_> = batch.events.iter().map(|event| (event.kind, event.kv.key.as_ref())).collect();
    assert_eq!(events, [(EventKind::Put, &b"b"[..]), (EventKind::Delete, &b"a"[..])]);
    assert_eq!(batch.events[1].prev.as_ref().unwrap().value, "2");
    assert_eq!(put(&store, "a", "3").await, 5);
}

#[tokio::test]
async fn a_restart_remembers_what_was_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for value in ["1", "2", "3"] {
        put(&store, "a", value).await;
    }
    delete(&store, "a").await;
    store.compact(5).await.unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!((store.revision(), store.compacted_revision()), (5, 5));
    let old = store.range(&Range::single("a").at(4));
    assert_eq!(old, Err(StoreError::Compacted { requested: 4, compacted: 5 }));
    assert_eq!(put(&store, "a", "4").await, 6);
    drop(store);
    assert_eq!(value(&open(dir.path()), "a").as_deref(), Some("4"));
}

#[tokio::test]
async fn a_second_opener_is_told_who_has_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let refused = Store::open(dir.path(), options()).err().unwrap();
    let OpenError::Locked { holder, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*holder, std::process::id().to_string());
    drop(store);
    open(dir.path());
}

#[test]
fn a_newer_format_a_stranger_and_a_damaged_mark_are_refused_untouched() {
    let refusal = |dir: &Path| Store::open(dir, options()).err().unwrap();
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT"), "cellplane sandbox store 2\n").unwrap();
    let newer = refusal(dir.path());
    assert!(matches!(newer, OpenError::NewerFormat { found: 2, supported: 1, .. }), "{newer}");
    assert!(newer.to_string().contains("use the newer program"));
    assert!(!dir.path().join("data").exists());

    for text in ["", "cellplane sandbox store x", "another program"] {
        fs::write(dir.path().join("FORMAT"), text).unwrap();
        assert!(matches!(refusal(dir.path()), OpenError::NotAStore { .. }));
    }
    fs::write(dir.path().join("FORMAT"), [0xff, 0xfe]).unwrap();
    assert!(matches!(refusal(dir.path()), OpenError::NotAStore { .. }));

    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "precious").unwrap();
    assert!(matches!(refusal(dir.path()), OpenError::NotAStore { .. }));
    assert_eq!(fs::read(dir.path().join("thesis.tex")).unwrap(), b"precious");

    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(refusal(file.path()), OpenError::Io { .. }));
}

#[test]
fn a_creation_cut_short_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("FORMAT"), "cellplane sandbox store 1\n").unwrap();
    fs::create_dir(dir.path().join("data.unfinished")).unwrap();
    fs::write(dir.path().join("data.unfinished/0.jnl"), "half").unwrap();
    drop(open(dir.path()));
    drop(open(dir.path()));
}

fn journal_file(dir: &Path) -> PathBuf {
    let entries = fs::read_dir(dir.join("data")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|ext| ext == "jnl")).max().unwrap()
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Where the written part of a journal ends; the rest is zeros reserved in advance.
fn written(path: &Path) -> u64 {
    let mut bytes = Vec::new();
    fs::File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

enum Tear {
    CutOff,
    Zeros,
    Garbage,
}

fn tear(path: &Path, at: u64, how: &Tear) {
    let mut file = fs::File::options().write(true).open(path).unwrap();
    let end = written(path);
    match how {
        Tear::CutOff => file.set_len(at).unwrap(),
        Tear::Zeros | Tear::Garbage => {
            let byte = if matches!(how, Tear::Zeros) { 0 } else { 0xa5 };
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&vec![byte; (end - at) as usize]).unwrap();
        }
    }
}

/// Every write of the history put `n` under `count` and one key each, so any revision's whole state is known.
fn assert_whole(store: &Store) {
    let revision = store.revision();
    let count = value(store, "count").map_or(1, |count| count.parse::<i64>().unwrap());
    assert_eq!(count, revision);
    let found = store.range(&Range::prefix("key/")).unwrap();
    let versions: i64 = found.kvs.iter().map(|kv| kv.version).sum();
    assert_eq!(versions, revision - 1, "a write is there in part");
}

async fn write_history(store: &Store, writes: i64) {
    for _ in 0..writes {
        let next = store.revision() + 1;
        let filler = "x".repeat(next as usize * 37 % 9000);
        let key = format!("key/{}", next % 7);
        let ops = vec![Op::Put(Put::new("count", next.to_string())), Op::Put(Put::new(key, filler))];
        assert_eq!(store.txn(Txn::always(ops)).await.unwrap().revision, next);
    }
}

#[tokio::test]
async fn a_torn_journal_gives_a_whole_earlier_revision_and_the_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("first"));
    write_history(&store, 40).await;
    store.close().await;
    let end = written(&journal_file(&dir.path().join("first")));
    let mut newest = 0;
    for (number, back) in (0..60).map(|step| (step, step * step * 3 + step)) {
        let how = [Tear::CutOff, Tear::Zeros, Tear::Garbage].into_iter().nth(number % 3).unwrap();
        let copy = dir.path().join(format!("copy-{number}"));
        copy_dir(&dir.path().join("first"), &copy);
        let at = end.saturating_sub(back as u64).max(1024);
        tear(&journal_file(&copy), at, &how);
        let store = Store::open(&copy, options()).unwrap_or_else(|error| panic!("torn {back} bytes back: {error}"));
        assert_whole(&store);
        newest = newest.max(store.revision());
        write_history(&store, 3).await;
        drop(store);
        let store = open(&copy);
        assert_whole(&store);
        drop(store);
        fs::remove_dir_all(&copy).unwrap();
    }
    assert_eq!(newest, 41, "an untorn journal keeps everything");
}

#[tokio::test]
async fn a_page_lost_inside_the_last_write_costs_that_write_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    write_history(&store, 20).await;
    let before = written(&journal_file(dir.path()));
    let noise: String =
        (0..9000u32).map(|n| char::from(b'a' + (n.wrapping_mul(2_654_435_761) >> 24) as u8 % 26)).collect();
    let ops = vec![Op::Put(Put::new("count", "22")), Op::Put(Put::new("key/0", noise))];
    store.txn(Txn::always(ops)).await.unwrap();
    store.close().await;
    drop(store);
    let mut file = fs::File::options().write(true).open(journal_file(dir.path())).unwrap();
    file.seek(SeekFrom::Start(before + 1500)).unwrap();
    file.write_all(&[0; 512]).unwrap();
    drop(file);
    let store = open(dir.path());
    assert_eq!(store.revision(), 21);
    assert_whole(&store);
}

#[tokio::test]
async fn damage_that_whole_writes_follow_is_refused_and_never_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("first"));
    write_history(&store, 20).await;
    let middle = written(&journal_file(&dir.path().join("first")));
    write_history(&store, 20).await;
    store.close().await;
    // Inside a value, where only the checksum tells, and over the head of a write, where its form does.
    for (number, at) in [middle - 40, middle].into_iter().enumerate() {
        let copy = dir.path().join(format!("copy-{number}"));
        copy_dir(&dir.path().join("first"), &copy);
        let before = written(&journal_file(&copy));
        let mut file = fs::File::options().write(true).open(journal_file(&copy)).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&[0xa5; 8]).unwrap();
        drop(file);
        let refused = Store::open(&copy, options()).err().unwrap();
        assert!(matches!(refused, OpenError::Corrupt { .. }), "{refused}");
        assert!(refused.to_string().contains("restore it from a copy"));
        assert_eq!(written(&journal_file(&copy)), before);
    }
}

/// How the disk is to behave.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Sound,
    /// Refuses, writing nothing.
    Full,
    /// Refuses, although the bytes reached the disk.
    FullTooLate,
    Broken,
}

struct MoodyJournal {
    inner: DiskJournal,
    mood: Arc<Mutex<Mood>>,
}

impl MoodyJournal {
    fn moved(&mut self, write: impl FnOnce(&mut DiskJournal) -> Result<(), JournalError>) -> Result<(), JournalError> {
        let mood = *self.mood.lock();
        match mood {
            Mood::Sound => write(&mut self.inner),
            Mood::Full => Err(JournalError::Full),
            Mood::FullTooLate => write(&mut self.inner).and(Err(JournalError::Full)),
            Mood::Broken => Err(JournalError::Failed("input/output error".to_owned())),
        }
    }
}

impl Journal for MoodyJournal {
    fn append(&mut self, revisions: &[Arc<Revision>], leases: &[LeaseWrite]) -> Result<(), JournalError> {
        self.moved(|journal| journal.append(revisions, leases))
    }

    fn compact(&mut self, plan: &CompactionPlan) -> Result<(), JournalError> {
        self.moved(|journal| journal.compact(plan))
    }

    fn recover(&mut self, newest: i64, leases: &[(i64, i64)]) -> Result<(), JournalError> {
        self.moved(|journal| journal.recover(newest, leases))
    }
}

fn open_moody(dir: &Path) -> (Store, Arc<Mutex<Mood>>) {
    let mood = Arc::new(Mutex::new(Mood::Sound));
    let (inner, found) = DiskJournal::open(dir).unwrap();
    let journal = MoodyJournal { inner, mood: Arc::clone(&mood) };
    (Store::start(dir, Box::new(journal), found, options()).unwrap(), mood)
}

async fn try_put(store: &Store, key: &str, value: &str) -> Result<TxnResult, StoreError> {
    store.txn(Txn::always(vec![Op::Put(Put::new(key.to_owned(), value.to_owned()))])).await
}

#[tokio::test]
async fn a_full_disk_refuses_writes_keeps_reads_and_is_left_behind_once_there_is_room() {
    for mood_while_full in [Mood::Full, Mood::FullTooLate] {
        let dir = tempfile::tempdir().unwrap();
        let (store, mood) = open_moody(dir.path());
        put(&store, "a", "1").await;
        let grant = LeaseGrant { id: Some(7), ttl_seconds: 100, owner: LeaseOwner::Etcd };
        let mut watch = store.watch(WatchFrom::prefix("", None)).unwrap();

        *mood.lock() = mood_while_full;
        let ops = ["a", "ghost"].map(|key| Op::Put(Put::new(key, "refused")));
        let refused = store.txn(Txn::always(ops.to_vec())).await;
        assert_eq!(refused, Err(StoreError::DiskFull { path: dir.path().to_owned() }));
        assert!(refused.unwrap_err().to_string().starts_with("disk is full: free space in"));
        assert!(matches!(store.lease_grant(grant).await, Err(StoreError::DiskFull { .. })));
        assert!(matches!(store.compact(2).await, Err(StoreError::DiskFull { .. })));
        assert_eq!((value(&store, "a").as_deref(), store.revision()), (Some("1"), 2));
        assert!(store.stats().trouble.is_some());

        *mood.lock() = Mood::Sound;
        let recovered = soon(async {
            loop {
                match try_put(&store, "a", "2").await {
                    Ok(result) => return result,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        assert_eq!(recovered.await.revision, 3);
        assert_eq!(soon(watch.next()).await.unwrap().events[0].kv.value, "2", "the refused write was never shown");
        assert_eq!(store.stats().trouble, None);
        drop(watch);
        drop(store);

        let store = open(dir.path());
        assert_eq!((value(&store, "a").as_deref(), store.revision()), (Some("2"), 3));
        assert_eq!(value(&store, "ghost"), None);
        assert!(store.leases(LeaseOwner::Etcd).is_empty(), "the refused lease is not there");
    }
}

#[tokio::test]
async fn a_broken_disk_makes_the_store_read_only_until_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mood) = open_moody(dir.path());
    put(&store, "a", "1").await;
    *mood.lock() = Mood::Broken;
    assert!(matches!(try_put(&store, "a", "2").await, Err(StoreError::ReadOnly { .. })));
    *mood.lock() = Mood::Sound;
    assert!(matches!(try_put(&store, "a", "3").await, Err(StoreError::ReadOnly { .. })), "it might hide a lost write");
    assert_eq!(value(&store, "a").as_deref(), Some("1"));
    assert_eq!(store.stats().refused_writes, 2);
    drop(store);
    assert_eq!(put(&open(dir.path()), "a", "4").await, 3);
}

#[tokio::test]
async fn closing_finishes_what_is_queued_and_frees_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let writes: Vec<_> = (0..50)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { try_put(&store, &format!("key/{number}"), "v").await })
        })
        .collect();
    tokio::task::yield_now().await;
    store.close().await;
    let reopened = open(dir.path());
    let mut acknowledged = 0;
    for (number, write) in writes.into_iter().enumerate() {
        match write.await.unwrap() {
            Ok(_) => {
                acknowledged += 1;
                assert!(value(&reopened, &format!("key/{number}")).is_some());
            }
            Err(refused) => assert_eq!(refused, StoreError::Closed),
        }
    }
    assert_eq!(reopened.revision(), acknowledged + 1);
    assert_eq!(try_put(&store, "a", "late").await, Err(StoreError::Closed));
}
