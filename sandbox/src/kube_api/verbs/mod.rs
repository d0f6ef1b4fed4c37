//! The doors of the API: one file for each verb or family of subresources. Each turns a request into reads or a write and an answer.

pub mod apply;
pub mod delete;
pub mod list;
pub mod node_ports;
pub mod pods;
pub mod post;
pub mod read;
pub mod reviews;
pub mod scale;
pub mod watch;

use axum::body::Body;
use http::Response;
use serde_json::Value;

/// What a verb answers.
pub enum Reply {
    /// One object.
    Object { code: u16, object: Value, warnings: Vec<String> },
    /// A list of this resource's objects.
    List(Value),
    /// Anything that is not an object of the resource (Status, Scale, reviews).
    Plain { code: u16, body: Value },
    /// Written as it is (streams, logs).
    Raw(Response<Body>),
}

impl Reply {
    /// 200 with an object.
    pub fn ok(object: Value) -> Self {
        Self::Object { code: 200, object, warnings: Vec::new() }
    }

    /// What a write did.
    pub fn written(written: super::write::Written) -> Self {
        let code = if written.created { 201 } else { 200 };
        Self::Object { code, object: written.object, warnings: written.warnings }
    }
}
