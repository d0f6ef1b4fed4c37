//! Logs written, rotated and read as sentences.

use std::collections::HashMap;
use std::path::Path;

use super::query::LogQuery;
use super::read::Place;
use super::write::LogWriter;
use super::{log_path, rotated};

fn write(path: &Path, lines: std::ops::Range<usize>, limit: u64, files: u32) {
    let mut log = LogWriter::new(path.to_owned(), limit, files);
    for number in lines {
        log.line("stdout", true, format!("line {number}").as_bytes());
    }
    log.flush();
}

fn text(path: &Path, query: &LogQuery) -> String {
    rest(&mut Place::of(path, query).unwrap(), query)
}

/// Everything up to the log's present end.
fn rest(place: &mut Place, query: &LogQuery) -> String {
    let mut seen = Vec::new();
    loop {
        let piece = place.read_on(query).unwrap();
        seen.extend(piece.shown);
        if !piece.more {
            return String::from_utf8(seen).unwrap();
        }
    }
}

#[test]
fn a_log_never_grows_beyond_its_files_and_the_newest_lines_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = log_path(folder.path(), "u", "c", 0);
    write(&path, 0..500, 2_000, 3);
    let sizes: Vec<_> = (0..4).map(|age| rotated(&path, age)).filter_map(|path| path.metadata().ok()).collect();
    assert_eq!(sizes.len(), 3);
    assert!(sizes.iter().all(|file| file.len() < 2_200));
    let shown = text(&path, &LogQuery::default());
    assert!(shown.ends_with("line 498\nline 499\n"));
    assert!(!shown.contains("line 0\n"), "the oldest are gone");
    let numbers: Vec<usize> = shown.lines().map(|line| line[5..].parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no line is missing between files");
}

#[test]
fn tail_and_timestamps_show_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.log");
    write(&path, 0..10, 300, 9);
    let query = LogQuery { tail_lines: Some(2), ..LogQuery::default() };
    assert_eq!(text(&path, &query), "line 8\nline 9\n");
    let query = LogQuery { tail_lines: Some(1), timestamps: true, ..LogQuery::default() };
    let stamped = text(&path, &query);
    assert!(stamped.starts_with("20") && stamped.ends_with(" line 9\n"), "{stamped}");
    assert_eq!(text(&path, &LogQuery { tail_lines: Some(0), ..LogQuery::default() }), "");
    let future = LogQuery { since: Some(i64::MAX), ..LogQuery::default() };
    assert_eq!(text(&path, &future), "");
}

#[test]
fn any_tail_of_any_log_is_its_last_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.log");
    // Lines longer than one piece of reading, over several files.
    let line = |number: usize| format!("{number} {}", "x".repeat(number * 977 % 9_000));
    let mut log = LogWriter::new(path.clone(), 90_000, 9);
    (0..100).for_each(|number| log.line("stdout", true, line(number).as_bytes()));
    log.flush();
    for tail in (0..100).chain([100, 1_000, usize::MAX]) {
        let query = LogQuery { tail_lines: Some(tail), ..LogQuery::default() };
        let wanted: String = (100_usize.saturating_sub(tail)..100).map(|number| line(number) + "\n").collect();
        assert!(text(&path, &query) == wanted, "the last {tail}");
    }
}

#[test]
fn a_line_in_two_records_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.log");
    let mut log = LogWriter::new(path.clone(), 10_000, 2);
    log.line("stdout", false, b"one ");
    log.line("stdout", true, b"line");
    log.flush();
    assert_eq!(text(&path, &LogQuery::default()), "one line\n");
}

#[test]
fn following_goes_on_over_a_rotation_without_losing_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.log");
    write(&path, 0..3, 1_024, 5);
    let query = LogQuery { follow: true, ..LogQuery::default() };
    let mut place = Place::of(&path, &query).unwrap();
    let mut seen = rest(&mut place, &query);
    for round in 0..6 {
        let from = 3 + round * 20;
        write(&path, from..from + 20, 1_024, 5);
        seen.push_str(&rest(&mut place, &query));
    }
    let expected: String = (0..123).map(|number| format!("line {number}\n")).collect();
    assert_eq!(seen, expected);
}

#[test]
fn bad_parameters_are_refused_by_name() {
    let of = |name: &str, value: &str| LogQuery::parse(&HashMap::from([(name.to_owned(), value.to_owned())]), 100);
    assert_eq!(of("tailLines", "-1").unwrap_err().name, "tailLines");
    assert_eq!(of("follow", "perhaps").unwrap_err().name, "follow");
    assert_eq!(of("sinceTime", "noon").unwrap_err().name, "sinceTime");
    assert_eq!(of("sinceSeconds", "40").unwrap().since, Some(60));
    assert_eq!(of("limitBytes", "9").unwrap().limit_bytes, Some(9));
}

#[test]
fn a_reader_in_a_rotation_waits_for_the_file_that_follows_and_misses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.log");
    let query = LogQuery::default();
    write(&path, 0..3, 10_000, 9);
    let mut place = Place::of(&path, &query).unwrap();
    assert_eq!(rest(&mut place, &query), "line 0\nline 1\nline 2\n");
    // Between the rename and the new file: also who begins now sees what there is.
    std::fs::rename(&path, rotated(&path, 1)).unwrap();
    assert_eq!(text(&path, &query), "line 0\nline 1\nline 2\n");
    let reader = std::thread::spawn(move || rest(&mut place, &query));
    write(&path, 3..5, 10_000, 9);
    assert_eq!(reader.join().unwrap(), "line 3\nline 4\n");
}

#[test]
fn a_slow_reader_of_a_file_that_is_rotated_away_goes_on_with_the_oldest_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("0.log");
    let query = LogQuery::default();
    write(&path, 0..20, 1_024, 3);
    let mut place = Place::of(&path, &query).unwrap();
    // Its inode is free again for whoever does not hold it.
    write(&path, 20..400, 1_024, 3);
    let seen = rest(&mut place, &query);
    let numbers: Vec<usize> = seen.lines().map(|line| line[5..].parse().unwrap()).collect();
    assert_eq!((numbers.first(), numbers.last()), (Some(&0), Some(&399)), "{seen}");
    let gaps = numbers.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count();
    assert_eq!(gaps, 1, "one gap, where files were dropped, and no line twice or cut: {seen}");
}
