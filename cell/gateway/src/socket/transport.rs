//! What a connection is driven over: a client's websocket, or a stream from the gateway the client is really connected to.

use std::future::Future;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::Bytes;
use cell_proto::v1::{ProxyClosed, ProxyDown, ProxyUp, proxy_down, proxy_up};
use futures::SinkExt;
use tokio::sync::mpsc;
use tonic::Streaming;

use super::compress::Compressor;
use crate::wire::close::CloseCode;

/// What came in.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    /// One frame, not yet looked at.
    Frame(Bytes),
    /// The client closed, with this code if it gave one.
    Closed(Option<u16>),
    /// The bytes are no websocket messages, not UTF-8, or far too long.
    Malformed,
    /// The connection is gone.
    Lost,
}

/// The connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// A connection.
pub trait Transport: Send {
    /// The next thing that comes in. Dropping the future loses nothing.
    fn receive(&mut self) -> impl Future<Output = Incoming> + Send;
    /// Sends payloads in order. Dropping the future may leave some unsent: only a close may follow.
    fn send(&mut self, payloads: Vec<String>) -> impl Future<Output = Result<(), Gone>> + Send;
    /// Closes, bounded in time.
    fn close(&mut self, code: CloseCode) -> impl Future<Output = ()> + Send;
    /// The client has closed: lets its close be answered, bounded in time.
    fn finish(&mut self) -> impl Future<Output = ()> + Send;
    /// The client asked for compressed messages in its identify.
    fn compress_messages(&mut self);
}

/// How long a close may take to reach the client.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A client's websocket.
pub struct ClientSocket {
    socket: WebSocket,
    compressor: Compressor,
}

impl ClientSocket {
    /// Wraps a socket.
    pub fn new(socket: WebSocket, compressor: Compressor) -> Self {
        Self { socket, compressor }
    }

    fn message(&mut self, payload: String) -> Result<Message, Gone> {
        if self.compressor.is_none() {
            return Ok(Message::Text(payload.into()));
        }
        self.compressor.compress(payload.as_bytes()).map(|bytes| Message::Binary(bytes.into())).map_err(|_| Gone)
    }
}

impl Transport for ClientSocket {
    async fn receive(&mut self) -> Incoming {
        loop {
            return match self.socket.recv().await {
                Some(Ok(Message::Text(text))) => Incoming::Frame(text.into()),
                Some(Ok(Message::Binary(bytes))) => Incoming::Frame(bytes),
                Some(Ok(Message::Close(frame))) => Incoming::Closed(frame.map(|frame| frame.code)),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Err(_)) => Incoming::Malformed,
                None => Incoming::Lost,
            };
        }
    }

    async fn send(&mut self, payloads: Vec<String>) -> Result<(), Gone> {
        for payload in payloads {
            let message = self.message(payload)?;
            self.socket.feed(message).await.map_err(|_| Gone)?;
        }
        self.socket.flush().await.map_err(|_| Gone)
    }

    async fn close(&mut self, code: CloseCode) {
        let frame = CloseFrame { code: code.number(), reason: code.label().into() };
        let close = async {
            if self.socket.send(Message::Close(Some(frame))).await.is_ok() {
                // Until the client has closed too, what it sent is read: unread bytes would make the system reset the connection
                // and the code would be lost.
                while let Some(Ok(_)) = self.socket.recv().await {}
            }
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::debug!(code = code.number(), "a client did not answer the close in time");
        }
    }

    async fn finish(&mut self) {
        let rest = async { while let Some(Ok(_)) = self.socket.recv().await {} };
        if tokio::time::timeout(CLOSE_TIMEOUT, rest).await.is_err() {
            tracing::debug!("a client did not hang up in time after its close");
        }
    }

    fn compress_messages(&mut self) {
        if self.compressor.is_none() {
            self.compressor = Compressor::ZlibMessage;
        }
    }
}

/// A client connected to another gateway.
pub struct ProxiedSocket {
    up: Streaming<ProxyUp>,
    down: mpsc::Sender<Result<ProxyDown, tonic::Status>>,
}

impl ProxiedSocket {
    /// Wraps the two directions.
    pub fn new(up: Streaming<ProxyUp>, down: mpsc::Sender<Result<ProxyDown, tonic::Status>>) -> Self {
        Self { up, down }
    }
}

impl Transport for ProxiedSocket {
    async fn receive(&mut self) -> Incoming {
        match self.up.message().await {
            Ok(Some(ProxyUp { kind: Some(proxy_up::Kind::ClientFrame(bytes)) })) => Incoming::Frame(bytes.into()),
            Ok(Some(ProxyUp { kind: Some(proxy_up::Kind::Closed(closed)) })) => {
                Incoming::Closed(u16::try_from(closed.close_code).ok().filter(|code| *code != 0))
            }
            Ok(Some(_)) => Incoming::Malformed,
            Ok(None) | Err(_) => Incoming::Lost,
        }
    }

    async fn send(&mut self, payloads: Vec<String>) -> Result<(), Gone> {
        for payload in payloads {
            let kind = Some(proxy_down::Kind::Payload(payload.into_bytes()));
            self.down.send(Ok(ProxyDown { kind })).await.map_err(|_| Gone)?;
        }
        Ok(())
    }

    async fn close(&mut self, code: CloseCode) {
        let kind = Some(proxy_down::Kind::Close(ProxyClosed { close_code: i32::from(code.number()) }));
        if tokio::time::timeout(CLOSE_TIMEOUT, self.down.send(Ok(ProxyDown { kind }))).await.is_err() {
            tracing::debug!("a proxying gateway did not take the close in time");
        }
    }

    async fn finish(&mut self) {}

    fn compress_messages(&mut self) {}
}
