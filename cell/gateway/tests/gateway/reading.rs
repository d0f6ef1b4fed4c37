//! Bulk deletes, read states, and what clients are told when the storage is full: against a scripted cell, and over real roles.

use cell_proto::snowflake::first_of_ms;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::fake::client::{ALICE, BOB, limits, make_guild, send, start, token_of_person, world};
use crate::real::{fleet, join};

const INTENTS: u32 = 1 | 1 << 9 | 1 << 15;

fn id_of(value: &Value) -> i64 {
    value["id"].as_str().unwrap_or_else(|| panic!("{value}")).parse().unwrap()
}

#[tokio::test]
async fn a_bulk_delete_is_one_command_and_one_event() {
    let (fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(id_of(&send(&under, ALICE, channel_id, &format!("m{n}")).await.body));
    }
    let (mut alice, _) = under.identify(ALICE, INTENTS).await;
    alice.event("GUILD_CREATE").await;
    let before = fake.state.lock().seen.len();
    let path = format!("/api/v10/channels/{channel_id}/messages/bulk-delete");
    let wanted: Vec<String> = [ids[1], ids[3], ids[3] + 1].iter().map(i64::to_string).collect();
    let deleted = under.rest(ALICE, "POST", &path, Some(json!({ "messages": wanted }))).await;
    assert_eq!((deleted.status, &deleted.body), (204, &Value::Null));
    assert_eq!(fake.state.lock().seen.len(), before + 1, "one command");
    let event = alice.event("MESSAGE_DELETE_BULK").await;
    assert_eq!(
        (&event["channel_id"], &event["guild_id"]),
        (&json!(channel_id.to_string()), &json!(guild_id.to_string()))
    );
    assert!(event["ids"].as_array().unwrap().contains(&json!(ids[1].to_string())), "{event}");
    let forbidden = under.rest(BOB, "POST", &path, Some(json!({ "messages": wanted }))).await;
    assert_eq!(forbidden.body["code"], 50_001);
    let old = first_of_ms(cell_runtime::unix_ms() - 15 * 86_400_000).to_string();
    for (messages, code) in [
        (json!([ids[0].to_string()]), 50_016),
        (json!([ids[0].to_string(), old]), 50_034),
        (json!([ids[0].to_string(), ids[0].to_string()]), 50_035),
        (json!("x"), 50_035),
    ] {
        let answer = under.rest(ALICE, "POST", &path, Some(json!({ "messages": messages }))).await;
        assert_eq!((answer.status, &answer.body["code"]), (400, &json!(code)), "{}", answer.body);
    }
}

