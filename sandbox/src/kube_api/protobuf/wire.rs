//! The wire form: numbered fields one after the other. Lengths are checked before anything is read.

/// A field's content.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Field<'a> {
    /// A number.
    Number(u64),
    /// Eight bytes.
    Wide([u8; 8]),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    /// Its bytes.
    pub(super) fn bytes(&self) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) | Self::Wide(_) => Err("a number stands where text or a message belongs".to_owned()),
        }
    }

    /// Its number, signed as Go's integers are.
    pub(super) fn number(&self) -> Result<i64, String> {
        match self {
            Self::Number(number) => Ok(number.cast_signed()),
            Self::Bytes(_) | Self::Wide(_) => Err("something else stands where a number belongs".to_owned()),
        }
    }

    /// Its fraction.
    pub(super) fn fraction(&self) -> Result<f64, String> {
        match self {
            Self::Wide(bytes) => Ok(f64::from_le_bytes(*bytes)),
            Self::Bytes(_) | Self::Number(_) => Err("something else stands where a fraction belongs".to_owned()),
        }
    }
}

/// Bytes as text; what is not UTF-8 becomes the replacement character.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The fields of a message in order.
pub(super) fn fields(mut rest: &[u8]) -> Result<Vec<(u32, Field<'_>)>, String> {
    let mut out = Vec::new();
    while !rest.is_empty() {
        let tag = varint(&mut rest)?;
        let number = u32::try_from(tag >> 3).map_err(|_| "a field has an impossible number".to_owned())?;
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut rest)?),
            1 => Field::Wide(take(&mut rest, 8)?.try_into().map_err(|_| "it is cut short".to_owned())?),
            2 => {
                let length = varint(&mut rest)?;
                Field::Bytes(take(&mut rest, usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => {
                take(&mut rest, 4)?;
                continue;
            }
            other => return Err(format!("wire type {other} is not known")),
        };
        out.push((number, field));
    }
    Ok(out)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], String> {
    let (head, tail) = rest.split_at_checked(length).ok_or_else(|| "it is cut short".to_owned())?;
    *rest = tail;
    Ok(head)
}

fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut out = 0_u64;
    for shift in (0..64).step_by(7) {
        let [byte] = take(rest, 1)? else { break };
        out |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(out);
        }
    }
    Err("a number is too long".to_owned())
}
