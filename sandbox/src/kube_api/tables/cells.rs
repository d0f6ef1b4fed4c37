//! Cells of tables: ages as kubectl prints them, and the columns a definition asks for. Pure; the clock is an argument.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::Heading;
use crate::kube_api::custom::CustomVersion;
use crate::kube_api::object::{name, text};

/// How long ago a time was, as kubectl prints it; `<unknown>` if it is none.
pub fn age(time: &str, now: Timestamp) -> String {
    let Ok(then) = time.parse::<Timestamp>() else { return "<unknown>".into() };
    duration(now.as_second() - then.as_second())
}

/// Seconds in the two largest useful units.
pub fn duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let both = |large: i64, l: &str, small: i64, s: &str| {
        if small == 0 { format!("{large}{l}") } else { format!("{large}{l}{small}{s}") }
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".into(),
        -1..=0 => "0s".into(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => both(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => both(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => both(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ => both(days / 365, "y", days % 365, "d"),
    }
}

/// The columns of a custom resource.
pub fn custom_headings(custom: &CustomVersion) -> Vec<Heading> {
    let mut out = vec![Heading {
        name: "Name".into(),
        kind: "string".into(),
        format: "name".into(),
        description: "Name must be unique within a namespace.".into(),
        priority: 0,
    }];
    if custom.columns.is_empty() {
        out.push(Heading {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: "CreationTimestamp is a timestamp representing the server time when this object was created."
                .into(),
            priority: 0,
        });
    }
    out.extend(custom.columns.iter().map(|c| Heading {
        name: c.name.clone(),
        kind: c.kind.clone(),
        format: c.format.clone(),
        description: c.description.clone(),
        priority: c.priority,
    }));
    out
}

/// The cells of a custom resource.
pub fn custom_row(custom: &CustomVersion, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut out = vec![Value::from(name(object))];
    if custom.columns.is_empty() {
        out.push(age(text(object, &["metadata", "creationTimestamp"]), now).into());
    }
    for column in &custom.columns {
        let found = column.path.find(object);
        out.push(match (found.as_slice(), column.kind.as_str()) {
            ([], _) => Value::Null,
            ([one, ..], "date") => one.as_str().map_or(Value::Null, |t| age(t, now).into()),
            ([one], "integer" | "number" | "boolean") => (*one).clone(),
            ([Value::String(text)], _) => text.as_str().into(),
            ([one], _) if one.is_null() => Value::Null,
            (many, _) => many
                .iter()
                .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                .collect::<Vec<_>>()
                .join(",")
                .into(),
        });
    }
    out
}
