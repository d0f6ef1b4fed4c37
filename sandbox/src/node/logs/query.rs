//! What a log request asks for. Bad values are refused, never guessed.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use thiserror::Error;

/// A request's wishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Keep sending as lines come.
    pub follow: bool,
    /// The run before the present one.
    pub previous: bool,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Only the last so many lines.
    pub tail_lines: Option<usize>,
    /// Only lines since this Unix second.
    pub since: Option<i64>,
    /// At most so many bytes.
    pub limit_bytes: Option<u64>,
}

/// Why a request is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("query parameter {name}={value} is not valid: give {wanted}")]
pub struct QueryError {
    /// The parameter.
    pub name: &'static str,
    /// What it held.
    pub value: String,
    /// What it should hold.
    pub wanted: &'static str,
}

impl LogQuery {
    /// Reads the parameters of the URL, at Unix second `now`.
    ///
    /// # Errors
    /// [`QueryError`] names the parameter and what it should hold.
    pub fn parse(parameters: &HashMap<String, String>, now: i64) -> Result<Self, QueryError> {
        let tail = number(parameters, "tailLines")?;
        let since_seconds = number(parameters, "sinceSeconds")?;
        let since_time = match parameters.get("sinceTime").filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => Some(text.parse::<Timestamp>().map(Timestamp::as_second).map_err(|_| QueryError {
                name: "sinceTime",
                value: text.clone(),
                wanted: "an RFC 3339 time",
            })?),
        };
        Ok(Self {
            follow: flag(parameters, "follow")?,
            previous: flag(parameters, "previous")?,
            timestamps: flag(parameters, "timestamps")?,
            tail_lines: tail.map(|tail| usize::try_from(tail).unwrap_or(usize::MAX)),
            since: since_seconds.map(|seconds| now.saturating_sub_unsigned(seconds)).or(since_time),
            limit_bytes: number(parameters, "limitBytes")?,
        })
    }
}

fn flag(parameters: &HashMap<String, String>, name: &'static str) -> Result<bool, QueryError> {
    match parameters.get(name).map(String::as_str) {
        None | Some("false" | "0") => Ok(false),
        Some("true" | "1" | "") => Ok(true),
        Some(other) => Err(QueryError { name, value: other.to_owned(), wanted: "true or false" }),
    }
}

fn number(parameters: &HashMap<String, String>, name: &'static str) -> Result<Option<u64>, QueryError> {
    match parameters.get(name).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => {
            let bad = || QueryError { name, value: text.clone(), wanted: "a number of at least 0" };
            text.parse().map(Some).map_err(|_| bad())
        }
    }
}
