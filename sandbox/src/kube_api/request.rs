//! What a request asks for: the path taken apart and the query parsed. Pure; whether the resource exists is decided elsewhere.

use std::collections::BTreeMap;

use super::status::Refusal;

/// A path below `/api/v1` or `/apis/GROUP/VERSION`, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    pub group: String,
    pub version: String,
    /// Empty for cluster-scoped requests and lists over all namespaces.
    pub namespace: String,
    pub plural: String,
    /// Empty for collections.
    pub name: String,
    /// Empty for the object itself.
    pub subresource: String,
}

/// What a path means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Liveness and readiness.
    Health,
    Version,
    /// `/metrics`.
    Metrics,
    /// `/openapi/v3` and what lies under it: a group and version, as `api/v1` or `apis/GROUP/VERSION`.
    OpenApi(String),
    /// `/sandbox/backup`.
    Backup,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// The resource list of a group and version.
    Resources {
        group: String,
        version: String,
    },
    Resource(Target),
    Unknown,
}

/// Takes a path apart.
pub fn route(path: &str) -> Route {
    let parts: Vec<String> = path.split('/').filter(|p| !p.is_empty()).map(decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["healthz" | "readyz" | "livez", ..] => Route::Health,
        ["version"] => Route::Version,
        ["metrics"] => Route::Metrics,
        ["openapi", "v3", rest @ ..] => Route::OpenApi(rest.join("/")),
        ["sandbox", "backup"] => Route::Backup,
        ["api"] => Route::CoreVersions,
        ["apis"] => Route::Groups,
        ["apis", group] => Route::Group((*group).to_owned()),
        ["api", version] => Route::Resources { group: String::new(), version: (*version).to_owned() },
        ["apis", group, version] => Route::Resources { group: (*group).to_owned(), version: (*version).to_owned() },
        ["api", version, rest @ ..] => resource("", version, rest),
        ["apis", group, version, rest @ ..] => resource(group, version, rest),
        _ => Route::Unknown,
    }
}

fn resource(group: &str, version: &str, rest: &[&str]) -> Route {
    let mut target = Target { group: group.to_owned(), version: version.to_owned(), ..Target::default() };
    let own = |s: &str| s.to_owned();
    let rest = match rest {
        ["namespaces", _, "status" | "finalize"] => rest,
        ["namespaces", namespace, inner @ ..] if !inner.is_empty() => {
            target.namespace = own(namespace);
            inner
        }
        _ => rest,
    };
    match rest {
        [plural] => target.plural = own(plural),
        [plural, name] => (target.plural, target.name) = (own(plural), own(name)),
        [plural, name, sub] => (target.plural, target.name, target.subresource) = (own(plural), own(name), own(sub)),
        [plural, name, sub @ ..] => {
            (target.plural, target.name, target.subresource) = (own(plural), own(name), sub.join("/"));
        }
        [] => return Route::Unknown,
    }
    Route::Resource(target)
}

/// Undoes percent-encoding; bytes that are not UTF-8 become the replacement character.
pub fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    while i < bytes.len() {
        let pair = bytes
            .get(i + 1..i + 3)
            .and_then(|p| std::str::from_utf8(p).ok())
            .and_then(|p| u8::from_str_radix(p, 16).ok());
        match pair {
            Some(byte) if bytes[i] == b'%' => {
                out.push(byte);
                i += 3;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The query of a request.
#[derive(Debug, Clone, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// Parses `a=b&c=d`; of a repeated name the first counts, as in Kubernetes.
    pub fn parse(text: &str) -> Self {
        let mut map = BTreeMap::new();
        for pair in text.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            map.entry(decode(key)).or_insert_with(|| decode(&value.replace('+', " ")));
        }
        Self(map)
    }

    /// The value of a name, or "".
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    /// `true` and `1` hold; absent, empty, `false` and `0` do not; anything else is refused.
    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.get(name) {
            "" if self.0.contains_key(name) => Ok(true),
            "true" | "True" | "TRUE" | "1" | "t" => Ok(true),
            "" | "false" | "False" | "FALSE" | "0" | "f" => Ok(false),
            other => Err(Refusal::bad_request(format!("query parameter {name}={other:?} must be true or false"))),
        }
    }

    /// A whole number, if given.
    pub fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        match self.get(name) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| Refusal::bad_request(format!("query parameter {name}={text:?} must be a whole number"))),
        }
    }
}
