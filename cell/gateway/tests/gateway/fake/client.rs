//! A gateway under test on its own ports, and plain clients for it: websocket frames and REST as text.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cell_gateway::run::{Listeners, serve};
use cell_gateway::{Config, Gateway, Limits};
use cell_proto::directory::Role;
use cell_runtime::tokens::{Bearer, Identity, TokenKeys};
use cell_runtime::{CancellationToken, Directory, DirectoryConfig, View};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::{Fake, fleet_member};
use crate::real::role_config;

/// Everything in these tests happens within this time or has failed.
pub const DEADLINE: Duration = Duration::from_secs(20);

pub fn keys() -> TokenKeys {
    TokenKeys::new(vec![9; 32], None).unwrap()
}

pub fn token(user_id: i64) -> String {
    keys().sign(Identity { user_id, bearer: Bearer::Bot }, 0).unwrap()
}

/// The token of a person.
pub fn token_of_person(user_id: i64) -> String {
    keys().sign(Identity { user_id, bearer: Bearer::User }, 0).unwrap()
}

/// A gateway and where it is reached.
pub struct Under {
    pub gateway: Arc<Gateway>,
    pub http: String,
    pub grpc: String,
    pub directory: Directory,
    stop: CancellationToken,
}

impl Drop for Under {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn limits() -> Limits {
    Limits { rest_global_per_second: 10_000, rest_messages_per_5s: 10_000, ..Limits::standard() }
}

/// Starts a gateway over the fake cell.
pub async fn start(member_id: &str, view: View, limits: Limits) -> Under {
    let directory_config = DirectoryConfig { endpoints: vec![], prefix: "/t/".into(), state_dir: None };
    let directory = Directory::with_view(directory_config.clone(), view);
    let bind = || TcpListener::bind("127.0.0.1:0");
    let listeners = Listeners { http: bind().await.unwrap(), grpc: bind().await.unwrap() };
    let http = listeners.http.local_addr().unwrap().to_string();
    let grpc = listeners.grpc.local_addr().unwrap().to_string();
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        role: role_config("a", member_id, local, directory_config),
        http_port: 0,
        public_url: format!("http://{http}/"),
        token_keys_dir: "unused".into(),
        grace: Duration::from_secs(2),
        linger: Duration::ZERO,
        limits,
    };
    directory.change(|view| view.set_member(fleet_member(member_id, Role::Gateway, &grpc)));
    let stop = CancellationToken::new();
    let gateway = Gateway::new(config, directory.clone(), keys(), 1, stop.clone());
    tokio::spawn(serve(gateway.clone(), listeners, stop.clone()));
    Under { gateway, http, grpc, directory, stop }
}

/// An HTTP answer.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Value,
}

impl Answer {
    /// Reads a whole answer.
    pub fn parse(bytes: Vec<u8>) -> Self {
        let answer = String::from_utf8(bytes).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let find = |line: &str| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        self.head.lines().find_map(find)
    }
}

impl Under {
    /// One REST request as a client would write it.
    pub async fn rest(&self, user_id: i64, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.raw(Some(&format!("Bot {}", token(user_id))), method, path, body.map(|body| body.to_string().into_bytes()))
            .await
    }

    /// A person's request.
    pub async fn as_person(&self, user_id: i64, method: &str, path: &str, body: Value) -> Answer {
        self.raw(Some(&token_of_person(user_id)), method, path, Some(body.to_string().into_bytes())).await
    }

    pub async fn raw(&self, authorization: Option<&str>, method: &str, path: &str, body: Option<Vec<u8>>) -> Answer {
        let work = async {
            let mut stream = TcpStream::connect(&self.http).await.unwrap();
            let authorization = authorization.map(|value| format!("authorization: {value}\r\n")).unwrap_or_default();
            let body = body.unwrap_or_default();
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: {}\r\n{authorization}content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                self.http,
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let _ = stream.write_all(&body).await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            Answer::parse(answer)
        };
        tokio::time::timeout(DEADLINE, work).await.expect("the request was not answered in time")
    }

