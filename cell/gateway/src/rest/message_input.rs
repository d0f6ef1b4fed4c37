//! What a client may put into a message: checked field by field, every error named. Pure.

use serde_json::{Map, Value};

use super::embeds;
use super::error::ApiError;
use super::form::Form;
use crate::wire::lenient;

const MAX_CONTENT: usize = 2000;
const MAX_NONCE: usize = 25;
/// Flags a client may set: suppress embeds, suppress notifications.
const SETTABLE_FLAGS: i64 = 1 << 2 | 1 << 12;

/// A new message.
#[derive(Debug, PartialEq)]
pub struct NewMessage {
    /// At most 2000 characters.
    pub content: String,
    /// A JSON array; empty for none.
    pub embeds_json: String,
    /// Read aloud.
    pub tts: bool,
    /// At most 25 characters; empty for none.
    pub nonce: String,
    /// It was sent as a number.
    pub nonce_is_integer: bool,
    /// The nonce names the operation.
    pub enforce_nonce: bool,
    /// The message it replies to; 0 for none.
    pub reply_to: i64,
    /// A reply to a message that is not there is refused.
    pub reply_must_exist: bool,
    /// Settable bits only.
    pub flags: i32,
}

impl NewMessage {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// 50035, 50006.
    pub fn read(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut form = Form::default();
        let content = form.text(body, "content", 0..=MAX_CONTENT).unwrap_or_default();
        let embeds_json = embeds::read(&mut form, body).unwrap_or_default();
        let (nonce, nonce_is_integer) = nonce(&mut form, body);
        let (reply_to, reply_must_exist) = reference(&mut form, body);
        check_allowed_mentions(&mut form, body);
        for key in ["attachments", "components", "sticker_ids", "poll"] {
            if lenient::present(body, key).is_some_and(|value| !value.as_array().is_some_and(Vec::is_empty)) {
                form.add(key, "UNSUPPORTED", "This kind of content is not supported.");
            }
        }
        let message = Self {
            content,
            embeds_json,
            tts: form.boolean(body, "tts").unwrap_or(false),
            enforce_nonce: form.boolean(body, "enforce_nonce").unwrap_or(false) && !nonce.is_empty(),
            nonce,
            nonce_is_integer,
            reply_to,
            reply_must_exist,
            flags: (form.integer(body, "flags", 0..=i64::from(i32::MAX)).unwrap_or(0) & SETTABLE_FLAGS) as i32,
        };
        form.finish()?;
        if message.content.trim().is_empty() && message.embeds_json.is_empty() {
            return Err(ApiError::bad(50_006, "Cannot send an empty message"));
        }
        Ok(message)
    }
}

/// An edit: only what is set changes.
#[derive(Debug, PartialEq)]
pub struct Edit {
    /// New text.
    pub content: Option<String>,
    /// New embeds, a JSON array; an empty text removes them.
    pub embeds_json: Option<String>,
}

impl Edit {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// 50035, 50006.
    pub fn read(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let mut form = Form::default();
        let content = match body.get("content") {
            Some(Value::Null) => Some(String::new()),
            _ => form.text(body, "content", 0..=MAX_CONTENT),
        };
        let embeds_json = embeds::read(&mut form, body);
        form.finish()?;
        Ok(Self { content, embeds_json })
    }
}

fn nonce(form: &mut Form, body: &Map<String, Value>) -> (String, bool) {
    match lenient::present(body, "nonce") {
        None => (String::new(), false),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => (number.to_string(), true),
        Some(Value::String(text)) if text.chars().count() <= MAX_NONCE => (text.clone(), false),
        Some(Value::String(_)) => {
            form.add("nonce", "BASE_TYPE_MAX_LENGTH", &format!("Must be {MAX_NONCE} or fewer in length."));
            (String::new(), false)
        }
        Some(_) => {
            form.add("nonce", "BASE_TYPE_BAD_TYPE", "Could not interpret value as string or integer.");
            (String::new(), false)
        }
    }
}

