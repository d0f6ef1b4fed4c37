//! What the server says it serves: version lists, group lists, resource lists, and the aggregated form. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::kinds::Resource;
use super::registry::Served;

/// The Kubernetes version the API behaves like.
pub const VERSION: (&str, &str, &str) = ("1", "33", "v1.33.0-cellplane-sandbox");

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// `/version`.
pub fn version() -> Value {
    json!({"major": VERSION.0, "minor": VERSION.1, "gitVersion": VERSION.2, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64"})
}

/// `/api`.
pub fn core_versions(address: &str) -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]})
}

/// `/apis`.
pub fn groups(served: &Served) -> Value {
    let groups: Vec<Value> =
        grouped(served).iter().filter(|(g, _)| !g.is_empty()).map(|(g, v)| group_entry(g, v)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn group(served: &Served, name: &str) -> Option<Value> {
    let grouped = grouped(served);
    let mut entry = group_entry(name, grouped.get(name)?);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// The resource list of a group and version.
pub fn resources(served: &Served, group: &str, version: &str) -> Option<Value> {
    let grouped = grouped(served);
    let mut list = grouped.get(group).and_then(|v| v.iter().find(|(name, _)| name == version)).map(|(_, r)| r.clone());
    if review_group(group, version) {
        list.get_or_insert_default();
    }
    let mut entries = Vec::new();
    for resource in list? {
        entries.push(json!({"name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": VERBS, "shortNames": resource.short_names, "categories": resource.categories}));
        for sub in &resource.subresources {
            let (g, v, kind) = response_kind(&resource, sub);
            entries.push(json!({"name": format!("{}/{sub}", resource.plural), "singularName": "",
                "namespaced": resource.namespaced, "group": g, "version": v, "kind": kind, "verbs": sub_verbs(sub)}));
        }
    }
    entries.extend(reviews(group).iter().map(|(plural, kind)| {
        json!({"name": plural, "singularName": kind.to_lowercase(), "namespaced": false, "kind": kind, "verbs": ["create"]})
    }));
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}))
}

/// The aggregated form of `/api` (the core group) or `/apis` (all others).
pub fn aggregated(served: &Served, core: bool) -> Value {
    let mut items = Vec::new();
    for (group, versions) in grouped(served) {
        if group.is_empty() != core {
            continue;
        }
        let versions: Vec<Value> = versions
            .iter()
            .map(|(version, resources)| {
                let mut list: Vec<Value> = resources.iter().map(|r| aggregated_resource(r)).collect();
                list.extend(reviews(&group).iter().map(|(plural, kind)| {
                    json!({"resource": plural, "responseKind": {"group": group, "version": version, "kind": kind},
                        "scope": "Cluster", "singularResource": kind.to_lowercase(), "verbs": ["create"]})
                }));
                json!({"version": version, "freshness": "Current", "resources": list})
            })
            .collect();
        items.push(json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions}));
    }
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = |g: &str, v: &str, k: &str| json!({"group": g, "version": v, "kind": k});
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|sub| {
            let (g, v, k) = response_kind(resource, sub);
            json!({"subresource": sub, "responseKind": kind(&g, &v, &k), "verbs": sub_verbs(sub)})
        })
        .collect();
    json!({"resource": resource.plural, "responseKind": kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" }, "singularResource": resource.singular,
        "verbs": VERBS, "shortNames": resource.short_names, "categories": resource.categories, "subresources": subresources})
}

type Grouped = BTreeMap<String, Vec<(String, Vec<Arc<Resource>>)>>;

fn grouped(served: &Served) -> Grouped {
    let mut out: Grouped = BTreeMap::new();
    for resource in served.all() {
        let versions = out.entry(resource.group.clone()).or_default();
        match versions.iter_mut().find(|(v, _)| *v == resource.version) {
            Some((_, list)) => list.push(resource.clone()),
            None => versions.push((resource.version.clone(), vec![resource.clone()])),
        }
    }
    for group in ["authentication.k8s.io", "authorization.k8s.io"] {
        out.entry(group.into()).or_insert_with(|| vec![("v1".into(), Vec::new())]);
    }
    for versions in out.values_mut() {
        versions.sort_by_key(|(v, _)| std::cmp::Reverse(rank(v)));
    }
    out
}

fn group_entry(name: &str, versions: &[(String, Vec<Arc<Resource>>)]) -> Value {
    let entry = |v: &str| json!({"groupVersion": format!("{name}/{v}"), "version": v});
    let list: Vec<Value> = versions.iter().map(|(v, _)| entry(v)).collect();
    json!({"name": name, "versions": list, "preferredVersion": list.first()})
}

/// Kubernetes' order of versions: stable before beta before alpha, higher numbers first.
fn rank(version: &str) -> (u8, u64, u64) {
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0) };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..digits].parse().unwrap_or_default();
    let tail = &rest[digits..];
    let number = |word: &str| tail.strip_prefix(word).and_then(|n| n.parse().ok()).unwrap_or_default();
    match tail {
        "" => (3, major, 0),
        t if t.starts_with("beta") => (2, major, number("beta")),
        t if t.starts_with("alpha") => (1, major, number("alpha")),
        _ => (0, major, 0),
    }
}

fn response_kind(resource: &Resource, sub: &str) -> (String, String, String) {
    let (g, v, k) = match sub {
        "scale" => ("autoscaling", "v1", "Scale"),
        "eviction" => ("policy", "v1", "Eviction"),
        "binding" => ("", "v1", "Binding"),
        "token" => ("authentication.k8s.io", "v1", "TokenRequest"),
        _ => (resource.group.as_str(), resource.version.as_str(), resource.kind.as_str()),
    };
    (g.to_owned(), v.to_owned(), k.to_owned())
}

fn sub_verbs(sub: &str) -> &'static [&'static str] {
    match sub {
        "status" | "scale" => &["get", "patch", "update"],
        "log" => &["get"],
        _ => &["create"],
    }
}

fn review_group(group: &str, version: &str) -> bool {
    version == "v1" && !reviews(group).is_empty()
}

fn reviews(group: &str) -> &'static [(&'static str, &'static str)] {
    match group {
        "authentication.k8s.io" => &[("tokenreviews", "TokenReview"), ("selfsubjectreviews", "SelfSubjectReview")],
        "authorization.k8s.io" => &[
            ("localsubjectaccessreviews", "LocalSubjectAccessReview"),
            ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
            ("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
            ("subjectaccessreviews", "SubjectAccessReview"),
        ],
        _ => &[],
    }
}
