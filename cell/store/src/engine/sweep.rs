//! What range tombstones make superfluous is dropped: a table whose messages come and go must not grow for ever, nor be walked for
//! nothing. A request drops a bounded number of rows; what is left is remembered durably and goes step by step, whenever somebody has time
//! for it. It never decides what is hidden: the tombstone stays, and with it the answer, whether its rows are gone or not.

use std::collections::{BTreeMap, HashSet};

use super::ranges::Range;
use super::rows::{StoredRow, decode_row};
use super::{Change, Kv, Scan, Space, keys};
use crate::StoreError;

/// Rows that one request, or one step after it, looks at.
pub(crate) const STEP_ROWS: usize = 2_000;

/// Above every key that starts with the name of a table.
const ABOVE_TABLES: u8 = 0xff;

/// One request's share, or one step's.
pub(super) struct Sweep<'a> {
    kv: &'a dyn Kv,
    /// Written by the same request: these have the last word.
    rows: &'a BTreeMap<Vec<u8>, StoredRow>,
    left: usize,
    seen: HashSet<Vec<u8>>,
    out: Vec<Change>,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(kv: &'a dyn Kv, rows: &'a BTreeMap<Vec<u8>, StoredRow>) -> Self {
        Self { kv, rows, left: STEP_ROWS, seen: HashSet::new(), out: Vec::new() }
    }

    /// Drops what a cover hides, as far as the share goes; the rest is for later steps.
    pub(super) fn under(&mut self, prefix: &[u8], cover: &Range) -> Result<(), StoreError> {
        let [from, to] = [&cover.start, &cover.end].map(|bound| [prefix, bound].concat());
        if from >= to {
            return Ok(());
        }
        let Self { rows, left, seen, out, .. } = self;
        let mut rest = None;
        self.kv.scan(Scan { space: Space::Rows, from, to, reverse: false }, &mut |key, value| {
            if *left == 0 {
                rest = Some(key.get(prefix.len()..).unwrap_or_default().to_vec());
                return Ok(false);
            }
            *left -= 1;
            // Of two covers of one request each drops what it hides: the row is looked at once, and the rest stays hidden.
            if rows.contains_key(key) || seen.contains(key) {
                return Ok(true);
            }
            let mut row = decode_row(value)?;
            if row.sweep(cover.time) {
                let rest = (!row.is_dead(cover.time)).then(|| row.encoded());
                out.push((Space::Rows, key.to_vec(), rest));
                seen.insert(key.to_vec());
            }
            Ok(true)
        })?;
        if let Some(start) = rest {
            let rest = Range { start, end: cover.end.clone(), time: cover.time };
            let key = rest.key(prefix);
            let known = self.kv.get(Space::Sweeps, &key)?.map(|value| Range::stored(&key, &value, prefix.len()));
            let time = known.transpose()?.map_or(rest.time, |known| known.time.max(rest.time));
            self.out.push((Space::Sweeps, key, Some(time.to_be_bytes().to_vec())));
        }
        Ok(())
    }

    pub(super) fn changes(self) -> Vec<Change> {
        self.out
    }
}

/// The changes of one step of what is left; none when nothing is.
pub(crate) fn step(kv: &dyn Kv) -> Result<Vec<Change>, StoreError> {
    let mut found = None;
    let scan = Scan { space: Space::Sweeps, from: Vec::new(), to: vec![ABOVE_TABLES], reverse: false };
    kv.scan(scan, &mut |key, value| {
        found = Some((key.to_vec(), value.to_vec()));
        Ok(false)
    })?;
    let Some((key, value)) = found else { return Ok(Vec::new()) };
    let prefix = keys::partition_of_range(&key)
        .ok_or_else(|| StoreError::Damaged("the key of a range to be dropped does not come apart".to_owned()))?;
    let cover = Range::stored(&key, &value, prefix.len())?;
    let none = BTreeMap::new();
    let mut sweep = Sweep::new(kv, &none);
    // What is left then begins further on: it is another key.
    sweep.out.push((Space::Sweeps, key.clone(), None));
    sweep.under(prefix, &cover)?;
    Ok(sweep.changes())
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::{CellWrite, RowMutation, WriteRequest};

    use super::*;
    use crate::MemoryState;
    use crate::engine::execute;

    fn put(key: u32) -> RowMutation {
        let cells = vec![CellWrite { column: "v".into(), value: b"x".into() }];
        let clustering = key.to_be_bytes().to_vec();
        RowMutation { table: "t".into(), partition: b"p".to_vec(), clustering, cells, ..RowMutation::default() }
    }

    fn write(state: &mut MemoryState, timestamp_us: i64, mutations: Vec<RowMutation>) {
        let request = WriteRequest { timestamp_us, mutations, ttl_seconds: 0 };
        let (_, changes) = execute(state, request.into(), 0).unwrap();
        state.apply(changes);
    }

    #[test]
    fn a_purge_of_any_size_leaves_no_row_after_steps_that_are_bounded() {
        let mut state = MemoryState::default();
        let rows = STEP_ROWS * 3 + 500;
        let ids: Vec<u32> = (0..u32::try_from(rows).unwrap()).collect();
        for some in ids.chunks(1_000) {
            write(&mut state, 10, some.iter().copied().map(put).collect());
        }
        // One lives on: it was written later. Another comes while what is left is dropped.
        write(&mut state, 30, vec![put(5_000)]);
        let all = RowMutation { clustering: vec![], cells: vec![], range_end: vec![0xff; 5], ..put(0) };
        write(&mut state, 20, vec![all]);
        assert_eq!((state.count(Space::Rows), state.count(Space::Sweeps)), (rows - STEP_ROWS, 1));
        let mut steps = 0;
        loop {
            let changes = step(&state).unwrap();
            if changes.is_empty() {
                break;
            }
            assert!(changes.len() <= STEP_ROWS + 2, "{} changes of one step", changes.len());
            state.apply(changes);
            steps += 1;
            if steps == 1 {
                write(&mut state, 30, vec![put(6_400)]);
                // The same again, before the first is done.
                let all = RowMutation { clustering: vec![], cells: vec![], range_end: vec![0xff; 5], ..put(0) };
                write(&mut state, 19, vec![all]);
            }
        }
        assert!(steps >= 3, "{steps}");
        let left = (state.count(Space::Rows), state.count(Space::Sweeps), state.count(Space::Ranges));
        assert_eq!(left, (2, 0, 1));
    }
}
