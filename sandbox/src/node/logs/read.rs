//! Reads a log for a request: across rotated files, from the wanted line on, and on as it grows. Bounded: one read takes at most
//! 64 KiB, however long the log is.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::query::LogQuery;
use super::rotated;

const CHUNK: u64 = 64 * 1024;
/// More rotated files than any writer keeps.
const MOST_FILES: u32 = 64;

/// Tries to find the file that follows, and the pause between them: a rotation renames one file after the other.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(5);

/// A place in a growing log: the file being read, at where reading goes on. It stays open, so that its inode is no other's.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// None until there is a file.
    file: Option<File>,
    rest: Vec<u8>,
}

/// One read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What the client sees of it: maybe nothing.
    pub shown: Vec<u8>,
    /// There was something to read: reading on may give more at once.
    pub more: bool,
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

impl Place {
    /// Where reading begins: at the oldest record there is, or at the last so many lines.
    ///
    /// # Errors
    /// The file system's.
    pub fn of(path: &Path, query: &LogQuery) -> io::Result<Self> {
        let mut place = Self { path: path.to_owned(), file: None, rest: Vec::new() };
        let mut wanted = query.tail_lines;
        for age in 0..MOST_FILES {
            let mut file = match File::open(rotated(path, age)) {
                Ok(file) => file,
                // In a rotation the newest is missing for a moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound && age == 0 => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            };
            let begin = match wanted {
                None => None,
                Some(lines) => match start_of_last(&mut file, lines)? {
                    Start::At(offset) => Some(offset),
                    Start::Before(lacking) => {
                        wanted = Some(lacking);
                        None
                    }
                },
            };
            file.seek(SeekFrom::Start(begin.unwrap_or(0)))?;
            place.file = Some(file);
            if begin.is_some() {
                break;
            }
        }
        Ok(place)
    }

    /// What comes next. Follows the log over a rotation: the rest of the old file first, then the new one.
    ///
    /// # Errors
    /// The file system's.
    pub fn read_on(&mut self, query: &LogQuery) -> io::Result<Piece> {
        let nothing = Piece { shown: Vec::new(), more: false };
        if self.file.is_none() {
            self.file = opened(&self.path)?;
        }
        let Some(file) = self.file.as_mut() else { return Ok(nothing) };
        let mut bytes = Vec::new();
        file.take(CHUNK).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            let Some(newer) = newer(file, &self.path)? else { return Ok(nothing) };
            // Something may have been written between the look at its end and its rotation.
            file.take(CHUNK).read_to_end(&mut bytes)?;
            if bytes.is_empty() {
                self.file = Some(newer);
                self.rest.clear();
                return Ok(Piece { more: true, ..nothing });
            }
        }
        self.rest.extend_from_slice(&bytes);
        let mut shown = Vec::new();
        let mut begin = 0;
        while let Some(length) = self.rest.get(begin..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n')) {
            shown.extend(render(&self.rest[begin..begin + length], query).unwrap_or_default());
            begin += length + 1;
        }
        self.rest.drain(..begin);
        Ok(Piece { shown, more: true })
    }
}

fn opened(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file that follows `current` in a log; none when it is the newest.
fn newer(current: &File, path: &Path) -> io::Result<Option<File>> {
    let own = current.metadata()?.ino();
    // Files only grow older meanwhile, so none is missed by looking at the newest first.
    let age = || (0..MOST_FILES).find(|age| fs::metadata(rotated(path, *age)).is_ok_and(|data| data.ino() == own));
    for _ in 0..TRIES {
        let found = match age() {
            Some(0) => return Ok(None),
            Some(mine) => {
                let next = opened(&rotated(path, mine - 1))?;
                // Unless another rotation came between: then it is not the one that follows.
                next.filter(|_| age() == Some(mine))
            }
            None => oldest(path)?,
        };
        if found.is_some() {
            return Ok(found);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

/// Where a whole round of rotations went by: the oldest there is.
fn oldest(path: &Path) -> io::Result<Option<File>> {
    for age in (0..MOST_FILES).rev() {
        if let Some(file) = opened(&rotated(path, age))? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Where the last so many lines of a file begin.
enum Start {
    /// At this offset.
    At(u64),
    /// Before it: so many are lacking.
    Before(usize),
}

/// Looks for it from the end, a piece at a time. A record cut in two by a long line counts as one of the lines.
fn start_of_last(file: &mut File, lines: usize) -> io::Result<Start> {
    let mut end = file.metadata()?.len();
    // The newline that ends the last line begins none.
    let mut left = lines.saturating_add(1);
    let mut piece = Vec::new();
    while end > 0 {
        let begin = end.saturating_sub(CHUNK);
        file.seek(SeekFrom::Start(begin))?;
        piece.clear();
        file.by_ref().take(end - begin).read_to_end(&mut piece)?;
        for (at, _) in piece.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            left -= 1;
            if left == 0 {
                return Ok(Start::At(begin + at as u64 + 1));
            }
        }
        end = begin;
    }
    // Of a file that is not empty the first line begins at its beginning.
    Ok(if left == 1 && lines > 0 { Start::At(0) } else { Start::Before(left.saturating_sub(1).min(lines)) })
}
