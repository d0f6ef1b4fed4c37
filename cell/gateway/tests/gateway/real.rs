//! The gateway over the real data, guild and store roles in one process, found by snapshots of the directory with etcd away.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use cell_proto::directory::{Buckets, Member, Role};
use cell_proto::unit::{BUCKETS, Unit};
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::{Change, CreateHeadsRequest, Head, SubmitRequest, User, UserCreated, submit_reply};
use cell_runtime::{CancellationToken, DirectoryConfig, RoleConfig, View};
use serde_json::json;

use crate::fake::client::{ALICE, BOB, DEADLINE, Under, limits, make_guild, send, start};
use crate::fake::fleet_member;

/// Cells of real roles on one store.
pub struct Fleet {
    pub view: View,
    stop: CancellationToken,
    folder: tempfile::TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A free port, given back: nothing else in these tests asks for this address.
pub fn free_port(address: IpAddr) -> u16 {
    std::net::TcpListener::bind(SocketAddr::new(address, 0)).unwrap().local_addr().unwrap().port()
}

/// What each process of a fleet is told.
struct Process<'a> {
    member: Member,
    address: SocketAddr,
    view: &'a View,
    folder: &'a Path,
    stop: CancellationToken,
}

impl Process<'_> {
    /// Its folder, with a snapshot of the directory: etcd is away.
    fn directory(&self) -> DirectoryConfig {
        let path = self.folder.join(&self.member.id);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("directory.json"), serde_json::to_vec(&self.view.to_snapshot()).unwrap()).unwrap();
        DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir: Some(path) }
    }

    fn start(&self) {
        match self.member.role {
            Role::Store => self.store(),
            Role::Data => self.data(),
            Role::Guild => self.guild(),
            Role::Gateway | Role::Migrate => unreachable!(),
        }
    }

    fn role(&self) -> RoleConfig {
        role_config(&self.member.cell, &self.member.id, self.address, self.directory())
    }

    fn store(&self) {
        let config = cell_store::Config { role: self.role(), data_dir: self.folder.join("engine"), reserve_bytes: 0 };
        tokio::spawn(cell_store::run(config, self.stop.clone()));
    }

    fn data(&self) {
        tokio::spawn(cell_data::run(cell_data::Config { role: self.role(), storage_dir: None }, self.stop.clone()));
    }

    fn guild(&self) {
        let config = cell_guild::Config {
            role: self.role(),
            drain_grace: Duration::from_secs(1),
            guild_limit: cell_guild::Config::GUILD_LIMIT,
            limits: cell_guild::machine::Limits::default(),
        };
        tokio::spawn(cell_guild::run(config, self.stop.clone()));
    }
}

/// What a role on StorageCell `main` is told; `address` is its gRPC service's.
pub fn role_config(cell: &str, member_id: &str, address: SocketAddr, directory: DirectoryConfig) -> RoleConfig {
    RoleConfig {
        cell: cell.into(),
        storage_cell: "main".into(),
        member_id: member_id.into(),
        address: address.ip(),
        listen_address: address.ip(),
        grpc_port: address.port(),
        admin_port: 0,
        directory,
        plaintext: false,
    }
}

/// Starts cell `a`, which has every bucket. The other cells named are known, and are started with what is known then.
pub async fn fleet(cells: &[&str]) -> Fleet {
    let folder = tempfile::tempdir().unwrap();
    let random: [u8; 2] = rand::random();
    let address = IpAddr::V4(Ipv4Addr::new(127, 90, random[0], random[1].clamp(1, 254)));
    let mut members = vec![("main".to_owned(), Role::Store, "main-store-0".to_owned())];
    for cell in cells {
        members.push(((*cell).to_owned(), Role::Data, format!("{cell}-data-0")));
        members.push(((*cell).to_owned(), Role::Guild, format!("{cell}-guild-0")));
    }
    let mut view = View::default();
    for (cell, role, id) in members {
        let address = SocketAddr::new(address, free_port(address));
        view.set_member(Member { cell, ..fleet_member(&id, role, &address.to_string()) });
    }
    view.set_buckets(Buckets { cells: vec!["a".into()], assignment: vec![0; usize::from(BUCKETS)] });
    let fleet = Fleet { view, stop: CancellationToken::new(), folder };
    fleet.start_cell("main");
    fleet.start_cell("a");
    fleet.bootstrap().await;
    fleet
}

async fn cell() -> Fleet {
    fleet(&["a"]).await
}

