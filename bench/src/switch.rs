//! How long commands are held while a guild with live sessions switches between two cells, there and back. The steps are those of the
//! operator's move, asked for here; the roles are real. The client's view is a burst of sends over each switch, beside the same burst just
//! before it without one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cell_proto::directory::Role;
use cell_proto::unit::Unit;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::{
    AnnounceStandbyRequest, ForgetRequest, InspectRequest, Refusal, Route, SplitGuildRequest, SwitchRequest,
    TakeOverRequest, WarmRequest,
};
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use tonic::transport::Channel;

use crate::crowd::{Beats, Crowd};
use crate::fleet::{Fleet, GUILD, LIMIT};
use crate::measure;
use crate::process::{Gateway, token};

const BURST: u32 = 10;
const SPACING: Duration = Duration::from_millis(3);
const CELLS: [&str; 2] = ["a", "b"];

/// The operator's part.
struct Mover {
    data: [DataServiceClient<Channel>; 2],
    guild: [GuildServiceClient<Channel>; 2],
    addresses: [[String; 2]; 2],
    log: String,
    /// Where the guild is.
    at: usize,
    runs: u64,
}

impl Mover {
    async fn new(fleet: &Fleet) -> anyhow::Result<Self> {
        let data = async |cell| anyhow::Ok(DataServiceClient::new(fleet.channel(Role::Data, cell).await?));
        let guild = async |cell| anyhow::Ok(GuildServiceClient::new(fleet.channel(Role::Guild, cell).await?));
        let addresses = |cell| anyhow::Ok([fleet.address(Role::Data, cell)?, fleet.address(Role::Guild, cell)?]);
        let [a, b] = CELLS;
        let mut this = Self {
            data: [data(a).await?, data(b).await?],
            guild: [guild(a).await?, guild(b).await?],
            addresses: [addresses(a)?, addresses(b)?],
            log: Unit::Guild(GUILD).log(),
            at: 0,
            runs: 0,
        };
        this.split().await?;
        Ok(this)
    }

    async fn split(&mut self) -> anyhow::Result<()> {
        let request =
            SplitGuildRequest { bucket_log: Unit::bucket(GUILD).log(), guild_id: GUILD, run_id: "split".into() };
        let source = &mut self.data[0];
        until_done("split", async || {
            let reply = source.split_guild(request.clone()).await?.into_inner();
            Ok(answer(reply.done, reply.refusal))
        })
        .await
    }

    fn route(&self, to: usize, term: u64) -> Route {
        let [data_address, guild_address] = self.addresses[to].clone();
        Route { log: self.log.clone(), cell: CELLS[to].into(), term, data_address, guild_address }
    }

    /// Everything before the switch; answers the run.
    async fn warm(&mut self) -> anyhow::Result<String> {
        self.runs += 1;
        let (from, to, run_id) = (self.at, 1 - self.at, format!("run-{}", self.runs));
        let request = WarmRequest {
            guild_id: GUILD,
            log: self.log.clone(),
            run_id: run_id.clone(),
            data_address: self.addresses[from][0].clone(),
            bucket_log: Unit::bucket(GUILD).log(),
            term: 0,
        };
        let target = &mut self.guild[to];
        until_done("warm", async || {
            let reply = target.warm(request.clone()).await?.into_inner();
            Ok(answer(reply.ready, reply.refusal))
        })
        .await?;
        let target = Some(self.route(to, 0));
        let announce = AnnounceStandbyRequest { guild_id: GUILD, run_id: run_id.clone(), target };
        self.guild[from].announce_standby(announce).await?;
        Ok(run_id)
    }

