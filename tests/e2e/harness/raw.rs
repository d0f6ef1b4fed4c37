//! HTTP and websockets spoken by hand, so that what no client library would send can be sent.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body read as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// One request with any bytes as its body. A server that answers before it has read everything is heard.
pub async fn http(to: SocketAddr, method: &Method, path: &str, authorization: &str, body: &[u8]) -> Answer {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {to}\r\nauthorization: {authorization}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (mut reader, mut writer) = TcpStream::connect(to).await.unwrap().into_split();
    let sending = async {
        // A refusal may come first, and the rest is not taken then.
        if writer.write_all(head.as_bytes()).await.is_ok() {
            let _ = writer.write_all(body).await;
        }
        writer
    };
    let mut heard = Vec::new();
    let receiving = async {
        let mut piece = [0; 4096];
        while let Ok(count) = reader.read(&mut piece).await
            && count > 0
        {
            heard.extend_from_slice(&piece[..count]);
        }
    };
    timeout(DEADLINE, async { tokio::join!(sending, receiving) }).await.expect("an answer in time");
    let text = heard.windows(4).position(|window| window == b"\r\n\r\n");
    let split = text.unwrap_or_else(|| panic!("no answer to {method} {path}: {:?}", String::from_utf8_lossy(&heard)));
    let head = String::from_utf8_lossy(&heard[..split]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
    let mut body = heard[split + 4..].to_vec();
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Answer { status, body }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(&String::from_utf8_lossy(&rest[..end]), 16).unwrap_or(0);
        let chunk = rest.get(end + 2..end + 2 + size).unwrap_or_default();
        whole.extend_from_slice(chunk);
        if size == 0 {
            break;
        }
        rest = rest.get(end + 4 + size..).unwrap_or_default();
    }
    whole
}

/// A websocket.
pub struct Wire(TcpStream);

/// Opcodes of websocket frames.
pub const TEXT: u8 = 1;
/// Not spoken by clients of this gateway.
pub const BINARY: u8 = 2;

impl Wire {
    /// Opens one.
    pub async fn open(to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).await.unwrap();
        let head = format!(
            "GET /?v=10&encoding=json HTTP/1.1\r\nhost: {to}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"\r\n\r\n") {
            heard.push(timeout(DEADLINE, stream.read_u8()).await.expect("an upgrade in time").unwrap());
        }
        assert!(heard.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&heard));
        Self(stream)
    }

    /// Sends one frame of any bytes. A server that has closed already is no fault.
    pub async fn send(&mut self, opcode: u8, payload: &[u8]) {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            short @ 0..=125 => frame.push(0x80 | short as u8),
            medium @ 126..=65_535 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(medium as u16).to_be_bytes());
            }
            long => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        // A mask of zeros leaves the payload as it is.
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(payload);
        let _ = self.0.write_all(&frame).await;
    }

    /// Reads until the server closes; its close code, none when it broke the connection without one.
    pub async fn closed(&mut self) -> Option<u16> {
        timeout(DEADLINE, async {
            loop {
                let (opcode, payload) = self.frame().await?;
                if opcode == 8 {
                    return payload.get(..2).map(|code| u16::from_be_bytes([code[0], code[1]]));
                }
            }
        })
        .await
        .expect("the gateway closes what it cannot read")
    }

    /// Reads until a text holds this.
    pub async fn hear(&mut self, text: &str) {
        timeout(DEADLINE, async {
            loop {
                let (_, payload) = self.frame().await.expect("the socket stays open");
                if String::from_utf8_lossy(&payload).contains(text) {
                    return;
                }
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{text} was not heard"));
    }

    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let first = self.0.read_u8().await.ok()?;
        let length = match self.0.read_u8().await.ok()? {
            126 => u64::from(self.0.read_u16().await.ok()?),
            127 => self.0.read_u64().await.ok()?,
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).ok()?];
        self.0.read_exact(&mut payload).await.ok()?;
        Some((first & 0x0f, payload))
    }
}
