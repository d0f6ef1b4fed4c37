//! An entry as it is stored. One whose kind this release does not know is an error and never nothing: whoever skipped it would apply the
//! log as if it had not been written, and say so.

use cell_proto::v1::{Entry, StoredEntry};
use prost::Message as _;

/// Why an entry cannot be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unreadable {
    /// The bytes are no entry.
    #[error("entry {0} cannot be decoded; restore the log's store")]
    Bytes(u64),
    /// A newer release wrote it.
    #[error("entry {0} is of a kind that this release does not know; run the release that wrote it")]
    Kind(u64),
}

/// The entry that was stored.
///
/// # Errors
/// [`Unreadable`], which names its number.
pub fn entry_of(stored: &StoredEntry) -> Result<Entry, Unreadable> {
    let entry = Entry::decode(stored.body.as_slice()).map_err(|_| Unreadable::Bytes(stored.number))?;
    if entry.change.as_ref().is_some_and(|change| change.kind.is_none()) {
        return Err(Unreadable::Kind(stored.number));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::Change;

    use super::*;

    #[test]
    fn an_entry_of_a_kind_from_a_later_release_is_an_error_and_never_nothing() {
        // `Entry.change` holding field 99 of its oneof, which nobody knows yet.
        let empty = Entry { number: 7, change: Some(Change { kind: None }), ..Entry::default() };
        let stored = |body: Vec<u8>| StoredEntry { number: 7, body, ..StoredEntry::default() };
        assert_eq!(entry_of(&stored(empty.encode_to_vec())), Err(Unreadable::Kind(7)));
        assert_eq!(entry_of(&stored(vec![0xff])), Err(Unreadable::Bytes(7)));
        let barrier = Entry { number: 7, ..Entry::default() };
        assert_eq!(entry_of(&stored(barrier.encode_to_vec())), Ok(barrier));
    }
}
