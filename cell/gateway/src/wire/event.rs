//! A dispatch, serialised once for everybody: only the sequence is spliced in per session.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

/// One dispatch event: its name and the JSON of `d`, whose beginning other events may share.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    name: &'static str,
    shared: Option<Arc<str>>,
    body: Box<str>,
}

impl Event {
    /// Serialises `d` once. A body that cannot be serialised (no type of ours is such) becomes an empty object.
    pub fn new(name: &'static str, d: &impl Serialize) -> Arc<Self> {
        let body = serde_json::to_string(d).unwrap_or_else(|_| "{}".to_owned());
        Arc::new(Self { name, shared: None, body: body.into_boxed_str() })
    }

    /// The fields that several events begin with, for [`Event::sharing`]: an object that is not closed yet.
    pub fn shared_fields(fields: &Map<String, Value>) -> Arc<str> {
        let text = serde_json::to_string(fields).unwrap_or_else(|_| "{}".to_owned());
        text.strip_suffix('}').unwrap_or(&text).into()
    }

    /// An event whose `d` has the shared fields, of which there is at least one, and its own.
    pub fn sharing(name: &'static str, shared: Arc<str>, own: &Map<String, Value>) -> Arc<Self> {
        let own = serde_json::to_string(own).unwrap_or_else(|_| "{}".to_owned());
        let body = match own.strip_prefix('{') {
            Some("}") | None => "}".to_owned(),
            Some(rest) => format!(",{rest}"),
        };
        Arc::new(Self { name, shared: Some(shared), body: body.into_boxed_str() })
    }

    /// The event's name, as in `t`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What the event costs in a session's buffer, in bytes.
    pub fn cost(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.len()) + self.body.len() + self.name.len() + 48
    }

    /// The whole payload with this sequence.
    pub fn frame(&self, sequence: u64) -> String {
        let mut text = String::with_capacity(self.cost());
        text.push_str(r#"{"t":""#);
        text.push_str(self.name);
        text.push_str(r#"","s":"#);
        text.push_str(itoa(sequence, &mut [0; 20]));
        text.push_str(r#","op":0,"d":"#);
        text.push_str(self.shared.as_deref().unwrap_or(""));
        text.push_str(&self.body);
        text.push('}');
        text
    }
}

fn itoa(mut number: u64, digits: &mut [u8; 20]) -> &str {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(&digits[at..]).unwrap_or("0")
}

/// A payload that is not a dispatch: `s` and `t` are null.
pub fn control(op: u8, d: &Value) -> String {
    format!(r#"{{"t":null,"s":null,"op":{op},"d":{d}}}"#)
}

/// Op 10. The first frame of every connection.
pub fn hello(heartbeat_interval_ms: u64) -> String {
    control(10, &serde_json::json!({ "heartbeat_interval": heartbeat_interval_ms, "_trace": [] }))
}

/// Op 11.
pub fn heartbeat_ack() -> String {
    control(11, &Value::Null)
}

/// Op 7.
pub fn reconnect() -> String {
    control(7, &Value::Null)
}

/// Op 9.
pub fn invalid_session(resumable: bool) -> String {
    control(9, &Value::Bool(resumable))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_frame_with_shared_fields_is_the_json_of_both() {
        let (shared, own) = (json!({"id": "1", "name": "\u{1F600}"}), json!({"joined_at": null}));
        let [shared, own, none] = [shared, own, json!({})].map(|value| value.as_object().unwrap().clone());
        let shared = Event::shared_fields(&shared);
        let d = |event: &Event| serde_json::from_str::<Value>(&event.frame(1)).unwrap()["d"].clone();
        let event = Event::sharing("GUILD_CREATE", shared.clone(), &own);
        assert_eq!(d(&event), json!({"id": "1", "name": "\u{1F600}", "joined_at": null}));
        assert_eq!(d(&Event::sharing("GUILD_CREATE", shared, &none)), json!({"id": "1", "name": "\u{1F600}"}));
        assert!(event.cost() >= event.frame(1).len() - 20);
    }

    #[test]
    fn a_spliced_frame_is_the_json_it_should_be() {
        let event = Event::new("MESSAGE_CREATE", &json!({"content": "q\"\u{1F600}\n"}));
        for sequence in [0, 1, 10, u64::MAX] {
            let frame: Value = serde_json::from_str(&event.frame(sequence)).unwrap();
            assert_eq!(
                frame,
                json!({"op": 0, "t": "MESSAGE_CREATE", "s": sequence, "d": {"content": "q\"\u{1F600}\n"}})
            );
        }
    }

    #[test]
    fn control_payloads_have_null_sequence_and_name() {
        let frame: Value = serde_json::from_str(&hello(45_000)).unwrap();
        assert_eq!((&frame["s"], &frame["t"], &frame["op"]), (&Value::Null, &Value::Null, &json!(10)));
        assert_eq!(frame["d"]["heartbeat_interval"], 45_000);
    }
}
