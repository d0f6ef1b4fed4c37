use super::*;
use crate::ranges::{Control, Machine, Progress, Settings};

fn identity() -> Vec<(&'static str, String)> {
    vec![("source", "a/ks.t".to_owned()), ("target", "b/ks.t".to_owned())]
}

fn keep(ledger: &mut Ledger, expected: &mut Saved, records: Vec<Record>) {
    ledger.commit(&records).unwrap();
    records.iter().for_each(|record| expected.apply(record));
    assert_eq!(ledger.load().unwrap(), *expected);
}

#[test]
fn what_is_loaded_is_what_the_machine_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let lanes = vec![(LaneName { table: "t".to_owned(), unit: String::new() }, 9)];
    let (mut machine, _) = Machine::restore(Settings::standard("r"), lanes, Saved::default());
    let mut ledger = Ledger::open(&path, &identity()).unwrap();
    let mut expected = ledger.load().unwrap();
    let control =
        Control { phase: Some(Phase::Verify), round: 3, rows_per_second: 7, source: "s".into(), ..Control::default() };
    keep(&mut ledger, &mut expected, machine.control(control, 5).unwrap());
    // Each takes too long for several to be given at once.
    for step in (0..9_000).step_by(1_000) {
        let (grant, records) = machine.lease("w", step);
        keep(&mut ledger, &mut expected, records);
        let grant = grant.unwrap();
        let mut progress = Progress { lease: grant.lease, worker: "w".into(), ..Progress::default() };
        progress.done_until = Some(grant.tokens.first + 10);
        progress.counts.rows = 4;
        progress.mark = vec![7; 16];
        progress.counts.mismatches.insert("extra".into(), 1);
        keep(&mut ledger, &mut expected, machine.report(progress.clone(), step).1);
        if step != 4_000 {
            progress.ended = true;
            keep(&mut ledger, &mut expected, machine.report(progress, step + 900).1);
        }
    }
    let (_, records) = Machine::restore(Settings::standard("r"), vec![], ledger.load().unwrap());
    keep(&mut ledger, &mut expected, records);
    assert_eq!((expected.counts.redone, expected.leases.len()), (1, 0));
    let (grant, records) = machine.lease("w", 1_000_000);
    keep(&mut ledger, &mut expected, records);
    keep(
        &mut ledger,
        &mut expected,
        machine
            .report(
                Progress { lease: grant.unwrap().lease, worker: "w".into(), ended: true, ..Progress::default() },
                1_000_000,
            )
            .1,
    );
    assert!(expected.receipt.is_some() && expected.done.values().all(IntervalSet::is_full));
    keep(
        &mut ledger,
        &mut expected,
        machine.control(Control { phase: Some(Phase::Backfill), round: 4, ..Control::default() }, 9).unwrap(),
    );
    assert!(expected.receipt.is_none());
}

#[test]
fn a_file_of_another_pair_another_program_or_a_newer_version_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    drop(Ledger::open(&path, &identity()).unwrap());
    let other = vec![("source", "a/ks.t".to_owned()), ("target", "c/ks.t".to_owned())];
    let error = Ledger::open(&path, &other).unwrap_err();
    assert!(matches!(&error, LedgerError::AnotherRun { field, .. } if field == "target"), "{error}");
    let raw = Connection::open(&path).unwrap();
    raw.pragma_update(None, "user_version", FORMAT + 1).unwrap();
    drop(raw);
    let error = Ledger::open(&path, &identity()).unwrap_err();
    assert!(matches!(error, LedgerError::Newer { found, .. } if found == FORMAT + 1), "{error}");
    let text = folder.path().join("text");
    std::fs::write(&text, "precious words, and more of them than a header is long, to be sure of it".repeat(9))
        .unwrap();
    assert!(matches!(Ledger::open(&text, &identity()).unwrap_err(), LedgerError::Foreign(_)));
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("precious"));
    let theirs = folder.path().join("theirs");
    Connection::open(&theirs).unwrap().execute_batch("CREATE TABLE x (y)").unwrap();
    assert!(matches!(Ledger::open(&theirs, &identity()).unwrap_err(), LedgerError::Foreign(_)));
}

#[test]
fn marks_of_a_copy_are_there_again_until_their_range_is_done_or_a_round_begins() {
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(&folder.path().join("state"), &identity()).unwrap();
    let mut expected = ledger.load().unwrap();
    let lanes = vec![(LaneName { table: "t".to_owned(), unit: "b0001".to_owned() }, 1)];
    let (mut machine, _) = Machine::restore(Settings::standard("r"), lanes.clone(), Saved::default());
    let control = Control { phase: Some(Phase::Backfill), round: 1, ..Control::default() };
    keep(&mut ledger, &mut expected, machine.control(control, 5).unwrap());
    for turn in 1..=3_u8 {
        let (grant, records) = machine.lease("w", 10);
        keep(&mut ledger, &mut expected, records);
        let grant = grant.unwrap();
        assert_eq!(grant.after, vec![turn - 1; if turn == 1 { 0 } else { 16 }]);
        let progress = Progress { lease: grant.lease, worker: "w".into(), mark: vec![turn; 16], ..Progress::default() };
        keep(&mut ledger, &mut expected, machine.report(progress.clone(), 11).1);
        assert_eq!(expected.marks.len(), 1);
        if turn < 3 {
            let records;
            (machine, records) = Machine::restore(Settings::standard("r"), lanes.clone(), ledger.load().unwrap());
            keep(&mut ledger, &mut expected, records);
        } else {
            keep(&mut ledger, &mut expected, machine.report(Progress { ended: true, ..progress }, 12).1);
        }
    }
    assert!(expected.marks.is_empty() && machine.state(13).complete);
}

#[test]
fn a_file_of_the_version_before_goes_on_without_marks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    drop(Ledger::open(&path, &identity()).unwrap());
    let raw = Connection::open(&path).unwrap();
    raw.execute_batch("DROP TABLE marks; PRAGMA user_version = 2").unwrap();
    drop(raw);
    let ledger = Ledger::open(&path, &identity()).unwrap();
    assert_eq!(ledger.load().unwrap().marks, Default::default());
    drop(ledger);
    let raw = Connection::open(&path).unwrap();
    assert_eq!(raw.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap(), FORMAT);
}

#[test]
fn two_never_work_with_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let _held = Ledger::open(&path, &identity()).unwrap();
    let error = Ledger::open(&path, &identity()).unwrap_err();
    assert!(matches!(error, LedgerError::InUse(_)), "{error}");
}
