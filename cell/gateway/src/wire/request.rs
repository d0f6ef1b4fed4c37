//! Op 8: which members a session asks for, and how the answer is cut into chunks. Pure.

use serde_json::{Map, Value, json};

use super::lenient;

/// Members in one chunk.
pub const CHUNK_MEMBERS: usize = 1000;
const MAX_IDS: usize = 100;
const MAX_NONCE_BYTES: usize = 32;

/// Who is asked for.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Wanted {
    /// At most 100 user ids.
    Users(Vec<i64>),
    /// A case-insensitive prefix of the name, at most `limit` members (1–100).
    Prefix {
        /// Not empty.
        prefix: String,
        /// 1–100.
        limit: i32,
    },
    /// Every member.
    All,
}

/// Op 8, read.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct MembersRequest {
    /// The guild asked about.
    pub guild_id: i64,
    /// Who.
    pub wanted: Wanted,
    /// Echoed in each chunk; a longer one than 32 bytes is dropped, as the protocol says.
    pub nonce: Option<String>,
}

impl MembersRequest {
    /// Reads `d`; `None` when a field has the wrong type or nothing is asked for.
    pub fn parse(d: &Map<String, Value>) -> Option<Self> {
        let guild_id = match d.get("guild_id")? {
            // Versions up to 7 sent a list; a list of one is still seen.
            Value::Array(ids) if ids.len() == 1 => lenient::id(&ids[0])?,
            value => lenient::id(value)?,
        };
        let nonce = match lenient::present(d, "nonce") {
            None => None,
            Some(Value::String(text)) => Some(text.clone()).filter(|text| text.len() <= MAX_NONCE_BYTES),
            Some(Value::Number(number)) => Some(number.to_string()).filter(|text| text.len() <= MAX_NONCE_BYTES),
            Some(_) => return None,
        };
        Some(Self { guild_id, wanted: wanted(d)?, nonce })
    }
}

fn wanted(d: &Map<String, Value>) -> Option<Wanted> {
    if let Some(ids) = lenient::present(d, "user_ids") {
        let ids = match ids {
            Value::Array(ids) => ids.iter().take(MAX_IDS).map(lenient::id).collect::<Option<Vec<_>>>()?,
            one => vec![lenient::id(one)?],
        };
        return Some(Wanted::Users(ids));
    }
    let query = d.get("query")?.as_str()?;
    let limit = match lenient::present(d, "limit") {
        None => 0,
        Some(value) => lenient::integer(value)?,
    };
    if query.is_empty() && limit == 0 {
        return Some(Wanted::All);
    }
    let limit = if limit == 0 { 100 } else { limit.clamp(1, 100) };
    Some(Wanted::Prefix { prefix: query.to_owned(), limit: limit as i32 })
}

/// One GUILD_MEMBERS_CHUNK.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// The guild asked about.
    pub guild_id: i64,
    /// Member objects.
    pub members: Vec<Value>,
    /// Ids asked for that are no members.
    pub not_found: Vec<i64>,
    /// From 0.
    pub index: usize,
    /// At least 1.
    pub count: usize,
    /// Of the request.
    pub nonce: Option<&'a str>,
}

impl Chunk<'_> {
    /// The `d` of the event.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "guild_id": self.guild_id.to_string(),
            "members": self.members,
            "chunk_index": self.index,
            "chunk_count": self.count,
        });
        if !self.not_found.is_empty() {
            body["not_found"] = self.not_found.iter().map(|id| Value::String(id.to_string())).collect();
        }
        if let Some(nonce) = self.nonce {
            body["nonce"] = nonce.into();
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(d: Value) -> Option<MembersRequest> {
        MembersRequest::parse(d.as_object().unwrap())
    }

    #[test]
    fn one_id_may_stand_without_a_list() {
        for ids in [json!("5"), json!(5), json!(["5"]), json!([5])] {
            let request = parse(json!({"guild_id": 9, "user_ids": ids})).unwrap();
            assert_eq!((request.guild_id, request.wanted), (9, Wanted::Users(vec![5])));
        }
    }

    #[test]
    fn a_nonce_over_32_bytes_is_dropped_silently() {
        let nonce = |text: &str| parse(json!({"guild_id": "9", "query": "", "limit": 0, "nonce": text})).unwrap().nonce;
        assert_eq!(nonce(&"n".repeat(32)), Some("n".repeat(32)));
        assert_eq!(nonce(&"n".repeat(33)), None);
    }

    #[test]
    fn an_empty_query_without_limit_asks_for_all() {
        assert_eq!(parse(json!({"guild_id": "9", "query": ""})).unwrap().wanted, Wanted::All);
        let prefix = parse(json!({"guild_id": "9", "query": "ab", "limit": 500})).unwrap().wanted;
        assert_eq!(prefix, Wanted::Prefix { prefix: "ab".into(), limit: 100 });
        assert_eq!(parse(json!({"guild_id": "9"})), None);
    }

    #[test]
    fn a_chunk_of_unknown_users_names_them() {
        let chunk = Chunk { guild_id: 1, members: vec![], not_found: vec![4, 5], index: 0, count: 1, nonce: Some("n") };
        assert_eq!(chunk.body()["not_found"], json!(["4", "5"]));
        assert_eq!(chunk.body()["nonce"], "n");
    }
}
