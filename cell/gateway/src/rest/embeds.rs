//! The embeds of a message: only what is known goes on, each field checked by its kind. What one client sends, the libraries of all others
//! read, and not every one of them survives a text where a number should be. Pure.

use serde_json::{Map, Value, json};

use super::form::Form;
use crate::wire::lenient;
use crate::wire::objects::time::{iso8601, parse_any_iso8601_ms};

const MAX_EMBEDS: usize = 10;
const MAX_FIELDS: usize = 25;
const MAX_CHARACTERS: usize = 6000;
const MAX_URL: usize = 2048;
const MAX_COLOR: i64 = 0x00FF_FFFF;

/// The embeds as JSON text; `Some("")` when the client sent an empty list, `None` when it sent none, or wrong ones.
pub fn read(form: &mut Form, body: &Map<String, Value>) -> Option<String> {
    let list = match (body.get("embeds"), lenient::present(body, "embed")) {
        (Some(Value::Null), _) => return Some(String::new()),
        (Some(Value::Array(list)), _) => list.as_slice(),
        (Some(_), _) => {
            form.add("embeds", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType");
            return None;
        }
        (None, Some(one)) => std::slice::from_ref(one),
        (None, None) => return None,
    };
    if list.len() > MAX_EMBEDS {
        form.add("embeds", "BASE_TYPE_MAX_LENGTH", &format!("Must be {MAX_EMBEDS} or fewer in length."));
        return None;
    }
    let mut characters = 0;
    let mut checked = Vec::new();
    for (index, embed) in list.iter().enumerate() {
        let mut part = Part { form, path: format!("embeds.{index}"), characters: 0 };
        checked.extend(part.object(embed, |part, map| part.embed(map)));
        characters += part.characters;
    }
    if characters > MAX_CHARACTERS {
        form.add("embeds", "MAX_EMBED_SIZE_EXCEEDED", "Embed size exceeds maximum size of 6000");
        return None;
    }
    if checked.is_empty() { Some(String::new()) } else { Some(Value::Array(checked).to_string()) }
}

/// One part of an embed: where it is, and how many characters were counted in it.
struct Part<'a> {
    form: &'a mut Form,
    path: String,
    characters: usize,
}

