//! What is known to differ from a real server, a reason each. A known difference is taken out of what both sides told; whatever is left must
//! be equal. The README's table says the same to users.

use serde_json::Value;

use super::scenario::{Act, Op, Scenario, Verb};

/// Known, and not generated: a null among the labels and annotations of an apply. A real server stores it once as null and writes the object
/// anew at the next request, whatever that is; the sandbox stores the empty text at once.
pub fn avoid_nulls(texts: &mut Value) {
    match texts {
        Value::Object(map) => {
            map.retain(|_, text| !text.is_null());
            if map.is_empty() {
                map.insert("n".into(), "3".into());
            }
        }
        other => *other = serde_json::json!({"n": "3"}),
    }
}

/// Known, and not compared: histories of a kind whose definition changed meanwhile. A real server begins its watch cache anew then, and says 410
/// or tells only what came later; the sandbox has the whole history and serves it.
pub fn has_one_history(scenario: &Scenario) -> bool {
    !scenario.0.iter().any(|op| matches!(op.act, Act::Define { .. }))
}

/// One known difference.
pub struct Known {
    pub what: &'static str,
    pub reason: &'static str,
    /// Makes both sides say the same where, and only where, this difference is at work. The step is none for a history.
    pub forgive: fn(Option<&Op>, real: &mut Value, ours: &mut Value),
}

pub const KNOWN: &[Known] = &[
    Known {
        what: "cluster IPs and IP families of Services",
        reason: "the sandbox has no cluster network: it assigns none",
        forgive: |_, real, ours| {
            for told in [real, ours] {
                without(told, "Service", &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
            }
        },
    },
    Known {
        what: "advice in warnings",
        reason: "a real server also warns of settings that have no effect; the sandbox warns of unknown fields alone",
        forgive: |_, real, ours| {
            let advice = |warning: &Value| !warning.as_str().unwrap_or_default().contains("unknown field");
            for told in [real, ours] {
                if let Some(warnings) = told.get_mut("WARNINGS").and_then(Value::as_array_mut) {
                    warnings.retain(|warning| !advice(warning));
                    if warnings.is_empty() {
                        told.as_object_mut().map(|told| told.remove("WARNINGS"));
                    }
                }
            }
        },
    },
    Known {
        what: "an apply with a value that cannot be read and a conflict",
        reason: "a real server tells of the conflict (409) first, the sandbox of the value (500)",
        forgive: |op, real, ours| {
            let applies = matches!(op.map(|op| &op.act), Some(Act::Send { verb: Verb::Apply, .. }));
            let code = |told: &Value| told.get("CODE").and_then(Value::as_i64);
            if applies && code(real) == Some(409) && code(ours) == Some(500) {
                *ours = real.clone();
            }
        },
    },
];

/// Takes fields out of the spec of every object of a kind.
fn without(told: &mut Value, kind: &str, fields: &[&str]) {
    match told {
        Value::Object(map) => {
            let named = map.get("kind").is_none_or(|found| found == kind);
            if let Some(Value::Object(spec)) = map.get_mut("spec").filter(|_| named) {
                spec.retain(|name, _| !fields.contains(&name.as_str()));
            }
            map.values_mut().for_each(|inner| without(inner, kind, fields));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| without(item, kind, fields)),
        _ => {}
    }
}

/// Takes out what is known.
pub fn forgive(op: Option<&Op>, real: &mut Value, ours: &mut Value) {
    if real != ours {
        KNOWN.iter().for_each(|known| (known.forgive)(op, real, ours));
    }
}
