//! How far leases have come that do not go through their tokens in order: a mark is the worker's own word for a place in its order, kept
//! with the tokens it is about. Whoever gets those tokens, or some of them, goes on from there. It never makes tokens done.

use std::collections::BTreeMap;

use super::interval::Tokens;

/// The longest mark, in bytes.
pub const MAX_MARK: usize = 64;

/// Marks of one lane, by their first token; no two are about one token.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks(BTreeMap<i64, (i64, Vec<u8>)>);

impl Marks {
    /// From here on this holds for these tokens.
    pub fn set(&mut self, tokens: Tokens, mark: Vec<u8>) {
        self.forget(tokens);
        self.0.insert(tokens.first, (tokens.last, mark));
    }

    /// Nothing is said about these tokens any more; what is said about others stays.
    pub fn forget(&mut self, tokens: Tokens) {
        let met = self.0.range(..=tokens.last).filter(|(_, (last, _))| *last >= tokens.first);
        let met: Vec<(i64, i64, Vec<u8>)> = met.map(|(first, (last, mark))| (*first, *last, mark.clone())).collect();
        for (first, last, mark) in met {
            self.0.remove(&first);
            if let Some(end) = tokens.first.checked_sub(1).filter(|end| *end >= first) {
                self.0.insert(first, (end, mark.clone()));
            }
            if let Some(start) = tokens.last.checked_add(1).filter(|start| *start <= last) {
                self.0.insert(start, (last, mark));
            }
        }
    }

    /// What holds for all of these tokens.
    pub fn of(&self, tokens: Tokens) -> Option<&[u8]> {
        let (_, (last, mark)) = self.0.range(..=tokens.first).next_back()?;
        (*last >= tokens.last).then_some(mark)
    }

    /// Nothing is said at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (Tokens, &[u8])> {
        self.0.iter().map(|(first, (last, mark))| (Tokens { first: *first, last: *last }, mark.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(first: i64, last: i64) -> Tokens {
        Tokens { first, last }
    }

    #[test]
    fn a_mark_holds_for_parts_of_its_tokens_and_never_for_more() {
        let mut marks = Marks::default();
        marks.set(Tokens::ALL, b"a".to_vec());
        assert_eq!(marks.of(tokens(5, 9)), Some(&b"a"[..]));
        marks.set(tokens(0, 9), b"b".to_vec());
        assert_eq!(marks.of(tokens(0, 9)), Some(&b"b"[..]));
        assert_eq!((marks.of(tokens(5, 10)), marks.of(tokens(-1, 3))), (None, None));
        assert_eq!(
            (marks.of(tokens(i64::MIN, -1)), marks.of(tokens(10, i64::MAX))),
            (Some(&b"a"[..]), Some(&b"a"[..]))
        );
        marks.forget(tokens(3, 20));
        assert_eq!(
            (marks.of(tokens(0, 2)), marks.of(tokens(3, 3)), marks.of(tokens(21, 21))),
            (Some(&b"b"[..]), None, Some(&b"a"[..]))
        );
        marks.forget(Tokens::ALL);
        assert!(marks.is_empty());
    }
}
