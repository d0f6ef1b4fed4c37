//! A client's connection while it speaks HTTP: a client that takes nothing for long is cut, and at the end what it still sends is read
//! for a moment, as the system resets a connection that is closed with bytes unread and the last answer would be lost.

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// How long a client may take nothing of an answer.
const STALL: Duration = Duration::from_secs(30);
/// How long, and how much, is read after the last answer.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES: usize = 64 * 1024 * 1024;

/// A connection that hyper drives.
pub struct ClientStream {
    stream: TcpStream,
    /// Runs while the client is waited for.
    patience: Option<Pin<Box<Sleep>>>,
    /// Bytes read after the end; `None` before it.
    lingering: Option<usize>,
}

impl ClientStream {
    /// Wraps a connection.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, patience: None, lingering: None }
    }

    /// The connection, for what is no HTTP any more.
    pub fn into_inner(self) -> TcpStream {
        self.stream
    }

    /// Whether the client has been waited for this long.
    fn is_overdue(&mut self, context: &mut Context<'_>, limit: Duration) -> bool {
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        patience.as_mut().poll(context).is_ready()
    }

    fn written(&mut self, context: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.patience = None;
        } else if self.is_overdue(context, STALL) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        written
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            (self.lingering, self.patience) = (Some(0), None);
        }
        let mut scratch = [MaybeUninit::uninit(); 8192];
        loop {
            if self.is_overdue(context, LINGER) || self.lingering.is_some_and(|read| read >= LINGER_BYTES) {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::uninit(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.lingering = self.lingering.map(|read| read + buffer.filled().len());
        }
    }
}
