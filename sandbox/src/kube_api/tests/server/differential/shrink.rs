//! Makes a scenario that differs as small as it can: first whole steps go, then fields of what is sent. It decides nothing but what to leave
//! out next; whether the rest still differs is asked of the caller.

use serde_json::Value;

use super::scenario::{Act, Scenario};
use crate::shrink::fewest;

/// Tries after which it is small enough.
const TRIES: usize = 400;

/// The smallest scenario found for which `differs` still holds.
pub async fn smallest(found: Scenario, mut differs: impl AsyncFnMut(&Scenario) -> bool) -> Scenario {
    let mut tries = TRIES;
    let steps = fewest(found.0, &mut tries, async |steps| differs(&Scenario(steps.to_vec())).await).await;
    let mut found = Scenario(steps);
    for step in 0..found.0.len() {
        let mut at = 0;
        while tries > 0 {
            let mut less = found.clone();
            let mut nth = at;
            let gone = body(&mut less.0[step].act).is_some_and(|body| take_nth(body, &mut nth));
            if !gone {
                break;
            }
            tries -= 1;
            if differs(&less).await {
                found = less;
            } else {
                at += 1;
            }
        }
    }
    found
}

fn body(act: &mut Act) -> Option<&mut Value> {
    match act {
        Act::Send { body, .. } => Some(body),
        Act::Edit { change, .. } => Some(change),
        _ => None,
    }
}

/// Takes the nth field or item out, counted from the outside in; false if there are not so many.
fn take_nth(value: &mut Value, n: &mut usize) -> bool {
    match value {
        Value::Object(map) => {
            for key in map.keys().cloned().collect::<Vec<_>>() {
                if *n == 0 {
                    map.remove(&key);
                    return true;
                }
                *n -= 1;
                if map.get_mut(&key).is_some_and(|inner| take_nth(inner, n)) {
                    return true;
                }
            }
            false
        }
        Value::Array(list) => {
            for i in 0..list.len() {
                if *n == 0 {
                    list.remove(i);
                    return true;
                }
                *n -= 1;
                if take_nth(&mut list[i], n) {
                    return true;
                }
            }
            false
        }
        _ => false,
    }
}
