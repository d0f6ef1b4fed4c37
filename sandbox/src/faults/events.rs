//! A watch stream taken apart into its events, each let through, left out, repeated or held. Order within a watch is kept. Bookmarks and
//! errors always pass: a client that never hears of them would wait for ever by our doing, not by the server's.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::plan::Asked;
use super::proxy::Faults;
use super::rule::Fault;

/// The longest event; what is longer passes as it is.
const MAX_EVENT: usize = 16 * 1024 * 1024;
/// Events held for a slow client.
const QUEUE: usize = 64;

/// The events of `upstream` after the faults; `cut` ends the client's connection.
pub(super) fn through(faults: Arc<Faults>, asked: Asked, upstream: kube::client::Body, cut: CancellationToken) -> Body {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(QUEUE);
    tokio::spawn(async move {
        tokio::select! {
            () = pump(&faults, &asked, upstream, &sender, &cut) => {}
            () = sender.closed() => {}
        }
    });
    Body::from_stream(ReceiverStream::new(receiver))
}

async fn pump(
    faults: &Faults,
    asked: &Asked,
    mut upstream: kube::client::Body,
    sender: &mpsc::Sender<io::Result<Bytes>>,
    cut: &CancellationToken,
) {
    let mut waiting = BytesMut::new();
    loop {
        while let Some(line) = take_line(&mut waiting) {
            if !tell(faults, asked, line, sender, cut).await {
                return;
            }
        }
        match upstream.frame().await {
            Some(Ok(frame)) => {
                if let Ok(piece) = frame.into_data() {
                    waiting.extend_from_slice(&piece);
                }
            }
            Some(Err(error)) => {
                let _ = sender.send(Err(io::Error::other(error.to_string()))).await;
                return;
            }
            None => return,
        }
    }
}

fn take_line(waiting: &mut BytesMut) -> Option<Bytes> {
    let end = match waiting.iter().position(|byte| *byte == b'\n') {
        Some(at) => at + 1,
        None if waiting.len() > MAX_EVENT => waiting.len(),
        None => return None,
    };
    let line = waiting.copy_to_bytes(end);
    Some(line)
}

/// One event; false when the stream is over.
async fn tell(
    faults: &Faults,
    asked: &Asked,
    line: Bytes,
    sender: &mpsc::Sender<io::Result<Bytes>>,
    cut: &CancellationToken,
) -> bool {
    let about = object_of(asked, &line);
    faults.thaw(about.as_ref().unwrap_or(asked)).await;
    let fault = about.and_then(|about| faults.plan.lock().event(&about));
    let times = match fault {
        Some(Fault::EventDrop) => 0,
        Some(Fault::EventDuplicate) => 2,
        Some(Fault::EventDelay(ms)) => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            1
        }
        Some(Fault::EventCut) => {
            cut.cancel();
            return false;
        }
        _ => 1,
    };
    for _ in 0..times {
        if sender.send(Ok(line.clone())).await.is_err() {
            return false;
        }
    }
    true
}

/// What an event tells of, or none for bookmarks, errors and what is no event.
fn object_of(asked: &Asked, line: &[u8]) -> Option<Asked> {
    let event: Value = serde_json::from_slice(line).ok()?;
    if !matches!(event["type"].as_str()?, "ADDED" | "MODIFIED" | "DELETED") {
        return None;
    }
    let own = &event["object"]["metadata"];
    // A table's only row holds the object.
    let metadata = if own["name"].is_string() { own } else { &event["object"]["rows"][0]["object"]["metadata"] };
    let word = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    Some(Asked { namespace: word("namespace"), name: word("name"), ..asked.clone() })
}
