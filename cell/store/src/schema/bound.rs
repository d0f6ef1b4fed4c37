//! Bounds of clustering keys: any bytes, not only whole keys, become a comparison of typed values that holds for the same rows.

use super::key::{KeyColumn, KeyValue};

/// One side of a range of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Every row is within.
    Open,
    /// No row is within.
    Empty,
    /// Rows from this key on (a start), or up to and with it (an end).
    Inclusive(Vec<KeyValue>),
    /// Rows after this key (a start), or before it (an end).
    Exclusive(Vec<KeyValue>),
}

/// What bytes are among whole keys.
enum Place {
    /// The lowest key at or above them.
    At(Vec<KeyValue>),
    /// Right after this key: the bytes go on where it ends.
    After(Vec<KeyValue>),
    /// Above every key.
    Beyond,
}

fn place(columns: &[KeyColumn], mut bytes: &[u8]) -> Place {
    let mut values = Vec::with_capacity(columns.len());
    for column in columns {
        let width = column.kind.width().unwrap_or(bytes.len());
        let mut padded = bytes.get(..width.min(bytes.len())).unwrap_or_default().to_vec();
        padded.resize(width, 0);
        let Some(value) = column.kind.value(&padded) else { return Place::Beyond };
        values.push(value);
        bytes = bytes.get(width..).unwrap_or_default();
    }
    if bytes.is_empty() { Place::At(values) } else { Place::After(values) }
}

fn is_lowest(values: &[KeyValue]) -> bool {
    values.iter().all(|value| {
        value.bytes().iter().all(|byte| *byte == 0) && !matches!(value, KeyValue::Blob(b) if !b.is_empty())
    })
}

pub(super) fn start(columns: &[KeyColumn], bytes: &[u8]) -> Bound {
    match place(columns, bytes) {
        Place::At(values) if is_lowest(&values) => Bound::Open,
        Place::At(values) => Bound::Inclusive(values),
        Place::After(values) if values.is_empty() => Bound::Empty,
        Place::After(values) => Bound::Exclusive(values),
        Place::Beyond => Bound::Empty,
    }
}

pub(super) fn end(columns: &[KeyColumn], bytes: &[u8]) -> Bound {
    match place(columns, bytes) {
        Place::At(values) if values.is_empty() || is_lowest(&values) => Bound::Empty,
        Place::At(values) => Bound::Exclusive(values),
        Place::After(values) if values.is_empty() => Bound::Open,
        Place::After(values) => Bound::Inclusive(values),
        Place::Beyond => Bound::Open,
    }
}
