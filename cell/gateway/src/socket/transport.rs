//! What a connection is driven over: a client's websocket, or a stream from the gateway the client is really connected to.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use cell_proto::v1::{ProxyClosed, ProxyDown, ProxyUp, proxy_down, proxy_up};
use futures::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data as OpData, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, FrameHeader};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
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

/// Bytes a websocket reads at a time: frames of clients are small and sockets many.
const READ_BUFFER_BYTES: usize = 512;
/// A frame's longest header without a mask.
const MAX_HEADER_BYTES: usize = 10;
/// Bytes of frames gathered before they are written out.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;
/// Frames above the protocol's 4096 bytes are read up to here, so that the close code can be told.
const MAX_READ_BYTES: usize = 64 * 1024;

/// A client's websocket. What is sent goes past the websocket's own write buffer, which would keep the size of the largest message
/// ever sent; pongs and closes are the websocket's.
pub struct ClientSocket {
    socket: WebSocketStream<TcpStream>,
    compressor: Compressor,
    /// Frames gathered, and how many of their bytes are out. Nothing is held while the client is up to date.
    out: Vec<u8>,
    written: usize,
}

impl ClientSocket {
    /// Takes over a connection after its handshake, with what the client sent since.
    pub async fn new(stream: TcpStream, early: Vec<u8>, compressor: Compressor) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(MAX_READ_BYTES))
            .max_frame_size(Some(MAX_READ_BYTES));
        let socket = WebSocketStream::from_partially_read(stream, early, Role::Server, Some(config)).await;
        Self { socket, compressor, out: Vec::new(), written: 0 }
    }

    fn gather(&mut self, payload: &str) -> Result<(), Gone> {
        if self.compressor.is_none() {
            put_frame(&mut self.out, OpData::Text, payload.as_bytes());
        } else {
            let bytes = self.compressor.compress(payload.as_bytes()).map_err(|_| Gone)?;
            put_frame(&mut self.out, OpData::Binary, &bytes);
        }
        Ok(())
    }

    async fn write_out(&mut self) -> Result<(), Gone> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.socket.get_mut().write(rest).await {
                Ok(0) | Err(_) => return Err(Gone),
                Ok(count) => self.written += count,
            }
        }
        (self.out, self.written) = (Vec::new(), 0);
        Ok(())
    }

    /// What a dropped send left unsent, then whatever the websocket itself has to say.
    async fn settle(&mut self) -> Result<(), Gone> {
        self.write_out().await?;
        self.socket.flush().await.map_err(|_| Gone)
    }
}

/// A final frame of a server: not masked.
fn put_frame(out: &mut Vec<u8>, kind: OpData, payload: &[u8]) {
    out.reserve(MAX_HEADER_BYTES + payload.len());
    let header = FrameHeader { opcode: OpCode::Data(kind), ..FrameHeader::default() };
    // A vector takes everything.
    drop(header.format(payload.len() as u64, out));
    out.extend_from_slice(payload);
}

impl Transport for ClientSocket {
    async fn receive(&mut self) -> Incoming {
        loop {
            return match self.socket.next().await {
                Some(Ok(Message::Text(text))) => Incoming::Frame(text.into()),
                Some(Ok(Message::Binary(bytes))) => Incoming::Frame(bytes),
                Some(Ok(Message::Close(frame))) => Incoming::Closed(frame.map(|frame| frame.code.into())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(Error::Io(_) | Error::ConnectionClosed | Error::AlreadyClosed)) | None => Incoming::Lost,
                Some(Err(_)) => Incoming::Malformed,
            };
        }
    }

    async fn send(&mut self, payloads: Vec<String>) -> Result<(), Gone> {
        // A pong may be on its way out, half of it written.
        self.settle().await?;
        for payload in payloads {
            self.gather(&payload)?;
            if self.out.len() >= WRITE_BUFFER_BYTES {
                self.write_out().await?;
            }
        }
        self.write_out().await
    }

    async fn close(&mut self, code: CloseCode) {
        let frame = CloseFrame { code: code.number().into(), reason: code.label().into() };
        let close = async {
            if self.settle().await.is_ok() && self.socket.send(Message::Close(Some(frame))).await.is_ok() {
                // Until the client has closed too, what it sent is read: unread bytes would make the system reset the connection
                // and the code would be lost.
                while let Some(Ok(_)) = self.socket.next().await {}
            }
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::debug!(code = code.number(), "a client did not answer the close in time");
        }
    }

    async fn finish(&mut self) {
        let rest = async {
            if self.write_out().await.is_ok() {
                while let Some(Ok(_)) = self.socket.next().await {}
            }
        };
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
