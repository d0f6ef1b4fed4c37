//! What two looks at one row say: equal, or a class of mismatch. Pure.

use crate::row::Row;

/// Classes of mismatch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// It was equal at the second look.
    WriteRace,
    /// Only times to live differ.
    TtlSkew,
    /// It was written to the target and stays invisible: a newer deletion hides it there.
    Tombstone,
    /// The target lacks it.
    Missing,
    /// Only the target has it.
    Extra,
    /// Values or write times differ.
    Differing,
}

impl Class {
    /// The word in receipts.
    pub fn label(self) -> &'static str {
        match self {
            Self::WriteRace => "write-race",
            Self::TtlSkew => "ttl-skew",
            Self::Tombstone => "tombstone",
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Differing => "differing",
        }
    }

    /// For sentences.
    pub fn words(self) -> &'static str {
        match self {
            Self::WriteRace => "equal at the second look",
            Self::TtlSkew => "equal but for its time to live",
            Self::Tombstone => {
                "hidden in the target by a newer deletion; delete it in the source too, or write it anew"
            }
            Self::Missing => "missing in the target",
            Self::Extra => "only in the target",
            Self::Differing => "different in values or write times",
        }
    }

    /// Whether a receipt with it is still clean.
    pub fn is_harmless(self) -> bool {
        crate::ranges::is_harmless(self.label())
    }
}

/// None when both are equal. Times to live may differ by `ttl_tolerance_s`.
pub fn classify(source: Option<&Row>, target: Option<&Row>, ttl_tolerance_s: u64) -> Option<Class> {
    let (source, target) = match (source, target) {
        (None, None) => return None,
        (Some(_), None) => return Some(Class::Missing),
        (None, Some(_)) => return Some(Class::Extra),
        (Some(source), Some(target)) => (source, target),
    };
    let mut skewed = false;
    if source.cells.len() != target.cells.len() {
        return Some(Class::Differing);
    }
    for (ours, theirs) in source.cells.iter().zip(&target.cells) {
        if (ours.column, ours.written_us, &ours.value) != (theirs.column, theirs.written_us, &theirs.value) {
            return Some(Class::Differing);
        }
        let one_for_ever = (ours.ttl_s == 0) != (theirs.ttl_s == 0);
        skewed |= one_for_ever || u64::from(ours.ttl_s.abs_diff(theirs.ttl_s)) > ttl_tolerance_s;
    }
    skewed.then_some(Class::TtlSkew)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::row::Cell;

    fn row(cells: &[(u16, &'static str, i64, u32)]) -> Row {
        let cell = |(column, value, written_us, ttl_s): &(u16, &'static str, i64, u32)| Cell {
            column: *column,
            value: Bytes::from_static(value.as_bytes()),
            written_us: *written_us,
            ttl_s: *ttl_s,
        };
        Row { token: 0, partition: vec![], clustering: Some(vec![]), cells: cells.iter().map(cell).collect() }
    }

    #[test]
    fn each_pair_has_its_class() {
        let base = row(&[(0, "a", 5, 0), (1, "b", 6, 100)]);
        let class = |other: &Row| classify(Some(&base), Some(other), 3);
        assert_eq!(class(&base), None);
        assert_eq!(class(&row(&[(0, "a", 5, 0), (1, "b", 6, 98)])), None);
        assert_eq!(class(&row(&[(0, "a", 5, 0), (1, "b", 6, 90)])), Some(Class::TtlSkew));
        assert_eq!(class(&row(&[(0, "a", 5, 0), (1, "b", 6, 0)])), Some(Class::TtlSkew));
        assert_eq!(class(&row(&[(0, "a", 7, 0), (1, "b", 6, 100)])), Some(Class::Differing));
        assert_eq!(class(&row(&[(0, "x", 5, 0), (1, "b", 6, 100)])), Some(Class::Differing));
        assert_eq!(class(&row(&[(0, "a", 5, 0)])), Some(Class::Differing));
        assert_eq!(classify(Some(&base), None, 3), Some(Class::Missing));
        assert_eq!(classify(None, Some(&base), 3), Some(Class::Extra));
        assert_eq!(classify(None, None, 3), None);
        assert_eq!(classify(Some(&row(&[])), Some(&row(&[])), 3), None, "rows of a key alone are equal");
    }
}
