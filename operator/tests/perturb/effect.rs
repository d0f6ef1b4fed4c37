//! What a request of the operator does, in words that are the same in every run: verb, kind and name, without UIDs and hashes. Pure.

use etcd_client::proto::{PbTxnOpRequest, PbTxnRequest};
use http::Method;
use serde_json::Value;

/// A request to the Kubernetes API, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Plural of the kind.
    pub plural: String,
    /// Empty for a collection.
    pub name: String,
    pub subresource: String,
    pub watches: bool,
}

/// Reads `/api/v1/namespaces/N/pods/p` and the like; nothing for what is not of a namespace.
pub fn asked(path: &str, query: &str) -> Option<Asked> {
    let mut parts = path.trim_start_matches('/').split('/');
    let skipped = if parts.next()? == "api" { 1 } else { 2 };
    let mut parts = parts.skip(skipped);
    if parts.next()? != "namespaces" {
        return None;
    }
    let _namespace = parts.next()?;
    let mut word = || parts.next().unwrap_or_default().to_owned();
    let (plural, name, subresource) = (word(), word(), word());
    let watches = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
    (!plural.is_empty()).then_some(Asked { plural, name, subresource, watches })
}

/// What a request changes; nothing for a read, and for what is no part of any end state: the Lease, events, reviews.
pub fn of_kubernetes(method: &Method, asked: &Asked, body: &[u8]) -> Option<String> {
    if matches!(asked.plural.as_str(), "leases" | "events") {
        return None;
    }
    let verb = match (method.as_str(), asked.subresource.as_str()) {
        ("POST", "") => "create",
        ("PATCH" | "PUT", "status") => "status",
        ("PATCH" | "PUT", _) => "apply",
        ("DELETE", _) => "delete",
        _ => return None,
    };
    let name = if asked.name.is_empty() {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        body["metadata"]["name"].as_str().unwrap_or("?").to_owned()
    } else {
        asked.name.clone()
    };
    Some(format!("{verb} {}/{}", asked.plural, stable(&name)))
}

/// What a transaction writes; nothing for one that only reads.
pub fn of_etcd(txn: &PbTxnRequest, prefix: &str) -> Option<String> {
    let mut words = Vec::new();
    for op in &txn.success {
        let (verb, key) = match &op.request {
            Some(PbTxnOpRequest::RequestPut(put)) => ("put", &put.key),
            Some(PbTxnOpRequest::RequestDeleteRange(delete)) => ("delete", &delete.key),
            _ => continue,
        };
        let key = String::from_utf8_lossy(key);
        words.push(format!("{verb} {}", stable(key.strip_prefix(prefix).unwrap_or(&key))));
    }
    (!words.is_empty()).then(|| format!("etcd {}", words.join(", ")))
}

/// What a call to a cell changes; nothing for one that only looks.
pub fn of_cell(path: &str) -> Option<String> {
    const LOOKS: [&str; 7] = ["Inspect", "ListHeads", "Query", "ReadGuild", "Reach", "CopyStatus", "Ranges"];
    let name = path.rsplit('/').next()?;
    (!LOOKS.contains(&name)).then(|| format!("rpc {name}"))
}

/// Without what differs between two runs: UIDs become `*`, as do eight hexadecimal digits at the end of a name; guilds of plays (eight
/// decimal digits, scenario.rs) become `GUILD`.
pub fn stable(text: &str) -> String {
    let is_hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (String::new(), 0);
    while at < chars.len() {
        let window: String = chars[at..chars.len().min(at + 36)].iter().collect();
        let lengths: Vec<usize> = window.split('-').map(str::len).collect();
        if window.len() == 36 && lengths == [8, 4, 4, 4, 12] && window.split('-').all(is_hex) {
            out.push('*');
            at += 36;
        } else if is_guild(&chars, at) {
            out.push_str("GUILD");
            at += 8;
        } else {
            out.push(chars[at]);
            at += 1;
        }
    }
    match out.rsplit_once('-') {
        Some((name, end)) if end.len() == 8 && is_hex(end) && end.bytes().any(|byte| byte.is_ascii_digit()) => {
            format!("{name}-*")
        }
        _ => out,
    }
}

/// Whether eight digits begin here that are a guild which a play made.
fn is_guild(chars: &[char], at: usize) -> bool {
    let digits = chars[at..].iter().take_while(|char| char.is_ascii_digit()).count();
    let begins = at == 0 || !chars[at - 1].is_ascii_digit();
    begins && digits == 8 && chars[at] == '7' && chars[at + 1] == '1'
}

#[test]
fn effects_have_the_same_words_in_every_run() {
    let one = asked("/apis/apps/v1/namespaces/n/statefulsets/a-data", "").unwrap();
    assert_eq!(of_kubernetes(&Method::PATCH, &one, b"").unwrap(), "apply statefulsets/a-data");
    assert_eq!(of_kubernetes(&Method::GET, &one, b""), None);
    let pods = asked("/api/v1/namespaces/n/pods", "watch=true&x=1").unwrap();
    assert!(pods.watches && pods.name.is_empty());
    let made = br#"{"metadata":{"name":"g-7-placement-1a2b3c4d"}}"#;
    assert_eq!(
        of_kubernetes(&Method::POST, &asked("/apis/g/v/namespaces/n/moves", "").unwrap(), made).unwrap(),
        "create moves/g-7-placement-*"
    );
    assert_eq!(stable("runs/fdd11ad9-5619-4c7d-a745-eead124349af/x"), "runs/*/x");
    assert_eq!(stable("create moves/g-71000002-placement-1a2b3c4d"), "create moves/g-GUILD-placement-*");
    assert_eq!(of_cell("/cellplane.v1.DataService/Switch").unwrap(), "rpc Switch");
    assert_eq!(of_cell("/cellplane.v1.DataService/Inspect"), None);
}
