//! Reads one frame of a client: any bytes give a frame or a close code, never a panic.

use serde_json::{Map, Value};

use super::close::CloseCode;
use super::identify::{Identify, Resume};
use super::lenient;
use super::request::MembersRequest;

/// The longest frame a client may send, in bytes.
pub const MAX_FRAME_BYTES: usize = 4096;

/// What a client asked.
#[derive(Debug, PartialEq)]
pub enum ClientFrame {
    /// Op 1, with the last sequence it saw.
    Heartbeat(Option<u64>),
    /// Op 2.
    Identify(Box<Identify>),
    /// Op 3. Checked for its shape only: presence is not kept.
    Presence,
    /// Op 4. Checked for its shape only: voice is refused.
    VoiceState { guild_id: Option<i64>, channel_id: Option<i64> },
    /// Op 6.
    Resume(Resume),
    /// Op 8.
    RequestMembers(MembersRequest),
    /// Ops 31 and 43: known to the protocol, answered by nothing here.
    Unserved(u8),
}

impl ClientFrame {
    /// Whether the frame makes sense only on an identified socket.
    pub fn needs_session(&self) -> bool {
        !matches!(self, Self::Heartbeat(_) | Self::Identify(_) | Self::Resume(_))
    }
}

/// Reads one frame.
pub fn parse(bytes: &[u8]) -> Result<ClientFrame, CloseCode> {
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(CloseCode::DecodeError);
    }
    let Ok(Value::Object(frame)) = serde_json::from_slice::<Value>(bytes) else {
        return Err(CloseCode::DecodeError);
    };
    let op = frame.get("op").and_then(Value::as_u64).ok_or(CloseCode::DecodeError)?;
    let d = frame.get("d").unwrap_or(&Value::Null);
    match op {
        1 => heartbeat(d),
        2 => Ok(ClientFrame::Identify(Box::new(Identify::parse(object(d)?)?))),
        3 => presence(object(d)?),
        4 => voice_state(object(d)?),
        6 => Ok(ClientFrame::Resume(Resume::parse(object(d)?)?)),
        8 => Ok(ClientFrame::RequestMembers(MembersRequest::parse(object(d)?).ok_or(CloseCode::DecodeError)?)),
        31 | 43 => object(d).map(|_| ClientFrame::Unserved(op as u8)),
        _ => Err(CloseCode::UnknownOpcode),
    }
}

fn object(d: &Value) -> Result<&Map<String, Value>, CloseCode> {
    d.as_object().ok_or(CloseCode::DecodeError)
}

/// Version 8 wraps the sequence in an object under the same op with quality-of-service; versions 9 and 10 send it bare.
fn heartbeat(d: &Value) -> Result<ClientFrame, CloseCode> {
    match d {
        Value::Null => Ok(ClientFrame::Heartbeat(None)),
        Value::Number(number) => number.as_u64().map(Some).map(ClientFrame::Heartbeat).ok_or(CloseCode::DecodeError),
        _ => Err(CloseCode::DecodeError),
    }
}

fn presence(d: &Map<String, Value>) -> Result<ClientFrame, CloseCode> {
    let status = lenient::present(d, "status").is_none_or(Value::is_string);
    let activities = lenient::present(d, "activities").is_none_or(Value::is_array);
    if status && activities { Ok(ClientFrame::Presence) } else { Err(CloseCode::DecodeError) }
}

fn voice_state(d: &Map<String, Value>) -> Result<ClientFrame, CloseCode> {
    let id = |key| match lenient::present(d, key) {
        None => Ok(None),
        Some(value) => lenient::id(value).map(Some).ok_or(CloseCode::DecodeError),
    };
    for flag in ["self_mute", "self_deaf", "self_video"] {
        if !lenient::present(d, flag).is_none_or(Value::is_boolean) {
            return Err(CloseCode::DecodeError);
        }
    }
    Ok(ClientFrame::VoiceState { guild_id: id("guild_id")?, channel_id: id("channel_id")? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_that_are_not_what_they_should_be_have_their_close_code() {
        let long = format!(r#"{{"op":1,"d":null,"x":"{}"}}"#, "a".repeat(MAX_FRAME_BYTES));
        for (bytes, code) in [
            (&b"\xff\xfe"[..], CloseCode::DecodeError),
            (b"", CloseCode::DecodeError),
            (b"[]", CloseCode::DecodeError),
            (b"{}", CloseCode::DecodeError),
            (br#"{"op":"1"}"#, CloseCode::DecodeError),
            (br#"{"op":1.5}"#, CloseCode::DecodeError),
            (br#"{"op":-1}"#, CloseCode::DecodeError),
            (br#"{"op":1,"d":"x"}"#, CloseCode::DecodeError),
            (br#"{"op":2,"d":null}"#, CloseCode::DecodeError),
            (br#"{"op":2,"d":{"token":7}}"#, CloseCode::DecodeError),
            (br#"{"op":4,"d":{"guild_id":[]}}"#, CloseCode::DecodeError),
            (br#"{"op":0,"d":{}}"#, CloseCode::UnknownOpcode),
            (br#"{"op":5,"d":{}}"#, CloseCode::UnknownOpcode),
            (br#"{"op":11}"#, CloseCode::UnknownOpcode),
            (br#"{"op":99}"#, CloseCode::UnknownOpcode),
            (long.as_bytes(), CloseCode::DecodeError),
        ] {
            assert_eq!(parse(bytes), Err(code), "{}", String::from_utf8_lossy(&bytes[..bytes.len().min(60)]));
        }
    }

    #[test]
    fn deep_nesting_is_a_decode_error() {
        let text = format!(r#"{{"op":3,"d":{}{}}}"#, "[".repeat(1500), "]".repeat(1500));
        assert_eq!(parse(text.as_bytes()), Err(CloseCode::DecodeError));
    }

    #[test]
    fn voice_state_ids_arrive_as_integers_and_as_strings() {
        for text in [
            r#"{"op":4,"d":{"guild_id":12,"channel_id":null,"self_mute":false,"self_deaf":false}}"#,
            r#"{"op":4,"d":{"guild_id":"12","self_mute":false}}"#,
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(ClientFrame::VoiceState { guild_id: Some(12), channel_id: None }));
        }
    }

    proptest! {
        #[test]
        fn random_bytes_give_a_frame_or_a_defined_close_code(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            if let Err(code) = parse(&bytes) {
                prop_assert!((4000..=4014).contains(&code.number()));
            }
        }

        #[test]
        fn random_json_gives_a_frame_or_a_defined_close_code(op in 0u64..50, d in "[\\[\\]{}\":,0-9a-z]{0,40}") {
            let text = format!(r#"{{"op":{op},"d":{d}}}"#);
            if let Err(code) = parse(text.as_bytes()) {
                prop_assert!((4000..=4014).contains(&code.number()));
            }
        }
    }
}