impl Part<'_> {
    fn wrong(&mut self, key: &str, code: &str, message: &str) {
        let path = if key.is_empty() { self.path.clone() } else { format!("{}.{key}", self.path) };
        self.form.add(&path, code, message);
    }

    fn object(
        &mut self,
        value: &Value,
        read: impl FnOnce(&mut Self, &Map<String, Value>) -> Map<String, Value>,
    ) -> Option<Value> {
        let Value::Object(map) = value else {
            self.wrong("", "DICT_TYPE_CONVERT", "Only dictionaries may be used in a DictType");
            return None;
        };
        Some(Value::Object(read(self, map)))
    }

    /// A part below this one, if there is one.
    fn below(
        &mut self,
        from: &Map<String, Value>,
        key: &str,
        into: &mut Map<String, Value>,
        read: fn(&mut Part<'_>, &Map<String, Value>) -> Map<String, Value>,
    ) {
        let Some(value) = lenient::present(from, key) else { return };
        let mut part = Part { form: &mut *self.form, path: format!("{}.{key}", self.path), characters: 0 };
        let found = part.object(value, read);
        self.characters += part.characters;
        into.extend(found.map(|found| (key.to_owned(), found)));
    }

    /// A text of at most so many characters.
    fn text(&mut self, from: &Map<String, Value>, key: &str, most: usize, into: &mut Map<String, Value>) {
        let text = match lenient::present(from, key) {
            None => return,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            Some(_) => return self.wrong(key, "STRING_TYPE_CONVERT", "Could not interpret value as string."),
        };
        let length = text.chars().count();
        if length > most {
            self.wrong(key, "BASE_TYPE_MAX_LENGTH", &format!("Must be {most} or fewer in length."));
        }
        self.characters += length;
        into.insert(key.to_owned(), Value::String(text));
    }

    /// An address, which does not count as text.
    fn url(&mut self, from: &Map<String, Value>, key: &str, into: &mut Map<String, Value>) {
        let before = self.characters;
        self.text(from, key, MAX_URL, into);
        self.characters = before;
    }

    fn embed(&mut self, from: &Map<String, Value>) -> Map<String, Value> {
        let mut into = Map::from_iter([("type".to_owned(), json!("rich"))]);
        self.text(from, "title", 256, &mut into);
        self.text(from, "description", 4096, &mut into);
        self.url(from, "url", &mut into);
        self.color(from, &mut into);
        self.timestamp(from, &mut into);
        self.below(from, "footer", &mut into, |part, from| {
            let mut into = Map::new();
            part.text(from, "text", 2048, &mut into);
            part.url(from, "icon_url", &mut into);
            into
        });
        self.below(from, "author", &mut into, |part, from| {
            let mut into = Map::new();
            part.text(from, "name", 256, &mut into);
            ["url", "icon_url"].iter().for_each(|key| part.url(from, key, &mut into));
            into
        });
        for key in ["image", "thumbnail"] {
            self.below(from, key, &mut into, |part, from| {
                let mut into = Map::new();
                part.url(from, "url", &mut into);
                into
            });
        }
        self.fields(from, &mut into);
        into
    }

    fn color(&mut self, from: &Map<String, Value>, into: &mut Map<String, Value>) {
        let Some(value) = lenient::present(from, "color") else { return };
        match lenient::integer(value) {
            Some(color @ 0..=MAX_COLOR) => drop(into.insert("color".to_owned(), json!(color))),
            Some(color) if color < 0 => {
                self.wrong("color", "NUMBER_TYPE_MIN", "int value should be greater than or equal to 0.");
            }
            Some(_) => {
                let most = format!("int value should be less than or equal to {MAX_COLOR}.");
                self.wrong("color", "NUMBER_TYPE_MAX", &most);
            }
            None => self.wrong("color", "NUMBER_TYPE_COERCE", "Value is not an int."),
        }
    }

    fn timestamp(&mut self, from: &Map<String, Value>, into: &mut Map<String, Value>) {
        let Some(value) = lenient::present(from, "timestamp") else { return };
        match value.as_str().and_then(parse_any_iso8601_ms) {
            Some(unix_ms) => drop(into.insert("timestamp".to_owned(), json!(iso8601(unix_ms)))),
            None => self.wrong("timestamp", "DATE_TIME_TYPE_PARSE", "Could not parse value. Should be ISO8601."),
        }
    }

    fn fields(&mut self, from: &Map<String, Value>, into: &mut Map<String, Value>) {
        let list = match lenient::present(from, "fields") {
            None => return,
            Some(Value::Array(list)) => list,
            Some(_) => return self.wrong("fields", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType"),
        };
        if list.len() > MAX_FIELDS {
            return self.wrong("fields", "BASE_TYPE_MAX_LENGTH", &format!("Must be {MAX_FIELDS} or fewer in length."));
        }
        let mut kept = Vec::new();
        for (number, field) in list.iter().enumerate() {
            let mut part =
                Part { form: &mut *self.form, path: format!("{}.fields.{number}", self.path), characters: 0 };
            kept.extend(part.object(field, |part, from| {
                let mut into = Map::new();
                for (key, most) in [("name", 256), ("value", 1024)] {
                    part.text(from, key, most, &mut into);
                    if !into.contains_key(key) {
                        part.wrong(key, "BASE_TYPE_REQUIRED", "This field is required");
                    }
                }
                into.insert("inline".to_owned(), json!(from.get("inline").and_then(Value::as_bool).unwrap_or(false)));
                into
            }));
            self.characters += part.characters;
        }
        into.insert("fields".to_owned(), Value::Array(kept));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn embeds(value: Value) -> Result<Value, Value> {
        let mut form = Form::default();
        let body = json!({"embeds": value});
        let read = read(&mut form, body.as_object().unwrap());
        match form.errors() {
            clean if clean == json!({}) => Ok(serde_json::from_str(&read.unwrap()).unwrap()),
            errors => Err(errors["embeds"].clone()),
        }
    }

    #[test]
    fn what_is_known_goes_on_and_nothing_else() {
        let whole = json!({"title": "t", "description": "d", "url": "u", "color": 5, "timestamp": "2024-02-29T02:00:00+02:00",
            "footer": {"text": "f", "icon_url": "i", "proxy_icon_url": 5}, "author": {"name": "a", "url": "u", "icon_url": "i"},
            "image": {"url": "u", "width": "x"}, "thumbnail": {"url": "u"}, "fields": [{"name": "n", "value": "v", "inline": true}],
            "video": {"url": 5}, "provider": 7, "type": ["x"], "unknown": 1});
        let kept = json!([{"type": "rich", "title": "t", "description": "d", "url": "u", "color": 5,
            "timestamp": "2024-02-29T00:00:00.000000+00:00", "footer": {"text": "f", "icon_url": "i"},
            "author": {"name": "a", "url": "u", "icon_url": "i"}, "image": {"url": "u"}, "thumbnail": {"url": "u"},
            "fields": [{"name": "n", "value": "v", "inline": true}]}]);
        assert_eq!(embeds(json!([whole])), Ok(kept));
    }

    #[test]
    fn what_would_break_a_reader_is_refused_where_it_is() {
        for (embed, at) in [
            (json!(5), "/0"),
            (json!({"title": {}}), "/0/title"),
            (json!({"color": "red"}), "/0/color"),
            (json!({"color": -1}), "/0/color"),
            (json!({"color": 0x0100_0000}), "/0/color"),
            (json!({"timestamp": "yesterday"}), "/0/timestamp"),
            (json!({"timestamp": 5}), "/0/timestamp"),
            (json!({"footer": "x"}), "/0/footer"),
            (json!({"author": {"name": []}}), "/0/author/name"),
            (json!({"image": {"url": {}}}), "/0/image/url"),
            (json!({"thumbnail": [1]}), "/0/thumbnail"),
            (json!({"fields": {}}), "/0/fields"),
            (json!({"fields": [{"name": "n"}]}), "/0/fields/0/value"),
            (json!({"fields": vec![json!({"name": "n", "value": "v"}); 26]}), "/0/fields"),
            (json!({"description": "d".repeat(4097)}), "/0/description"),
        ] {
            let errors = embeds(json!([embed])).expect_err(&embed.to_string());
            assert!(errors.pointer(&format!("{at}/_errors")).is_some(), "{embed}: {errors}");
        }
    }

    proptest! {
        #[test]
        fn any_embed_is_read_without_panic(text in "\\{(\"(title|color|timestamp|footer|fields|image)\":(1|\"a\"|\"2024-01-01T00:00:00é\"|null|\\[\\]|\\{\\}|\\[\\{\\}\\]|-5),?){0,4}\\}") {
            if let Ok(embed) = serde_json::from_str::<Value>(&text) {
                let _ = embeds(json!([embed]));
            }
        }
    }
}