/// A channel to a member that is just starting.
pub async fn channel(view: &View, member_id: &str) -> tonic::transport::Channel {
    let address = &view.member(member_id).unwrap().grpc_address;
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let connect = async {
        loop {
            match endpoint.connect().await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, connect).await.expect("the member did not start")
}

impl Fleet {
    /// Starts the processes of a cell.
    pub fn start_cell(&self, cell: &str) {
        for member in self.view.members().filter(|member| member.cell == cell) {
            let address = member.grpc_address.parse().unwrap();
            let (view, folder, stop) = (&self.view, self.folder.path(), self.stop.clone());
            Process { member: member.clone(), address, view, folder, stop }.start();
        }
    }

    /// Creates the heads and two users, as the operator does.
    async fn bootstrap(&self) {
        let mut client = DataServiceClient::new(channel(&self.view, "a-data-0").await);
        let head = |bucket| Head { log: Unit::Bucket(bucket).log(), cell: "a".into(), ..Head::default() };
        let heads: Vec<Head> = (0..BUCKETS).map(head).collect();
        for part in heads.chunks(512) {
            let create = async {
                loop {
                    let request = CreateHeadsRequest { heads: part.to_vec() };
                    match client.create_heads(request).await {
                        Ok(reply) if reply.get_ref().refusal.is_none() => return,
                        _ => tokio::time::sleep(Duration::from_millis(50)).await,
                    }
                }
            };
            tokio::time::timeout(DEADLINE, create).await.expect("the heads were not created");
        }
        for (id, name) in [(ALICE, "alice"), (BOB, "bob")] {
            self.create_user(id, name).await;
        }
    }

    /// Creates a user, as the control plane does.
    pub async fn create_user(&self, id: i64, name: &str) {
        let mut client = DataServiceClient::new(channel(&self.view, "a-data-0").await);
        let user = User { id, name: name.into(), bot: true, ..User::default() };
        let request = SubmitRequest {
            log: Unit::bucket(id).log(),
            operation_id: rand::random::<[u8; 16]>().to_vec(),
            deadline_unix_ms: cell_runtime::unix_ms() + 10_000,
            change: Some(Change { kind: Some(Kind::UserCreated(UserCreated { user: Some(user) })) }),
            ..SubmitRequest::default()
        };
        let reply = client.submit(request).await.unwrap().into_inner();
        assert!(matches!(reply.outcome, Some(submit_reply::Outcome::Committed(_))), "{reply:?}");
    }
}

pub async fn join(under: &Under, channel_id: i64, user_id: i64) {
    let invite = under.rest(ALICE, "POST", &format!("/api/v10/channels/{channel_id}/invites"), Some(json!({}))).await;
    let code = invite.body["code"].as_str().unwrap_or_else(|| panic!("{}", invite.body)).to_owned();
    let accepted = under.rest(user_id, "POST", &format!("/api/v10/invites/{code}"), None).await;
    assert_eq!(accepted.status, 200, "{}", accepted.body);
}

const INTENTS: u32 = 1 | 1 << 9 | 1 << 15;

#[tokio::test]
async fn two_bots_talk_through_two_gateways_over_real_roles() {
    let cell = cell().await;
    let first = start("a-gateway-0", cell.view.clone(), limits()).await;
    let second = start("a-gateway-1", cell.view.clone(), limits()).await;
    let peer = fleet_member("a-gateway-0", Role::Gateway, &first.grpc);
    second.directory.change(|view| view.set_member(peer));
    let (mut bob, _) = first.identify(BOB, INTENTS).await;
    let (guild_id, channel_id) = make_guild(&second, ALICE).await;
    join(&second, channel_id, BOB).await;
    assert_eq!(bob.event("GUILD_CREATE").await["id"], guild_id.to_string());
    for n in 0..10 {
        let sent = send(if n % 2 == 0 { &first } else { &second }, ALICE, channel_id, &format!("m{n}")).await;
        assert_eq!(sent.status, 200, "{}", sent.body);
    }
    for n in 0..10 {
        assert_eq!(bob.event("MESSAGE_CREATE").await["content"], format!("m{n}"));
    }
    let page = first.rest(BOB, "GET", &format!("/api/v10/channels/{channel_id}/messages?limit=3"), None).await;
    assert_eq!(page.body.as_array().map(Vec::len), Some(3), "{}", page.body);
    assert_eq!(page.body[0]["content"], "m9");
    let kicked = second.rest(ALICE, "DELETE", &format!("/api/v10/guilds/{guild_id}/members/{BOB}"), None).await;
    assert_eq!(kicked.status, 204, "{}", kicked.body);
    bob.event("GUILD_DELETE").await;
    assert_eq!(send(&first, BOB, channel_id, "no").await.status, 403);
}

#[tokio::test]
async fn structure_and_messages_are_managed_over_real_roles() {
    let cell = cell().await;
    let under = start("a-gateway-0", cell.view.clone(), limits()).await;
    let (guild_id, channel_id) = make_guild(&under, ALICE).await;
    let (mut alice, ready) = under.identify(ALICE, INTENTS).await;
    alice.event("GUILD_CREATE").await;
    let guild = format!("/api/v10/guilds/{guild_id}");
    let made = under.rest(ALICE, "POST", &format!("{guild}/channels"), Some(json!({"name": "two"}))).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let two: i64 = made.body["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(alice.event("CHANNEL_CREATE").await["id"], two.to_string());
    assert_eq!(send(&under, ALICE, two, "in two").await.status, 200);
    let role =
        under.rest(ALICE, "POST", &format!("{guild}/roles"), Some(json!({"name": "r", "permissions": "0"}))).await;
    assert_eq!(role.status, 200, "{}", role.body);
    let renamed =
        under.rest(ALICE, "PATCH", &format!("/api/v10/channels/{two}"), Some(json!({"name": "renamed"}))).await;
    assert_eq!(renamed.status, 200, "{}", renamed.body);
    let body = json!({"content": "once", "nonce": "77", "enforce_nonce": true});
    let path = format!("/api/v10/channels/{channel_id}/messages");
    let (once, twice) = (
        under.rest(ALICE, "POST", &path, Some(body.clone())).await,
        under.rest(ALICE, "POST", &path, Some(body)).await,
    );
    assert_eq!((once.status, &once.body["id"]), (200, &twice.body["id"]), "{} {}", once.body, twice.body);
    let id = once.body["id"].as_str().unwrap();
    let edited = under.rest(ALICE, "PATCH", &format!("{path}/{id}"), Some(json!({"content": "edited"}))).await;
    assert_eq!(edited.status, 200, "{}", edited.body);
    alice.event("MESSAGE_UPDATE").await;
    assert_eq!(under.rest(ALICE, "DELETE", &format!("{path}/{id}"), None).await.status, 204);
    alice.event("MESSAGE_DELETE").await;
    let sequence = alice.last;
    drop(alice);
    assert_eq!(send(&under, ALICE, channel_id, "while away").await.status, 200);
    let mut alice = under.resume(ALICE, ready["session_id"].as_str().unwrap(), sequence).await;
    let told = [alice.next().await, alice.next().await];
    assert!(told.iter().any(|payload| payload["t"] == "RESUMED"), "{told:?}");
    assert_eq!(under.rest(ALICE, "GET", "/api/v10/users/@me/guilds", None).await.body[0]["id"], guild_id.to_string());
    assert_eq!(under.rest(ALICE, "DELETE", &format!("/api/v10/channels/{two}"), None).await.status, 200);
    assert_eq!(under.rest(ALICE, "DELETE", &guild, None).await.status, 204);
}

#[tokio::test]
async fn a_crowd_joins_at_once_and_everyone_hears_everything_in_order() {
    use futures::StreamExt;
    const CROWD: i64 = 120;
    let cell = cell().await;
    let first = start("a-gateway-0", cell.view.clone(), limits()).await;
    let second = start("a-gateway-1", cell.view.clone(), limits()).await;
    for (one, other, id) in [(&first, &second, "a-gateway-1"), (&second, &first, "a-gateway-0")] {
        one.directory.change(|view| view.set_member(fleet_member(id, Role::Gateway, &other.grpc)));
    }
    let (_, channel_id) = make_guild(&first, ALICE).await;
    let path = format!("/api/v10/channels/{channel_id}/invites");
    let invite = first.rest(ALICE, "POST", &path, Some(json!({"max_age": 0, "max_uses": 0}))).await;
    let accept = format!("/api/v10/invites/{}", invite.body["code"].as_str().unwrap());
    let people: Vec<i64> = (0..CROWD).map(|n| 2_000_000 + n).collect();
    let enter = async |user_id: i64| {
        cell.create_user(user_id, &format!("user{user_id}")).await;
        let [joins, listens] = if user_id % 2 == 0 { [&first, &second] } else { [&second, &first] };
        let (mut client, _) = listens.identify(user_id, INTENTS).await;
        let accepted = joins.rest(user_id, "POST", &accept, None).await;
        assert_eq!(accepted.status, 200, "{}", accepted.body);
        client.event("GUILD_CREATE").await;
        client
    };
    let mut clients: Vec<_> = futures::stream::iter(people).map(enter).buffer_unordered(20).collect().await;
    for n in 0..20 {
        let sent = send(if n % 2 == 0 { &first } else { &second }, ALICE, channel_id, &format!("m{n}")).await;
        assert_eq!(sent.status, 200, "{}", sent.body);
    }
    for client in &mut clients {
        for n in 0..20 {
            assert_eq!(client.event("MESSAGE_CREATE").await["content"], format!("m{n}"));
        }
    }
}
