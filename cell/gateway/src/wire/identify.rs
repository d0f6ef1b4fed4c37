//! Identify and resume as the libraries really send them. Reads leniently what does not matter and strictly what does.

use serde_json::{Map, Value};

use super::close::CloseCode;
use super::lenient;

/// Op 2. Unknown fields, presence and properties are not kept: libraries send many shapes of them.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Identify {
    /// Without a "Bot " or "Bearer " prefix.
    pub token: String,
    /// As sent; checked against what exists and is allowed by the session machine.
    pub intents: i64,
    /// Shard id and count.
    pub shard: Option<(u32, u32)>,
    /// Asked for per-message zlib; ignored beside a compressed stream.
    pub compress: bool,
}

/// Op 6.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Resume {
    /// Without a "Bot " or "Bearer " prefix.
    pub token: String,
    /// As sent.
    pub session_id: String,
    /// The largest contiguous sequence the client applied; negative ones are refused by the session.
    pub sequence: i64,
}

/// Some libraries send the token as in an HTTP header.
pub fn bare_token(token: &str) -> &str {
    token.strip_prefix("Bot ").or_else(|| token.strip_prefix("Bearer ")).unwrap_or(token)
}

impl Identify {
    /// Reads `d` of op 2.
    pub fn parse(d: &Map<String, Value>) -> Result<Self, CloseCode> {
        let token = d.get("token").and_then(Value::as_str).ok_or(CloseCode::DecodeError)?;
        let intents = d.get("intents").and_then(lenient::integer).ok_or(CloseCode::DecodeError)?;
        let compress = match lenient::present(d, "compress") {
            None => false,
            Some(value) => value.as_bool().ok_or(CloseCode::DecodeError)?,
        };
        Ok(Self { token: bare_token(token).to_owned(), intents, shard: shard(d)?, compress })
    }
}

fn shard(d: &Map<String, Value>) -> Result<Option<(u32, u32)>, CloseCode> {
    let Some(value) = lenient::present(d, "shard") else {
        return Ok(None);
    };
    let Some([id, count]) = value.as_array().map(Vec::as_slice) else {
        return Err(CloseCode::InvalidShard);
    };
    let number = |value: &Value| lenient::integer(value).and_then(|number| u32::try_from(number).ok());
    match (number(id), number(count)) {
        (Some(id), Some(count)) if id < count && count <= 65_536 => Ok(Some((id, count))),
        _ => Err(CloseCode::InvalidShard),
    }
}

impl Resume {
    /// Reads `d` of op 6.
    pub fn parse(d: &Map<String, Value>) -> Result<Self, CloseCode> {
        let text = |key: &str| d.get(key).and_then(Value::as_str).ok_or(CloseCode::DecodeError);
        let sequence = d.get("seq").and_then(lenient::integer).ok_or(CloseCode::DecodeError)?;
        Ok(Self { token: bare_token(text("token")?).to_owned(), session_id: text("session_id")?.to_owned(), sequence })
    }
}

/// Which shard of `count` a guild belongs to.
pub fn shard_of_guild(guild_id: i64, count: u32) -> u32 {
    ((guild_id.cast_unsigned() >> 22) % u64::from(count.max(1))) as u32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn identify(d: &Value) -> Result<Identify, CloseCode> {
        Identify::parse(d.as_object().unwrap())
    }

    #[test]
    fn what_each_library_sends_is_understood() {
        let serenity = json!({"token": "Bot abc", "shard": [0, 1], "intents": 513, "compress": true, "large_threshold": 250,
            "presence": {"since": {"secs_since_epoch": 1, "nanos_since_epoch": 2}, "status": "online", "afk": false, "activities": []},
            "properties": {"browser": "serenity", "device": "serenity", "os": "linux"}, "v": 10});
        let twilight = json!({"token": "Bot abc", "shard": [0, 1], "intents": 513, "compress": false, "large_threshold": 50,
            "presence": null, "capabilities": 0, "properties": {"browser": "twilight.rs"}});
        let discord_py = json!({"token": "abc", "intents": 513, "compress": true, "large_threshold": 250,
            "properties": {"os": "linux", "browser": "discord.py", "device": "discord.py"},
            "presence": {"status": "online", "game": null, "since": 0, "afk": false}});
        for d in [serenity, twilight, discord_py] {
            let parsed = identify(&d).unwrap();
            assert_eq!((parsed.token.as_str(), parsed.intents), ("abc", 513));
        }
    }

    #[test]
    fn an_invalid_shard_has_its_own_close_code() {
        for shard in [json!([1, 1]), json!([0, 0]), json!([0]), json!("0,1"), json!([-1, 2]), json!([0, 1, 2])] {
            assert_eq!(identify(&json!({"token": "t", "intents": 0, "shard": shard})), Err(CloseCode::InvalidShard));
        }
    }

    #[test]
    fn resume_needs_all_three_fields() {
        for d in [
            json!({"token": "t", "session_id": "s"}),
            json!({"token": "t", "seq": 1}),
            json!({"session_id": 3, "token": "t", "seq": 1}),
        ] {
            assert_eq!(Resume::parse(d.as_object().unwrap()), Err(CloseCode::DecodeError));
        }
        let d = json!({"token": "Bot t", "session_id": "s", "seq": 7});
        assert_eq!(
            Resume::parse(d.as_object().unwrap()).unwrap(),
            Resume { token: "t".into(), session_id: "s".into(), sequence: 7 }
        );
    }
}
