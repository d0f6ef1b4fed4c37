//! The store over gRPC: a server in front of any engine, and a client that is a `Store` itself. Errors keep their kind on the way; what
//! the transport cannot tell is an unknown outcome.

mod client;
mod server;

use tonic::{Code, Status};

pub use client::RemoteStore;
pub use server::StoreServer;

use crate::StoreError;

const KIND: &str = "cellplane-store-error";

fn to_status(error: &StoreError) -> Status {
    let code = match error {
        StoreError::Unavailable(_) => Code::Unavailable,
        StoreError::UnknownOutcome(_) => Code::Unknown,
        StoreError::Full { .. } => Code::ResourceExhausted,
        StoreError::NewerVersion { .. } | StoreError::Open { .. } | StoreError::Refused(_) => Code::FailedPrecondition,
        StoreError::Invalid(_) => Code::InvalidArgument,
        StoreError::Damaged(_) => Code::DataLoss,
    };
    let message = match error {
        StoreError::Unavailable(text)
        | StoreError::UnknownOutcome(text)
        | StoreError::Invalid(text)
        | StoreError::Refused(text)
        | StoreError::Damaged(text) => text.clone(),
        StoreError::Full { path, free_bytes, reserve_bytes } => format!("{free_bytes} {reserve_bytes} {path}"),
        other => other.to_string(),
    };
    let mut status = Status::new(code, message);
    if let Ok(kind) = error.label().parse() {
        status.metadata_mut().insert(KIND, kind);
    }
    status
}

fn from_status(status: &Status) -> StoreError {
    let kind = status.metadata().get(KIND).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let message = status.message().to_owned();
    match kind {
        "unavailable" | "open" | "newer-version" => StoreError::Unavailable(message),
        "full" => full_from(&message),
        "invalid" => StoreError::Invalid(message),
        "refused" => StoreError::Refused(message),
        "damaged" => StoreError::Damaged(message),
        // Without a kind it is the transport that speaks: the request may have arrived.
        _ => StoreError::UnknownOutcome(format!("{:?}: {message}", status.code())),
    }
}

fn full_from(message: &str) -> StoreError {
    let mut parts = message.splitn(3, ' ');
    let mut number = || parts.next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (free_bytes, reserve_bytes) = (number(), number());
    StoreError::Full { path: parts.next().unwrap_or_default().to_owned(), free_bytes, reserve_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_an_unknown_outcome() {
        assert!(from_status(&Status::unavailable("connection reset")).may_have_happened());
    }

    #[test]
    fn a_refusal_of_the_store_keeps_its_kind() {
        for error in [
            StoreError::Unavailable("queue".into()),
            StoreError::Full { path: "/a folder".into(), free_bytes: 1, reserve_bytes: 2 },
        ] {
            assert_eq!(from_status(&to_status(&error)), error);
        }
    }
}
