//! Rows between frames and [`Row`]s without decoding a value: cells are the frame's own bytes.

use bytes::Bytes;
use scylla::deserialize::row::ColumnIterator;
use scylla::errors::{DeserializationError, SerializationError};
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;

use crate::row::{Cell, Row};

/// How many columns of each kind a result has: token, partition, clustering, values, then write time and TTL of each value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub partition: usize,
    pub clustering: usize,
    pub statics: usize,
    pub regulars: usize,
}

impl Shape {
    /// Reads one result row: the row itself (none when the partition holds only static cells), and its partition's static cells.
    pub fn read(self, columns: ColumnIterator<'_, '_>) -> Result<(Option<Row>, Option<Row>), DeserializationError> {
        let mut raw: Vec<Option<Bytes>> =
            Vec::with_capacity(1 + self.partition + self.clustering + 3 * (self.statics + self.regulars));
        for column in columns {
            raw.push(column?.slice.map(|slice| slice.to_bytes()));
        }
        let mut raw = raw.into_iter();
        let token = raw.next().flatten().map_or(0, |bytes| integer(&bytes));
        let partition: Vec<Bytes> = raw.by_ref().take(self.partition).flatten().collect();
        let clustering: Vec<Option<Bytes>> = raw.by_ref().take(self.clustering).collect();
        let values: Vec<Option<Bytes>> = raw.by_ref().take(self.statics + self.regulars).collect();
        let (mut statics, mut regulars) = (Vec::new(), Vec::with_capacity(self.regulars));
        for (column, value) in values.into_iter().enumerate() {
            let (written, ttl) = (raw.next().flatten(), raw.next().flatten());
            let (Some(value), Some(written)) = (value, written) else { continue };
            let cell = Cell {
                column: u16::try_from(column).unwrap_or(u16::MAX),
                value,
                written_us: integer(&written),
                ttl_s: ttl.map_or(0, |ttl| u32::try_from(integer(&ttl)).unwrap_or(0)),
            };
            if column < self.statics { statics.push(cell) } else { regulars.push(cell) }
        }
        let only_statics = self.clustering > 0 && clustering.iter().all(Option::is_none);
        let row = (!only_statics).then(|| Row {
            token,
            partition: partition.clone(),
            clustering: Some(clustering.into_iter().map(Option::unwrap_or_default).collect()),
            cells: regulars,
        });
        let statics = (!statics.is_empty()).then(|| Row { token, partition, clustering: None, cells: statics });
        Ok((row, statics))
    }
}

/// A big-endian integer of up to 8 bytes.
fn integer(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    bytes.iter().fold(if negative { -1 } else { 0 }, |value, byte| (value << 8) | i64::from(*byte))
}

/// One bound value of a statement.
pub(super) enum Value<'a> {
    Raw(&'a [u8]),
    Long(i64),
    Int(i32),
    /// The column is left as it is.
    Unset,
}

/// The values of a statement, in its order.
pub(super) struct Values<'a>(pub Vec<Value<'a>>);

impl SerializeRow for Values<'_> {
    fn serialize(
        &self,
        _context: &RowSerializationContext<'_>,
        writer: &mut RowWriter,
    ) -> Result<(), SerializationError> {
        for value in &self.0 {
            let cell = writer.make_cell_writer();
            let written = match value {
                Value::Raw(bytes) => cell.set_value(bytes),
                Value::Long(number) => cell.set_value(&number.to_be_bytes()),
                Value::Int(number) => cell.set_value(&number.to_be_bytes()),
                Value::Unset => Ok(cell.set_unset()),
            };
            written.map_err(SerializationError::new)?;
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_width_keep_their_sign() {
        assert_eq!(integer(&[]), 0);
        assert_eq!(integer(&[0xff, 0xff, 0xff, 0xfe]), -2);
        assert_eq!(integer(&i64::MIN.to_be_bytes()), i64::MIN);
        assert_eq!(integer(&1_700_000_000_000_000_i64.to_be_bytes()), 1_700_000_000_000_000);
    }
}
