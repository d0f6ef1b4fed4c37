//! Who a message mentions: read from its text, narrowed by `allowed_mentions`. Pure.

use serde_json::{Map, Value};

use crate::wire::lenient;

/// What the client allows to be mentioned; everything when it says nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    parse: Option<Vec<String>>,
    users: Vec<i64>,
    roles: Vec<i64>,
}

impl Allowed {
    /// Reads `allowed_mentions`.
    pub fn read(body: &Map<String, Value>) -> Self {
        let Some(Value::Object(allowed)) = body.get("allowed_mentions") else {
            return Self::default();
        };
        let ids = |key: &str| -> Vec<i64> {
            allowed.get(key).and_then(Value::as_array).into_iter().flatten().take(100).filter_map(lenient::id).collect()
        };
        let kinds = allowed.get("parse").and_then(Value::as_array).into_iter().flatten();
        let parse = Some(kinds.filter_map(|kind| kind.as_str().map(str::to_owned)).take(3).collect());
        Self { parse, users: ids("users"), roles: ids("roles") }
    }

    fn parses(&self, kind: &str) -> bool {
        self.parse.as_ref().is_none_or(|kinds| kinds.iter().any(|one| one == kind))
    }
}

/// Who is mentioned.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Mentions {
    /// Users, each once, in order.
    pub users: Vec<i64>,
    /// Roles, each once, in order.
    pub roles: Vec<i64>,
    /// @everyone or @here.
    pub everyone: bool,
}

/// Most mentions kept of each kind.
const MAX_MENTIONS: usize = 100;

/// Reads the mentions of a text.
pub fn read(content: &str, allowed: &Allowed, may_mention_everyone: bool) -> Mentions {
    let mut found = Mentions::default();
    let mut rest = content;
    while let Some(start) = rest.find("<@") {
        rest = &rest[start + 2..];
        let Some(end) = rest.find('>') else {
            break;
        };
        let inner = &rest[..end];
        let (list, digits, kind, named) = match inner.strip_prefix('&') {
            Some(digits) => (&mut found.roles, digits, "roles", &allowed.roles),
            None => (&mut found.users, inner.strip_prefix('!').unwrap_or(inner), "users", &allowed.users),
        };
        if let Some(id) = lenient::id_of_text(digits)
            && (allowed.parses(kind) || named.contains(&id))
            && !list.contains(&id)
            && list.len() < MAX_MENTIONS
        {
            list.push(id);
        }
    }
    let shouts = content.contains("@everyone") || content.contains("@here");
    found.everyone = shouts && may_mention_everyone && allowed.parses("everyone");
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn allowed(value: Value) -> Allowed {
        Allowed::read(json!({ "allowed_mentions": value }).as_object().unwrap())
    }

    #[test]
    fn mentions_are_read_once_each_and_narrowed_by_what_is_allowed() {
        let text = "hi <@1> <@!2> <@1> <@&7> <@x> @everyone <@";
        let all = read(text, &Allowed::default(), true);
        assert_eq!(all, Mentions { users: vec![1, 2], roles: vec![7], everyone: true });
        assert_eq!(read(text, &allowed(json!({"parse": []})), true), Mentions::default());
        assert_eq!(read(text, &allowed(json!({"users": ["2"]})), true).users, vec![2]);
        assert!(!read(text, &Allowed::default(), false).everyone);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "\\PC{0,80}(<@[&!]?[0-9é]{0,22}>?)*") {
            read(&text, &Allowed::default(), true);
        }
    }
}
