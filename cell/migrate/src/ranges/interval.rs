//! Sets of token ranges over the whole ring of 2^64 tokens, exact at both ends. How a range was split before it was added leaves no
//! trace: two sets that cover the same tokens are equal.

use std::collections::BTreeMap;

/// Tokens from `first` to `last`, both inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tokens {
    /// Lowest token.
    pub first: i64,
    /// Highest token; never below `first`.
    pub last: i64,
}

impl Tokens {
    /// The whole ring. Read as a line, so that the range over its end (after the highest vnode's token) needs no case of its own.
    pub const ALL: Self = Self { first: i64::MIN, last: i64::MAX };

    /// None when `first` lies above `last`.
    pub fn new(first: i64, last: i64) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// How many tokens.
    pub fn width(self) -> u128 {
        (i128::from(self.last) - i128::from(self.first) + 1).cast_unsigned()
    }

    /// Two halves; none when there is only one token.
    pub fn halves(self) -> Option<(Self, Self)> {
        if self.first == self.last {
            return None;
        }
        let middle = (i128::from(self.first) + i128::from(self.last)).div_euclid(2) as i64;
        Some((Self { first: self.first, last: middle }, Self { first: middle + 1, last: self.last }))
    }

    /// At most `count` pieces of nearly the same width, in order, that are exactly these tokens.
    pub fn pieces(self, count: u64) -> Vec<Self> {
        let width = self.width();
        let count = u128::from(count.max(1)).min(width);
        let base = i128::from(self.first);
        let bound = |index: u128| base + (width * index / count).cast_signed();
        (0..count).map(|index| Self { first: bound(index) as i64, last: (bound(index + 1) - 1) as i64 }).collect()
    }

    /// Whether a token lies in it.
    pub fn contains(self, token: i64) -> bool {
        (self.first..=self.last).contains(&token)
    }
}

/// Disjoint ranges that do not touch: the one way to write down a set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IntervalSet {
    ranges: BTreeMap<i64, i64>,
}

impl IntervalSet {
    /// Adds tokens; those that are there already change nothing.
    pub fn insert(&mut self, tokens: Tokens) {
        let Tokens { mut first, mut last } = tokens;
        // Whatever overlaps or touches is taken in.
        while let Some((&other_first, &other_last)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            let touches = other_last >= first || other_last.checked_add(1) == Some(first);
            if !touches {
                break;
            }
            self.ranges.remove(&other_first);
            first = first.min(other_first);
            last = last.max(other_last);
        }
        self.ranges.insert(first, last);
    }

    /// Takes tokens out.
    pub fn remove(&mut self, tokens: Tokens) {
        while let Some((&first, &last)) = self.ranges.range(..=tokens.last).next_back() {
            if last < tokens.first {
                break;
            }
            self.ranges.remove(&first);
            if first < tokens.first {
                self.ranges.insert(first, tokens.first - 1);
            }
            if last > tokens.last {
                self.ranges.insert(tokens.last + 1, last);
            }
        }
    }

    /// Whether every one of these tokens is in the set.
    pub fn covers(&self, tokens: Tokens) -> bool {
        self.ranges.range(..=tokens.first).next_back().is_some_and(|(_, last)| *last >= tokens.last)
    }

    /// Whether every token of the ring is in the set.
    pub fn is_full(&self) -> bool {
        self.covers(Tokens::ALL)
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Tokens> + '_ {
        self.ranges.iter().map(|(first, last)| Tokens { first: *first, last: *last })
    }

    /// What is not in the set, in order.
    pub fn gaps(&self) -> Vec<Tokens> {
        let mut gaps = Vec::new();
        let mut next = Some(i64::MIN);
        for range in self.ranges() {
            if let Some(gap) =
                next.filter(|next| *next < range.first).and_then(|next| Tokens::new(next, range.first - 1))
            {
                gaps.push(gap);
            }
            next = range.last.checked_add(1);
        }
        gaps.extend(next.and_then(|next| Tokens::new(next, i64::MAX)));
        gaps
    }

    /// How many tokens are in the set.
    pub fn width(&self) -> u128 {
        self.ranges().map(Tokens::width).sum()
    }

    /// Parts per million of the ring, rounded down, so that only a full set has a million.
    pub fn ppm(&self) -> u32 {
        u32::try_from((self.width() * 1_000_000) >> 64).unwrap_or(1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edge() -> impl Strategy<Value = i64> {
        prop_oneof![Just(i64::MIN), Just(i64::MIN + 1), Just(i64::MAX), Just(i64::MAX - 1), -40_i64..40, any::<i64>()]
    }

    fn tokens() -> impl Strategy<Value = Tokens> {
        (edge(), edge()).prop_map(|(a, b)| Tokens { first: a.min(b), last: a.max(b) })
    }

    proptest! {
        #[test]
        fn a_set_answers_as_the_list_of_its_changes_does(
            changes in prop::collection::vec((any::<bool>(), tokens()), 0..24),
            probes in prop::collection::vec(edge(), 1..64),
        ) {
            let mut set = IntervalSet::default();
            for (add, tokens) in &changes {
                if *add { set.insert(*tokens) } else { set.remove(*tokens) }
            }
            let gaps = set.gaps();
            for probe in probes {
                let expected = changes.iter().rev().find(|(_, tokens)| tokens.contains(probe)).is_some_and(|(add, _)| *add);
                prop_assert_eq!(set.covers(Tokens { first: probe, last: probe }), expected);
                prop_assert_eq!(gaps.iter().any(|gap| gap.contains(probe)), !expected);
            }
            let gap_width: u128 = gaps.iter().map(|gap| gap.width()).sum();
            prop_assert_eq!(gap_width + set.width(), 1_u128 << 64);
            prop_assert_eq!(set.is_full(), gaps.is_empty());
            prop_assert_eq!(set.ppm() == 1_000_000, set.is_full());
            let ranges: Vec<Tokens> = set.ranges().collect();
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].last < pair[1].first - 1, "ranges that touch are one range");
            }
        }

        #[test]
        fn pieces_in_any_order_make_the_same_set(tokens in tokens(), count in 1_u64..300, seed in any::<u64>()) {
            let mut pieces = tokens.pieces(count);
            prop_assert!(pieces.len() as u64 <= count);
            let mut state = seed | 1;
            for index in (1..pieces.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                pieces.swap(index, (state >> 33) as usize % (index + 1));
            }
            let (mut whole, mut parts) = (IntervalSet::default(), IntervalSet::default());
            whole.insert(tokens);
            for piece in pieces {
                prop_assert!(!parts.covers(Tokens { first: piece.first, last: piece.first }), "no token is in two pieces");
                parts.insert(piece);
            }
            prop_assert_eq!(whole, parts);
        }

        #[test]
        fn halves_are_the_whole(tokens in tokens()) {
            match tokens.halves() {
                None => prop_assert_eq!(tokens.first, tokens.last),
                Some((low, high)) => {
                    prop_assert_eq!((low.first, high.last), (tokens.first, tokens.last));
                    prop_assert_eq!(low.last.checked_add(1), Some(high.first));
                    prop_assert!(low.first <= low.last && high.first <= high.last);
                }
            }
        }
    }
}
