//! Whether what a status says is so: at the moment it is written, and once everything is quiet.

use kube::Client;
use serde_json::Value;

use super::effect::Asked;
use super::stage::{object, objects};

/// Kinds with conditions.
pub const OURS: [&str; 6] = ["fleets", "storagecells", "cells", "guilds", "moves", "storagemigrations"];
const ROLES: [&str; 3] = ["gateway", "guild", "data"];

fn generation(object: &Value) -> i64 {
    object["metadata"]["generation"].as_i64().unwrap_or_default()
}

/// The `Ready` condition's status and reason.
pub fn ready(status: &Value) -> Option<(String, String)> {
    let conditions = status["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    Some((found["status"].as_str()?.to_owned(), found["reason"].as_str().unwrap_or_default().to_owned()))
}

fn is_ready(status: &Value) -> bool {
    ready(status).is_some_and(|(status, _)| status == "True")
}

/// What is wrong with a status that is being written, if anything is.
pub async fn lie(client: &Client, namespace: &str, asked: &Asked, body: &[u8]) -> Option<String> {
    let written: Value = serde_json::from_slice(body).ok()?;
    let status = &written["status"];
    let live = object(client, namespace, &asked.plural, &asked.name).await?;
    let observed = status["observedGeneration"].as_i64()?;
    if observed > generation(&live) {
        return Some(format!("observedGeneration {observed} is ahead of generation {}", generation(&live)));
    }
    // Of an older generation nothing can be judged by the spec that is there now.
    if !is_ready(status) || observed < generation(&live) {
        return None;
    }
    missing(client, namespace, &asked.plural, &live).await.map(|why| format!("Ready although {why}"))
}

/// What a thing that is Ready lacks.
async fn missing(client: &Client, namespace: &str, plural: &str, owner: &Value) -> Option<String> {
    let name = owner["metadata"]["name"].as_str()?;
    let there = async |kind: &str, child: String| {
        let found = object(client, namespace, kind, &child).await;
        found.ok_or_else(|| format!("{kind}/{child} is not there"))
    };
    let mut sets = Vec::new();
    let wanted: Vec<(&str, String)> = match plural {
        "cells" => {
            sets = ROLES
                .iter()
                .map(|role| (format!("{name}-{role}"), owner["spec"]["roles"][role]["replicas"].as_i64()))
                .collect();
            let budgets = ROLES.iter().map(|role| ("poddisruptionbudgets", format!("{name}-{role}")));
            budgets.chain([("secrets", format!("{name}-storage"))]).collect()
        }
        "storagecells" if owner["spec"]["engine"] == "embedded" => {
            sets = vec![(format!("{name}-store"), Some(1))];
            vec![("services", format!("{name}-store"))]
        }
        "fleets" => vec![("services", format!("{name}-entry")), ("secrets", format!("{name}-token-keys"))],
        _ => Vec::new(),
    };
    for (kind, child) in wanted {
        if let Err(why) = there(kind, child).await {
            return Some(why);
        }
    }
    for (set, replicas) in sets {
        let found = match there("statefulsets", set.clone()).await {
            Ok(found) => found,
            Err(why) => return Some(why),
        };
        if found["spec"]["replicas"].as_i64() != replicas {
            return Some(format!("{set} has {} replicas, {replicas:?} are wanted", found["spec"]["replicas"]));
        }
        let prefix = format!("{set}-");
        let pods = objects(client, namespace, "pods").await;
        let own =
            pods.iter().filter(|pod| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&prefix)));
        let ready =
            own.filter(|pod| is_ready(&pod["status"]) && pod["metadata"]["deletionTimestamp"].is_null()).count();
        if i64::try_from(ready).ok() != replicas {
            return Some(format!("{set} has {ready} ready pods, {replicas:?} are wanted"));
        }
    }
    None
}

/// What is untrue once everything is quiet.
pub async fn untruths(client: &Client, namespace: &str) -> Vec<String> {
    let mut found = Vec::new();
    for plural in OURS {
        for one in objects(client, namespace, plural).await {
            let name = format!("{plural}/{}", one["metadata"]["name"].as_str().unwrap_or_default());
            let observed = one["status"]["observedGeneration"].as_i64().unwrap_or_default();
            if observed != generation(&one) {
                found.push(format!("{name}: observedGeneration {observed}, generation {}", generation(&one)));
            }
            match ready(&one["status"]) {
                None => found.push(format!("{name} has no Ready condition")),
                Some((status, _)) if status == "True" => {
                    let why = missing(client, namespace, plural, &one).await;
                    found.extend(why.map(|why| format!("{name} is Ready although {why}")));
                }
                Some(_) => {}
            }
        }
    }
    found
}
