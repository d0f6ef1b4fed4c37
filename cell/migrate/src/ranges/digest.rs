//! PURE: what some rows in one order come to, as two sums of powers. The digest of two pieces that follow one another is made of theirs, so
//! that a table's digest does not depend on how it was cut into ranges. It tells mistakes apart, not forgeries.

use serde::{Deserialize, Serialize};

/// A prime, 2^61 - 1.
const MODULUS: u64 = (1 << 61) - 1;
/// Two primes that have nothing to do with each other.
const BASES: [u64; 2] = [1_000_000_000_000_000_003, 2_058_843_009_213_693_967];

fn times(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(MODULUS)) as u64
}

fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut product = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product = times(product, base);
        }
        base = times(base, base);
        exponent >>= 1;
    }
    product
}

/// Of rows in an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Digest {
    /// Rows.
    pub rows: u64,
    /// Both sums, below 2^61.
    pub sums: [u64; 2],
}

impl Digest {
    /// One more row, by its hash.
    pub fn push(&mut self, hash: u128) {
        let halves = [(hash >> 64) as u64, hash as u64];
        for ((sum, base), half) in self.sums.iter_mut().zip(BASES).zip(halves) {
            *sum = (times(*sum, base % MODULUS) + half % MODULUS) % MODULUS;
        }
        self.rows += 1;
    }

    /// These rows, then those.
    #[must_use]
    pub fn then(self, after: Self) -> Self {
        let mut sums = [0; 2];
        for (index, base) in BASES.into_iter().enumerate() {
            sums[index] = (times(self.sums[index], power(base % MODULUS, after.rows)) + after.sums[index]) % MODULUS;
        }
        Self { rows: self.rows + after.rows, sums }
    }

    /// As people compare it.
    pub fn text(&self) -> String {
        format!("{:016x}{:016x}", self.sums[0], self.sums[1])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(hashes: &[u128]) -> Digest {
        let mut digest = Digest::default();
        hashes.iter().for_each(|hash| digest.push(*hash));
        digest
    }

    proptest! {
        #[test]
        fn it_is_the_same_however_the_rows_are_cut_and_another_in_another_order(
            hashes in prop::collection::vec(any::<u128>(), 0..40), cut in any::<prop::sample::Index>(), swap in any::<prop::sample::Index>(),
        ) {
            let whole = of(&hashes);
            let at = cut.index(hashes.len() + 1);
            prop_assert_eq!(of(&hashes[..at]).then(of(&hashes[at..])), whole);
            if hashes.len() > 1 {
                let mut other = hashes.clone();
                let at = swap.index(hashes.len() - 1);
                other.swap(at, at + 1);
                prop_assert_eq!(of(&other) == whole, other == hashes);
                prop_assert_ne!(of(&hashes[1..]), whole);
            }
        }
    }
}
