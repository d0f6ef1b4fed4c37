//! Quantities (`0.1`, `1024Mi`) in the one form in which Kubernetes stores them. What is no quantity is left for the judge.

use serde_json::Value;

use super::written::TEXT_MAPS;

/// Maps whose values are quantities.
const MAPS: [&str; 6] = ["requests", "limits", "capacity", "allocatable", "overhead", "hard"];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Billionths in one.
const ONE: i128 = 1_000_000_000;

/// Brings every quantity of an object into its one form.
pub fn settle(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map.iter_mut() {
                match inner {
                    Value::Object(amounts) if MAPS.contains(&name.as_str()) => {
                        amounts.values_mut().for_each(settle_one)
                    }
                    Value::Object(_) if TEXT_MAPS.contains(&name.as_str()) => {}
                    Value::String(_) if name == "sizeLimit" => settle_one(inner),
                    _ => settle(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        _ => {}
    }
}

fn settle_one(amount: &mut Value) {
    if let Some(text) = amount.as_str().and_then(canonical) {
        *amount = text.into();
    }
}

/// The one form of a quantity, or none if it is none (or has an exponent, which stays as it is).
pub fn canonical(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c)).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let binary = BINARY.iter().skip(1).position(|known| *known == suffix).map(|power| 1_i128 << (10 * (power + 1)));
    let decimal = DECIMAL.iter().position(|known| *known == suffix);
    let (numerator, denominator) = match (binary, decimal) {
        (Some(factor), _) => (factor.checked_mul(ONE)?, 1),
        (None, Some(power)) => (10_i128.checked_pow(u32::try_from(power).ok()? * 3)?, 1),
        (None, None) => return None,
    };
    let billionths = times(number, numerator)?.checked_div(denominator)?;
    Some(if binary.is_some() && billionths.abs() >= 1024 * ONE && billionths % ONE == 0 {
        in_binary(billionths / ONE)
    } else {
        in_decimal(billionths)
    })
}

/// A decimal number times a factor; what is finer than a billionth is rounded away from zero.
fn times(number: &str, factor: i128) -> Option<i128> {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.len() + fraction.len() == 0 || whole.len() > 18 || fraction.len() > 9 {
        return None;
    }
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    let all: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scaled = all.checked_mul(factor)?;
    Some(sign * (scaled / scale + i128::from(scaled % scale != 0)))
}

fn in_binary(mut whole: i128) -> String {
    let mut power = 0;
    while whole % 1024 == 0 && power + 1 < BINARY.len() {
        whole /= 1024;
        power += 1;
    }
    format!("{whole}{}", BINARY[power])
}

fn in_decimal(mut billionths: i128) -> String {
    if billionths == 0 {
        return "0".into();
    }
    let mut power = 0;
    while billionths % 1000 == 0 && power + 1 < DECIMAL.len() {
        billionths /= 1000;
        power += 1;
    }
    format!("{billionths}{}", DECIMAL[power])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_wrote_into_a_map_of_texts_stays_as_it_is() {
        let mut object =
            serde_json::json!({"data": {"sizeLimit": "1024Mi"}, "spec": {"emptyDir": {"sizeLimit": "1024Mi"}}});
        settle(&mut object);
        assert_eq!(
            (&object["data"]["sizeLimit"], &object["spec"]["emptyDir"]["sizeLimit"]),
            (&"1024Mi".into(), &"1Gi".into())
        );
    }

    #[test]
    fn one_amount_has_one_form() {
        for (sent, stored) in [
            ("0.1", "100m"),
            ("1000m", "1"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("64Mi", "64Mi"),
            ("512Ki", "512Ki"),
            ("0", "0"),
            ("2000", "2k"),
            ("0.5Ki", "512"),
            ("-1500m", "-1500m"),
        ] {
            assert_eq!(canonical(sent).as_deref(), Some(stored), "{sent}");
        }
        for wrong in ["lots", "", "1e3", "1Q", "."] {
            assert_eq!(canonical(wrong), None, "{wrong}");
        }
    }
}
