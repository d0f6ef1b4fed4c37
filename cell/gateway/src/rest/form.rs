//! Form errors, nested by key as the client protocol writes them, and the readers of single fields that report into them.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use crate::wire::lenient;

/// Errors found so far.
#[derive(Debug, Default)]
pub struct Form {
    errors: Map<String, Value>,
}

impl Form {
    /// Adds an error at a path such as `embeds.0.title`; an empty path is the body itself.
    pub fn add(&mut self, path: &str, code: &str, message: &str) {
        let mut at = &mut self.errors;
        for key in path.split('.').filter(|key| !key.is_empty()) {
            let next = at.entry(key).or_insert_with(|| json!({}));
            let Value::Object(next) = next else {
                return;
            };
            at = next;
        }
        if let Value::Array(list) = at.entry("_errors").or_insert_with(|| json!([])) {
            list.push(json!({ "code": code, "message": message }));
        }
    }

    /// A value that is no id.
    pub fn not_snowflake(&mut self, path: &str, text: &str) {
        let shown: String = text.chars().take(32).collect();
        self.add(path, "NUMBER_TYPE_COERCE", &format!("Value \"{shown}\" is not snowflake."));
    }

    /// Nothing was wrong, or the error.
    ///
    /// # Errors
    /// 50035.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.errors.is_empty() { Ok(()) } else { Err(self.into_error()) }
    }

    /// What was found so far.
    #[cfg(test)]
    pub fn errors(&self) -> Value {
        Value::Object(self.errors.clone())
    }

    /// The error.
    pub fn into_error(self) -> ApiError {
        ApiError::form(Value::Object(self.errors))
    }

    /// A string field of so many characters; `None` when absent, null or wrong.
    pub fn text(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        lengths: std::ops::RangeInclusive<usize>,
    ) -> Option<String> {
        let value = lenient::present(map, key)?;
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => {
                self.add(key, "BASE_TYPE_BAD_TYPE", "Could not interpret value as string.");
                return None;
            }
        };
        let length = text.chars().count();
        if length > *lengths.end() {
            self.add(key, "BASE_TYPE_MAX_LENGTH", &format!("Must be {} or fewer in length.", lengths.end()));
            return None;
        }
        if length < *lengths.start() {
            self.add(key, "BASE_TYPE_MIN_LENGTH", &format!("Must be {} or more in length.", lengths.start()));
            return None;
        }
        Some(text)
    }

    /// As [`Form::text`], but it must be there.
    pub fn required_text(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        lengths: std::ops::RangeInclusive<usize>,
    ) -> String {
        if lenient::present(map, key).is_none() {
            self.required(key);
            return String::new();
        }
        self.text(map, key, lengths).unwrap_or_default()
    }

    /// A field that must be there is not.
    pub fn required(&mut self, path: &str) {
        self.add(path, "BASE_TYPE_REQUIRED", "This field is required");
    }

    /// An integer field within a range.
    pub fn integer(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Option<i64> {
        let value = lenient::present(map, key)?;
        let Some(number) = lenient::integer(value) else {
            self.add(key, "NUMBER_TYPE_COERCE", "Value is not an int.");
            return None;
        };
        if number < *range.start() {
            self.add(
                key,
                "NUMBER_TYPE_MIN",
                &format!("int value should be greater than or equal to {}.", range.start()),
            );
            return None;
        }
        if number > *range.end() {
            self.add(key, "NUMBER_TYPE_MAX", &format!("int value should be less than or equal to {}.", range.end()));
            return None;
        }
        Some(number)
    }

    /// A boolean field.
    pub fn boolean(&mut self, map: &Map<String, Value>, key: &str) -> Option<bool> {
        match lenient::present(map, key)? {
            Value::Bool(value) => Some(*value),
            _ => {
                self.add(key, "BASE_TYPE_BAD_TYPE", "Could not interpret value as boolean.");
                None
            }
        }
    }

    /// An id field.
    pub fn id(&mut self, map: &Map<String, Value>, key: &str) -> Option<i64> {
        let value = lenient::present(map, key)?;
        let id = lenient::id(value);
        if id.is_none() {
            self.not_snowflake(key, &value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
        id
    }

    /// A list of ids.
    pub fn ids(&mut self, map: &Map<String, Value>, key: &str, max: usize) -> Option<Vec<i64>> {
        let Some(list) = lenient::present(map, key)?.as_array() else {
            self.add(key, "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType");
            return None;
        };
        if list.len() > max {
            self.add(key, "BASE_TYPE_BAD_LENGTH", &format!("Must be {max} or fewer in length."));
            return None;
        }
        let ids: Option<Vec<i64>> = list.iter().map(lenient::id).collect();
        if ids.is_none() {
            self.add(key, "NUMBER_TYPE_COERCE", "Value is not snowflake.");
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_nested_per_key() {
        let mut form = Form::default();
        let map = json!({ "name": "", "n": "x", "ids": ["1", "y"] });
        let map = map.as_object().unwrap();
        form.text(map, "name", 1..=100);
        form.integer(map, "n", 0..=5);
        form.ids(map, "ids", 5);
        form.add("embeds.0.title", "BASE_TYPE_MAX_LENGTH", "Must be 256 or fewer in length.");
        let errors = Value::Object(form.errors);
        assert_eq!(errors["name"]["_errors"][0]["code"], "BASE_TYPE_MIN_LENGTH");
        assert_eq!(errors["n"]["_errors"][0]["code"], "NUMBER_TYPE_COERCE");
        assert_eq!(errors["ids"]["_errors"][0]["code"], "NUMBER_TYPE_COERCE");
        assert_eq!(errors["embeds"]["0"]["title"]["_errors"][0]["code"], "BASE_TYPE_MAX_LENGTH");
    }
}
