//! The writes controllers make, each with a deadline, a precondition and a counter. It never decides what to write.

use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::mirror::version_of;

/// How long one call to the API server may take.
pub const CALL_DEADLINE: Duration = Duration::from_secs(15);

/// Why a write did not happen.
#[derive(Debug, Error)]
pub enum ActError {
    /// The API server answered with an error.
    #[error("{verb}: {source}")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// What the API server or the transport said.
        source: Box<kube::Error>,
    },
    /// No answer within the deadline.
    #[error("{0}: no answer from the API server in time")]
    Late(&'static str),
}

impl ActError {
    /// The HTTP status code of the answer, 0 when there was none.
    pub fn code(&self) -> u16 {
        match self {
            Self::Api { source, .. } => code_of(source),
            Self::Late(_) => 0,
        }
    }

    /// True when the write may have happened: no answer, or one from something in between.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self.code(), 0 | 500..)
    }

    /// True when another writer was faster: read again and decide again.
    pub fn is_conflict(&self) -> bool {
        self.code() == 409
    }
}

/// The HTTP status code in a kube error, 0 when there is none.
pub fn code_of(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Writes done by one set of controllers. An idle cluster must not move it.
#[derive(Debug, Default)]
pub struct Writes(AtomicU64);

impl Writes {
    /// Writes sent since the start.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one write.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs one call under the deadline.
pub async fn call<T>(verb: &'static str, future: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ActError> {
    match tokio::time::timeout(CALL_DEADLINE, future).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(ActError::Api { verb, source: Box::new(source) }),
        Err(_) => Err(ActError::Late(verb)),
    }
}

/// Creates an object; the new resourceVersion, or None when an object of that name is there already.
pub async fn create<K>(api: &Api<K>, object: &K, writes: &Writes) -> Result<Option<u64>, ActError>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    writes.add();
    match call("create", api.create(&PostParams::default(), object)).await {
        Ok(made) => Ok(Some(version_of(&made))),
        Err(error) if error.is_conflict() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes exactly the object that was looked at (same UID); the resourceVersion to wait for, or None when it is gone or another.
pub async fn delete<K>(api: &Api<K>, object: &K, grace: Option<u32>, writes: &Writes) -> Result<Option<u64>, ActError>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    writes.add();
    let params = DeleteParams {
        grace_period_seconds: grace,
        preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    match call("delete", api.delete(&object.name_any(), &params)).await {
        Ok(answer) => Ok(answer.left().map(|object| version_of(&object))),
        Err(error) if matches!(error.code(), 404 | 409) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces the status of an object that was read at a known resourceVersion by a merge patch that names that version.
pub async fn patch_status<K, S>(api: &Api<K>, seen: &K, status: &S, writes: &Writes) -> Result<u64, ActError>
where
    K: Resource + DeserializeOwned + Clone + Debug,
    S: Serialize,
{
    writes.add();
    let body = serde_json::json!({
        "metadata": { "resourceVersion": seen.resource_version(), "uid": seen.uid() },
        "status": status,
    });
    let patched =
        call("patch status", api.patch_status(&seen.name_any(), &PatchParams::default(), &Patch::Merge(&body))).await?;
    Ok(version_of(&patched))
}

/// Merges `body` into an object, naming the resourceVersion it was read at.
pub async fn patch<K>(api: &Api<K>, seen: &K, mut body: serde_json::Value, writes: &Writes) -> Result<u64, ActError>
where
    K: Resource + DeserializeOwned + Clone + Debug,
{
    writes.add();
    if let Some(metadata) = body
        .as_object_mut()
        .map(|body| body.entry("metadata").or_insert_with(|| serde_json::json!({})))
        .and_then(serde_json::Value::as_object_mut)
    {
        metadata.insert("resourceVersion".into(), serde_json::json!(seen.resource_version()));
    }
    let patched = call("patch", api.patch(&seen.name_any(), &PatchParams::default(), &Patch::Merge(&body))).await?;
    Ok(version_of(&patched))
}

/// Publishes an event on `object`; a failure is logged, never returned, because an event is only a remark.
pub async fn remark<K: Resource<DynamicType = ()>>(
    recorder: &Recorder,
    object: &K,
    kind: EventType,
    reason: &str,
    note: String,
) {
    let event = Event {
        type_: kind,
        reason: reason.to_owned(),
        note: Some(note.chars().take(1000).collect()),
        action: reason.to_owned(),
        secondary: None,
    };
    match tokio::time::timeout(CALL_DEADLINE, recorder.publish(&event, &object.object_ref(&()))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::info!(reason, error = %error, "event not published"),
        Err(_) => tracing::info!(reason, "event not published in time"),
    }
}
