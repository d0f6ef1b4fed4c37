//! Reads what client libraries really send: ids as strings or integers, absent as null. Never guesses a value of the wrong kind.

use serde_json::{Map, Value};

/// An id: decimal digits in a string, or a non-negative integer.
pub fn id(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().filter(|id| *id >= 0),
        Value::String(text) => id_of_text(text),
        _ => None,
    }
}

/// An id as it stands in a path or query: digits only, within 63 bits.
pub fn id_of_text(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A field that is there and not null.
pub fn present<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

/// An integer: a JSON integer, a float without fraction, or digits in a string (as some libraries send bitfields).
pub fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64)
        }),
        Value::String(text) if text.len() <= 20 => text.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_arrive_as_strings_and_as_integers() {
        assert_eq!(id(&json!("123")), Some(123));
        assert_eq!(id(&json!(123)), Some(123));
        for bad in [
            json!("-1"),
            json!("+1"),
            json!(""),
            json!("1e3"),
            json!(-1),
            json!(1.5),
            json!(null),
            json!("99999999999999999999"),
        ] {
            assert_eq!(id(&bad), None, "{bad}");
        }
    }
}
