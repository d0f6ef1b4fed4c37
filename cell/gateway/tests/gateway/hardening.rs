//! Clients that are slow, verbose, or ask for what there is not: each is answered in the protocol's words or cut, and counted.

use std::time::Duration;

use cell_gateway::Limits;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fake::Fake;
use crate::fake::client::{ALICE, Answer, DEADLINE, Under, limits, make_guild, start, token, world};

async fn under(limits: Limits) -> Under {
    let fake = Fake::default();
    fake.user(ALICE, "alice");
    let view = crate::fake::serve(&fake).await;
    start("a-gateway-0", view, limits).await
}

fn head(method: &str, path: &str, more: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bot {}\r\nconnection: close\r\n{more}\r\n",
        token(ALICE)
    )
}

/// Everything that comes until the other side closes.
async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    tokio::time::timeout(DEADLINE, read).await.expect("the connection was not closed in time").ok();
    bytes
}

async fn exchange(under: &Under, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(&under.http).await.unwrap();
    stream.write_all(request).await.expect("the request is taken to its end");
    Answer::parse(read_all(&mut stream).await)
}

#[tokio::test]
async fn a_client_that_sends_its_head_too_slowly_is_cut_and_counted() {
    let under = under(Limits { http_head_timeout: Duration::from_millis(100), ..limits() }).await;
    let mut silent = TcpStream::connect(&under.http).await.unwrap();
    let mut slow = TcpStream::connect(&under.http).await.unwrap();
    slow.write_all(b"GET /api/v10/gateway HTTP/1.1\r\nhost: h\r\nx-a: ").await.unwrap();
    assert!(read_all(&mut slow).await.is_empty());
    assert!(read_all(&mut silent).await.is_empty());
    let counted = async {
        while under.gateway.metrics.slow_senders.get() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, counted).await.expect("both are counted");
}

#[tokio::test]
async fn a_client_that_sends_its_body_too_slowly_is_answered_408_and_counted() {
    let under = under(Limits { http_body_timeout: Duration::from_millis(100), ..limits() }).await;
    let request =
        head("POST", "/api/v10/guilds", "content-type: application/json\r\ncontent-length: 100\r\n") + "{\"name\"";
    let answer = exchange(&under, request.as_bytes()).await;
    assert_eq!((answer.status, &answer.body["code"]), (408, &json!(0)), "{}", answer.body);
    assert_eq!(under.gateway.metrics.slow_senders.get(), 1);
}

#[tokio::test]
async fn a_body_over_the_bound_is_answered_413_even_to_a_client_that_sends_it_all_first() {
    let (_fake, under) = world().await;
    let body = vec![b' '; 8 * 1024 * 1024];
    let told = head("POST", "/api/v10/guilds", &format!("content-length: {}\r\n", body.len()));
    let answer = exchange(&under, &[told.as_bytes(), &body].concat()).await;
    assert_eq!((answer.status, &answer.body["code"]), (413, &json!(40_005)), "{}", answer.body);
    let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    let untold = head("POST", "/api/v10/guilds", "transfer-encoding: chunked\r\n");
    let answer = exchange(&under, &[untold.as_bytes(), &chunk].concat()).await;
    assert_eq!((answer.status, &answer.body["code"]), (413, &json!(40_005)), "{}", answer.body);
    // The same for whoever is refused before the body is looked at.
    let nobody = format!("POST /api/v10/guilds HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n", body.len());
    assert_eq!(exchange(&under, &[nobody.as_bytes(), &body].concat()).await.status, 401);
}

#[tokio::test]
async fn a_body_of_another_kind_than_json_is_refused() {
    let (_fake, under) = world().await;
    let body = r#"{"name":"guild"}"#;
    let post = async |kind: &str| {
        let more = format!("{kind}content-length: {}\r\n", body.len());
        exchange(&under, (head("POST", "/api/v10/guilds", &more) + body).as_bytes()).await
    };
    for kind in ["text/plain", "application/x-www-form-urlencoded"] {
        let answer = post(&format!("content-type: {kind}\r\n")).await;
        assert_eq!((answer.status, &answer.body["code"]), (415, &json!(0)), "{kind}: {}", answer.body);
        assert!(answer.body["message"].as_str().unwrap().contains("application/json"), "{}", answer.body);
    }
    assert_eq!(post("content-type: application/json; charset=utf-8\r\n").await.status, 201);
    assert_eq!(post("").await.status, 201, "clients that name no kind send JSON");
}

