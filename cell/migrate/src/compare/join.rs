//! Two streams of rows by token, side by side: says which rows have no equal on the other side. Pure. The order within a partition may
//! differ between the sides; only rows still unmatched are remembered, and past the partition's token they are mismatches.

use std::collections::{HashMap, VecDeque};

use super::classify::{Class, classify};
use crate::ranges::Digest;
use crate::row::Row;

/// Unmatched rows of one partition remembered on a side.
const MAX_PENDING: usize = 100_000;

/// A row to look at again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    /// Its key.
    pub key: Row,
    /// What it looked like.
    pub class: Class,
}

struct Read {
    row: Row,
    read_s: u64,
    slack_s: u64,
}

/// One side's stream.
#[derive(Default)]
pub(super) struct Side {
    rows: VecDeque<Read>,
    pending: HashMap<u128, Read>,
    digest: Digest,
    ended: bool,
}

impl Side {
    /// It has no row to go on with.
    pub fn wants(&self) -> bool {
        self.rows.is_empty() && !self.ended
    }

    /// A page: its rows, when it was read, how inexact that is.
    pub fn push(&mut self, rows: Vec<Row>, read_s: u64, slack_s: u64) {
        self.rows.extend(rows.into_iter().map(|row| Read { row, read_s, slack_s }));
    }

    /// There are no more.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The next row, if it has this token.
    fn take(&mut self, token: i64) -> Option<Read> {
        let read = self.rows.pop_front_if(|read| read.row.token == token)?;
        self.digest.push(read.row.hash());
        Some(read)
    }

    fn token(&self) -> Option<i64> {
        self.rows.front().map(|read| read.row.token)
    }
}

/// The join.
#[derive(Default)]
pub(super) struct Join {
    source: Side,
    target: Side,
    pending_token: Option<i64>,
}

impl Join {
    /// Both, to be filled.
    pub fn sides(&mut self) -> (&mut Side, &mut Side) {
        (&mut self.source, &mut self.target)
    }

    /// Both are at their end.
    pub fn has_ended(&self) -> bool {
        [&self.source, &self.target].iter().all(|side| side.ended && side.rows.is_empty())
    }

    /// Where it is.
    pub fn token(&self) -> Option<i64> {
        [self.source.token(), self.target.token()].into_iter().flatten().min()
    }

    /// Of the rows compared so far, in the order they came in.
    pub fn digests(&self) -> (Digest, Digest) {
        (self.source.digest, self.target.digest)
    }

    /// Compares as far as both sides have rows; answers how many rows of the source were compared.
    ///
    /// # Errors
    /// In words, when a partition has too many unmatched rows to remember.
    pub fn step(&mut self, candidates: &mut Vec<Candidate>) -> Result<u64, String> {
        let mut compared = 0;
        while !self.source.wants() && !self.target.wants() {
            let (ours, theirs) = (self.source.token(), self.target.token());
            let Some(token) = [ours, theirs].into_iter().flatten().min() else { break };
            if self.pending_token.is_some_and(|pending| pending < token) {
                self.flush(candidates);
            }
            self.pending_token = Some(token);
            let left = self.source.take(token);
            let right = self.target.take(token);
            compared += u64::from(left.is_some());
            match (left, right) {
                (Some(left), Some(right)) if same_key(&left.row, &right.row) => judge(&left, &right, candidates),
                (left, right) => {
                    if let Some(left) = left {
                        match self.target.pending.remove(&left.row.key_hash()) {
                            Some(right) => judge(&left, &right, candidates),
                            None => drop(self.source.pending.insert(left.row.key_hash(), left)),
                        }
                    }
                    if let Some(right) = right {
                        match self.source.pending.remove(&right.row.key_hash()) {
                            Some(left) => judge(&left, &right, candidates),
                            None => drop(self.target.pending.insert(right.row.key_hash(), right)),
                        }
                    }
                }
            }
            if self.source.pending.len().max(self.target.pending.len()) > MAX_PENDING {
                return Err(format!(
                    "the partition at token {token} has more than {MAX_PENDING} rows that only one side has"
                ));
            }
        }
        if self.has_ended() {
            self.flush(candidates);
        }
        Ok(compared)
    }

