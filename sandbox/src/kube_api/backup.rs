//! GET /sandbox/backup: the whole store as one file, streamed, for those who may do everything. It never reads a file of the machine.

use std::io::{self, Write};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::access::User;
use super::api::Api;
use super::status::{Reason, Refusal};

/// Bytes of one piece, and how many pieces wait for a slow reader.
const PIECE: usize = 64 * 1024;
const PIECES: usize = 16;

/// Streams a backup.
pub fn stream(api: &Api, user: &User) -> Result<Response<Body>, Refusal> {
    if !user.groups.iter().any(|group| group == "system:masters") {
        return Err(Refusal::new(Reason::Forbidden, "only the sandbox's own kubeconfig may read a backup"));
    }
    let store = api.objects.store().clone();
    let (sender, receiver) = mpsc::channel(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces { sender, waiting: Vec::with_capacity(PIECE) };
        if let Err(error) = store.backup(&mut pieces) {
            // The body ends with an error, so the reader does not take it for whole.
            tracing::warn!(error = %error, "backup not finished");
            let _ = pieces.sender.blocking_send(Err(io::Error::other(error.to_string())));
        }
    });
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(receiver)));
    let kind = http::HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    Ok(response)
}

struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    waiting: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.waiting, Vec::with_capacity(PIECE));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
