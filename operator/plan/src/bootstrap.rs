//! Which cell each of the 4096 buckets starts in: weighted rendezvous over the bootstrap cells. The hash is frozen, since a second
//! look at the same fleet must give the same answer; it never moves a bucket that has a head.

use sha2::{Digest, Sha256};

/// Number of guild buckets of a fleet.
pub const BUCKETS: u16 = 4096;

/// A cell that takes part in the first placement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BootstrapCell {
    /// The cell's name.
    pub name: String,
    /// Its share relative to the others; 0 gets nothing.
    pub weight: u32,
}

/// The first placement of every bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Cell names, each once.
    pub cells: Vec<String>,
    /// For each bucket the index in `cells`.
    pub buckets: Vec<u16>,
}

/// Why no placement can be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BootstrapError {
    /// Nothing to place on.
    #[error("no bootstrap cell has a weight above 0; set Fleet.spec.bootstrapCells or a Cell's spec.weight")]
    NoCell,
    /// A cell counts once.
    #[error("cell {0} is named twice in Fleet.spec.bootstrapCells; remove one")]
    Twice(String),
    /// Indices are 16 bits.
    #[error("{0} bootstrap cells are too many; name at most 4096")]
    TooMany(usize),
}

/// Places all buckets. The order of `cells` does not change which cell a bucket gets.
///
/// # Errors
/// [`BootstrapError`] when the cells cannot share the buckets.
pub fn assign(cells: &[BootstrapCell]) -> Result<Assignment, BootstrapError> {
    if cells.len() > usize::from(BUCKETS) {
        return Err(BootstrapError::TooMany(cells.len()));
    }
    for (index, cell) in cells.iter().enumerate() {
        if cells[..index].iter().any(|earlier| earlier.name == cell.name) {
            return Err(BootstrapError::Twice(cell.name.clone()));
        }
    }
    let winner = |bucket: u16| {
        let scores = cells.iter().enumerate().filter(|(_, cell)| cell.weight > 0);
        scores
            .map(|(index, cell)| (score(bucket, cell), index))
            .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| cells[b.1].name.cmp(&cells[a.1].name)))
            .and_then(|(_, index)| u16::try_from(index).ok())
    };
    let buckets: Option<Vec<u16>> = (0..BUCKETS).map(winner).collect();
    let buckets = buckets.ok_or(BootstrapError::NoCell)?;
    Ok(Assignment { cells: cells.iter().map(|cell| cell.name.clone()).collect(), buckets })
}

/// -weight / ln(u), with u drawn from the hash of bucket and name: the largest wins with a probability in proportion to its weight.
fn score(bucket: u16, cell: &BootstrapCell) -> f64 {
    let digest = Sha256::digest(format!("b{bucket:04}\u{0}{}", cell.name));
    let mut bytes = [0_u8; 8];
    bytes.copy_from_slice(&digest[..8]);
    let uniform = ((u64::from_be_bytes(bytes) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -f64::from(cell.weight) / uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(of: &[(&str, u32)]) -> Vec<BootstrapCell> {
        of.iter().map(|(name, weight)| BootstrapCell { name: (*name).to_owned(), weight: *weight }).collect()
    }

    fn names(assignment: &Assignment) -> Vec<&str> {
        assignment.buckets.iter().map(|index| assignment.cells[usize::from(*index)].as_str()).collect()
    }

    #[test]
    fn the_hash_is_frozen() {
        let assignment = assign(&cells(&[("shared-1", 100), ("shared-2", 100), ("big", 200)])).unwrap();
        let first: Vec<u16> = assignment.buckets[..16].to_vec();
        assert_eq!(first, GOLDEN);
        let sum: u64 = assignment.buckets.iter().enumerate().map(|(n, cell)| n as u64 * u64::from(*cell)).sum();
        assert_eq!(sum, GOLDEN_SUM);
    }

    const GOLDEN: [u16; 16] = [0, 2, 0, 0, 0, 2, 1, 2, 1, 1, 2, 1, 0, 2, 1, 0];
    const GOLDEN_SUM: u64 = 10_397_094;

    #[test]
    fn every_bucket_has_a_cell_and_shares_follow_weights() {
        let assignment = assign(&cells(&[("a", 1), ("b", 3)])).unwrap();
        assert_eq!(assignment.buckets.len(), 4096);
        let b = assignment.buckets.iter().filter(|index| **index == 1).count();
        assert!((2900..3250).contains(&b), "three quarters of 4096: {b}");
    }

    #[test]
    fn the_order_of_cells_does_not_matter() {
        let one = assign(&cells(&[("a", 1), ("b", 3), ("c", 2)])).unwrap();
        let other = assign(&cells(&[("c", 2), ("a", 1), ("b", 3)])).unwrap();
        assert_eq!(names(&one), names(&other));
    }

    #[test]
    fn a_weightless_cell_gets_nothing_and_impossible_lists_are_refused() {
        let assignment = assign(&cells(&[("a", 0), ("b", 1)])).unwrap();
        assert!(assignment.buckets.iter().all(|index| *index == 1));
        assert_eq!(assign(&cells(&[("a", 0)])), Err(BootstrapError::NoCell));
        assert_eq!(assign(&[]), Err(BootstrapError::NoCell));
        assert_eq!(assign(&cells(&[("a", 1), ("a", 2)])), Err(BootstrapError::Twice("a".into())));
    }
}
