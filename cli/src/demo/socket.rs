//! One websocket of one client: opened from a chosen source address, with buffers small enough for thousands.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

const OPEN_DEADLINE: Duration = Duration::from_secs(15);
const SEND_DEADLINE: Duration = Duration::from_secs(15);

/// Why a socket ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The server closed it with this code; 1005 without one.
    Closed(u16),
    /// It broke.
    Broken(String),
}

/// An open websocket.
#[derive(Debug)]
pub struct Socket {
    stream: WebSocketStream<TcpStream>,
}

/// `host:port` of a `ws://` URL without a path, as gateways give it; anything else is `None`.
pub fn address_of(url: &str) -> Option<SocketAddr> {
    url.strip_prefix("ws://")?.trim_end_matches('/').parse().ok()
}

impl Socket {
    /// Opens a websocket. A small receive buffer makes a slow reader felt at the other end.
    ///
    /// # Errors
    /// [`Ended::Broken`].
    pub async fn open(to: SocketAddr, from: Ipv4Addr, receive_bytes: Option<u32>) -> Result<Self, Ended> {
        timeout(OPEN_DEADLINE, connect(to, from, receive_bytes)).await.unwrap_or_else(|_| {
            Err(Ended::Broken(format!("no websocket from {to} within {} s", OPEN_DEADLINE.as_secs())))
        })
    }

    /// The next text. Cancelling loses nothing.
    ///
    /// # Errors
    /// [`Ended`].
    pub async fn next(&mut self) -> Result<Utf8Bytes, Ended> {
        loop {
            match self.stream.next().await {
                Some(Ok(Message::Text(text))) => return Ok(text),
                Some(Ok(Message::Close(frame))) => {
                    return Err(Ended::Closed(frame.map_or(1005, |frame| frame.code.into())));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(Ended::Broken(error.to_string())),
                None => return Err(Ended::Broken("closed without a word".to_owned())),
            }
        }
    }

    /// Sends a text.
    ///
    /// # Errors
    /// [`Ended::Broken`].
    pub async fn send(&mut self, text: String) -> Result<(), Ended> {
        match timeout(SEND_DEADLINE, self.stream.send(Message::text(text))).await {
            Ok(sent) => sent.map_err(|error| Ended::Broken(error.to_string())),
            Err(_) => Err(Ended::Broken("the server takes nothing".to_owned())),
        }
    }

    /// Closes with a code that ends the session.
    pub async fn close(mut self) {
        let _ = timeout(Duration::from_secs(1), self.stream.close(None)).await;
    }
}

async fn connect(to: SocketAddr, from: Ipv4Addr, receive_bytes: Option<u32>) -> Result<Socket, Ended> {
    let broken = |error: &dyn std::fmt::Display| Ended::Broken(error.to_string());
    let socket = TcpSocket::new_v4().map_err(|error| broken(&error))?;
    if let Some(bytes) = receive_bytes {
        socket.set_recv_buffer_size(bytes).map_err(|error| broken(&error))?;
    }
    socket.bind(SocketAddr::from((from, 0))).map_err(|error| broken(&error))?;
    let stream = socket.connect(to).await.map_err(|error| broken(&error))?;
    stream.set_nodelay(true).map_err(|error| broken(&error))?;
    let config =
        WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0).max_write_buffer_size(64 * 1024);
    let url = format!("ws://{to}/?v=10&encoding=json");
    let (stream, _) = client_async_with_config(url, stream, Some(config)).await.map_err(|error| broken(&error))?;
    Ok(Socket { stream })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resume_urls_are_read_with_and_without_a_slash() {
        let expected = Some(SocketAddr::from(([127, 70, 1, 1], 30_080)));
        assert_eq!(address_of("ws://127.70.1.1:30080"), expected);
        assert_eq!(address_of("ws://127.70.1.1:30080//"), expected);
        assert_eq!(address_of("wss://127.70.1.1:30080"), None);
        assert_eq!(address_of("ws://127.70.1.1"), None);
    }
}
