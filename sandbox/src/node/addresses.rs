//! Each Pod's own loopback address, taken from the node's range and kept on disk, so that a Pod has one address all its life. It
//! never gives an address twice and never one of another node's range.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why there is no address.
#[derive(Debug, Error)]
pub enum AddressError {
    /// The range is not `a.b.c.d/n` with n from 16 to 30.
    #[error("--pod-cidr {0} is not an IPv4 range with a prefix from 16 to 30, for example 127.9.1.0/24")]
    Range(String),
    /// Every address is taken.
    #[error("no free address in {0}: delete Pods or widen --pod-cidr")]
    Exhausted(String),
    /// The file could not be written.
    #[error("keep addresses in {0}: {1}")]
    Write(String, io::Error),
}

/// The addresses of a node's Pods.
#[derive(Debug)]
pub struct Addresses {
    file: PathBuf,
    range: String,
    first: u32,
    count: u32,
    book: Book,
}

/// What is kept on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Book {
    /// Offset after the last one given: the next is looked for from there.
    next: u32,
    taken: BTreeMap<String, Ipv4Addr>,
}

impl Addresses {
    /// Opens the file in `state` for the range; addresses outside the range are dropped.
    ///
    /// # Errors
    /// [`AddressError::Range`] when the range is not one.
    pub fn open(state: &Path, range: &str) -> Result<Self, AddressError> {
        let bad = || AddressError::Range(range.to_owned());
        let (base, prefix) = range.split_once('/').ok_or_else(bad)?;
        let base = u32::from(base.parse::<Ipv4Addr>().map_err(|_| bad())?);
        let prefix: u32 = prefix.parse().map_err(|_| bad())?;
        if !(16..=30).contains(&prefix) {
            return Err(bad());
        }
        let size = 1_u32 << (32 - prefix);
        let first = (base & !(size - 1)) + 2;
        let count = size - 3;
        let file = state.join("addresses.json");
        let mut book: Book =
            fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        book.taken.retain(|_, address| (first..first + count).contains(&u32::from(*address)));
        Ok(Self { file, range: range.to_owned(), first, count, book })
    }

    /// The Pod's address, taken now if it has none. Freed addresses are used again as late as can be.
    ///
    /// # Errors
    /// [`AddressError`] when none is free or it cannot be kept.
    pub fn take(&mut self, uid: &str) -> Result<Ipv4Addr, AddressError> {
        if let Some(address) = self.book.taken.get(uid) {
            return Ok(*address);
        }
        let used: Vec<u32> = self.book.taken.values().map(|address| u32::from(*address)).collect();
        let start = self.book.next % self.count;
        let mut offsets = (0..self.count).map(|step| (start + step) % self.count);
        let offset = offsets
            .find(|offset| !used.contains(&(self.first + offset)))
            .ok_or_else(|| AddressError::Exhausted(self.range.clone()))?;
        let address = Ipv4Addr::from(self.first + offset);
        self.book.next = offset + 1;
        self.book.taken.insert(uid.to_owned(), address);
        self.keep().inspect_err(|_| {
            self.book.taken.remove(uid);
        })?;
        Ok(address)
    }

    /// Gives an address back.
    ///
    /// # Errors
    /// [`AddressError::Write`] when that cannot be kept.
    pub fn release(&mut self, uid: &str) -> Result<(), AddressError> {
        if self.book.taken.remove(uid).is_some() { self.keep() } else { Ok(()) }
    }

    fn keep(&mut self) -> Result<(), AddressError> {
        let failed = |error| AddressError::Write(self.file.display().to_string(), error);
        let temporary = self.file.with_extension("json.new");
        let bytes = serde_json::to_vec(&self.book).map_err(|error| failed(error.into()))?;
        fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &self.file)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_its_address_over_a_restart_and_a_freed_one_rests() {
        let state = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(state.path(), "127.9.3.0/24").unwrap();
        let one = addresses.take("one").unwrap();
        let two = addresses.take("two").unwrap();
        assert_ne!(one, two);
        assert_eq!(one, Ipv4Addr::new(127, 9, 3, 2), "the node itself has .1");
        addresses.release("one").unwrap();
        addresses.take("brief").unwrap();
        addresses.release("brief").unwrap();
        let mut again = Addresses::open(state.path(), "127.9.3.0/24").unwrap();
        assert_eq!(again.take("two").unwrap(), two);
        assert_eq!(
            again.take("three").unwrap(),
            Ipv4Addr::new(127, 9, 3, 5),
            "the one just freed is not given at once"
        );
    }

    #[test]
    fn a_full_range_is_refused_and_a_bad_one_too() {
        let state = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(state.path(), "127.9.3.0/30").unwrap();
        addresses.take("one").unwrap();
        assert!(matches!(addresses.take("two"), Err(AddressError::Exhausted(_))));
        assert!(matches!(Addresses::open(state.path(), "127.9.3.0"), Err(AddressError::Range(_))));
    }
}
