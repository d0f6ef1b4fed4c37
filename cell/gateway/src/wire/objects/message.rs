//! Messages as JSON, and the form without content for sessions that may not read it.

use cell_proto::v1::{Member, Message, User};
use serde_json::{Value, json};

use super::{ids, iso8601, member, unknown_user, user};

/// Who is behind an id, as far as this process knows.
pub trait Names {
    /// The user.
    fn user(&self, user_id: i64) -> Option<User>;
    /// The user's member object in the message's guild.
    fn member(&self, user_id: i64) -> Option<Member>;
}

/// A message.
pub fn message(message: &Message, names: &dyn Names) -> Value {
    let author = message.author.clone().unwrap_or_else(|| unknown_user(0));
    let embeds: Value = serde_json::from_str(&message.embeds_json).unwrap_or_else(|_| json!([]));
    let mut value = json!({
        "id": message.id.to_string(),
        "channel_id": message.channel_id.to_string(),
        "author": user(&author),
        "content": message.content,
        "timestamp": iso8601(message.timestamp_ms),
        "edited_timestamp": match message.edited_timestamp_ms { 0 => Value::Null, at => iso8601(at).into() },
        "tts": message.tts,
        "type": message.r#type,
        "pinned": false,
        "mention_everyone": message.mention_everyone,
        "mentions": message.mention_user_ids.iter().map(|id| mention(*id, names)).collect::<Vec<_>>(),
        "mention_roles": ids(&message.mention_role_ids),
        "mention_channels": [],
        "attachments": [],
        "embeds": if embeds.is_array() { embeds } else { json!([]) },
        "components": [],
        "flags": message.flags,
    });
    if !message.nonce.is_empty() {
        let number = message.nonce_is_integer.then(|| message.nonce.parse::<i64>().ok()).flatten();
        value["nonce"] = number.map_or_else(|| message.nonce.as_str().into(), Value::from);
    }
    if message.reference_message_id != 0 {
        value["message_reference"] = json!({
            "type": 0,
            "message_id": message.reference_message_id.to_string(),
            "channel_id": message.channel_id.to_string(),
            "guild_id": message.guild_id.to_string(),
        });
    }
    value
}

fn mention(user_id: i64, names: &dyn Names) -> Value {
    let known = names.user(user_id).unwrap_or_else(|| unknown_user(user_id));
    let mut value = user(&known);
    if let Some(of) = names.member(user_id) {
        value["member"] = partial_member(&of);
    }
    value
}

/// A member object without its user, as it stands beside an author.
pub fn partial_member(of: &Member) -> Value {
    let mut value = member(of);
    if let Some(object) = value.as_object_mut() {
        object.remove("user");
    }
    value
}

/// The message for sessions without the content intent: neither text nor what may hold it.
pub fn without_content(message: &Value) -> Value {
    let mut value = message.clone();
    value["content"] = "".into();
    for key in ["embeds", "attachments", "components"] {
        value[key] = json!([]);
    }
    if let Some(object) = value.as_object_mut() {
        object.remove("poll");
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Names for Nobody {
        fn user(&self, _: i64) -> Option<User> {
            None
        }
        fn member(&self, _: i64) -> Option<Member> {
            None
        }
    }

    #[test]
    fn every_field_that_a_library_requires_is_there() {
        let value = message(&Message { mention_user_ids: vec![5], ..Message::default() }, &Nobody);
        for key in [
            "id",
            "channel_id",
            "author",
            "content",
            "timestamp",
            "tts",
            "type",
            "pinned",
            "mention_everyone",
            "mentions",
            "mention_roles",
            "attachments",
            "embeds",
        ] {
            assert!(value.get(key).is_some(), "{key} is missing");
        }
        for key in ["id", "username", "discriminator"] {
            assert!(value["mentions"][0].get(key).is_some(), "mentions[].{key} is missing");
        }
    }

    #[test]
    fn a_nonce_comes_back_in_the_kind_it_was_sent() {
        let with = |nonce: &str, integer| {
            let sent = Message { nonce: nonce.into(), nonce_is_integer: integer, ..Message::default() };
            message(&sent, &Nobody)["nonce"].clone()
        };
        assert_eq!(with("12", true), json!(12));
        assert_eq!(with("12", false), json!("12"));
        assert_eq!(with("", false), Value::Null);
    }

    #[test]
    fn the_form_without_content_keeps_everything_else() {
        let sent =
            Message { content: "secret".into(), embeds_json: r#"[{"title":"t"}]"#.into(), id: 9, ..Message::default() };
        let full = message(&sent, &Nobody);
        assert_eq!(full["embeds"][0]["title"], "t");
        let bare = without_content(&full);
        assert_eq!((&bare["content"], &bare["embeds"], &bare["id"]), (&json!(""), &json!([]), &json!("9")));
    }
}
