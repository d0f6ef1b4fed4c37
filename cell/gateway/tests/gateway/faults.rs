//! What must not be seen by any client: stale owners, moves, slow readers, lost sessions.

use std::time::Duration;

use cell_proto::v1::change::Kind;
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::*;
use futures::StreamExt;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message as Frame;

use crate::fake::client::{ALICE, DEADLINE, Under, limits, make_guild, send, start, world};

const INTENTS: u32 = 1 | 1 << 9 | 1 << 15;

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("{what} did not happen in time"));
}

fn stale_event(guild_id: i64, channel_id: i64, position: Position) -> Down {
    let author = Some(User { id: ALICE, name: "alice".into(), ..User::default() });
    let message = Message { id: 1, channel_id, guild_id, author, content: "stale".into(), ..Message::default() };
    let kind = Kind::MessageCreated(MessageCreated { message: Some(message) });
    let entry = Entry { timestamp_us: i64::MAX, change: Some(Change { kind: Some(kind) }), ..Entry::default() };
    let event = GuildEvent { position: Some(position), entry: Some(entry), ..GuildEvent::default() };
    Down::Events(GuildEvents { guild_id, events: vec![event], term: 1 })
}

#[tokio::test]
async fn an_owner_with_a_lower_term_is_not_believed() {
    let (fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let (mut client, _) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    fake.state.lock().risen = 5;
    send(&under, ALICE, channel_id, "under the higher term").await;
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "under the higher term");
    let held = under.gateway.hub.get(guild_id).unwrap().position().unwrap();
    let stale = stale_event(guild_id, channel_id, Position { number: held.number + 1000, ..held });
    let attaches = fake.state.lock().attaches.len();
    fake.inject(guild_id, &stale);
    until("a fresh attach", || fake.state.lock().attaches.len() > attaches).await;
    send(&under, ALICE, channel_id, "after").await;
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "after", "the stale event was never told");
}

async fn moved(standby_first: bool) {
    let (fake, under) = world().await;
    let target = crate::fake::serve(&fake).await;
    let address = target.member("a-guild-0").unwrap().grpc_address.clone();
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let (mut client, _) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    let log = under.gateway.hub.get(guild_id).unwrap().position().unwrap().log;
    let route = Route { log, cell: "a".into(), term: 2, guild_address: address, ..Route::default() };
    let frame = Moved { guild_id, route: Some(route) };
    let attaches = fake.state.lock().attaches.len();
    if standby_first {
        fake.inject(guild_id, &Down::Standby(frame.clone()));
        until("a standby attach", || fake.state.lock().attaches.iter().any(|attach| attach.standby)).await;
    }
    send(&under, ALICE, channel_id, "before").await;
    let first_link_only = |guild_id: i64, frame: &Down| {
        let state = fake.state.lock();
        let (link, _) = state.links.iter().find(|(_, guilds)| guilds.contains(&guild_id)).unwrap();
        let _ = link.try_send(Ok(LinkDown { kind: Some(frame.clone()) }));
    };
    first_link_only(guild_id, &Down::Moved(frame));
    until("an attach at the target", || fake.state.lock().attaches.len() > attaches + usize::from(standby_first)).await;
    send(&under, ALICE, channel_id, "after").await;
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "before");
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "after");
    let last = fake.state.lock().attaches.last().cloned().unwrap();
    assert!(last.position.is_some(), "the position held is stated");
}

#[tokio::test]
async fn a_move_keeps_the_socket_and_the_sequence() {
    moved(false).await;
}

#[tokio::test]
async fn a_move_over_a_standby_link_keeps_the_socket_and_the_sequence() {
    moved(true).await;
}

