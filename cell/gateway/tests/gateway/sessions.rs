//! Sessions over real sockets, against a scripted cell: each trap of the client protocol as a test.

use std::time::Duration;

use crate::fake::client::{ALICE, BOB, DEADLINE, limits, make_guild, send, start, token, world};
use cell_gateway::Limits;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

const INTENTS: u32 = 1 | 1 << 1 | 1 << 9 | 1 << 11 | 1 << 15;

#[tokio::test]
async fn a_bot_logs_in_gets_its_guild_and_hears_messages() {
    let (_fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let (mut client, ready) = under.identify(ALICE, INTENTS).await;
    assert_eq!(ready["guilds"], json!([{"id": guild_id.to_string(), "unavailable": true}]));
    assert!(!ready["resume_gateway_url"].as_str().unwrap().ends_with('/'));
    assert_eq!(ready["user"]["username"], "alice");
    let guild = client.event("GUILD_CREATE").await;
    assert_eq!(guild["channels"][0]["id"], channel_id.to_string());
    assert_eq!(guild["members"][0]["user"]["id"], ALICE.to_string());
    let sent = send(&under, ALICE, channel_id, "hello").await;
    assert_eq!(sent.status, 200, "{}", sent.body);
    let message = client.event("MESSAGE_CREATE").await;
    assert_eq!((&message["content"], &message["id"]), (&json!("hello"), &sent.body["id"]));
    assert_eq!(message["guild_id"], guild_id.to_string());
    assert!(message["member"]["roles"].is_array());
}

#[tokio::test]
async fn a_session_of_a_new_guilds_owner_gets_it_at_once() {
    let (_fake, under) = world().await;
    let (mut client, ready) = under.identify(ALICE, INTENTS).await;
    assert_eq!(ready["guilds"], json!([]));
    let (guild_id, _) = make_guild(&under, ALICE).await;
    assert_eq!(client.event("GUILD_CREATE").await["id"], guild_id.to_string());
}

#[tokio::test]
async fn a_resume_gets_exactly_what_follows_and_resumed_is_an_object() {
    let (_fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let (mut client, ready) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    let session_id = ready["session_id"].as_str().unwrap().to_owned();
    let sequence = client.last;
    drop(client);
    for n in 0..3 {
        assert_eq!(send(&under, ALICE, channel_id, &format!("m{n}")).await.status, 200);
    }
    wait_sequence(&under, &session_id, sequence + 3).await;
    let mut client = under.resume(ALICE, &session_id, sequence).await;
    for n in 0..3 {
        assert_eq!(client.next().await["d"]["content"], format!("m{n}"));
    }
    let resumed = client.next().await;
    assert_eq!(resumed["t"], "RESUMED");
    assert!(resumed["d"].is_object() && resumed["s"].is_u64());
    send(&under, ALICE, channel_id, "live").await;
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "live");
}

/// The fan-out is not awaited by the sender: waits until a session has numbered so many events.
async fn wait_sequence(under: &crate::fake::client::Under, session_id: &str, sequence: u64) {
    let reached = || under.gateway.registry.get(session_id).unwrap().machine.lock().last_sequence() >= sequence;
    tokio::time::timeout(DEADLINE, async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("the events did not arrive");
}

#[tokio::test]
async fn an_unknown_session_is_answered_by_op_9_and_the_same_socket_may_identify() {
    let (_fake, under) = world().await;
    for session_id in ["nonsense", "YS1nYXRld2F5LTA.AAAAAAAAAAAAAAAAAAAAAA", "YS1nYXRld2F5LTk.AAAAAAAAAAAAAAAAAAAAAA"] {
        let mut client = under.resume(ALICE, session_id, 5).await;
        let refused = client.next().await;
        assert_eq!((&refused["op"], &refused["d"]), (&json!(9), &json!(false)), "{session_id}");
        client.last = 0;
        client.send(json!({"op": 2, "d": {"token": token(ALICE), "intents": 0}})).await;
        assert_eq!(client.next().await["t"], "READY");
    }
}

#[tokio::test]
async fn a_close_with_1000_ends_the_session_and_4200_does_not() {
    let (_fake, under) = world().await;
    for (code, resumable) in [(1000, false), (1001, false), (4200, true)] {
        let (client, ready) = under.identify(ALICE, 0).await;
        client.close(code).await;
        let mut client = under.resume(ALICE, ready["session_id"].as_str().unwrap(), 1).await;
        let answer = client.next().await;
        assert_eq!(answer["t"] == "RESUMED", resumable, "{code}: {answer}");
        assert_eq!(answer["op"] == 9, !resumable);
    }
}

#[tokio::test]
async fn each_fault_has_its_close_code() {
    let (_fake, under) = world().await;
    let long = format!(r#"{{"op":1,"d":null,"x":"{}"}}"#, "a".repeat(5000));
    let identify = |d: serde_json::Value| json!({"op": 2, "d": d}).to_string();
    for (text, code) in [
        ("{".to_owned(), 4002),
        (r#"{"op":99}"#.to_owned(), 4001),
        (long, 4002),
        (r#"{"op":8,"d":{"guild_id":"1","query":""}}"#.to_owned(), 4003),
        (identify(json!({"token": "wrong", "intents": 0})), 4004),
        (identify(json!({"token": token(77), "intents": 0})), 4004),
        (identify(json!({"token": token(ALICE), "intents": 1 << 30})), 4013),
        (identify(json!({"token": token(ALICE), "intents": 0, "shard": [2, 2]})), 4010),
        (r#"{"op":6,"d":{"token":"wrong","session_id":"s","seq":1}}"#.to_owned(), 4004),
    ] {
        let mut client = under.connect("v=10").await;
        client.send_text(&text).await;
        assert_eq!(client.close_code().await, code, "{}", &text[..text.len().min(80)]);
    }
    let mut client = under.connect("v=10").await;
    client.socket.get_mut();
    futures::SinkExt::send(&mut client.socket, Message::binary(vec![0xff, 0xfe])).await.unwrap();
    assert_eq!(client.close_code().await, 4002);
}

#[tokio::test]
async fn a_wrong_version_or_encoding_is_closed_with_its_code() {
    let (_fake, under) = world().await;
    for (query, code) in [("v=3", 4012), ("v=10&encoding=etf", 4002), ("v=10&encoding=json&compress=lzma", 4002)] {
        let url = format!("ws://{}/?{query}", under.http);
        let (socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        let mut client = crate::fake::client::Client { socket, last: 0 };
        assert_eq!(client.close_code().await, code, "{query}");
    }
}

#[tokio::test]
async fn a_second_identify_closes_with_4005_and_a_bad_sequence_with_4007() {
    let (_fake, under) = world().await;
    let (mut client, ready) = under.identify(ALICE, 0).await;
    client.send(json!({"op": 2, "d": {"token": token(ALICE), "intents": 0}})).await;
    assert_eq!(client.close_code().await, 4005);
    let mut client = under.resume(ALICE, ready["session_id"].as_str().unwrap(), 999).await;
    assert_eq!(client.close_code().await, 4007);
}

#[tokio::test]
async fn too_many_frames_close_with_4008_and_missed_heartbeats_with_4009() {
    let fake = crate::fake::Fake::default();
    fake.user(ALICE, "alice");
    let view = crate::fake::serve(&fake).await;
    let tight = Limits { frames_per_minute: 5, heartbeat_interval_ms: 200, ..limits() };
    let under = start("a-gateway-0", view, tight).await;
    let mut client = under.connect("v=10").await;
    for _ in 0..6 {
        client.send(json!({"op": 1, "d": null})).await;
    }
    assert_eq!(client.close_code().await, 4008);
    let (mut silent, ready) = under.identify(ALICE, 0).await;
    assert_eq!(silent.close_code().await, 4009);
    let mut client = under.resume(ALICE, ready["session_id"].as_str().unwrap(), 1).await;
    assert_eq!(client.next().await["t"], "RESUMED", "a half-open socket stays resumable");
}

#[tokio::test]
async fn over_the_session_start_budget_op_9_is_answered() {
    let fake = crate::fake::Fake::default();
    fake.user(ALICE, "alice");
    let view = crate::fake::serve(&fake).await;
    let mut tight = limits();
    tight.starts.burst = 1;
    let under = start("a-gateway-0", view, tight).await;
    let _first = under.identify(ALICE, 0).await;
    let mut client = under.connect("v=10").await;
    client.send(json!({"op": 2, "d": {"token": token(ALICE), "intents": 0}})).await;
    assert_eq!(client.next().await["op"], 9);
}

#[tokio::test]
async fn voice_and_presence_are_taken_without_harm_and_members_are_answered() {
    let (_fake, under) = world().await;
    let (guild_id, _) = make_guild(&under, ALICE).await;
    let (mut client, _) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    client
        .send(json!({"op": 4, "d": {"guild_id": guild_id, "channel_id": 5, "self_mute": false, "self_deaf": false}}))
        .await;
    client.send(json!({"op": 3, "d": {"status": "online", "since": null, "activities": [], "afk": false}})).await;
    client
        .send(json!({"op": 8, "d": {"guild_id": guild_id, "user_ids": [ALICE.to_string(), "999"], "nonce": "n"}}))
        .await;
    let chunk = client.event("GUILD_MEMBERS_CHUNK").await;
    assert_eq!((&chunk["not_found"], &chunk["nonce"]), (&json!(["999"]), &json!("n")));
    assert_eq!(chunk["members"][0]["user"]["username"], "alice");
    for expected in ["GUILD_MEMBERS_CHUNK", "RATE_LIMITED"] {
        client.send(json!({"op": 8, "d": {"guild_id": guild_id.to_string(), "query": "", "limit": 0}})).await;
        client.event(expected).await;
    }
    client.send(json!({"op": 1, "d": client.last})).await;
    assert_eq!(client.next().await["op"], 11);
}

#[tokio::test]
async fn without_the_content_intent_only_own_messages_and_mentions_have_text() {
    let (_fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    join(&under, guild_id, channel_id, BOB).await;
    let (mut bob, _) = under.identify(BOB, 1 | 1 << 9).await;
    bob.event("GUILD_CREATE").await;
    send(&under, ALICE, channel_id, "secret").await;
    assert_eq!(bob.event("MESSAGE_CREATE").await["content"], "");
    send(&under, ALICE, channel_id, &format!("for <@{BOB}>")).await;
    assert_eq!(bob.event("MESSAGE_CREATE").await["content"], format!("for <@{BOB}>"));
    send(&under, BOB, channel_id, "mine").await;
    assert_eq!(bob.event("MESSAGE_CREATE").await["content"], "mine");
}

async fn join(under: &crate::fake::client::Under, guild_id: i64, channel_id: i64, user_id: i64) {
    let invite = under.rest(ALICE, "POST", &format!("/api/v10/channels/{channel_id}/invites"), Some(json!({}))).await;
    let code = invite.body["code"].as_str().unwrap_or_else(|| panic!("{}", invite.body)).to_owned();
    let accepted = under.rest(user_id, "POST", &format!("/api/v10/invites/{code}"), None).await;
    assert_eq!(
        (accepted.status, &accepted.body["guild"]["id"]),
        (200, &json!(guild_id.to_string())),
        "{}",
        accepted.body
    );
}

#[tokio::test]
async fn a_join_and_a_kick_reach_the_users_own_sessions() {
    let (_fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let (mut bob, _) = under.identify(BOB, INTENTS).await;
    join(&under, guild_id, channel_id, BOB).await;
    assert_eq!(bob.event("GUILD_CREATE").await["id"], guild_id.to_string());
    let kicked = under.rest(ALICE, "DELETE", &format!("/api/v10/guilds/{guild_id}/members/{BOB}"), None).await;
    assert_eq!(kicked.status, 204, "{}", kicked.body);
    assert_eq!(bob.event("GUILD_DELETE").await, json!({"id": guild_id.to_string()}));
}

#[tokio::test]
async fn a_broken_link_loses_nothing_and_repeats_nothing() {
    let (fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let (mut client, _) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    for n in 0..20 {
        if n % 4 == 0 {
            fake.break_links();
        }
        assert_eq!(send(&under, ALICE, channel_id, &format!("m{n}")).await.status, 200);
    }
    for n in 0..20 {
        assert_eq!(client.event("MESSAGE_CREATE").await["content"], format!("m{n}"));
    }
}

#[tokio::test]
async fn a_resume_at_another_gateway_is_proxied_to_the_holder() {
    let (fake, first) = world().await;
    let view = crate::fake::serve(&fake).await;
    let second = start("a-gateway-1", view, limits()).await;
    let holder = crate::fake::fleet_member("a-gateway-0", cell_proto::directory::Role::Gateway, &first.grpc);
    second.directory.change(|view| view.set_member(holder));
    let (_, channel_id) = make_guild(&first, ALICE).await;
    let (mut client, ready) = first.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    let sequence = client.last;
    drop(client);
    let mut client = second.resume(ALICE, ready["session_id"].as_str().unwrap(), sequence).await;
    assert_eq!(client.next().await["t"], "RESUMED");
    send(&first, ALICE, channel_id, "through").await;
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "through");
    client.send(json!({"op": 1, "d": client.last})).await;
    assert_eq!(client.next().await["op"], 11);
    second.directory.change(|view| view.remove_member("a-gateway-0"));
    let mut client = second.resume(ALICE, ready["session_id"].as_str().unwrap(), sequence).await;
    assert_eq!(client.next().await["op"], 9, "an unknown holder is answered at once");
}

#[tokio::test]
async fn a_join_through_another_gateway_is_told_to_the_one_with_the_session() {
    let (fake, first) = world().await;
    let view = crate::fake::serve(&fake).await;
    let second = start("a-gateway-1", view, limits()).await;
    let peer = crate::fake::fleet_member("a-gateway-0", cell_proto::directory::Role::Gateway, &first.grpc);
    second.directory.change(|view| view.set_member(peer));
    let (mut client, _) = first.identify(ALICE, INTENTS).await;
    let (guild_id, _) = make_guild(&second, ALICE).await;
    assert_eq!(client.event("GUILD_CREATE").await["id"], guild_id.to_string());
}

#[tokio::test]
async fn a_drain_tells_op_7_and_then_closes_with_4000() {
    let (_fake, under) = world().await;
    let (mut client, _) = under.identify(ALICE, 0).await;
    under.gateway.drain.cancel();
    assert_eq!(client.next().await["op"], 7);
    assert_eq!(client.close_code().await, 4000);
    let refused = tokio_tungstenite::connect_async(format!("ws://{}/?v=10", under.http)).await;
    assert!(refused.is_err(), "a draining gateway takes no new connection");
}

#[tokio::test]
async fn compressed_streams_carry_the_same_session() {
    use std::io::Read;
    let (_fake, under) = world().await;
    let mut client = under.connect("v=10&encoding=json&compress=zlib-stream").await;
    let Message::Binary(first) = client.message().await else { panic!("Hello is compressed too") };
    assert!(first.ends_with(&[0, 0, 0xff, 0xff]));
    client.send(json!({"op": 2, "d": {"token": token(ALICE), "intents": 0, "compress": true}})).await;
    let Message::Binary(second) = client.message().await else { panic!() };
    let mut text = vec![0; 4096];
    let stream = [first.as_ref(), second.as_ref()].concat();
    let length = flate2::read::ZlibDecoder::new(&stream[..]).read(&mut text).unwrap();
    let mut all = text[..length].to_vec();
    if !String::from_utf8_lossy(&all).contains("READY") {
        let mut inflate = flate2::Decompress::new(true);
        all = Vec::with_capacity(8192);
        inflate.decompress_vec(&stream, &mut all, flate2::FlushDecompress::Sync).unwrap();
    }
    let all = String::from_utf8(all).unwrap();
    assert!(all.contains("heartbeat_interval") && all.contains("READY"), "{all}");
    let mut client = under.connect("v=10&encoding=json").await;
    client.send(json!({"op": 2, "d": {"token": token(ALICE), "intents": 0, "compress": true}})).await;
    let Message::Binary(message) = client.message().await else { panic!("compress alone compresses each message") };
    let mut text = String::new();
    flate2::read::ZlibDecoder::new(&message[..]).read_to_string(&mut text).unwrap();
    assert!(text.contains("READY"));
}
