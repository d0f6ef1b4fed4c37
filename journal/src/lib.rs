//! The end of a database's journal after a crash or a power cut. The database trusts what looks like a finished write; a write whose
//! pages reached the disk only in part can look so, and would keep the store from opening. It was never acknowledged, since nothing is
//! before it is synced, so it is cut off here first. Damage that whole writes follow is another matter: that is refused, never cut.
//!
//! The layout read here is that of fjall's third format: a start, its items, an end with a checksum and a fixed trailer. What the writes
//! mean is their store's matter.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const TRAILER: &[u8] = b"FJL\x03";

/// What was found at the end of a journal.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// Nothing, or only reserved space, follows the last whole write.
    Clean,
    /// A write cut short begins here.
    Torn { at: usize },
    /// Something unreadable begins here, and whole writes follow it.
    Damaged { at: usize },
}

/// Cuts off a torn last write of the newest journal in `dir`, a database's folder; nothing is done where there is none. To be called
/// before the database is opened, by whoever has it alone.
///
/// # Errors
/// A sentence when the journal is damaged before its end; otherwise what the disk said.
pub fn mend(dir: &Path) -> Result<(), io::Error> {
    if !dir.exists() {
        return Ok(());
    }
    let Some(path) = newest_journal(dir)? else { return Ok(()) };
    let mut bytes = Vec::new();
    File::open(&path)?.read_to_end(&mut bytes)?;
    let written = written_len(&bytes);
    match inspect(bytes.get(..written).unwrap_or_default()) {
        End::Clean => Ok(()),
        End::Torn { at } => {
            tracing::warn!(at, bytes = written - at, "cut off a write that a crash left unfinished");
            let file = File::options().write(true).open(&path)?;
            file.set_len(at as u64)?;
            file.sync_all()
        }
        End::Damaged { at } => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} cannot be read at byte {at}, and whole writes follow", path.display()),
        )),
    }
}

/// Space is reserved in advance, so a journal ends in many zeros; they are skipped by the page.
fn written_len(bytes: &[u8]) -> usize {
    const PAGE: [u8; 4096] = [0; 4096];
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_last_chunk::<4096>() {
        if *tail != PAGE {
            break;
        }
        rest = head;
    }
    rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// Journals are numbered upwards; only the last is written to, the others were synced when they were left.
fn newest_journal(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jnl"));
        let Some(number) = number.and_then(|number| number.parse().ok()) else { continue };
        if newest.as_ref().is_none_or(|(highest, _)| number > *highest) {
            newest = Some((number, path));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// Judges the written part of a journal, without the zeros after it. Checksums of earlier writes are left to the database, which
/// refuses a journal where one does not fit: only the last write can be torn.
fn inspect(written: &[u8]) -> End {
    let mut rest = written;
    let mut last: Option<(usize, Write<'_>)> = None;
    while !rest.is_empty() {
        let at = written.len() - rest.len();
        let Some((write, after)) = read_write(rest) else {
            return if whole_write_follows(rest) { End::Damaged { at } } else { End::Torn { at } };
        };
        last = Some((at, write));
        rest = after;
    }
    match last {
        Some((at, write)) if !write.is_whole() => End::Torn { at },
        _ => End::Clean,
    }
}

fn whole_write_follows(unreadable: &[u8]) -> bool {
    let starts = unreadable.iter().enumerate().skip(1).filter(|(_, byte)| **byte == START);
    let mut writes = starts.filter_map(|(at, _)| unreadable.get(at..).and_then(read_write));
    writes.any(|(write, _)| write.is_whole())
}

/// A write whose form is right; its content may not be.
struct Write<'a> {
    items: &'a [u8],
    checksum: u64,
}

impl Write<'_> {
    fn is_whole(&self) -> bool {
        xxh3_64(self.items) == self.checksum
    }
}

/// The write at the beginning and what follows it, if its form is right.
fn read_write(bytes: &[u8]) -> Option<(Write<'_>, &[u8])> {
    let mut rest = bytes;
    if take::<1>(&mut rest)? != [START] {
        return None;
    }
    let count = u32::from_le_bytes(take(&mut rest)?);
    let _sequence = take::<8>(&mut rest)?;
    let body = rest;
    for _ in 0..count {
        skip_item(&mut rest)?;
    }
    let items = body.get(..body.len() - rest.len())?;
    if take::<1>(&mut rest)? != [END] {
        return None;
    }
    let checksum = u64::from_le_bytes(take(&mut rest)?);
    (take::<4>(&mut rest)? == TRAILER).then_some((Write { items, checksum }, rest))
}

fn skip_item(rest: &mut &[u8]) -> Option<()> {
    match take::<1>(rest)? {
        [CLEAR] => {
            let _keyspace = take::<8>(rest)?;
        }
        [ITEM] => {
            let _kind = take::<1>(rest)?;
            let _compression = take::<1>(rest)?;
            let _keyspace = take::<8>(rest)?;
            let key = usize::from(u16::from_le_bytes(take(rest)?));
            let _plain = take::<4>(rest)?;
            let stored = u32::from_le_bytes(take(rest)?) as usize;
            *rest = rest.get(key.checked_add(stored)?..)?;
        }
        _ => return None,
    }
    Some(())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: &[u8]) -> Vec<u8> {
        let mut item = vec![ITEM, 0, 0];
        item.extend(1u64.to_le_bytes());
        item.extend(3u16.to_le_bytes());
        item.extend((value.len() as u32).to_le_bytes());
        item.extend((value.len() as u32).to_le_bytes());
        item.extend(b"key");
        item.extend(value);
        let mut bytes = vec![START];
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(9u64.to_le_bytes());
        bytes.extend(&item);
        bytes.push(END);
        bytes.extend(xxh3_64(&item).to_le_bytes());
        bytes.extend(TRAILER);
        bytes
    }

    #[test]
    fn every_cut_of_the_last_write_is_torn_and_none_is_taken_for_whole() {
        let (first, second) = (write(b"one"), write(b"two FJL\x03 with a trailer inside"));
        let both = [first.clone(), second].concat();
        assert_eq!(inspect(&both), End::Clean);
        for cut in first.len() + 1..both.len() {
            assert_eq!(inspect(&both[..cut]), End::Torn { at: first.len() }, "cut at {cut}");
        }
    }

    #[test]
    fn every_flipped_byte_of_the_last_write_is_noticed() {
        let (first, second) = (write(b"one"), write(b"two"));
        let both = [first.clone(), second.clone()].concat();
        for at in 0..second.len() {
            // The sequence number is not under the checksum; the database does not look at it either.
            if (5..13).contains(&at) {
                continue;
            }
            let mut bytes = both.clone();
            bytes[first.len() + at] ^= 0x40;
            assert_eq!(inspect(&bytes), End::Torn { at: first.len() }, "byte {at}");
        }
    }

    #[test]
    fn an_earlier_write_is_never_cut_off() {
        let both = [write(b"one"), write(b"two")].concat();
        let first = both.len() / 2;
        for at in 0..first {
            let mut bytes = both.clone();
            bytes[at] ^= 0x40;
            let end = inspect(&bytes);
            // Where only the checksum tells, the database refuses it.
            assert!(end == End::Damaged { at: 0 } || end == End::Clean, "byte {at}: {end:?}");
        }
    }
}
