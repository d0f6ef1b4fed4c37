//! Values between the trait's messages and CQL. Numbers of the trait are unsigned; those that CQL cannot hold are refused.

use cell_store::StoreError;
use cell_store::schema::KeyValue;
use scylla::value::{CqlValue, MaybeUnset, Row};

use super::error::unreadable;

pub(super) fn set(value: CqlValue) -> MaybeUnset<CqlValue> {
    MaybeUnset::Set(value)
}

pub(super) fn text(value: &str) -> MaybeUnset<CqlValue> {
    set(CqlValue::Text(value.to_owned()))
}

pub(super) fn big(value: i64) -> MaybeUnset<CqlValue> {
    set(CqlValue::BigInt(value))
}

pub(super) fn blob(value: Vec<u8>) -> MaybeUnset<CqlValue> {
    set(CqlValue::Blob(value))
}

/// A number, checked.
pub(super) fn number(what: &str, value: u64) -> Result<MaybeUnset<CqlValue>, StoreError> {
    let value =
        i64::try_from(value).map_err(|_| StoreError::Invalid(format!("{what} {value} is above {}", i64::MAX)))?;
    Ok(big(value))
}

/// A column of a key.
pub(super) fn key(value: KeyValue) -> CqlValue {
    match value {
        KeyValue::BigInt(value) => CqlValue::BigInt(value),
        KeyValue::SmallInt(value) => CqlValue::SmallInt(value),
        KeyValue::TinyInt(value) => CqlValue::TinyInt(value),
        KeyValue::Blob(value) => CqlValue::Blob(value),
    }
}

/// Takes a row's columns one after the other.
pub(super) struct Columns(std::vec::IntoIter<Option<CqlValue>>);

impl Columns {
    pub(super) fn of(row: Row) -> Self {
        Self(row.columns.into_iter())
    }

    pub(super) fn next(&mut self) -> Result<Option<CqlValue>, StoreError> {
        self.0.next().ok_or_else(|| unreadable("a column is missing"))
    }

    pub(super) fn text(&mut self) -> Result<String, StoreError> {
        match self.next()? {
            Some(CqlValue::Text(value) | CqlValue::Ascii(value)) => Ok(value),
            None => Ok(String::new()),
            Some(other) => Err(unreadable(format!("{other:?} is no text"))),
        }
    }

    /// A number; none when it was never written.
    pub(super) fn maybe_big(&mut self) -> Result<Option<i64>, StoreError> {
        match self.next()? {
            Some(CqlValue::BigInt(value)) => Ok(Some(value)),
            Some(CqlValue::Int(value)) => Ok(Some(i64::from(value))),
            None => Ok(None),
            Some(other) => Err(unreadable(format!("{other:?} is no number"))),
        }
    }

    pub(super) fn big(&mut self) -> Result<i64, StoreError> {
        Ok(self.maybe_big()?.unwrap_or(0))
    }

    pub(super) fn number(&mut self) -> Result<u64, StoreError> {
        Ok(self.big()?.max(0).cast_unsigned())
    }

    pub(super) fn boolean(&mut self) -> Result<bool, StoreError> {
        match self.next()? {
            Some(CqlValue::Boolean(value)) => Ok(value),
            None => Ok(false),
            Some(other) => Err(unreadable(format!("{other:?} is no boolean"))),
        }
    }

    /// Bytes; none when they were never written.
    pub(super) fn maybe_blob(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        match self.next()? {
            Some(CqlValue::Blob(value)) => Ok(Some(value)),
            // The driver takes an empty value of any type so.
            Some(CqlValue::Empty) => Ok(Some(Vec::new())),
            None => Ok(None),
            Some(other) => Err(unreadable(format!("{other:?} is no blob"))),
        }
    }

    pub(super) fn key(&mut self) -> Result<KeyValue, StoreError> {
        match self.next()? {
            Some(CqlValue::BigInt(value)) => Ok(KeyValue::BigInt(value)),
            Some(CqlValue::SmallInt(value)) => Ok(KeyValue::SmallInt(value)),
            Some(CqlValue::TinyInt(value)) => Ok(KeyValue::TinyInt(value)),
            Some(CqlValue::Blob(value)) => Ok(KeyValue::Blob(value)),
            Some(CqlValue::Empty) => Ok(KeyValue::Blob(Vec::new())),
            other => Err(unreadable(format!("{other:?} is no key"))),
        }
    }
}