    fn flush(&mut self, candidates: &mut Vec<Candidate>) {
        for (side, class) in [(&mut self.source, Class::Missing), (&mut self.target, Class::Extra)] {
            candidates.extend(side.pending.drain().map(|(_, read)| Candidate { key: key(read.row), class }));
        }
    }
}

fn key(row: Row) -> Row {
    Row { cells: vec![], ..row }
}

fn same_key(a: &Row, b: &Row) -> bool {
    a.partition == b.partition && a.clustering == b.clustering
}

fn judge(left: &Read, right: &Read, candidates: &mut Vec<Candidate>) {
    let slack = left.read_s.abs_diff(right.read_s) + left.slack_s + right.slack_s + 2;
    if let Some(class) = classify(Some(&left.row), Some(&right.row), slack) {
        candidates.push(Candidate { key: key(left.row.clone()), class });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::row::Cell;

    fn row(token: i64, key: u8, value: u8) -> Row {
        let cell = Cell { column: 0, value: Bytes::copy_from_slice(&[value]), written_us: 1, ttl_s: 0 };
        let partition = vec![Bytes::copy_from_slice(&token.to_be_bytes())];
        Row { token, partition, clustering: Some(vec![Bytes::copy_from_slice(&[key])]), cells: vec![cell] }
    }

    type Table = BTreeMap<(i64, u8), u8>;

    fn table() -> impl Strategy<Value = Table> {
        prop::collection::btree_map((0_i64..6, 0_u8..6), 0_u8..2, 0..24)
    }

    /// Rows in token order, the keys of a partition in one order or the other.
    fn stream(table: &Table, reversed: bool) -> Vec<Row> {
        let mut rows: Vec<Row> = table.iter().map(|((token, key), value)| row(*token, *key, *value)).collect();
        if reversed {
            rows.reverse();
            rows.sort_by_key(|row| row.token);
        }
        rows
    }

    proptest! {
        #[test]
        fn exactly_what_differs_is_found_whatever_the_pages_and_the_order(
            source in table(), target in table(), reversed in any::<bool>(), page in 1_usize..7, other_page in 1_usize..7,
        ) {
            let (mut join, mut candidates, mut compared) = (Join::default(), Vec::new(), 0);
            let (ours, theirs) = (stream(&source, false), stream(&target, reversed));
            let (mut ours, mut theirs) = (ours.chunks(page), theirs.chunks(other_page));
            while !join.has_ended() {
                let (left, right) = join.sides();
                for (side, pages) in [(left, &mut ours), (right, &mut theirs)] {
                    if side.wants() {
                        match pages.next() {
                            Some(rows) => side.push(rows.to_vec(), 0, 0),
                            None => side.end(),
                        }
                    }
                }
                compared += join.step(&mut candidates).unwrap();
            }
            prop_assert_eq!(compared, source.len() as u64);
            let keys: BTreeSet<(i64, u8)> = source.keys().chain(target.keys()).copied().collect();
            let expected: BTreeSet<(i64, u8, Class)> = keys
                .into_iter()
                .filter_map(|key| match (source.get(&key), target.get(&key)) {
                    (Some(_), None) => Some((key.0, key.1, Class::Missing)),
                    (None, Some(_)) => Some((key.0, key.1, Class::Extra)),
                    (ours, theirs) => (ours != theirs).then_some((key.0, key.1, Class::Differing)),
                })
                .collect();
            let found: BTreeSet<(i64, u8, Class)> = candidates
                .iter()
                .map(|candidate| (candidate.key.token, candidate.key.clustering.as_ref().unwrap()[0][0], candidate.class))
                .collect();
            prop_assert_eq!(found.len(), candidates.len(), "each once");
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn times_to_live_are_compared_as_of_when_they_were_read() {
        let with = |ttl_s: u32| {
            let mut row = row(1, 1, 1);
            row.cells[0].ttl_s = ttl_s;
            row
        };
        let class = |later: u64, ttl_s: u32| {
            let (mut join, mut candidates) = (Join::default(), Vec::new());
            let (left, right) = join.sides();
            left.push(vec![with(1000)], 0, 1);
            right.push(vec![with(ttl_s)], later, 1);
            join.step(&mut candidates).unwrap();
            candidates.first().map(|candidate| candidate.class)
        };
        assert_eq!((class(0, 1000), class(30, 970)), (None, None));
        assert_eq!(class(0, 900), Some(Class::TtlSkew));
    }
}
