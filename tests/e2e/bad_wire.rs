//! Bad input on the wire: frames and REST bodies that no honest client sends. Each is refused in the protocol's words, and nobody else
//! notices.

use std::net::SocketAddr;

use cellctl::demo::protocol;
use http::Method;
use serde_json::{Value, json};

use crate::harness::raw::{self, BINARY, TEXT, Wire};
use crate::harness::{Guild, Ledger, Sandbox, Traffic};

const SOME: usize = 20;

/// Method, path, body, and the status of the refusal.
fn bodies(channel: i64) -> Vec<(Method, String, Vec<u8>, u16)> {
    let messages = format!("/api/v10/channels/{channel}/messages");
    let send = |body: Vec<u8>, status: u16| (Method::POST, messages.clone(), body, status);
    let json = |body: Value, status: u16| send(body.to_string().into_bytes(), status);
    let nested = format!("{}{}", "[".repeat(2000), "]".repeat(2000));
    vec![
        send(format!(r#"{{"content":"{}"}}"#, "a".repeat(10 * 1024 * 1024)).into_bytes(), 413),
        send(b"{\"content\":\"\xff\xfe\"}".to_vec(), 400),
        send(b"{\"content\":".to_vec(), 400),
        send(b"\0\0\0\0".to_vec(), 400),
        send(nested.into_bytes(), 400),
        json(json!([1, 2]), 400),
        json(json!("text"), 400),
        json(json!({"content": {"a": 1}}), 400),
        json(json!({"content": "a".repeat(4001)}), 400),
        json(json!({"content": ""}), 400),
        json(json!({"content": "x", "embeds": 7}), 400),
        json(json!({"content": "x", "message_reference": {"message_id": "nonsense"}}), 400),
        (Method::POST, "/api/v10/channels/1/messages".into(), b"{\"content\":\"x\"}".to_vec(), 404),
        (Method::POST, "/api/v10/guilds".into(), b"{\"name\":5}".to_vec(), 400),
        (Method::POST, "/api/v10/guilds".into(), b"{}".to_vec(), 400),
        (Method::GET, "/api/v10/nothing".into(), Vec::new(), 404),
    ]
}

async fn bodies_are_refused(to: SocketAddr, guild: &Guild) {
    let mut wrong = Vec::new();
    for (method, path, body, status) in bodies(guild.channel) {
        let answer = raw::http(to, &method, &path, &guild.token, &body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let said = answer.json()["message"].is_string() && answer.json()["code"].is_i64();
        if answer.status != status || !said {
            wrong.push(format!("{method} {path} {shown:?}: wanted {status}, got {answer:?}"));
        }
    }
    for token in ["", "Bot nonsense", "nonsense"] {
        let path = format!("/api/v10/channels/{}/messages", guild.channel);
        let answer = raw::http(to, &Method::POST, &path, token, b"{\"content\":\"x\"}").await;
        if answer.status != 401 {
            wrong.push(format!("token {token:?}: {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A frame of an identified socket, and the codes that may close it.
struct Frame {
    name: &'static str,
    opcode: u8,
    payload: Vec<u8>,
    codes: Vec<u16>,
}

fn frames() -> Vec<Frame> {
    let text =
        |name, payload: &str, code: u16| Frame { name, opcode: TEXT, payload: payload.into(), codes: vec![code] };
    let above = format!(r#"{{"op":1,"d":null,"x":"{}"}}"#, "a".repeat(5000));
    let other = |name, opcode, payload, codes: [u16; 2]| Frame { name, opcode, payload, codes: codes.into() };
    vec![
        text("an unknown op", r#"{"op":99,"d":null}"#, 4001),
        text("a server's op", r#"{"op":0,"t":"MESSAGE_CREATE","d":{}}"#, 4001),
        text("an op that is text", r#"{"op":"1","d":null}"#, 4002),
        text("a heartbeat of the wrong type", r#"{"op":1,"d":{"seq":[]}}"#, 4002),
        text("members of the wrong type", r#"{"op":8,"d":7}"#, 4002),
        text("no JSON", "hello", 4002),
        text("nothing", "", 4002),
        text("identify again", r#"{"op":2,"d":{"token":"t","intents":0,"properties":{}}}"#, 4005),
        text("a frame above its limit", &above, 4002),
        other("a megabyte", TEXT, vec![b'a'; 1 << 20], [4002, 1009]),
        other("what is not UTF-8", TEXT, b"{\"op\":1,\"d\":\"\xff\xfe\"}".to_vec(), [4002, 1007]),
        other("binary that is no JSON", BINARY, vec![0, 159, 146, 150], [4002, 1003]),
    ]
}

async fn frames_close_their_own_socket(to: SocketAddr, guild: &Guild) {
    let mut wrong = Vec::new();
    for Frame { name, opcode, payload, codes } in frames() {
        // Beyond what is read at all, the connection may break before a code is heard.
        let broken_off = payload.len() > 64 * 1024 || name == "what is not UTF-8";
        let mut wire = Wire::open(to).await;
        wire.hear("heartbeat_interval").await;
        wire.send(TEXT, protocol::identify(&guild.token).as_bytes()).await;
        wire.hear("READY").await;
        wire.send(opcode, &payload).await;
        let code = wire.closed().await;
        println!("{name}: {code:?}");
        let fits = code.map_or(broken_off, |code| codes.contains(&code));
        if !fits {
            wrong.push(format!("{name}: closed with {code:?}, wanted {codes:?}"));
        }
    }
    let mut wire = Wire::open(to).await;
    wire.hear("heartbeat_interval").await;
    wire.send(TEXT, br#"{"op":8,"d":{"guild_id":"1","query":"","limit":0}}"#).await;
    let code = wire.closed().await;
    if code != Some(4003) {
        wrong.push(format!("before identify: {code:?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_and_bodies_that_make_no_sense_are_refused_and_nobody_else_notices() {
    let sandbox = Sandbox::up("wire").await;
    let guild = Guild::make(&sandbox, "wire").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let restarts = sandbox.restarts().await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    ledger.grow(SOME).await;
    bodies_are_refused(sandbox.entry, &guild).await;
    frames_close_their_own_socket(sandbox.entry, &guild).await;
    ledger.grow(SOME).await;
    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    assert_eq!(sandbox.restarts().await, restarts, "no process ended for it");
    sandbox.end();
}
