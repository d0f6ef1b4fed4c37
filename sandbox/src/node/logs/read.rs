//! Reads a log for a request: across rotated files, from the wanted line on, and on as it grows. Bounded: a tail keeps at most a
//! million lines in memory and one read at most 64 KiB.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;

use super::query::LogQuery;
use super::rotated;

const MOST_TAIL_LINES: usize = 1_000_000;
const CHUNK: u64 = 64 * 1024;

/// A place in a growing log: the file being read (by inode) and the offset in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    path: PathBuf,
    inode: u64,
    offset: u64,
    rest: Vec<u8>,
}

/// Renders one stored record as the client sees it; None when the query leaves it out.
pub fn render(record: &[u8], query: &LogQuery) -> Option<Vec<u8>> {
    let mut parts = record.splitn(4, |byte| *byte == b' ');
    let (time, _stream, tag, text) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if let Some(since) = query.since {
        let written = std::str::from_utf8(time).ok()?.parse::<Timestamp>().ok()?;
        if written.as_second() < since {
            return None;
        }
    }
    let mut line = Vec::with_capacity(record.len());
    if query.timestamps {
        line.extend_from_slice(time);
        line.push(b' ');
    }
    line.extend_from_slice(text);
    if tag == b"F" {
        line.push(b'\n');
    }
    Some(line)
}

/// What is in the log now, and the place to go on from.
///
/// # Errors
/// The file system's.
pub fn read_so_far(path: &Path, query: &LogQuery) -> io::Result<(Vec<u8>, Place)> {
    let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
    let most = query.tail_lines.unwrap_or(MOST_TAIL_LINES).min(MOST_TAIL_LINES);
    let oldest = (1..64).take_while(|age| rotated(path, *age).exists()).last().unwrap_or(0);
    let mut place = Place { path: path.to_owned(), inode: 0, offset: 0, rest: Vec::new() };
    for age in (0..=oldest).rev() {
        let file = match File::open(rotated(path, age)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        place.inode = file.metadata()?.ino();
        place.offset = 0;
        let mut reader = BufReader::new(file);
        let mut record = Vec::new();
        while reader.read_until(b'\n', &mut record)? > 0 {
            if record.last() != Some(&b'\n') {
                break;
            }
            place.offset += record.len() as u64;
            record.pop();
            if let Some(line) = render(&record, query) {
                kept.push_back(line);
                if kept.len() > most {
                    kept.pop_front();
                }
            }
            record.clear();
        }
    }
    Ok((kept.into_iter().flatten().collect(), place))
}

impl Place {
    /// What came since. Follows the log over a rotation: the rest of the old file first, then the new one.
    ///
    /// # Errors
    /// The file system's.
    pub fn read_on(&mut self, query: &LogQuery) -> io::Result<Vec<u8>> {
        let inode = |path: &Path| fs::metadata(path).map(|data| data.ino()).ok();
        let Some(current) = inode(&self.path) else { return Ok(Vec::new()) };
        if self.inode == 0 {
            self.inode = current;
        }
        let age = (0..64).find(|age| inode(&rotated(&self.path, *age)) == Some(self.inode));
        let from = rotated(&self.path, age.unwrap_or(0));
        if age.is_none() {
            self.inode = current;
            self.offset = 0;
            self.rest.clear();
        }
        let mut file = File::open(&from)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(CHUNK).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        if bytes.is_empty() && age.is_some_and(|age| age > 0) {
            let newer = age.map_or(0, |age| age - 1);
            self.inode = inode(&rotated(&self.path, newer)).unwrap_or(current);
            self.offset = 0;
        }
        self.rest.extend_from_slice(&bytes);
        let mut shown = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let record: Vec<u8> = self.rest.drain(..=end).collect();
            shown.extend(render(&record[..end], query).unwrap_or_default());
        }
        Ok(shown)
    }
}
