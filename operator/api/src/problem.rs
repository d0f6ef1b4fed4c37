//! Errors on the wire: RFC 9457 problem details with the reason's label and the offending fields.

use serde::{Deserialize, Serialize};

/// Content type of an error body.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{title}: {detail}")]
pub struct Problem {
    /// HTTP status.
    pub status: u16,
    /// The reason's label: the same word as in conditions, events, logs and metrics.
    pub reason: String,
    /// A few words.
    pub title: String,
    /// What was found, and the remedy.
    pub detail: String,
    /// The fields at fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// The command to run next, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// One field at fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldError {
    /// The field, as a path.
    pub field: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl Problem {
    /// A problem without fields.
    pub fn new(status: u16, reason: impl Into<String>, title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), title: title.into(), detail: detail.into(), ..Self::default() }
    }

    /// Adds a field at fault.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>, message: impl Into<String>) -> Self {
        self.errors.push(FieldError { field: field.into(), message: message.into() });
        self
    }

    /// Adds the command to run next.
    #[must_use]
    pub fn next(mut self, command: impl Into<String>) -> Self {
        self.next = Some(command.into());
        self
    }
}
