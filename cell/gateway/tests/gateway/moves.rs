//! A guild that moves between cells of real roles while its members talk: no socket notices.

use std::time::Duration;

use cell_proto::directory::{Role, RouteHint};
use cell_proto::unit::Unit;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::*;
use tonic::transport::Channel as Transport;

use crate::fake::client::{ALICE, BOB, DEADLINE, limits, make_guild, send, start};
use crate::fake::fleet_member;
use crate::real::{Fleet, channel, fleet, join};

const INTENTS: u32 = 1 | 1 << 9 | 1 << 15;
const RUN: &str = "run-1";

/// The operator's part of one move, step by step.
struct Mover {
    guild_id: i64,
    log: String,
    data: [DataServiceClient<Transport>; 2],
    guild: [GuildServiceClient<Transport>; 2],
    addresses: [[String; 2]; 2],
}

impl Mover {
    async fn new(fleet: &Fleet, guild_id: i64) -> Self {
        let address = |id: &str| fleet.view.member(id).unwrap().grpc_address.clone();
        Self {
            guild_id,
            log: Unit::Guild(guild_id).log(),
            data: [
                DataServiceClient::new(channel(&fleet.view, "a-data-0").await),
                DataServiceClient::new(channel(&fleet.view, "b-data-0").await),
            ],
            guild: [
                GuildServiceClient::new(channel(&fleet.view, "a-guild-0").await),
                GuildServiceClient::new(channel(&fleet.view, "b-guild-0").await),
            ],
            addresses: [[address("a-data-0"), address("a-guild-0")], [address("b-data-0"), address("b-guild-0")]],
        }
    }

    fn route(&self, term: u64) -> Route {
        let [data_address, guild_address] = self.addresses[1].clone();
        Route { log: self.log.clone(), cell: "b".into(), term, data_address, guild_address }
    }

    async fn warm(&mut self) {
        let request = WarmRequest {
            guild_id: self.guild_id,
            log: self.log.clone(),
            run_id: RUN.into(),
            data_address: self.addresses[0][0].clone(),
            bucket_log: Unit::bucket(self.guild_id).log(),
            term: 0,
        };
        let target = &mut self.guild[1];
        repeat("warm", async || {
            let reply = target.warm(request.clone()).await.unwrap().into_inner();
            if reply.ready { Ok(()) } else { Err(format!("{reply:?}")) }
        })
        .await;
        let announce =
            AnnounceStandbyRequest { guild_id: self.guild_id, run_id: RUN.into(), target: Some(self.route(0)) };
        let reply = self.guild[0].announce_standby(announce).await.unwrap().into_inner();
        assert!(reply.refusal.is_none(), "{reply:?}");
    }

    async fn switch(&mut self) -> u64 {
        let inspected = self.data[0].inspect(InspectRequest { log: self.log.clone() }).await.unwrap().into_inner();
        let request = SwitchRequest {
            log: self.log.clone(),
            run_id: RUN.into(),
            from_cell: "a".into(),
            to_cell: "b".into(),
            expected_term: inspected.head.unwrap().term,
            target_guild_address: self.addresses[1][1].clone(),
            guild_id: self.guild_id,
            hold_limit_ms: 5000,
            target_data_address: self.addresses[1][0].clone(),
        };
        let source = &mut self.data[0];
        repeat("switch", async || {
            let reply = source.switch(request.clone()).await.unwrap().into_inner();
            if reply.switched { Ok(reply.new_term) } else { Err(format!("{reply:?}")) }
        })
        .await
    }

    async fn take_over(&mut self, term: u64) {
        for (index, claim) in [(1, true), (0, false)] {
            let request = TakeOverRequest {
                guild_id: self.guild_id,
                log: self.log.clone(),
                run_id: RUN.into(),
                claim,
                route: Some(self.route(term)),
            };
            let node = &mut self.guild[index];
            repeat("take over", async || {
                let reply = node.take_over(request.clone()).await.unwrap().into_inner();
                if reply.done { Ok(()) } else { Err(format!("{reply:?}")) }
            })
            .await;
        }
    }
}

async fn split(fleet: &Fleet, guild_id: i64) {
    let request = SplitGuildRequest { bucket_log: Unit::bucket(guild_id).log(), guild_id, run_id: RUN.into() };
    let mut data = DataServiceClient::new(channel(&fleet.view, "a-data-0").await);
    repeat("split", async || {
        let reply = data.split_guild(request.clone()).await.unwrap().into_inner();
        if reply.done { Ok(()) } else { Err(format!("{reply:?}")) }
    })
    .await;
}

/// As the operator does: asks again until it is done, but not for ever.
async fn repeat<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let mut last = String::new();
    let work = async {
        loop {
            match ask().await {
                Ok(done) => return done,
                Err(why) => last = why,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what} was not done in time: {last}"),
    }
}

#[tokio::test]
async fn a_guild_moves_to_another_cell_while_its_members_talk() {
    let mut fleet = fleet(&["a", "b"]).await;
    let first = start("a-gateway-0", fleet.view.clone(), limits()).await;
    let second = start("a-gateway-1", fleet.view.clone(), limits()).await;
    for (one, other, id) in [(&first, &second, "a-gateway-1"), (&second, &first, "a-gateway-0")] {
        one.directory.change(|view| view.set_member(fleet_member(id, Role::Gateway, &other.grpc)));
    }
    let (guild_id, channel_id) = make_guild(&first, ALICE).await;
    join(&first, channel_id, BOB).await;
    let (mut alice, _) = first.identify(ALICE, INTENTS).await;
    let (mut bob, _) = second.identify(BOB, INTENTS).await;
    alice.event("GUILD_CREATE").await;
    bob.event("GUILD_CREATE").await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let talk = async {
        let mut stopped = stopped;
        let (mut sent, mut after) = (Vec::new(), 0);
        while after < 5 {
            after += u32::from(!matches!(stopped.try_recv(), Err(tokio::sync::oneshot::error::TryRecvError::Empty)));
            let content = format!("m{}", sent.len());
            let through = if sent.len() % 2 == 0 { &first } else { &second };
            let answer = send(through, BOB, channel_id, &content).await;
            assert_eq!(answer.status, 200, "{content}: {}", answer.body);
            sent.push(content);
        }
        sent
    };
    let work = async {
        split(&fleet, guild_id).await;
        // With etcd away, the target learns of the split by the snapshot it starts with.
        let hint = RouteHint { cell: "a".into(), term: 1, ..RouteHint::default() };
        fleet.view.set_route(&Unit::Guild(guild_id).log(), hint);
        fleet.start_cell("b");
        let mut mover = Mover::new(&fleet, guild_id).await;
        mover.warm().await;
        let term = mover.switch().await;
        mover.take_over(term).await;
        let _ = stop.send(());
    };
    let (sent, ()) = tokio::join!(talk, work);
    for client in [&mut alice, &mut bob] {
        for content in &sent {
            assert_eq!(client.event("MESSAGE_CREATE").await["content"], *content, "of {} messages", sent.len());
        }
    }
    let held = first.gateway.hub.get(guild_id).unwrap().position().unwrap();
    assert_eq!(held.log, Unit::Guild(guild_id).log());
    let renamed = first
        .rest(ALICE, "PATCH", &format!("/api/v10/channels/{channel_id}"), Some(serde_json::json!({"name": "moved"})))
        .await;
    assert_eq!(renamed.status, 200, "{}", renamed.body);
    assert_eq!(bob.event("CHANNEL_UPDATE").await["name"], "moved");
}
