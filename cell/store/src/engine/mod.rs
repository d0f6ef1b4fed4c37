//! What an operation does, written once over a key-value view: it reads through [`Kv`] and answers with the changes to make. It
//! touches no disk and no clock, so the embedded engine and the in-memory one cannot differ.

mod keys;
mod logs;
mod ranges;
mod rows;
mod scan;
mod sweep;

use cell_proto::v1::{DescribeReply, WriteReply};

pub use keys::{bounded as check_key, name as check_name};
pub(crate) use ranges::untangled;
pub(crate) use sweep::step as sweep_step;

use crate::{Reply, Request, StoreError};

/// The newest on-disk format this version reads and the one it writes; since 2, rows lie by token.
pub const FORMAT: u32 = 2;

/// The most bytes of entries or rows in one answer; a reader goes on from where it stopped.
pub const ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Bodies up to this many bytes come even where bodies are left out.
pub const SMALL_BODY: usize = 128;

/// Which kind of thing a key names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Space {
    /// Head rows by log.
    Heads,
    /// Statics by log and segment.
    Segments,
    /// Entries by log, segment and number.
    Entries,
    /// Cursors by log and name.
    Cursors,
    /// Rows by table, token, partition and clustering key.
    Rows,
    /// Range tombstones by table, token, partition and range.
    Ranges,
    /// Ranges whose rows are not all dropped yet, by table, token, partition and range.
    Sweeps,
}

impl Space {
    /// All of them, with their names on disk.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Heads, "heads"),
        (Self::Segments, "segments"),
        (Self::Entries, "entries"),
        (Self::Cursors, "cursors"),
        (Self::Rows, "rows"),
        (Self::Ranges, "ranges"),
        (Self::Sweeps, "sweeps"),
    ];
}

/// One change: a value to put, or none to remove.
pub type Change = (Space, Vec<u8>, Option<Vec<u8>>);

/// What a visitor of a scan is given: key and value; it answers whether it wants more.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<bool, StoreError> + 'a;

/// Where a scan goes: keys in `[from, to)`.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The kind of keys.
    pub space: Space,
    /// Inclusive.
    pub from: Vec<u8>,
    /// Exclusive.
    pub to: Vec<u8>,
    /// From the end.
    pub reverse: bool,
}

/// An ordered view of everything stored.
pub trait Kv {
    /// The value of a key.
    ///
    /// # Errors
    /// When it cannot be read.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Visits keys in order until the visitor has enough.
    ///
    /// # Errors
    /// When something cannot be read.
    fn scan(&self, scan: Scan, visit: &mut Visit<'_>) -> Result<(), StoreError>;
}

/// Does one operation: the answer, and the changes that must be made together before it is given.
///
/// # Errors
/// [`StoreError::Invalid`] and what [`Kv`] says.
pub fn execute(kv: &dyn Kv, request: Request, now_s: i64) -> Result<(Reply, Vec<Change>), StoreError> {
    match request {
        Request::Describe(_) => Ok((
            Reply::Describe(DescribeReply {
                engine: "embedded".to_owned(),
                format_version: FORMAT.cast_signed(),
                storage_cell: String::new(),
            }),
            Vec::new(),
        )),
        Request::ReadHead(request) => logs::read_head(kv, &request),
        Request::CasHead(request) => logs::cas_head(kv, request),
        Request::ListHeads(request) => logs::list_heads(kv, &request),
        Request::OpenSegment(request) => logs::open_segment(kv, request),
        Request::CasSegment(request) => logs::cas_segment(kv, request),
        Request::Append(request) => logs::append(kv, request),
        Request::ReadSegment(request) => logs::read_segment(kv, &request),
        Request::DropSegment(request) => logs::drop_segment(kv, &request),
        Request::ReadCursor(request) => logs::read_cursor(kv, &request),
        Request::WriteCursor(request) => logs::write_cursor(kv, &request),
        Request::Write(request) => Ok((Reply::Write(WriteReply {}), rows::write(kv, request, now_s)?)),
        Request::ReadRows(request) => Ok((Reply::Rows(rows::read(kv, &request, now_s)?), Vec::new())),
        Request::ScanRows(request) => Ok((Reply::Scan(scan::scan(kv, &request, now_s)?), Vec::new())),
    }
}
