//! A key as bytes and as typed values. Numbers are big-endian and never negative, so that bytes and numbers sort alike.

/// The CQL type of a key's column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    /// 8 bytes.
    BigInt,
    /// 2 bytes.
    SmallInt,
    /// 1 byte.
    TinyInt,
    /// What is left; only as the last column.
    Blob,
}

impl KeyType {
    /// Bytes of a value; none for what is left.
    pub(super) fn width(self) -> Option<usize> {
        match self {
            Self::BigInt => Some(8),
            Self::SmallInt => Some(2),
            Self::TinyInt => Some(1),
            Self::Blob => None,
        }
    }

    /// Its name in CQL.
    pub fn cql(self) -> &'static str {
        match self {
            Self::BigInt => "bigint",
            Self::SmallInt => "smallint",
            Self::TinyInt => "tinyint",
            Self::Blob => "blob",
        }
    }

    /// A value from its bytes; none when they are of another length, or negative.
    pub(super) fn value(self, bytes: &[u8]) -> Option<KeyValue> {
        Some(match self {
            Self::BigInt => KeyValue::BigInt(i64::from_be_bytes(bytes.try_into().ok()?)).natural()?,
            Self::SmallInt => KeyValue::SmallInt(i16::from_be_bytes(bytes.try_into().ok()?)).natural()?,
            Self::TinyInt => KeyValue::TinyInt(i8::from_be_bytes(bytes.try_into().ok()?)).natural()?,
            Self::Blob => KeyValue::Blob(bytes.to_vec()),
        })
    }
}

/// A column of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: KeyType,
}

/// A value of a key's column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue {
    /// `bigint`.
    BigInt(i64),
    /// `smallint`.
    SmallInt(i16),
    /// `tinyint`.
    TinyInt(i8),
    /// `blob`.
    Blob(Vec<u8>),
}

impl KeyValue {
    fn natural(self) -> Option<Self> {
        let negative = match &self {
            Self::BigInt(value) => *value < 0,
            Self::SmallInt(value) => *value < 0,
            Self::TinyInt(value) => *value < 0,
            Self::Blob(_) => false,
        };
        (!negative).then_some(self)
    }

    /// The value as CQL serialises it.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::BigInt(value) => value.to_be_bytes().to_vec(),
            Self::SmallInt(value) => value.to_be_bytes().to_vec(),
            Self::TinyInt(value) => value.to_be_bytes().to_vec(),
            Self::Blob(value) => value.clone(),
        }
    }
}

/// Typed values of a key; none when the bytes are not such a key.
pub(super) fn split(columns: &[KeyColumn], mut bytes: &[u8]) -> Option<Vec<KeyValue>> {
    let mut values = Vec::with_capacity(columns.len());
    for column in columns {
        let (value, rest) = bytes.split_at_checked(column.kind.width().unwrap_or(bytes.len()))?;
        values.push(column.kind.value(value)?);
        bytes = rest;
    }
    bytes.is_empty().then_some(values)
}

pub(super) fn join(values: &[KeyValue]) -> Vec<u8> {
    values.iter().flat_map(KeyValue::bytes).collect()
}

/// A partition key as CQL serialises it: one column as it is; of several each with its length and an end.
pub(super) fn serialise(values: &[KeyValue]) -> Vec<u8> {
    if let [only] = values {
        return only.bytes();
    }
    let mut out = Vec::new();
    for value in values {
        let bytes = value.bytes();
        out.extend(u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend(bytes);
        out.push(0);
    }
    out
}
