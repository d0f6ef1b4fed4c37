//! Label and field selectors: parsing and matching. Pure. A field selector on a field that is not selectable is refused, never ignored.

use serde_json::Value;

use super::object;
use super::status::Refusal;

/// A parsed pair of selectors.
#[derive(Debug, Clone, Default)]
pub struct Selector {
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

#[derive(Debug, Clone, PartialEq)]
enum LabelTerm {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

#[derive(Debug, Clone, PartialEq)]
struct FieldTerm {
    path: Vec<String>,
    value: String,
    equal: bool,
}

impl Selector {
    /// Parses both; `selectable` are the field paths the resource allows beyond `metadata.name` and `metadata.namespace`.
    pub fn parse(labels: &str, fields: &str, selectable: &[String]) -> Result<Self, Refusal> {
        Ok(Self { labels: parse_labels(labels)?, fields: parse_fields(fields, selectable)? })
    }

    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one name that can match, if the selector says so.
    pub fn only_name(&self) -> Option<&str> {
        self.fields.iter().find(|t| t.equal && t.path == ["metadata", "name"]).map(|t| t.value.as_str())
    }

    /// Whether an object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.iter().all(|term| term.matches(object)) && self.fields.iter().all(|term| term.matches(object))
    }
}

impl LabelTerm {
    fn matches(&self, object: &Value) -> bool {
        let label =
            |key: &str| object::at(object, &["metadata", "labels"]).and_then(|l| l.get(key)).and_then(Value::as_str);
        match self {
            Self::In(key, values) => label(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Self::NotIn(key, values) => label(key).is_none_or(|v| values.iter().all(|w| w != v)),
            Self::Exists(key) => label(key).is_some(),
            Self::Absent(key) => label(key).is_none(),
            Self::Greater(key, bound) => label(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *bound),
            Self::Less(key, bound) => label(key).and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *bound),
        }
    }
}

impl FieldTerm {
    fn matches(&self, object: &Value) -> bool {
        let found = self.path.iter().try_fold(object, |value, key| value.get(key));
        let text = match found {
            // A truth value left out is false, and must be found as such.
            None | Some(Value::Null)
                if matches!(self.path.last().map(String::as_str), Some("unschedulable" | "hostNetwork")) =>
            {
                "false".into()
            }
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        (text == self.value) == self.equal
    }
}

fn parse_fields(text: &str, selectable: &[String]) -> Result<Vec<FieldTerm>, Refusal> {
    text.split(',')
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .map(|term| {
            let (path, value, equal) = if let Some((p, v)) = term.split_once("!=") {
                (p, v, false)
            } else if let Some((p, v)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (p, v, true)
            } else {
                return Err(Refusal::bad_request(format!(
                    "invalid field selector {term:?}: write path=value or path!=value"
                )));
            };
            let path = path.trim();
            let known = matches!(path, "metadata.name" | "metadata.namespace") || selectable.iter().any(|s| s == path);
            if !known {
                return Err(Refusal::bad_request(format!("field label not supported: {path}")));
            }
            let value = value.trim().replace("\\,", ",").replace("\\=", "=");
            Ok(FieldTerm { path: path.split('.').map(str::to_owned).collect(), value, equal })
        })
        .collect()
}

fn parse_labels(text: &str) -> Result<Vec<LabelTerm>, Refusal> {
    split_terms(text).into_iter().map(|term| parse_label(term.trim())).collect()
}

/// Splits at commas outside parentheses.
fn split_terms(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0_i32, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth <= 0 => {
                out.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out.retain(|t| !t.trim().is_empty());
    out
}

fn parse_label(term: &str) -> Result<LabelTerm, Refusal> {
    let bad = |why: &str| Refusal::bad_request(format!("unable to parse requirement {term:?}: {why}"));
    if let Some(key) = term.strip_prefix('!') {
        return Ok(LabelTerm::Absent(checked_key(key, term)?));
    }
    if let Some(open) = term.strip_suffix(')') {
        let (head, values) = open.split_once('(').ok_or_else(|| bad("missing ("))?;
        let values: Vec<String> = values.split(',').map(|v| v.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        let (Some(key), Some(operator), None) = (words.next(), words.next(), words.next()) else {
            return Err(bad("write key in (a,b) or key notin (a,b)"));
        };
        let key = checked_key(key, term)?;
        return match operator {
            "in" => Ok(LabelTerm::In(key, values)),
            "notin" => Ok(LabelTerm::NotIn(key, values)),
            _ => Err(bad("operator must be in or notin")),
        };
    }
    for (operator, split) in [("!=", term.split_once("!=")), ("==", term.split_once("==")), ("=", term.split_once('='))]
    {
        if let Some((key, value)) = split {
            let (key, values) = (checked_key(key, term)?, vec![checked_value(value, term)?]);
            return Ok(if operator == "!=" { LabelTerm::NotIn(key, values) } else { LabelTerm::In(key, values) });
        }
    }
    for greater in [true, false] {
        if let Some((key, bound)) = term.split_once(if greater { '>' } else { '<' }) {
            let bound = bound.trim().parse().map_err(|_| bad("the bound must be a whole number"))?;
            let key = checked_key(key, term)?;
            return Ok(if greater { LabelTerm::Greater(key, bound) } else { LabelTerm::Less(key, bound) });
        }
    }
    Ok(LabelTerm::Exists(checked_key(term, term)?))
}

fn checked_key(key: &str, term: &str) -> Result<String, Refusal> {
    let key = key.trim();
    if super::names::qualified(key) {
        Ok(key.to_owned())
    } else {
        Err(Refusal::bad_request(format!("unable to parse requirement {term:?}: {key:?} is not a label key")))
    }
}

fn checked_value(value: &str, term: &str) -> Result<String, Refusal> {
    let value = value.trim();
    if super::names::label_value(value) {
        Ok(value.to_owned())
    } else {
        Err(Refusal::bad_request(format!("unable to parse requirement {term:?}: {value:?} is not a label value")))
    }
}

/// Whether a `LabelSelector` (matchLabels, matchExpressions) selects an object; an empty one selects everything, none selects nothing.
pub fn label_selector_matches(selector: &Value, object: &Value) -> bool {
    let Some(map) = selector.as_object() else { return false };
    let mut terms = Vec::new();
    for (key, value) in map.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
        terms.push(LabelTerm::In(key.clone(), vec![value.as_str().unwrap_or_default().to_owned()]));
    }
    for expression in object::list(selector, &["matchExpressions"]) {
        let key = object::text(expression, &["key"]).to_owned();
        let values =
            object::list(expression, &["values"]).iter().filter_map(|v| v.as_str().map(str::to_owned)).collect();
        terms.push(match object::text(expression, &["operator"]) {
            "In" => LabelTerm::In(key, values),
            "NotIn" => LabelTerm::NotIn(key, values),
            "Exists" => LabelTerm::Exists(key),
            "DoesNotExist" => LabelTerm::Absent(key),
            _ => return false,
        });
    }
    terms.iter().all(|t| t.matches(object))
}
