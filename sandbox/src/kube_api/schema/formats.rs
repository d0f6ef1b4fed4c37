//! The string and number formats a schema may name. Formats nobody defined are accepted, as Kubernetes does.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine;
use k8s_openapi::jiff::{Timestamp, civil::Date};

/// Whether text has the named format; unknown formats hold.
pub fn text_matches(format: &str, text: &str) -> bool {
    match format {
        "date-time" => text.parse::<Timestamp>().is_ok(),
        "date" => text.parse::<Date>().is_ok(),
        "duration" => duration(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => cidr(text),
        "mac" => text.split([':', '-']).count() == 6 && text.split([':', '-']).all(|p| p.len() == 2 && hex(p)),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => uuid::Uuid::try_parse(text).is_ok(),
        "hostname" => text.len() <= 253 && !text.is_empty() && text.split('.').all(label),
        "uri" => text.contains(':') && !text.contains(char::is_whitespace),
        "email" => text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()),
        _ => true,
    }
}

/// Whether a whole number fits the named format.
pub fn integer_fits(format: &str, number: i64) -> bool {
    match format {
        "int32" => i32::try_from(number).is_ok(),
        "uint32" => u32::try_from(number).is_ok(),
        "uint16" => u16::try_from(number).is_ok(),
        "uint64" | "uint" => number >= 0,
        _ => true,
    }
}

fn hex(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_hexdigit())
}

fn label(part: &str) -> bool {
    (1..=63).contains(&part.len())
        && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        && !part.starts_with('-')
        && !part.ends_with('-')
}

fn cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(bits) = bits.parse::<u8>() else { return false };
    (address.parse::<Ipv4Addr>().is_ok() && bits <= 32) || (address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

/// Go's duration text: a sign, then numbers with units.
fn duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if digits == 0 {
            return false;
        }
        rest = &rest[digits..];
        let Some(unit) = ["ns", "us", "µs", "ms", "s", "m", "h"].iter().find(|u| rest.starts_with(**u)) else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
}