/// What cannot be an id could name nobody: a typing error that would silently mention nobody.
fn check_allowed_mentions(form: &mut Form, body: &Map<String, Value>) {
    for key in ["users", "roles"] {
        let named = body.get("allowed_mentions").and_then(|allowed| allowed.get(key)).and_then(Value::as_array);
        if let Some(wrong) = named.into_iter().flatten().find(|value| lenient::id(value).is_none()) {
            form.not_snowflake(&format!("allowed_mentions.{key}"), &wrong.to_string());
        }
    }
}

fn reference(form: &mut Form, body: &Map<String, Value>) -> (i64, bool) {
    let Some(reference) = lenient::present(body, "message_reference") else {
        return (0, false);
    };
    let Some(reference) = reference.as_object() else {
        form.add("message_reference", "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType");
        return (0, false);
    };
    if lenient::present(reference, "type").and_then(lenient::integer).unwrap_or(0) != 0 {
        form.add("message_reference.type", "UNSUPPORTED", "Forwarding is not supported.");
    }
    let Some(value) = lenient::present(reference, "message_id") else {
        form.required("message_reference.message_id");
        return (0, false);
    };
    let Some(id) = lenient::id(value) else {
        form.not_snowflake("message_reference.message_id", &value.to_string());
        return (0, false);
    };
    (id, lenient::present(reference, "fail_if_not_exists").and_then(Value::as_bool).unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<NewMessage, ApiError> {
        NewMessage::read(body.as_object().unwrap())
    }

    #[test]
    fn a_nonce_may_be_a_number_or_a_text_of_25() {
        assert!(read(json!({"content": "x", "nonce": 12, "enforce_nonce": true})).unwrap().nonce_is_integer);
        let text = read(json!({"content": "x", "nonce": "12345678901234567890", "enforce_nonce": true})).unwrap();
        assert_eq!((text.nonce.as_str(), text.enforce_nonce), ("12345678901234567890", true));
        assert_eq!(read(json!({"content": "x", "nonce": "n".repeat(26)})).unwrap_err().code(), 50_035);
        assert!(!read(json!({"content": "x", "enforce_nonce": true})).unwrap().enforce_nonce);
    }

    #[test]
    fn length_counts_characters_and_an_empty_message_has_its_own_code() {
        assert!(read(json!({"content": "é".repeat(2000)})).is_ok());
        assert_eq!(read(json!({"content": "é".repeat(2001)})).unwrap_err().code(), 50_035);
        for empty in
            [json!({}), json!({"content": ""}), json!({"content": "  "}), json!({"content": null, "embeds": []})]
        {
            assert_eq!(read(empty).unwrap_err().code(), 50_006);
        }
    }

    #[test]
    fn embeds_have_their_bounds() {
        let many = json!({"embeds": vec![json!({"title": "t"}); 11]});
        assert_eq!(read(many).unwrap_err().code(), 50_035);
        let long = json!({"embeds": [{"description": "d".repeat(4000)}, {"description": "d".repeat(2001)}]});
        assert_eq!(read(long).unwrap_err().code(), 50_035);
    }

    #[test]
    fn what_is_not_supported_is_refused_and_unknown_fields_are_ignored() {
        assert_eq!(read(json!({"content": "x", "components": [{"type": 1}]})).unwrap_err().code(), 50_035);
        assert!(read(json!({"content": "x", "components": [], "sticker_ids": null, "whatever": {"a": 1}})).is_ok());
    }

    proptest! {
        #[test]
        fn any_json_is_read_without_panic(text in "\\{(\"(content|embeds|nonce|tts|flags|message_reference)\":(1|\"a\"|null|\\[\\]|\\{\\}|true|-5|\\[1\\]),?){0,5}\\}") {
            if let Ok(Value::Object(body)) = serde_json::from_str(&text) {
                let _ = NewMessage::read(&body);
                let _ = Edit::read(&body);
            }
        }
    }
}
