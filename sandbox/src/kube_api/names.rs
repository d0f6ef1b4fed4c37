//! What Kubernetes accepts as names, label keys and label values. Pure predicates.

/// A DNS-1123 label: at most 63 of `a-z0-9-`, alphanumeric at both ends.
pub fn dns_label(text: &str) -> bool {
    (1..=63).contains(&text.len()) && dns_part(text)
}

/// A DNS-1123 subdomain: labels joined by dots, at most 253.
pub fn dns_subdomain(text: &str) -> bool {
    (1..=253).contains(&text.len()) && text.split('.').all(dns_part)
}

/// A DNS-1035 label: a DNS-1123 label that starts with a letter.
pub fn dns_1035(text: &str) -> bool {
    dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// A name that can stand in a path; RBAC allows more than DNS does.
pub fn path_segment(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text != "." && text != ".." && !text.contains(['/', '%'])
}

fn dns_part(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !text.is_empty() && text.starts_with(edge) && text.ends_with(edge) && text.chars().all(|c| edge(c) || c == '-')
}

/// A qualified name: an optional DNS prefix, a slash, and at most 63 of `A-Za-z0-9-_.`.
pub fn qualified(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => dns_subdomain(prefix) && qualified_part(name),
        None => qualified_part(text),
    }
}

/// A label value: empty, or at most 63 of `A-Za-z0-9-_.`, alphanumeric at both ends.
pub fn label_value(text: &str) -> bool {
    text.is_empty() || qualified_part(text)
}

fn qualified_part(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    (1..=63).contains(&text.len())
        && text.starts_with(edge)
        && text.ends_with(edge)
        && text.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'))
}
