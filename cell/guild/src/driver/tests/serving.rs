//! Serving a guild: snapshots, events, structural changes, members; and a node that dies.

use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    Invite, InvitePut, Member, MemberPut, MemberRemoved, MembersRequest, Reason, User,
    guild_service_client::GuildServiceClient,
};

use cell_proto::directory::Role;
use cell_runtime::{CancellationToken, DirectoryConfig, RoleConfig, View};

use super::fleet::*;
use super::gateway::Gateway;
use crate::driver::Config;
use crate::machine::Limits;

fn messages(from: usize, until: usize) -> Vec<String> {
    (from..until).map(|number| format!("m{number}")).collect()
}

async fn invite(fleet: &Fleet, channel_id: i64) -> String {
    let put = InvitePut { invite: Some(Invite { channel_id, ..Invite::default() }) };
    let committed = fleet.mutate(&user("ann"), Kind::InvitePut(put)).await.unwrap();
    match committed.entry.unwrap().change.unwrap().kind.unwrap() {
        Kind::InvitePut(put) => put.invite.unwrap().code,
        other => panic!("{other:?}"),
    }
}

fn join(user: &User, invite_code: &str) -> Kind {
    let member = Some(Member { user: Some(user.clone()), ..Member::default() });
    Kind::MemberPut(MemberPut { member, joined: true, invite_code: invite_code.into(), ..MemberPut::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_gets_a_snapshot_and_then_everything_in_order() {
    let fleet = Fleet::start().await;
    let channel_id = fleet.create_guild().await;
    let node = fleet.guild_node("a", "a-guild-0");
    let mut gateway = Gateway::default();
    gateway.attach(&node.address).await;
    gateway.until(&fleet, |gateway| gateway.snapshot.is_some()).await;
    let snapshot = gateway.snapshot.clone().unwrap();
    assert_eq!((snapshot.channels.len(), snapshot.members.len(), snapshot.guild_term), (1, 1, 1));
    for message in messages(0, 50) {
        fleet.say(channel_id, &message).await;
    }
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 50).await;
    assert_eq!(gateway.heard, messages(0, 50));
    fleet.wait_listed(&user("ann"), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_join_by_invite_are_listed_and_leave() {
    let fleet = Fleet::start().await;
    let channel_id = fleet.create_guild().await;
    let node = fleet.guild_node("a", "a-guild-0");
    let refusal = fleet.mutate(&user("bob"), join(&user("bob"), "no-such-invite")).await.unwrap_err();
    assert_eq!(refusal.why(), Reason::NotFound);
    let code = invite(&fleet, channel_id).await;
    fleet.mutate(&user("bob"), join(&user("bob"), &code)).await.unwrap();
    let again = fleet.mutate(&user("bob"), join(&user("bob"), &code)).await.unwrap_err();
    assert_eq!(again.why(), Reason::AlreadyExists);
    fleet.wait_listed(&user("bob"), true).await;

    let mut client = GuildServiceClient::connect(format!("http://{}", node.address)).await.unwrap();
    let request =
        MembersRequest { guild_id: GUILD, name_prefix: "B".into(), by_prefix: true, ..MembersRequest::default() };
    let found = client.members(request).await.unwrap().into_inner();
    assert_eq!(
        found.members.iter().map(|member| member.user.as_ref().unwrap().name.as_str()).collect::<Vec<_>>(),
        ["bob"]
    );
    assert_eq!(found.member_count, 2);

    let removed = Kind::MemberRemoved(MemberRemoved { guild_id: GUILD, user_id: user("bob").id });
    fleet.mutate(&user("bob"), removed).await.unwrap();
    fleet.wait_listed(&user("bob"), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_a_guild_node_dies_another_takes_over_and_nothing_is_lost_or_twice() {
    let fleet = Fleet::start().await;
    let channel_id = fleet.create_guild().await;
    let mut nodes = vec![fleet.guild_node("a", "a-guild-0"), fleet.guild_node("a", "a-guild-1")];
    let mut gateway = Gateway::default();
    gateway.until(&fleet, |gateway| gateway.snapshot.is_some()).await;
    for message in messages(0, 20) {
        fleet.say(channel_id, &message).await;
    }
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 10).await;
    let owner = fleet.winner().unwrap();
    let index = nodes.iter().position(|node| node.address == owner).unwrap();
    nodes.remove(index).kill();
    for message in messages(20, 40) {
        fleet.say(channel_id, &message).await;
    }
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 40).await;
    assert_eq!(gateway.heard, messages(0, 40));
    let mut client = nodes[0].client().await;
    let request = cell_proto::v1::InspectGuildRequest { guild_id: GUILD };
    let inspected = client.inspect_guild(request).await.unwrap().into_inner();
    assert_eq!((inspected.state.as_str(), inspected.guild_term, inspected.links), ("owner", 2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_data_owner_dies_the_guild_follows_the_next_one_and_misses_nothing() {
    let fleet = Fleet::start().await;
    let channel_id = fleet.create_guild().await;
    let node = fleet.guild_node("a", "a-guild-0");
    let mut gateway = Gateway::default();
    gateway.until(&fleet, |gateway| gateway.snapshot.is_some()).await;
    for message in messages(0, 20) {
        fleet.say(channel_id, &message).await;
    }
    fleet.data_service("a", "a-data-1");
    fleet.kill_data("a-data-0");
    for message in messages(20, 40) {
        fleet.say(channel_id, &message).await;
    }
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 40).await;
    assert_eq!(gateway.heard, messages(0, 40));
    // Structure goes on as well, under the same claim.
    invite(&fleet, channel_id).await;
    let request = cell_proto::v1::InspectGuildRequest { guild_id: GUILD };
    let inspected = node.client().await.inspect_guild(request).await.unwrap().into_inner();
    assert_eq!((inspected.state.as_str(), inspected.guild_term), ("owner", 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guild_that_does_not_exist_is_not_found() {
    let fleet = Fleet::start().await;
    let node = fleet.guild_node("a", "a-guild-0");
    let request = MembersRequest { guild_id: GUILD, ..MembersRequest::default() };
    let refusal = node.client().await.members(request).await.unwrap().into_inner().refusal.unwrap();
    assert_eq!(refusal.why(), Reason::NotFound, "{refusal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_not_the_winner_says_who_is() {
    let fleet = Fleet::start().await;
    fleet.create_guild().await;
    let nodes = [fleet.guild_node("a", "a-guild-0"), fleet.guild_node("a", "a-guild-1")];
    let winner = fleet.winner().unwrap();
    let loser = nodes.iter().find(|node| node.address != winner).unwrap();
    let request = MembersRequest { guild_id: GUILD, ..MembersRequest::default() };
    let refusal = loser.client().await.members(request).await.unwrap().into_inner().refusal.unwrap();
    assert_eq!(refusal.why(), Reason::NotOwner);
    assert_eq!(refusal.route.unwrap().guild_address, winner);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_another_node_becomes_the_winner_the_guild_goes_there_with_its_gateways() {
    let fleet = Fleet::start().await;
    let channel_id = fleet.create_guild().await;
    let first = fleet.guild_node("a", "a-guild-0");
    let mut gateway = Gateway::default();
    gateway.until(&fleet, |gateway| gateway.snapshot.is_some()).await;
    let mut others = Vec::new();
    while fleet.winner().unwrap() == first.address {
        others.push(fleet.guild_node("a", &format!("a-guild-{}", others.len() + 1)));
    }
    for message in messages(0, 10) {
        fleet.say(channel_id, &message).await;
    }
    gateway.until(&fleet, |gateway| gateway.moved.is_some()).await;
    let moved = gateway.moved.take().unwrap();
    assert_eq!(moved.route.unwrap().guild_address, fleet.winner().unwrap());
    fleet.say(channel_id, "m10").await;
    gateway.until(&fleet, |gateway| gateway.heard.len() >= 11).await;
    assert_eq!(gateway.heard, messages(0, 11));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_starts_with_etcd_away_and_ends_when_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut view = View::default();
    view.set_member(member(Role::Data, "a", "a-data-0", "127.0.0.1:1"));
    std::fs::write(folder.path().join("directory.json"), serde_json::to_vec(&view.to_snapshot()).unwrap()).unwrap();
    let directory = DirectoryConfig {
        endpoints: vec!["127.0.0.1:1".into()],
        prefix: "/t/".into(),
        state_dir: Some(folder.path().into()),
    };
    let config = Config {
        role: RoleConfig {
            cell: "a".into(),
            storage_cell: "main".into(),
            member_id: "a-guild-0".into(),
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            listen_address: std::net::Ipv4Addr::LOCALHOST.into(),
            grpc_port: 0,
            admin_port: 0,
            directory,
            plaintext: false,
        },
        drain_grace: std::time::Duration::from_secs(5),
        guild_limit: Config::GUILD_LIMIT,
        limits: Limits::default(),
    };
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(crate::run(config.clone(), shutdown.clone()));
    shutdown.cancel();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(20), running).await.expect("it ends in time");
    assert!(ended.unwrap().is_ok());
    let mut outside = config;
    outside.role.listen_address = std::net::Ipv4Addr::UNSPECIFIED.into();
    let refused = crate::run(outside, CancellationToken::new()).await.unwrap_err();
    assert!(refused.to_string().contains("--plaintext"), "{refused}");
}
