//! The objects of the client protocol, as the libraries require them: built from the log's messages, each field that any library
//! insists on present. Pure.

mod guild;
mod message;
pub mod time;

pub use guild::{
    GuildParts, channel, guild, invite, member, overwrite_list, own_guild, partial_guild, role, shared_guild,
};
pub use message::{Names, message, partial_member, without_content};
pub use time::{iso8601, parse_iso8601_ms};

use cell_proto::v1::User;
use serde_json::{Value, json};

/// A user as others see it.
pub fn user(user: &User) -> Value {
    json!({
        "id": user.id.to_string(),
        "username": user.name,
        "discriminator": "0",
        "global_name": if user.global_name.is_empty() { Value::Null } else { Value::from(user.global_name.as_str()) },
        "avatar": null,
        "avatar_decoration_data": null,
        "bot": user.bot,
        "public_flags": 0,
    })
}

/// A user as it sees itself.
pub fn own_user(own: &User) -> Value {
    let mut value = user(own);
    for (key, field) in [
        ("mfa_enabled", json!(false)),
        ("verified", json!(true)),
        ("email", Value::Null),
        ("flags", json!(0)),
        ("locale", json!("en-US")),
        ("banner", Value::Null),
        ("accent_color", Value::Null),
        ("premium_type", json!(0)),
    ] {
        value[key] = field;
    }
    value
}

/// A user of whom only the id is known.
pub fn unknown_user(user_id: i64) -> User {
    User { id: user_id, name: format!("unknown_{user_id}"), bot: false, global_name: String::new() }
}

/// An id that may be absent.
fn id_or_null(id: i64) -> Value {
    if id == 0 { Value::Null } else { Value::from(id.to_string()) }
}

fn text_or_null(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { Value::from(text) }
}

fn ids(ids: &[i64]) -> Vec<String> {
    ids.iter().map(ToString::to_string).collect()
}