#[tokio::test]
async fn a_slow_reader_is_closed_resumably_and_loses_nothing() {
    let (_fake, under) = world().await;
    let (mut client, ready) = under.identify(ALICE, INTENTS).await;
    let session_id = ready["session_id"].as_str().unwrap().to_owned();
    let slot = under.gateway.registry.get(&session_id).unwrap();
    let big = cell_gateway::wire::event::Event::new("BIG", &json!("x".repeat(60_000)));
    // Until what the system buffers is full and 2 MiB lie behind it.
    for _ in 0..2000 {
        if under.gateway.metrics.lag_closes.get() > 0 || slot.machine.lock().is_lagging() {
            break;
        }
        slot.push(big.clone());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until("a lag close", || under.gateway.metrics.lag_closes.get() > 0).await;
    let pushed = slot.machine.lock().last_sequence();
    while let Some(Ok(frame)) = tokio::time::timeout(DEADLINE, client.socket.next()).await.expect("the close") {
        if let Frame::Text(text) = frame {
            let sequence = serde_json::from_str::<serde_json::Value>(&text).unwrap()["s"].as_u64().unwrap();
            assert_eq!(sequence, client.last + 1);
            client.last = sequence;
        }
    }
    assert!(client.last < pushed, "it had not read everything");
    let mut client = under.resume(ALICE, &session_id, client.last).await;
    client.event("RESUMED").await;
    assert_eq!(client.last, pushed + 1);
}

#[tokio::test]
async fn a_heartbeat_is_answered_in_the_middle_of_a_long_replay() {
    let (_fake, under) = world().await;
    let (client, ready) = under.identify(ALICE, INTENTS).await;
    let session_id = ready["session_id"].as_str().unwrap().to_owned();
    drop(client);
    let slot = under.gateway.registry.get(&session_id).unwrap();
    until("the drop to be noticed", || !slot.machine.lock().is_connected()).await;
    let event = cell_gateway::wire::event::Event::new("E", &json!("x".repeat(200)));
    (0..9000).for_each(|_| _ = slot.push(event.clone()));
    let mut client = under.resume(ALICE, &session_id, 1).await;
    client.send(json!({"op": 1, "d": 1})).await;
    let mut acknowledged_at = None;
    loop {
        let payload = client.next().await;
        if payload["op"] == 11 {
            acknowledged_at = Some(client.last);
        }
        if payload["t"] == "RESUMED" {
            break;
        }
    }
    assert!(acknowledged_at.is_some_and(|at| at < 9000), "{acknowledged_at:?}");
}

#[tokio::test]
async fn a_guild_that_cannot_be_replayed_ends_its_sessions_with_op_9() {
    let (fake, under) = world().await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let (mut client, _) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    let refusal = Some(Refusal::new(Reason::BehindRetention, "scripted"));
    fake.inject(guild_id, &Down::Refused(AttachRefused { guild_id, refusal }));
    let refused = client.next().await;
    assert_eq!((&refused["op"], &refused["d"]), (&json!(9), &json!(false)));
    client.last = 0;
    client.send(json!({"op": 2, "d": {"token": crate::fake::client::token(ALICE), "intents": INTENTS}})).await;
    client.event("GUILD_CREATE").await;
    send(&under, ALICE, channel_id, "again").await;
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "again");
}

#[tokio::test]
async fn a_session_ends_when_its_lease_runs_out_and_its_guilds_forget_it() {
    let fake = crate::fake::Fake::default();
    fake.user(ALICE, "alice");
    let view = crate::fake::serve(&fake).await;
    let short = cell_gateway::Limits { session_lease_ms: 50, ..limits() };
    let under = start("a-gateway-0", view, short).await;
    let (guild_id, _) = make_guild(&under, ALICE).await;
    let (mut client, _) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    assert_eq!(sessions(&under, guild_id), 1);
    drop(client);
    until("the end of the lease", || under.gateway.registry.is_empty()).await;
    assert_eq!(sessions(&under, guild_id), 0);
}

fn sessions(under: &Under, guild_id: i64) -> usize {
    under.gateway.hub.get(guild_id).map_or(0, |hosted| hosted.sessions())
}

#[tokio::test]
async fn two_sessions_of_one_shard_pair_share_the_guilds_between_them() {
    let (_fake, under) = world().await;
    let mut guilds = Vec::new();
    for _ in 0..4 {
        guilds.push(make_guild(&under, ALICE).await.0);
    }
    let mut seen = Vec::new();
    for shard in 0..2 {
        let mut client = under.connect("v=10").await;
        let d = json!({"token": crate::fake::client::token(ALICE), "intents": 1, "shard": [shard, 2]});
        client.send(json!({"op": 2, "d": d})).await;
        let ready = client.event("READY").await;
        assert_eq!(ready["shard"], json!([shard, 2]));
        for guild in ready["guilds"].as_array().unwrap() {
            let id: i64 = guild["id"].as_str().unwrap().parse().unwrap();
            assert_eq!((id >> 22) % 2, shard);
            seen.push(id);
        }
    }
    seen.sort_unstable();
    guilds.sort_unstable();
    assert_eq!(seen, guilds);
}

#[tokio::test]
async fn when_an_owner_dies_its_successor_is_followed_as_soon_as_the_directory_names_it() {
    let (fake, under) = world().await;
    let successor = crate::fake::serve(&fake).await;
    let (_, channel_id) = make_guild(&under, ALICE).await;
    let (mut client, _) = under.identify(ALICE, INTENTS).await;
    client.event("GUILD_CREATE").await;
    let nowhere = crate::fake::fleet_member("a-guild-0", cell_proto::directory::Role::Guild, "127.0.0.1:9");
    under.directory.change(|view| view.set_member(nowhere));
    fake.break_links();
    send(&under, ALICE, channel_id, "while nobody owns it").await;
    let attaches = fake.state.lock().attaches.len();
    let address = successor.member("a-guild-0").unwrap().grpc_address.clone();
    let member = crate::fake::fleet_member("a-guild-1", cell_proto::directory::Role::Guild, &address);
    under.directory.change(|view| {
        view.remove_member("a-guild-0");
        view.set_member(member);
    });
    until("an attach at the successor", || fake.state.lock().attaches.len() > attaches).await;
    assert_eq!(client.event("MESSAGE_CREATE").await["content"], "while nobody owns it");
}