#[tokio::test]
async fn a_full_store_is_told_at_once_with_its_reason_and_when_to_come_again() {
    let (fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    fake.state.lock().full = true;
    let refused = send(&under, ALICE, channel_id, "no room").await;
    assert_eq!((refused.status, refused.header("retry-after").as_deref()), (507, Some("30")), "{}", refused.body);
    assert_eq!(refused.body["code"], 130_000);
    assert!(refused.body["message"].as_str().unwrap().contains("StoreFull"), "{}", refused.body);
    let read = under.rest(ALICE, "GET", &format!("/api/v10/channels/{channel_id}/messages"), None).await;
    assert_eq!(read.status, 200, "what is there is read");
    fake.state.lock().full = false;
    assert_eq!(send(&under, ALICE, channel_id, "room").await.status, 200);
}

fn ack(channel_id: i64, message_id: i64) -> String {
    format!("/api/v9/channels/{channel_id}/messages/{message_id}/ack")
}

#[tokio::test]
async fn a_storm_of_acknowledgements_costs_few_commands_and_goes_only_forward() {
    let (fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let newest = id_of(&send(&under, ALICE, channel_id, "newest").await.body);
    let (mut other, ready) = under.identify_by(&token_of_person(ALICE), INTENTS).await;
    assert_eq!(ready["read_state"], json!([]));
    let path_of = |back: i64| ack(channel_id, newest - back);
    let storm = (0..200).map(async |back| under.as_person(ALICE, "POST", &path_of(back), json!({})).await);
    for answer in futures::future::join_all(storm).await {
        assert_eq!((answer.status, &answer.body), (200, &json!({ "token": null })), "{}", answer.body);
    }
    let (writes, known) = {
        let state = fake.state.lock();
        (state.ack_writes, state.read_states[&ALICE].clone())
    };
    assert!(writes <= 40, "{writes} commands for 200 acknowledgements");
    assert_eq!(known, [(channel_id, newest)].into(), "the furthest, whatever came last");
    let mut told = other.event("MESSAGE_ACK").await;
    let newest_text = newest.to_string();
    while told["message_id"] != newest_text {
        told = other.event("MESSAGE_ACK").await;
    }
    assert_eq!(told["channel_id"], channel_id.to_string());
    fake.state.lock().read_states.get_mut(&ALICE).unwrap().insert(channel_id + 1, 5);
    let (_, ready) = under.identify_by(&token_of_person(ALICE), INTENTS).await;
    let of = |channel: i64, last: i64| json!({ "id": channel.to_string(), "last_message_id": last.to_string() });
    assert_eq!(ready["read_state"], json!([of(channel_id, newest), of(channel_id + 1, 5)]), "page by page");
}

#[tokio::test]
async fn what_is_read_while_a_session_starts_is_in_its_ready() {
    let (fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let newest = id_of(&send(&under, ALICE, channel_id, "newest").await.body);
    let (ready, is_ready) = oneshot::channel();
    let (go, gone_on) = oneshot::channel();
    fake.state.lock().read_gate = Some((ready, gone_on));
    let (token, path) = (token_of_person(ALICE), ack(channel_id, newest));
    let reads = async {
        is_ready.await.unwrap();
        let answer = under.as_person(ALICE, "POST", &path, json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        go.send(()).unwrap();
    };
    let ((_, ready), ()) = futures::join!(under.identify_by(&token, INTENTS), reads);
    assert_eq!(ready["read_state"][0]["last_message_id"], newest.to_string(), "{}", ready["read_state"]);
}

#[tokio::test]
async fn acknowledgements_are_refused_where_they_mean_nothing() {
    let (_fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let message = id_of(&send(&under, ALICE, channel_id, "one").await.body);
    let path = ack(channel_id, message);
    let bot = under.rest(ALICE, "POST", &path, Some(json!({}))).await;
    assert_eq!((bot.status, &bot.body["code"]), (403, &json!(20_001)));
    let (_, ready) = under.identify(ALICE, INTENTS).await;
    assert_eq!(ready.get("read_state"), None, "bots have none");
    let ahead = ack(channel_id, first_of_ms(cell_runtime::unix_ms() + 3_600_000));
    for (path, body, status, code) in [
        (&path, json!({ "manual": true, "mention_count": 1 }), 400, 50_035),
        (&ahead, json!({}), 400, 50_035),
        (&ack(999, message), json!({}), 404, 10_003),
    ] {
        let answer = under.as_person(ALICE, "POST", path, body).await;
        assert_eq!((answer.status, &answer.body["code"]), (status, &json!(code)), "{path}: {}", answer.body);
    }
    let stranger = under.as_person(BOB, "POST", &path, json!({})).await;
    assert_eq!(stranger.body["code"], 50_001);
}

#[tokio::test]
async fn runs_of_messages_channels_and_read_states_over_real_roles() {
    let cell = fleet(&["a"]).await;
    let under = start("a-gateway-0", cell.view.clone(), limits()).await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    join(&under, channel_id, BOB).await;
    let mut ids = Vec::new();
    for n in 0..24 {
        ids.push(id_of(&send(&under, ALICE, channel_id, &format!("m{n}")).await.body));
    }
    let (mut bob, ready) = under.identify_by(&token_of_person(BOB), INTENTS).await;
    assert_eq!(ready["read_state"], json!([]));
    bob.event("GUILD_CREATE").await;
    let path = format!("/api/v10/channels/{channel_id}/messages");
    let bulk = |wanted: &[i64]| json!({ "messages": wanted.iter().map(i64::to_string).collect::<Vec<_>>() });
    let not_there = ids[23] + 1;
    let wanted = [&ids[2..20], &[ids[22], not_there]].concat();
    let deleted = under.rest(ALICE, "POST", &format!("{path}/bulk-delete"), Some(bulk(&wanted))).await;
    assert_eq!(deleted.status, 204, "{}", deleted.body);
    let told = bob.event("MESSAGE_DELETE_BULK").await;
    let gone: Vec<String> = [&ids[2..20], &[ids[22]]].concat().iter().map(i64::to_string).collect();
    assert_eq!(told["ids"], json!(gone), "what was not there is not told");
    let left = under.rest(ALICE, "GET", &path, None).await;
    let left: Vec<i64> = left.body.as_array().unwrap().iter().map(id_of).collect();
    assert_eq!(left, [ids[23], ids[21], ids[20], ids[1], ids[0]]);
    let again = under.rest(ALICE, "POST", &format!("{path}/bulk-delete"), Some(bulk(&wanted))).await;
    assert_eq!(again.status, 204, "{}", again.body);
    let denied = under.rest(BOB, "POST", &format!("{path}/bulk-delete"), Some(bulk(&wanted))).await;
    assert_eq!(denied.body["code"], 50_013);

    for (message, last) in [(ids[21], ids[21]), (ids[1], ids[21]), (ids[23], ids[23])] {
        let answer = under.as_person(BOB, "POST", &ack(channel_id, message), json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let (_, ready) = under.identify_by(&token_of_person(BOB), INTENTS).await;
        assert_eq!(ready["read_state"][0]["last_message_id"], last.to_string(), "{}", ready["read_state"]);
    }
    for last in [ids[21], ids[23]] {
        assert_eq!(bob.event("MESSAGE_ACK").await["message_id"], last.to_string(), "only what went forward");
    }
    let channel = under.rest(ALICE, "DELETE", &format!("/api/v10/channels/{channel_id}"), None).await;
    assert_eq!(channel.status, 200, "{}", channel.body);
    assert_eq!(bob.event("CHANNEL_DELETE").await["id"], channel_id.to_string());
    assert_eq!(under.rest(ALICE, "GET", &path, None).await.body["code"], 10_003);
}