    /// A websocket, Hello read.
    pub async fn connect(&self, query: &str) -> Client {
        let (socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/?{query}", self.http)).await.unwrap();
        let mut client = Client { socket, last: 0 };
        if !query.contains("compress=") {
            assert_eq!(client.next().await["op"], 10, "Hello is the first frame");
        }
        client
    }

    /// A session: identified, READY read.
    pub async fn identify(&self, user_id: i64, intents: u32) -> (Client, Value) {
        self.identify_by(&token(user_id), intents).await
    }

    pub async fn identify_by(&self, token: &str, intents: u32) -> (Client, Value) {
        let mut client = self.connect("v=10&encoding=json").await;
        client.send(json!({"op": 2, "d": {"token": token, "intents": intents, "properties": {}}})).await;
        let ready = client.next().await;
        assert_eq!(ready["t"], "READY", "{ready}");
        (client, ready["d"].clone())
    }

    pub async fn resume(&self, user_id: i64, session_id: &str, sequence: u64) -> Client {
        let mut client = self.connect("v=10&encoding=json").await;
        client.last = sequence;
        client
            .send(json!({"op": 6, "d": {"token": format!("Bot {}", token(user_id)), "session_id": session_id, "seq": sequence}}))
            .await;
        client
    }
}

/// A websocket client that checks its own sequence.
pub struct Client {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The largest contiguous sequence.
    pub last: u64,
}

impl Client {
    pub async fn send(&mut self, payload: Value) {
        self.send_text(&payload.to_string()).await;
    }

    pub async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    pub async fn message(&mut self) -> Message {
        tokio::time::timeout(DEADLINE, self.socket.next())
            .await
            .expect("nothing came in time")
            .expect("closed")
            .unwrap()
    }

    /// The next payload; dispatches must be contiguous.
    pub async fn next(&mut self) -> Value {
        match self.message().await {
            Message::Text(text) => {
                let payload: Value = serde_json::from_str(&text).unwrap();
                if let Some(sequence) = payload["s"].as_u64() {
                    assert_eq!(sequence, self.last + 1, "the sequence has a gap or a repeat: {payload}");
                    self.last = sequence;
                }
                payload
            }
            other => panic!("expected a payload, got {other:?}"),
        }
    }

    /// The `d` of the next dispatch of this name; others are passed over.
    pub async fn event(&mut self, name: &str) -> Value {
        loop {
            let payload = self.next().await;
            if payload["t"] == name {
                return payload["d"].clone();
            }
        }
    }

    /// The close code the server gives.
    pub async fn close_code(&mut self) -> u16 {
        loop {
            match tokio::time::timeout(DEADLINE, self.socket.next()).await.expect("no close came in time") {
                Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                Some(Ok(_)) => {}
                other => panic!("closed without a code: {other:?}"),
            }
        }
    }

    /// Closes with a code and waits for the answer.
    pub async fn close(mut self, code: u16) {
        self.socket.close(Some(CloseFrame { code: code.into(), reason: "".into() })).await.unwrap();
        while let Some(Ok(_)) = self.socket.next().await {}
    }
}

/// A guild with a channel, made through REST.
pub async fn make_guild(under: &Under, owner: i64) -> (i64, i64) {
    let answer = under.rest(owner, "POST", "/api/v10/guilds", Some(json!({"name": "test guild"}))).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    let id = |value: &Value| value.as_str().unwrap().parse().unwrap();
    (id(&answer.body["id"]), id(&answer.body["channels"][0]["id"]))
}

pub async fn send(under: &Under, user_id: i64, channel_id: i64, content: &str) -> Answer {
    under
        .rest(user_id, "POST", &format!("/api/v10/channels/{channel_id}/messages"), Some(json!({"content": content})))
        .await
}

/// One fake cell with two users and one gateway.
pub async fn world() -> (Fake, Under) {
    let fake = Fake::default();
    fake.user(ALICE, "alice");
    fake.user(BOB, "bob");
    let view = super::serve(&fake).await;
    (fake, start("a-gateway-0", view, limits()).await)
}

pub const ALICE: i64 = 1_000_001;
pub const BOB: i64 = 1_000_002;