    /// The switch and the taking over; answers for how many microseconds the owner held commands.
    async fn switch(&mut self, run_id: &str) -> anyhow::Result<u64> {
        let (from, to) = (self.at, 1 - self.at);
        let inspected = self.data[from].inspect(InspectRequest { log: self.log.clone() }).await?.into_inner();
        let request = SwitchRequest {
            log: self.log.clone(),
            run_id: run_id.into(),
            from_cell: CELLS[from].into(),
            to_cell: CELLS[to].into(),
            expected_term: inspected.head.context("the guild's log has no head")?.term,
            target_guild_address: self.addresses[to][1].clone(),
            guild_id: GUILD,
            hold_limit_ms: 5_000,
            target_data_address: self.addresses[to][0].clone(),
        };
        let reply = self.data[from].switch(request).await?.into_inner();
        if !reply.switched {
            bail!("the switch was refused: {:?}", reply.refusal);
        }
        for (index, claim) in [(to, true), (from, false)] {
            let request = TakeOverRequest {
                guild_id: GUILD,
                log: self.log.clone(),
                run_id: run_id.into(),
                claim,
                route: Some(self.route(to, reply.new_term)),
            };
            let node = &mut self.guild[index];
            until_done("take over", async || {
                let reply = node.take_over(request.clone()).await?.into_inner();
                Ok(answer(reply.done, reply.refusal))
            })
            .await?;
        }
        for node in &mut self.guild {
            node.forget(ForgetRequest { guild_id: GUILD, run_id: run_id.into(), ..ForgetRequest::default() }).await?;
        }
        self.at = to;
        Ok(reply.held_us)
    }
}

fn answer(done: bool, refusal: Option<Refusal>) -> Result<(), String> {
    if done { Ok(()) } else { Err(format!("{refusal:?}")) }
}

/// As the operator does: asks again until it is done, but not for ever.
async fn until_done(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<Result<(), String>, tonic::Status>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        match ask().await? {
            Ok(()) => return Ok(()),
            Err(why) if began.elapsed() > LIMIT => bail!("{what} was not done in time: {why}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Sends one after the other without waiting for answers; answers the longest wait.
async fn burst(gateway: &Gateway, token: &str, channel_id: i64) -> anyhow::Result<Duration> {
    let sends: FuturesUnordered<_> = (0..BURST)
        .map(|number| async move {
            tokio::time::sleep(SPACING * number).await;
            let began = Instant::now();
            gateway.send(token, channel_id).await?;
            anyhow::Ok(began.elapsed())
        })
        .collect();
    let waits: Vec<Duration> = sends.try_collect().await?;
    Ok(waits.into_iter().max().unwrap_or_default())
}

pub async fn run(crowds: &[usize], moves: usize) -> anyhow::Result<()> {
    let fleet = Fleet::start(&CELLS).await?;
    let (users, channel_id) = fleet.populate("a", crowds.iter().copied().max().unwrap_or(1)).await?;
    let gateway = Arc::new(Gateway::start(&fleet, "a", "gateway").await?);
    let token = token(users[0])?;
    gateway.send(&token, channel_id).await?;
    let mut mover = Mover::new(&fleet).await?;
    for sessions in crowds {
        let mut crowd = Crowd::gather(&gateway, &users[..*sessions], false, Beats::Late).await?;
        let (mut held, mut with, mut without, mut sent) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for _ in 0..moves {
            let run_id = mover.warm().await?;
            without.push(burst(&gateway, &token, channel_id).await?);
            let (waited, held_us) = tokio::try_join!(burst(&gateway, &token, channel_id), async {
                tokio::time::sleep(SPACING * 2).await;
                mover.switch(&run_id).await
            })?;
            with.push(waited);
            held.push(Duration::from_micros(held_us));
            sent += 2 * u64::from(BURST);
            crowd.wait_received(sent * *sessions as u64).await?;
        }
        if crowd.lost() > 0 || crowd.received() != sent * *sessions as u64 {
            bail!("{} of {} deliveries, {} sessions lost", crowd.received(), sent * *sessions as u64, crowd.lost());
        }
        let both = |times: &[Duration]| {
            let millis = |percent| measure::quantile(times, percent).as_secs_f64() * 1e3;
            format!("{:.1}/{:.1} ms", millis(50), millis(99))
        };
        let ratio = measure::quantile(&with, 50).as_secs_f64() / measure::quantile(&without, 50).as_secs_f64();
        let name = format!("switch, {sessions} sessions, {moves} moves");
        measure::figure(&format!("{name}, held p50/p99"), &both(&held));
        let peer = format!("{} (no switch)", both(&without));
        measure::row(&format!("{name}, longest send p50/p99"), &both(&with), &peer, ratio);
    }
    Ok(())
}
