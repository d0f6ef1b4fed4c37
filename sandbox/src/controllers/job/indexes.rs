//! The completed indexes of an Indexed Job as the status writes them: `0-3,5`. Pure; what cannot be read is left out.

use std::collections::BTreeSet;
use std::fmt;

/// Most indexes a Job may have; Kubernetes' own bound.
const MOST: u32 = 100_000;

/// A set of indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Indexes(BTreeSet<u32>);

impl Indexes {
    /// Reads `0-3,5`.
    pub fn parse(text: &str) -> Self {
        let mut all = BTreeSet::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
                all.extend(first..=last.min(MOST));
            }
        }
        Self(all)
    }

    /// Whether an index is in it.
    pub fn has(&self, index: u32) -> bool {
        self.0.contains(&index)
    }

    /// Puts an index in.
    pub fn add(&mut self, index: u32) {
        self.0.insert(index);
    }

    /// How many.
    pub fn count(&self) -> i32 {
        i32::try_from(self.0.len()).unwrap_or(i32::MAX)
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for index in &self.0 {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *index => *last = *index,
                _ => runs.push((*index, *index)),
            }
        }
        let shown = runs.iter().map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        });
        out.write_str(&shown.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_three_and_more_are_shortened_and_read_back() {
        let mut indexes = Indexes::parse("0-2,9,nonsense,7-x");
        assert_eq!((indexes.to_string(), indexes.count()), ("0-2,9".to_owned(), 4));
        indexes.add(10);
        assert_eq!(indexes.to_string(), "0-2,9,10");
        assert!(indexes.has(2) && !indexes.has(3));
        assert_eq!(Indexes::parse("").to_string(), "");
    }
}
