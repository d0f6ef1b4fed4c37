use std::cell::Cell;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::Visit;
use super::*;

/// Ranges alone, and how many were looked at.
#[derive(Default)]
struct Ranges {
    map: BTreeMap<Vec<u8>, Vec<u8>>,
    seen: Cell<usize>,
}

impl Kv for Ranges {
    fn get(&self, _: Space, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.map.get(key).cloned())
    }

    fn scan(&self, scan: Scan, visit: &mut Visit<'_>) -> Result<(), StoreError> {
        if scan.from >= scan.to {
            return Ok(());
        }
        let mut range = self.map.range(scan.from..scan.to);
        while let Some((key, value)) = if scan.reverse { range.next_back() } else { range.next() } {
            self.seen.set(self.seen.get() + 1);
            if !visit(key, value)? {
                break;
            }
        }
        Ok(())
    }
}

impl Ranges {
    fn apply(&mut self, changes: Vec<Change>) {
        for (_, key, value) in changes {
            match value {
                Some(value) => self.map.insert(key, value),
                None => self.map.remove(&key),
            };
        }
    }

    fn all(&self, prefix: &[u8]) -> Vec<Range> {
        let of = |(key, value): (&Vec<u8>, &Vec<u8>)| Range::stored(key, value, prefix.len()).unwrap();
        self.map.iter().filter(|(key, _)| key.starts_with(prefix)).map(of).collect()
    }
}

fn range(start: u32, end: u32, time: i64) -> Range {
    Range { start: start.to_be_bytes().to_vec(), end: end.to_be_bytes().to_vec(), time }
}

#[test]
fn ranges_lie_side_by_side_and_hide_what_each_of_them_hides_in_any_order() {
    for seed in 0..200 {
        let mut dice = StdRng::seed_from_u64(seed);
        let (prefix, mut kv, mut model) = (keys::partition("t", 5, b"p"), Ranges::default(), [0; 24]);
        for _ in 0..12 {
            let covers: Vec<Range> = (0..dice.random_range(1..4))
                .map(|_| {
                    let (start, time) = (dice.random_range(0..22), dice.random_range(1..20));
                    range(start, dice.random_range(start..24), time)
                })
                .collect();
            for cover in &covers {
                let hidden = (0..24_u32)
                    .filter(|key| (cover.start.as_slice()..cover.end.as_slice()).contains(&&key.to_be_bytes()[..]));
                hidden.for_each(|key| model[key as usize] = model[key as usize].max(cover.time));
            }
            let changes = lay(&kv, &prefix, &covers).unwrap();
            kv.apply(changes);
            assert_eq!(lay(&kv, &prefix, &covers).unwrap(), [], "seed {seed}: it changes nothing when it comes again");
            let all = kv.all(&prefix);
            let apart = |pair: &[Range]| {
                pair[0].end < pair[1].start || (pair[0].end == pair[1].start && pair[0].time != pair[1].time)
            };
            assert!(all.windows(2).all(apart), "seed {seed}: {all:?}");
            let mut hidden = Hidden::new(&kv, &prefix);
            let mut asked: Vec<u32> = (0..24).chain((0..24).rev()).collect();
            asked.extend((0..24).map(|_| dice.random_range(0..24)));
            for key in asked {
                let time = hidden.up_to(&key.to_be_bytes()).unwrap();
                assert_eq!(time, model[key as usize], "seed {seed}, key {key}, {all:?}");
            }
        }
    }
}

#[test]
fn a_partition_of_very_many_ranges_costs_a_read_and_a_write_only_what_they_meet() {
    let (prefix, mut kv) = (keys::partition("t", 5, b"p"), Ranges::default());
    for number in 0..5_000_u32 {
        let before = kv.seen.get();
        let changes = lay(&kv, &prefix, &[range(number * 4, number * 4 + 2, 10 + i64::from(number))]).unwrap();
        kv.apply(changes);
        assert!(kv.seen.get() - before <= 2, "the {number}th write looked at {} ranges", kv.seen.get() - before);
    }
    assert_eq!(kv.map.len(), 5_000);
    let (before, mut hidden) = (kv.seen.get(), Hidden::new(&kv, &prefix));
    for key in (19_900_u32..20_000).rev() {
        assert_eq!(hidden.up_to(&key.to_be_bytes()).unwrap() > 0, key % 4 < 2);
    }
    assert!(kv.seen.get() - before <= 50 * 3, "{} ranges were looked at for 50 of them", kv.seen.get() - before);
    let changes = lay(&kv, &prefix, &[range(0, u32::MAX, 1_000_000)]).unwrap();
    kv.apply(changes);
    assert_eq!(kv.all(&prefix), [range(0, u32::MAX, 1_000_000)]);
}

#[test]
fn what_an_earlier_version_let_overlap_is_laid_side_by_side() {
    let mut kv = Ranges::default();
    let (one, two, three) =
        (keys::partition("t", 5, b"p"), keys::partition("t", 5, b"q"), keys::partition("u", -1, b"p"));
    let mut put = |prefix: &[u8], range: Range| kv.map.insert(range.key(prefix), range.time.to_be_bytes().to_vec());
    for range in [range(0, 10, 5), range(0, 3, 9), range(2, 4, 7), range(8, 8, 9), range(20, 30, 1)] {
        put(&one, range);
    }
    put(&two, range(0, 10, 5));
    put(&three, range(0, 10, 5));
    put(&three, range(5, 20, 5));
    let changes = untangled(&kv).unwrap();
    kv.apply(changes);
    assert_eq!(kv.all(&one), [range(0, 3, 9), range(3, 4, 7), range(4, 10, 5), range(20, 30, 1)]);
    assert_eq!((kv.all(&two), kv.all(&three)), (vec![range(0, 10, 5)], vec![range(0, 20, 5)]));
    assert_eq!(untangled(&kv).unwrap(), []);
}