#[tokio::test]
async fn what_there_is_not_is_answered_in_the_words_of_the_protocol() {
    let (_fake, under) = world().await;
    for (method, path) in [
        ("GET", "/api/v10/guilds/1/emojis"),
        ("POST", "/api/v10/channels/1/webhooks"),
        ("GET", "/api/v10/sticker-packs"),
        ("GET", "/api/v8/gateway"),
        ("DELETE", "/nothing"),
        ("GET", "/api/v10/guilds/%ff"),
    ] {
        let answer = under.rest(ALICE, method, path, None).await;
        assert_eq!((answer.status, &answer.body["code"]), (404, &json!(0)), "{method} {path}: {}", answer.body);
        assert_eq!(answer.body["message"], "404: Not Found", "{method} {path}");
    }
    let answer = under.rest(ALICE, "PUT", "/api/v10/guilds", None).await;
    assert_eq!((answer.status, &answer.body["code"]), (405, &json!(0)), "{}", answer.body);
    let answer = under.rest(ALICE, "GET", "/api/v10/users/@me/guilds?limit=1&limit", None).await;
    assert!(answer.status == 200 || answer.body["code"] == 50_035, "{}: {}", answer.status, answer.body);
}

#[tokio::test]
async fn every_answer_to_an_admitted_caller_carries_all_five_rate_headers() {
    let (_fake, under) = world().await;
    let guild = under.rest(ALICE, "POST", "/api/v10/guilds", Some(json!({"name": "guild"}))).await;
    let me = under.rest(ALICE, "GET", "/api/v10/users/@me", None).await;
    let missing = under.rest(ALICE, "GET", "/api/v10/guilds/1", None).await;
    let again = under.rest(ALICE, "GET", "/api/v9/users/@me", None).await;
    for answer in [&guild, &me, &missing, &again] {
        for name in ["limit", "remaining", "reset", "reset-after", "bucket"] {
            assert!(answer.header(&format!("x-ratelimit-{name}")).is_some(), "{name} in {}", answer.head);
        }
    }
    let bucket = |answer: &Answer| answer.header("x-ratelimit-bucket");
    assert_ne!(bucket(&guild), bucket(&me));
    assert_eq!(bucket(&me), bucket(&again), "a route has one bucket under every base path");
    let nobody = under.raw(None, "GET", "/api/v10/users/@me", None).await;
    assert!(nobody.header("x-ratelimit-limit").is_none(), "all five or none");
}

#[tokio::test]
async fn an_id_beyond_63_bits_is_refused_with_its_field() {
    let (_fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let messages = format!("/api/v10/channels/{channel_id}/messages");
    let channels = format!("/api/v10/guilds/{guild_id}/channels");
    const BEYOND: u64 = 1 << 63;
    let none = None::<Value>;
    for (method, path, body, field) in [
        ("GET", format!("/api/v10/channels/{BEYOND}/messages"), none.clone(), "/channel_id"),
        ("GET", format!("/api/v10/guilds/{BEYOND}"), none.clone(), "/guild_id"),
        ("PATCH", format!("/api/v10/guilds/{BEYOND}/members/@me"), Some(json!({"nick": "x"})), "/guild_id"),
        ("GET", format!("{messages}?before={BEYOND}"), none.clone(), "/before"),
        ("POST", channels.clone(), Some(json!({"name": "c", "parent_id": BEYOND})), "/parent_id"),
        ("POST", channels, Some(json!({"name": "c", "parent_id": BEYOND.to_string()})), "/parent_id"),
        (
            "POST",
            messages.clone(),
            Some(json!({"content": "x", "message_reference": {"message_id": BEYOND}})),
            "/message_reference/message_id",
        ),
        (
            "POST",
            messages,
            Some(json!({"content": "x", "allowed_mentions": {"users": [BEYOND]}})),
            "/allowed_mentions/users",
        ),
    ] {
        let answer = under.rest(ALICE, method, &path, body).await;
        assert_eq!((answer.status, &answer.body["code"]), (400, &json!(50_035)), "{method} {path}: {}", answer.body);
        let at = answer.body["errors"].pointer(field).unwrap_or_else(|| panic!("{field} in {}", answer.body));
        assert_eq!(at["_errors"][0]["code"], "NUMBER_TYPE_COERCE");
    }
}

#[tokio::test]
async fn connections_over_the_bound_are_closed_and_counted() {
    let under = under(Limits { max_http_connections: 1, ..limits() }).await;
    let held = TcpStream::connect(&under.http).await.unwrap();
    let mut refused = TcpStream::connect(&under.http).await.unwrap();
    assert!(read_all(&mut refused).await.is_empty());
    assert_eq!(under.gateway.metrics.refused_connections.get(), 1);
    drop(held);
    let served = async {
        loop {
            let mut stream = TcpStream::connect(&under.http).await.unwrap();
            let asked = stream.write_all(head("GET", "/api/v10/gateway", "").as_bytes()).await;
            if asked.is_ok() && !read_all(&mut stream).await.is_empty() {
                return;
            }
        }
    };
    tokio::time::timeout(DEADLINE, served).await.expect("what is given back is used again");
}
