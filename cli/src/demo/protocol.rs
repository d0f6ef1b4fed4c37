//! The client's half of the gateway protocol: frames read into what a client must react to, and frames to send. Pure; reads only the
//! fields it needs, so that thousands of clients fit on one machine.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::content;
use super::ledger::SendNumber;

/// Guilds, guild messages, message content.
const INTENTS: u32 = 1 | 1 << 9 | 1 << 15;

/// One frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Of dispatches.
    pub sequence: Option<u64>,
    /// What it says.
    pub event: Event,
}

/// What a client must react to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Op 10.
    Hello {
        /// Milliseconds between heartbeats.
        interval_ms: u64,
    },
    /// A session began.
    Ready {
        /// Its id.
        session_id: String,
        /// Where to resume it.
        resume_url: String,
    },
    /// The replay is over.
    Resumed,
    /// A guild is there.
    Guild {
        /// Its id.
        guild_id: i64,
    },
    /// A message of the demo.
    Message {
        /// Its number.
        number: SendNumber,
        /// Its id.
        message_id: i64,
        /// Its channel.
        channel_id: i64,
    },
    /// Op 1: beat at once.
    Beat,
    /// Op 11.
    Acknowledged,
    /// Op 7.
    Reconnect,
    /// Op 9.
    Invalid {
        /// The session may be resumed.
        resumable: bool,
    },
    /// Anything else.
    Other,
}

/// A frame the protocol does not allow.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("frame cannot be read: {0}")]
pub struct Unreadable(String);

#[derive(Deserialize)]
struct Raw<'a> {
    op: u8,
    #[serde(borrow, default)]
    t: Option<Cow<'a, str>>,
    #[serde(default)]
    s: Option<u64>,
    #[serde(borrow, default)]
    d: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Hello {
    heartbeat_interval: u64,
}

#[derive(Deserialize)]
struct Ready {
    session_id: String,
    resume_gateway_url: String,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    channel_id: Cow<'a, str>,
    #[serde(borrow)]
    content: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Guild<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
}

/// Reads one frame.
///
/// # Errors
/// [`Unreadable`].
pub fn parse(text: &str) -> Result<Frame, Unreadable> {
    let unreadable = |error: serde_json::Error| Unreadable(error.to_string());
    let raw: Raw<'_> = serde_json::from_str(text).map_err(unreadable)?;
    let d = raw.d.map_or("null", RawValue::get);
    let event = match raw.op {
        0 => dispatch(raw.t.as_deref().unwrap_or_default(), d)?,
        1 => Event::Beat,
        7 => Event::Reconnect,
        9 => Event::Invalid { resumable: d == "true" },
        10 => {
            let hello: Hello = serde_json::from_str(d).map_err(unreadable)?;
            Event::Hello { interval_ms: hello.heartbeat_interval }
        }
        11 => Event::Acknowledged,
        _ => Event::Other,
    };
    Ok(Frame { sequence: raw.s, event })
}

fn dispatch(name: &str, d: &str) -> Result<Event, Unreadable> {
    let unreadable = |error: serde_json::Error| Unreadable(format!("{name}: {error}"));
    let id = |text: &str| text.parse::<i64>().map_err(|_| Unreadable(format!("{name}: an id is not a number")));
    Ok(match name {
        "READY" => {
            let ready: Ready = serde_json::from_str(d).map_err(unreadable)?;
            Event::Ready { session_id: ready.session_id, resume_url: ready.resume_gateway_url }
        }
        "RESUMED" => Event::Resumed,
        "GUILD_CREATE" => {
            let guild: Guild<'_> = serde_json::from_str(d).map_err(unreadable)?;
            Event::Guild { guild_id: id(&guild.id)? }
        }
        "MESSAGE_CREATE" => {
            let message: Message<'_> = serde_json::from_str(d).map_err(unreadable)?;
            match content::number(&message.content) {
                Some(number) => {
                    Event::Message { number, message_id: id(&message.id)?, channel_id: id(&message.channel_id)? }
                }
                None => Event::Other,
            }
        }
        _ => Event::Other,
    })
}

/// Op 2.
pub fn identify(token: &str) -> String {
    let properties = json!({"os": "linux", "browser": "cellctl", "device": "cellctl"});
    json!({"op": 2, "d": {"token": token, "intents": INTENTS, "properties": properties}}).to_string()
}

/// Op 6.
pub fn resume(token: &str, session_id: &str, sequence: u64) -> String {
    json!({"op": 6, "d": {"token": token, "session_id": session_id, "seq": sequence}}).to_string()
}

/// Op 1.
pub fn heartbeat(sequence: Option<u64>) -> String {
    json!({"op": 1, "d": sequence}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> Event {
        parse(text).unwrap().event
    }

    #[test]
    fn each_frame_is_read_as_what_it_means() {
        assert_eq!(event(r#"{"op":10,"d":{"heartbeat_interval":41250}}"#), Event::Hello { interval_ms: 41_250 });
        assert_eq!(event(r#"{"t":null,"s":null,"op":7,"d":null}"#), Event::Reconnect);
        assert_eq!(event(r#"{"op":9,"d":true}"#), Event::Invalid { resumable: true });
        assert_eq!(event(r#"{"op":9,"d":false}"#), Event::Invalid { resumable: false });
        assert_eq!(event(r#"{"op":1,"d":null}"#), Event::Beat);
        assert_eq!(event(r#"{"op":11}"#), Event::Acknowledged);
        assert_eq!(event(r#"{"op":0,"t":"RESUMED","s":9,"d":{}}"#), Event::Resumed);
        assert_eq!(event(r#"{"op":0,"t":"TYPING_START","s":9,"d":{}}"#), Event::Other);
        assert_eq!(
            event(r#"{"op":0,"t":"GUILD_CREATE","s":2,"d":{"name":"x","id":"5"}}"#),
            Event::Guild { guild_id: 5 }
        );
        let ready =
            r#"{"t":"READY","s":1,"op":0,"d":{"v":10,"session_id":"s","resume_gateway_url":"ws://h:1","guilds":[]}}"#;
        let frame = parse(ready).unwrap();
        assert_eq!(frame.sequence, Some(1));
        assert_eq!(frame.event, Event::Ready { session_id: "s".into(), resume_url: "ws://h:1".into() });
    }

    #[test]
    fn only_messages_of_the_demo_count() {
        let message = |content: &str| {
            event(&format!(
                r#"{{"op":0,"t":"MESSAGE_CREATE","s":3,"d":{{"id":"8","channel_id":"9","content":"{content}"}}}}"#
            ))
        };
        assert_eq!(message("demo #7 a \\n b"), Event::Message { number: 7, message_id: 8, channel_id: 9 });
        assert_eq!(message("hello"), Event::Other);
        assert_eq!(message(""), Event::Other);
    }

    #[test]
    fn frames_the_protocol_does_not_allow_are_errors() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"op":10,"d":{}}"#,
            r#"{"op":0,"t":"READY","d":{}}"#,
            r#"{"op":0,"t":"GUILD_CREATE","d":{"id":"x"}}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_sent_is_small_and_whole() {
        let frame: serde_json::Value = serde_json::from_str(&resume("t", "s", 7)).unwrap();
        assert_eq!(frame, json!({"op": 6, "d": {"token": "t", "session_id": "s", "seq": 7}}));
        let frame: serde_json::Value = serde_json::from_str(&identify("t")).unwrap();
        assert_eq!(frame["d"]["intents"], 33_281);
        assert_eq!(heartbeat(None), r#"{"d":null,"op":1}"#);
    }
}
