//! The JSONPath of printer columns: fields, quoted fields, indices, wildcards and equality filters. Anything else is refused when the
//! definition is made, never guessed when a row is printed.

use serde_json::Value;

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Field(String),
    Index(i64),
    All,
    /// `[?(@.a.b=="x")]`
    Filter {
        path: Vec<String>,
        value: String,
        equal: bool,
    },
}

impl JsonPath {
    /// Parses `.status.conditions[?(@.type=="Ready")].status` and the like.
    pub fn parse(source: &str) -> Result<Self, String> {
        let mut rest = source.trim();
        rest = rest.strip_prefix('{').and_then(|r| r.strip_suffix('}')).unwrap_or(rest);
        rest = rest.strip_prefix('$').unwrap_or(rest);
        if rest.is_empty() {
            return Err("must not be empty".into());
        }
        let mut parts = Vec::new();
        while !rest.is_empty() {
            rest = if let Some(inner) = rest.strip_prefix('[') {
                bracket(inner, &mut parts)?
            } else {
                field(rest, &mut parts)?
            };
        }
        Ok(Self(parts))
    }

    /// Every value the path finds.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for part in &self.0 {
            found = found.into_iter().flat_map(|value| part.step(value)).collect();
        }
        found
    }
}

fn field<'a>(rest: &'a str, parts: &mut Vec<Part>) -> Result<&'a str, String> {
    let rest = rest.strip_prefix('.').ok_or_else(|| format!("expected . or [ at {rest:?}"))?;
    let (mut name, mut end, mut escaped) = (String::new(), rest.len(), false);
    for (i, c) in rest.char_indices() {
        if escaped {
            name.push(c);
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if matches!(c, '.' | '[') {
            end = i;
            break;
        } else {
            name.push(c);
        }
    }
    if name.is_empty() && !rest.starts_with('[') {
        return Err("recursive descent and empty fields are not supported".into());
    }
    if name == "*" {
        parts.push(Part::All);
    } else if !name.is_empty() {
        parts.push(Part::Field(name));
    }
    Ok(&rest[end..])
}

fn bracket<'a>(inner: &'a str, parts: &mut Vec<Part>) -> Result<&'a str, String> {
    let close = if inner.starts_with("?(") {
        inner.find(")]").map(|i| i + 1)
    } else if inner.starts_with('\'') {
        inner.find("']").map(|i| i + 1)
    } else {
        inner.find(']')
    };
    let close = close.ok_or("missing ]")?;
    let (content, rest) = (&inner[..close], &inner[close + 1..]);
    let part = if content == "*" {
        Part::All
    } else if let Some(name) = content.strip_prefix('\'').and_then(|c| c.strip_suffix('\'')) {
        Part::Field(name.replace("\\.", "."))
    } else if let Some(filter) = content.strip_prefix("?(").and_then(|c| c.strip_suffix(')')) {
        parse_filter(filter)?
    } else {
        Part::Index(content.parse().map_err(|_| format!("unsupported index {content:?}"))?)
    };
    parts.push(part);
    Ok(rest)
}

fn parse_filter(filter: &str) -> Result<Part, String> {
    let (path, value, equal) = match (filter.split_once("=="), filter.split_once("!=")) {
        (Some((p, v)), _) => (p, v, true),
        (None, Some((p, v))) => (p, v, false),
        _ => return Err(format!("unsupported filter {filter:?}")),
    };
    let path = path.trim().strip_prefix("@.").ok_or_else(|| format!("unsupported filter {filter:?}"))?;
    let value = value.trim().trim_matches(['"', '\'']);
    Ok(Part::Filter { path: path.split('.').map(str::to_owned).collect(), value: value.to_owned(), equal })
}

impl Part {
    fn step<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Field(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Self::Index(i), Value::Array(items)) => {
                let len = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let at = if *i < 0 { len + i } else { *i };
                usize::try_from(at).ok().and_then(|at| items.get(at)).into_iter().collect()
            }
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::All, Value::Object(map)) => map.values().collect(),
            (Self::Filter { path, value, equal }, Value::Array(items)) => {
                items.iter().filter(|item| holds(item, path, value) == *equal).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn holds(item: &Value, path: &[String], wanted: &str) -> bool {
    match path.iter().try_fold(item, |v, key| v.get(key)) {
        Some(Value::String(text)) => text == wanted,
        Some(other) => serde_json::to_string(other).is_ok_and(|text| text == wanted),
        None => false,
    }
}
