//! A row as both sides see it: keys and cells as the engines serialise them, each cell with its write time and what is left of its time to
//! live. Values are never decoded, so that nothing can be changed on the way.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3;

/// One cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Index of the column in its table.
    pub column: u16,
    /// As serialised.
    pub value: Bytes,
    /// Microseconds since the Unix epoch.
    pub written_us: i64,
    /// Remaining seconds; 0: for ever.
    pub ttl_s: u32,
}

/// One row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Of the partition.
    pub token: i64,
    /// The partition key's columns, as serialised.
    pub partition: Vec<Bytes>,
    /// The clustering columns; none: the partition's static cells.
    pub clustering: Option<Vec<Bytes>>,
    /// Only cells that have a value, by column.
    pub cells: Vec<Cell>,
}

impl Row {
    /// Names the row, in 128 bits.
    pub fn key_hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        let mut add = |parts: &[Bytes]| {
            for part in parts {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        };
        add(&self.partition);
        match &self.clustering {
            Some(clustering) => add(clustering),
            None => hash.update(b"static"),
        }
        hash.digest128()
    }

    /// What it holds but for times to live, in 128 bits.
    pub fn content_hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        for cell in &self.cells {
            hash.update(&cell.column.to_le_bytes());
            hash.update(&cell.written_us.to_le_bytes());
            hash.update(&[u8::from(cell.ttl_s > 0)]);
            hash.update(&(cell.value.len() as u64).to_le_bytes());
            hash.update(&cell.value);
        }
        hash.digest128()
    }

    /// Key and content together, in 128 bits.
    pub fn hash(&self) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(&self.key_hash().to_le_bytes());
        hash.update(&self.content_hash().to_le_bytes());
        hash.digest128()
    }

    /// Of its newest cell; none when it has no cell.
    pub fn newest_us(&self) -> Option<i64> {
        self.cells.iter().map(|cell| cell.written_us).max()
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        let keys: usize = self.partition.iter().chain(self.clustering.iter().flatten()).map(Bytes::len).sum();
        keys + self.cells.iter().map(|cell| cell.value.len() + 16).sum::<usize>()
    }

    /// The cell of a column.
    pub fn cell(&self, column: u16) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.column == column)
    }

    /// Its cells by write time and time to live: each group is one statement. The first one outlives the others; with it the row
    /// itself is made to be, so that no row stays when all of its cells have expired.
    pub fn groups(&self) -> Vec<(i64, u32, Vec<&Cell>)> {
        let mut groups: Vec<(i64, u32, Vec<&Cell>)> = Vec::new();
        for cell in &self.cells {
            match groups.iter_mut().find(|(at, ttl, _)| (*at, *ttl) == (cell.written_us, cell.ttl_s)) {
                Some((_, _, cells)) => cells.push(cell),
                None => groups.push((cell.written_us, cell.ttl_s, vec![cell])),
            }
        }
        let life = |ttl: u32| if ttl == 0 { u32::MAX } else { ttl };
        groups.sort_by_key(|(at, ttl, _)| std::cmp::Reverse((life(*ttl), *at)));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(column: u16, written_us: i64, ttl_s: u32) -> Cell {
        Cell { column, value: Bytes::from_static(b"v"), written_us, ttl_s }
    }

    fn row(cells: Vec<Cell>) -> Row {
        Row { token: 1, partition: vec![Bytes::from_static(b"p")], clustering: Some(vec![]), cells }
    }

    #[test]
    fn cells_of_one_write_are_one_statement_and_the_longest_lived_comes_first() {
        let row = row(vec![cell(0, 5, 100), cell(1, 9, 0), cell(2, 5, 100), cell(3, 7, 0), cell(4, 9, 0)]);
        let groups = row.groups();
        let shape: Vec<(i64, u32, Vec<u16>)> =
            groups.iter().map(|(at, ttl, cells)| (*at, *ttl, cells.iter().map(|cell| cell.column).collect())).collect();
        assert_eq!(shape, [(9, 0, vec![1, 4]), (7, 0, vec![3]), (5, 100, vec![0, 2])]);
    }

    #[test]
    fn a_hash_tells_where_one_column_ends() {
        let two = |a: &'static [u8], b: &'static [u8]| Row {
            partition: vec![Bytes::from_static(a), Bytes::from_static(b)],
            ..row(vec![])
        };
        assert_ne!(two(b"ab", b"c").key_hash(), two(b"a", b"bc").key_hash());
        let statics = Row { clustering: None, ..row(vec![]) };
        assert_ne!(statics.key_hash(), row(vec![]).key_hash());
        assert_ne!(row(vec![cell(0, 1, 0)]).content_hash(), row(vec![cell(0, 2, 0)]).content_hash());
        assert_eq!(row(vec![cell(0, 1, 7)]).content_hash(), row(vec![cell(0, 1, 9)]).content_hash());
    }
}
