//! Range tombstones: what lies under one and was written at its time or before is hidden, whenever it comes. Those of a partition lie
//! side by side and never overlap: where two meet the newer wins, and neighbours of one time are one. So a read looks only around the
//! rows it meets and a write changes only what it meets, however many ranges a partition has. It never looks at rows.

use std::collections::BTreeMap;

use super::{Change, Kv, Scan, Space, keys};
use crate::StoreError;

/// Looks at one place of a partition whose ranges change meanwhile.
const TRIES: usize = 10;

/// Above every key that starts with the name of a table.
const ABOVE_TABLES: u8 = 0xff;

/// A range tombstone: `[start, end)` hidden up to a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
    pub(super) time: i64,
}

impl Range {
    pub(super) fn stored(key: &[u8], value: &[u8], prefix: usize) -> Result<Self, StoreError> {
        let (start, end) = keys::split_range(key, prefix)
            .ok_or_else(|| StoreError::Damaged("a range's key does not come apart".to_owned()))?;
        let time = value.try_into().map_err(|_| StoreError::Damaged("a range's time is not 8 bytes".to_owned()))?;
        Ok(Self { start, end, time: i64::from_be_bytes(time) })
    }

    pub(super) fn key(&self, prefix: &[u8]) -> Vec<u8> {
        keys::range(prefix, &self.start, &self.end)
    }
}

/// The changes that lay some covers over what a partition has.
pub(super) fn lay(kv: &dyn Kv, prefix: &[u8], covers: &[Range]) -> Result<Vec<Change>, StoreError> {
    let mut known = BTreeMap::new();
    for cover in covers {
        // From the last that begins in it, or right after it, down to the first that ends before it.
        let (from, to) = (prefix.to_vec(), keys::after_start(prefix, &cover.end));
        kv.scan(Scan { space: Space::Ranges, from, to, reverse: true }, &mut |key, value| {
            let range = Range::stored(key, value, prefix.len())?;
            let meets = range.end >= cover.start;
            if meets {
                known.insert(key.to_vec(), range);
            }
            Ok(meets)
        })?;
    }
    Ok(changes(prefix, &known, covers))
}

fn changes(prefix: &[u8], known: &BTreeMap<Vec<u8>, Range>, covers: &[Range]) -> Vec<Change> {
    let laid = side_by_side(known.values().chain(covers));
    let laid: BTreeMap<Vec<u8>, i64> = laid.into_iter().map(|range| (range.key(prefix), range.time)).collect();
    let gone = known.keys().filter(|key| !laid.contains_key(*key)).map(|key| (Space::Ranges, key.clone(), None));
    let new = laid.iter().filter(|(key, time)| known.get(*key).is_none_or(|range| range.time != **time));
    let new = new.map(|(key, time)| (Space::Ranges, key.clone(), Some(time.to_be_bytes().to_vec())));
    gone.chain(new).collect()
}

/// Hides the same, without overlaps.
fn side_by_side<'a>(ranges: impl Iterator<Item = &'a Range>) -> Vec<Range> {
    let mut bounds: BTreeMap<&[u8], Vec<(i64, bool)>> = BTreeMap::new();
    for range in ranges.filter(|range| range.start < range.end) {
        bounds.entry(&range.start).or_default().push((range.time, true));
        bounds.entry(&range.end).or_default().push((range.time, false));
    }
    let (mut out, mut open) = (Vec::new(), BTreeMap::<i64, usize>::new());
    let mut current: Option<(&[u8], i64)> = None;
    for (at, times) in bounds {
        for (time, opens) in times {
            let count = open.entry(time).or_default();
            *count = if opens { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                open.remove(&time);
            }
        }
        let newest = open.last_key_value().map(|(time, _)| *time);
        if current.map(|(_, time)| time) == newest {
            continue;
        }
        out.extend(current.map(|(start, time)| Range { start: start.to_vec(), end: at.to_vec(), time }));
        current = newest.map(|time| (at, time));
    }
    out
}

/// The changes that lay side by side what an earlier version let overlap; none on a store that was opened by this one before.
pub(crate) fn untangled(kv: &dyn Kv) -> Result<Vec<Change>, StoreError> {
    let (mut out, mut prefix, mut met) = (Vec::new(), Vec::new(), BTreeMap::new());
    let scan = Scan { space: Space::Ranges, from: Vec::new(), to: vec![ABOVE_TABLES], reverse: false };
    kv.scan(scan, &mut |key, value| {
        let of = keys::partition_of_range(key)
            .ok_or_else(|| StoreError::Damaged("a range's key does not come apart".to_owned()))?;
        if of != prefix.as_slice() {
            out.extend(changes(&prefix, &std::mem::take(&mut met), &[]));
            prefix = of.to_vec();
        }
        met.insert(key.to_vec(), Range::stored(key, value, prefix.len())?);
        Ok(true)
    })?;
    out.extend(changes(&prefix, &met, &[]));
    Ok(out)
}

/// A stretch of a partition that is hidden up to one time; 0: not at all.
struct Stretch {
    from: Vec<u8>,
    /// None: to the end.
    to: Option<Vec<u8>>,
    time: i64,
}

impl Stretch {
    fn holds(&self, clustering: &[u8]) -> bool {
        self.from.as_slice() <= clustering && self.to.as_ref().is_none_or(|to| clustering < to.as_slice())
    }
}

/// Up to which time rows of a partition are hidden, for rows asked for in either order; it remembers the stretch of the last one.
pub(super) struct Hidden<'a> {
    kv: &'a dyn Kv,
    prefix: &'a [u8],
    last: Option<Stretch>,
}

impl<'a> Hidden<'a> {
    pub(super) fn new(kv: &'a dyn Kv, prefix: &'a [u8]) -> Self {
        Self { kv, prefix, last: None }
    }

    pub(super) fn up_to(&mut self, clustering: &[u8]) -> Result<i64, StoreError> {
        let stretch = match self.last.take().filter(|last| last.holds(clustering)) {
            Some(last) => last,
            None => self.look(clustering)?,
        };
        let time = stretch.time;
        self.last = Some(stretch);
        Ok(time)
    }

    fn look(&self, clustering: &[u8]) -> Result<Stretch, StoreError> {
        let prefix = self.prefix;
        for _ in 0..TRIES {
            let (mut nearest, to) = (prefix.to_vec(), keys::after_start(prefix, clustering));
            let back = Scan { space: Space::Ranges, from: prefix.to_vec(), to, reverse: true };
            self.kv.scan(back, &mut |key, _| {
                nearest = key.to_vec();
                Ok(false)
            })?;
            let (mut found, mut begins) = (Stretch { from: Vec::new(), to: None, time: 0 }, None);
            let to = keys::after(prefix.to_vec());
            let on = Scan { space: Space::Ranges, from: nearest.clone(), to, reverse: false };
            self.kv.scan(on, &mut |key, value| {
                begins.get_or_insert_with(|| key.to_vec());
                let range = Range::stored(key, value, prefix.len())?;
                if range.start.as_slice() > clustering {
                    found.to = Some(range.start);
                } else if clustering < range.end.as_slice() {
                    found = Stretch { from: range.start, to: Some(range.end), time: range.time };
                } else {
                    found.from = range.end;
                    return Ok(true);
                }
                Ok(false)
            })?;
            // A write may have come in between and taken it into a wider one: only what one look saw holds together.
            if nearest == prefix || begins.is_some_and(|begins| begins == nearest) {
                return Ok(found);
            }
        }
        Err(StoreError::Unavailable("the partition is being deleted from; retry".to_owned()))
    }
}

#[cfg(test)]
mod tests;
