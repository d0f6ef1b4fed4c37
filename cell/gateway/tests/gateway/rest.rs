//! REST over real sockets, against a scripted cell.

use crate::fake::client::{ALICE, BOB, limits, make_guild, send, start, token, world};
use cell_gateway::Limits;
use serde_json::{Value, json};

#[tokio::test]
async fn what_libraries_ask_at_login_is_answered_with_plain_json() {
    let (_fake, under) = world().await;
    for base in ["/api", "/api/v9", "/api/v10"] {
        for path in ["/users/@me", "/oauth2/applications/@me", "/applications/@me", "/gateway/bot", "/users/@me/guilds"]
        {
            let answer = under.rest(ALICE, "GET", &format!("{base}{path}"), None).await;
            assert_eq!(answer.status, 200, "{base}{path}: {}", answer.body);
            assert_eq!(
                answer.header("content-type").as_deref(),
                Some("application/json"),
                "exactly, or discord.py dies"
            );
        }
    }
    let gateway = under.raw(None, "GET", "/api/v10/gateway", None).await;
    assert_eq!(gateway.body["url"], format!("ws://{}", under.http));
}

#[tokio::test]
async fn every_error_has_a_code() {
    let (_fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let bot = format!("Bot {}", token(ALICE));
    let message = format!("/api/v10/channels/{channel_id}/messages");
    type Case<'a> = (Option<&'a str>, &'a str, &'a str, Option<&'a [u8]>, u16, i64);
    let cases: [Case<'_>; 11] = [
        (None, "GET", "/api/v10/users/@me", None, 401, 0),
        (Some("Bot nonsense"), "GET", "/api/v10/users/@me", None, 401, 0),
        (Some(&bot), "GET", "/api/v10/nowhere", None, 404, 0),
        (Some(&bot), "PUT", "/api/v10/users/@me", None, 405, 0),
        (Some(&bot), "GET", "/api/v10/channels/999", None, 404, 10_003),
        (Some(&bot), "GET", "/api/v10/channels/abc", None, 400, 50_035),
        (Some(&bot), "GET", "/api/v10/guilds/12345", None, 404, 10_004),
        (Some(&bot), "GET", "/api/v10/invites/xyz", None, 404, 10_006),
        (Some(&bot), "POST", &message, Some(b"{"), 400, 50_109),
        (Some(&bot), "POST", &message, Some(b"{}"), 400, 50_006),
        (Some(&bot), "POST", "/api/v10/users/@me/channels", Some(b"{}"), 400, 50_007),
    ];
    for (authorization, method, path, body, status, code) in cases {
        let answer = under.raw(authorization, method, path, body.map(<[u8]>::to_vec)).await;
        assert_eq!((answer.status, &answer.body["code"]), (status, &json!(code)), "{method} {path}: {}", answer.body);
        assert!(answer.body["message"].is_string());
    }
    let huge = under.raw(Some(&bot), "POST", &message, Some(vec![b' '; 300_000])).await;
    assert_eq!(huge.status, 413);
}

#[tokio::test]
async fn a_message_lives_and_dies() {
    let (_fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let base = format!("/api/v10/channels/{channel_id}/messages");
    let body =
        json!({"content": "one", "nonce": "12345678901234567890", "enforce_nonce": true, "embeds": [{"title": "t"}]});
    let sent = under.rest(ALICE, "POST", &base, Some(body.clone())).await;
    assert_eq!((sent.status, &sent.body["nonce"]), (200, &json!("12345678901234567890")), "{}", sent.body);
    let again = under.rest(ALICE, "POST", &base, Some(body)).await;
    assert_eq!(again.body["id"], sent.body["id"], "the same nonce is the same message");
    let id = sent.body["id"].as_str().unwrap();
    let edited = under.rest(ALICE, "PATCH", &format!("{base}/{id}"), Some(json!({"content": "two"}))).await;
    assert_eq!((edited.status, &edited.body["content"]), (200, &json!("two")), "{}", edited.body);
    assert!(edited.body["edited_timestamp"].is_string());
    assert_eq!(edited.body["embeds"][0]["title"], "t", "what is not edited stays");
    assert_eq!(under.rest(ALICE, "GET", &format!("{base}/{id}"), None).await.body["content"], "two");
    assert_eq!(under.rest(ALICE, "DELETE", &format!("{base}/{id}"), None).await.status, 204);
    assert_eq!(under.rest(ALICE, "GET", &format!("{base}/{id}"), None).await.body["code"], 10_008);
}

#[tokio::test]
async fn pages_are_newest_first_with_exclusive_bounds() {
    let (_fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(send(&under, ALICE, channel_id, &format!("m{n}")).await.body["id"].as_str().unwrap().to_owned());
    }
    let page = async |query: &str| -> Vec<String> {
        let answer = under.rest(ALICE, "GET", &format!("/api/v10/channels/{channel_id}/messages?{query}"), None).await;
        let list = answer.body.as_array().cloned().unwrap_or_else(|| panic!("{}", answer.body));
        list.iter().map(|message| message["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(page("limit=2").await, [ids[4].clone(), ids[3].clone()]);
    assert_eq!(page(&format!("before={}", ids[1])).await, [ids[0].clone()]);
    assert_eq!(page(&format!("after={}", ids[2])).await, [ids[4].clone(), ids[3].clone()]);
    let wrong = under.rest(ALICE, "GET", &format!("/api/v10/channels/{channel_id}/messages?limit=0"), None).await;
    assert_eq!(wrong.body["errors"]["limit"]["_errors"][0]["code"], "NUMBER_TYPE_MIN", "{}", wrong.body);
}

#[tokio::test]
async fn permissions_are_judged_by_the_replica_at_once() {
    let (_fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    assert_eq!(send(&under, BOB, channel_id, "no").await.body["code"], 50_001);
    let invite = under
        .rest(ALICE, "POST", &format!("/api/v10/channels/{channel_id}/invites"), Some(json!({"max_age": 0})))
        .await;
    let code = invite.body["code"].as_str().unwrap();
    assert_eq!(
        under.rest(BOB, "GET", &format!("/api/v10/invites/{code}"), None).await.body["guild"]["id"],
        guild_id.to_string()
    );
    assert_eq!(under.rest(BOB, "POST", &format!("/api/v10/invites/{code}"), None).await.status, 200);
    assert_eq!(send(&under, BOB, channel_id, "yes").await.status, 200);
    assert_eq!(
        under.rest(BOB, "PATCH", &format!("/api/v10/channels/{channel_id}"), Some(json!({"name": "x"}))).await.body["code"],
        50_013
    );
    let deny =
        json!({"permission_overwrites": [{"id": guild_id.to_string(), "type": 0, "allow": "0", "deny": "2048"}]});
    let changed = under.rest(ALICE, "PATCH", &format!("/api/v10/channels/{channel_id}"), Some(deny)).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!(send(&under, BOB, channel_id, "no more").await.body["code"], 50_013);
    assert_eq!(
        under.rest(ALICE, "GET", &format!("/api/v10/guilds/{guild_id}/invites"), None).await.body[0]["code"],
        code
    );
    assert_eq!(under.rest(BOB, "DELETE", &format!("/api/v10/users/@me/guilds/{guild_id}"), None).await.status, 204);
    assert_eq!(under.rest(ALICE, "DELETE", &format!("/api/v10/users/@me/guilds/{guild_id}"), None).await.status, 400);
}

#[tokio::test]
async fn channels_roles_and_members_are_managed() {
    let (_fake, under) = world().await;
    let (guild_id, _) = make_guild(&under, ALICE).await;
    let guild = format!("/api/v10/guilds/{guild_id}");
    let channel =
        under.rest(ALICE, "POST", &format!("{guild}/channels"), Some(json!({"name": "New Room", "type": 0}))).await;
    assert_eq!((channel.status, &channel.body["name"]), (201, &json!("new-room")), "{}", channel.body);
    assert_eq!(
        under.rest(ALICE, "GET", &format!("{guild}/channels"), None).await.body.as_array().map(Vec::len),
        Some(2)
    );
    let role =
        under.rest(ALICE, "POST", &format!("{guild}/roles"), Some(json!({"name": "mod", "permissions": "8"}))).await;
    assert_eq!(role.status, 200, "{}", role.body);
    let role_id = role.body["id"].as_str().unwrap().to_owned();
    let given = under.rest(ALICE, "PUT", &format!("{guild}/members/{ALICE}/roles/{role_id}"), None).await;
    assert_eq!(given.status, 204, "{}", given.body);
    assert_eq!(
        under.rest(ALICE, "GET", &format!("{guild}/members/{ALICE}"), None).await.body["roles"],
        json!([role_id])
    );
    let changed = under.rest(ALICE, "PATCH", &format!("{guild}/roles/{role_id}"), Some(json!({"color": 255}))).await;
    assert_eq!(changed.body["colors"]["primary_color"], 255);
    assert_eq!(under.rest(ALICE, "DELETE", &format!("{guild}/roles/{role_id}"), None).await.status, 204);
    assert_eq!(under.rest(ALICE, "PATCH", &guild, Some(json!({"name": "renamed"}))).await.body["name"], "renamed");
    assert_eq!(under.rest(ALICE, "GET", "/api/v10/users/@me/guilds", None).await.body[0]["owner"], true);
    assert_eq!(
        under.rest(ALICE, "GET", &format!("{guild}/members?limit=10"), None).await.body.as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(under.rest(ALICE, "DELETE", &guild, None).await.status, 204);
}

#[tokio::test]
async fn a_command_is_held_while_admission_is_closed_and_keeps_its_operation_id_and_deadline() {
    let (fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    {
        let mut state = fake.state.lock();
        (state.waits, state.lost_answers, state.stale_policies) = (3, 1, 0);
        state.seen.clear();
    }
    let sent = send(&under, ALICE, channel_id, "held").await;
    assert_eq!(sent.status, 200, "{}", sent.body);
    let state = fake.state.lock();
    assert_eq!(state.seen.len(), 5, "three waits, a lost answer, the duplicate");
    assert!(state.seen.iter().all(|seen| *seen == state.seen[0]), "retries keep operation id and deadline");
    assert_eq!(state.guilds.values().map(|guild| guild.messages.len()).sum::<usize>(), 1);
}

#[tokio::test]
async fn too_many_held_commands_are_refused_with_a_hint() {
    let fake = crate::fake::Fake::default();
    fake.user(ALICE, "alice");
    let view = crate::fake::serve(&fake).await;
    let under = start("a-gateway-0", view, Limits { max_held_commands: 0, ..limits() }).await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    fake.state.lock().waits = 1;
    let refused = send(&under, ALICE, channel_id, "x").await;
    assert_eq!((refused.status, refused.body["code"].is_i64()), (503, true), "{}", refused.body);
    assert!(refused.header("retry-after").unwrap().parse::<u16>().is_ok());
}

#[tokio::test]
async fn rate_limits_speak_the_dialect_of_each_library() {
    let fake = crate::fake::Fake::default();
    fake.user(ALICE, "alice");
    let view = crate::fake::serve(&fake).await;
    let tight = Limits { rest_messages_per_5s: 1, rest_global_per_second: 1000, ..limits() };
    let under = start("a-gateway-0", view, tight).await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let sent = send(&under, ALICE, channel_id, "x").await;
    for name in ["limit", "remaining", "reset", "reset-after", "bucket"] {
        assert!(sent.header(&format!("x-ratelimit-{name}")).is_some(), "{name}");
    }
    let limited = send(&under, ALICE, channel_id, "y").await;
    assert_eq!((limited.status, &limited.body["code"], &limited.body["global"]), (429, &json!(0), &json!(false)));
    assert_eq!(limited.header("via").as_deref(), Some("1.1 cellplane"), "or discord.py takes it for a ban");
    assert_eq!(limited.header("x-ratelimit-bucket"), sent.header("x-ratelimit-bucket"));
    assert_eq!(limited.header("x-ratelimit-scope").as_deref(), Some("user"));
    let seconds: u16 = limited.header("retry-after").unwrap().parse().unwrap();
    let told = limited.body["retry_after"].as_f64().unwrap();
    assert!(f64::from(seconds) >= told && f64::from(seconds) < told + 1.0);
}

#[tokio::test]
async fn form_errors_are_nested() {
    let (_fake, under) = world().await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let body = json!({"content": "x".repeat(2001), "embeds": [{"title": "t".repeat(257)}]});
    let answer = under.rest(ALICE, "POST", &format!("/api/v10/channels/{channel_id}/messages"), Some(body)).await;
    let code = |value: &Value| value["_errors"][0]["code"].clone();
    assert_eq!(answer.body["code"], 50_035);
    assert_eq!(code(&answer.body["errors"]["content"]), "BASE_TYPE_MAX_LENGTH");
    assert_eq!(code(&answer.body["errors"]["embeds"]["0"]["title"]), "BASE_TYPE_MAX_LENGTH");
}
