//! Real store, data and guild roles on the sandbox's etcd in this process, with one guild and its members, for the benchmarks that need
//! more than a machine. Gateways run in processes of their own (`process`).

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use cell_proto::directory::{Buckets, Role};
use cell_proto::unit::{BUCKETS, Unit, bucket_of};
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    Change, Channel, Committed, CreateHeadsRequest, Guild, GuildCreated, Head, Member, MemberPut, Role as GuildRole,
    SubmitRequest, User, UserCreated, UserGuildAdded,
};
use cell_runtime::{CancellationToken, Directory, DirectoryConfig, RoleConfig, unix_ms};
use cell_sandbox::server::{Options, Ready};
use futures::{StreamExt, TryStreamExt};
use tonic::transport::Channel as Wire;

/// The guild of every benchmark.
pub const GUILD: i64 = 81_384_788_765_712_384;
/// Below which everything is in etcd.
pub const PREFIX: &str = "/cellplane/fleet/";
/// How long anything may take to start.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Where everything listens.
pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Everything that runs in this process.
pub struct Fleet {
    /// What etcd says.
    pub directory: Directory,
    /// `host:port` of etcd.
    pub etcd: String,
    /// Of the sandbox's Kubernetes API.
    pub kubeconfig: PathBuf,
    stop: CancellationToken,
    folder: tempfile::TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Fleet {
    /// Starts the roles of these cells on one StorageCell; nothing is in the store yet.
    pub async fn start(cells: &[&str]) -> anyhow::Result<Self> {
        let (folder, stop) = (tempfile::tempdir()?, CancellationToken::new());
        let ready = sandbox(&folder.path().join("sandbox"), stop.clone()).await?;
        let etcd = ready.etcd.trim_start_matches("http://").to_owned();
        let config = DirectoryConfig { endpoints: vec![etcd.clone()], prefix: PREFIX.into(), state_dir: None };
        let directory = Directory::start(config, stop.clone());
        let this = Self { directory, etcd, kubeconfig: ready.kubeconfig, stop, folder };
        this.store()?;
        for cell in cells {
            this.data(cell)?;
            this.guild(cell)?;
        }
        let wanted = 1 + 2 * cells.len();
        if !this.directory.wait_for(LIMIT, |view| view.members().count() >= wanted).await {
            bail!("the roles did not register in time");
        }
        Ok(this)
    }

    /// A folder of its own for a process.
    pub fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    fn role(&self, cell: &str, member_id: String) -> anyhow::Result<RoleConfig> {
        let state_dir = Some(self.folder(&member_id)?);
        Ok(role_config(
            cell,
            member_id,
            DirectoryConfig { endpoints: vec![self.etcd.clone()], prefix: PREFIX.into(), state_dir },
        ))
    }

    fn store(&self) -> anyhow::Result<()> {
        let role = self.role("main", "main-store-0".into())?;
        let config = cell_store::Config { role, data_dir: self.folder("engine")?, reserve_bytes: 0 };
        tokio::spawn(cell_store::run(config, self.stop.clone()));
        Ok(())
    }

    fn data(&self, cell: &str) -> anyhow::Result<()> {
        let config = cell_data::Config { role: self.role(cell, format!("{cell}-data-0"))?, storage_dir: None };
        tokio::spawn(cell_data::run(config, self.stop.clone()));
        Ok(())
    }

    fn guild(&self, cell: &str) -> anyhow::Result<()> {
        let config = cell_guild::Config {
            role: self.role(cell, format!("{cell}-guild-0"))?,
            drain_grace: Duration::from_secs(1),
            guild_limit: cell_guild::Config::GUILD_LIMIT,
            limits: cell_guild::machine::Limits::default(),
        };
        tokio::spawn(cell_guild::run(config, self.stop.clone()));
        Ok(())
    }

    /// gRPC address of a member.
    pub fn address(&self, role: Role, cell: &str) -> anyhow::Result<String> {
        let view = self.directory.view();
        let member = view.members_of(role, cell).next().with_context(|| format!("cell {cell} has no {role:?}"))?;
        Ok(member.grpc_address.clone())
    }

    /// A channel to a member.
    pub async fn channel(&self, role: Role, cell: &str) -> anyhow::Result<Wire> {
        let address = self.address(role, cell)?;
        Ok(tonic::transport::Endpoint::from_shared(format!("http://{address}"))?.connect().await?)
    }

    /// Gives every bucket to a cell, makes the one head that is needed, and the guild with so many members. Answers the members' ids and
    /// the guild's channel.
    pub async fn populate(&self, cell: &str, members: usize) -> anyhow::Result<(Vec<i64>, i64)> {
        let buckets = Buckets { cells: vec![cell.into()], assignment: vec![0; usize::from(BUCKETS)] };
        let key = self.directory.keys().buckets();
        self.directory.put(&key, serde_json::to_vec(&buckets)?, None).await?;
        let assigned = |view: &cell_runtime::View| view.buckets().cell_of(0).is_some();
        if !self.directory.wait_for(LIMIT, assigned).await {
            bail!("the buckets did not come back from etcd in time");
        }
        let mut client = DataServiceClient::new(self.channel(Role::Data, cell).await?);
        let log = Unit::bucket(GUILD).log();
        let head = Head { log, cell: cell.into(), ..Head::default() };
        let reply = client.create_heads(CreateHeadsRequest { heads: vec![head] }).await?.into_inner();
        if let Some(refusal) = reply.refusal {
            bail!("the head was not made: {refusal:?}");
        }
        // All in the guild's bucket: one log to write, so that thousands are made in seconds.
        let home = bucket_of(GUILD);
        let ids: Vec<i64> = (1_000_000..).filter(|id| bucket_of(*id) == home).take(members.max(1)).collect();
        let committed = submit(&mut client, guild_created(ids[0])).await?;
        let kind = committed.entry.and_then(|entry| entry.change).and_then(|change| change.kind);
        let Some(Kind::GuildCreated(created)) = kind else { bail!("the guild was not made") };
        let channel_id = created.channels.first().context("the guild has no channel")?.id;
        let enter = |id: i64| {
            let mut client = client.clone();
            async move {
                submit(&mut client, Kind::UserCreated(UserCreated { user: Some(user(id)) })).await?;
                if id != ids_owner() {
                    let member = Some(Member { user: Some(user(id)), ..Member::default() });
                    let put = MemberPut { guild_id: GUILD, member, joined: true, ..MemberPut::default() };
                    submit(&mut client, Kind::MemberPut(put)).await?;
                }
                submit(&mut client, Kind::UserGuildAdded(UserGuildAdded { user_id: id, guild_id: GUILD })).await
            }
        };
        futures::stream::iter(ids.clone()).map(enter).buffer_unordered(128).try_collect::<Vec<_>>().await?;
        Ok((ids, channel_id))
    }
}

/// A role of the fleet, on any free ports.
pub fn role_config(cell: &str, member_id: String, directory: DirectoryConfig) -> RoleConfig {
    RoleConfig {
        cell: cell.to_owned(),
        storage_cell: "main".into(),
        member_id,
        address: LOCAL,
        listen_address: LOCAL,
        grpc_port: 0,
        admin_port: 0,
        directory,
        plaintext: false,
    }
}

/// The guild's owner: the first member.
fn ids_owner() -> i64 {
    let home = bucket_of(GUILD);
    (1_000_000..).find(|id| bucket_of(*id) == home).unwrap_or_default()
}

async fn sandbox(state_dir: &Path, stop: CancellationToken) -> anyhow::Result<Ready> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let options = Options {
        state_dir: state_dir.to_owned(),
        listen_address: LOCAL,
        etcd_port: 0,
        kubernetes_port: 0,
        controllers: true,
    };
    let announce = move |ready: &Ready| drop(tell.send(ready.clone()));
    tokio::spawn(async move { cell_sandbox::server::run(options, announce, stop.cancelled_owned()).await });
    tokio::time::timeout(LIMIT, told).await?.context("the sandbox did not start")
}

fn user(id: i64) -> User {
    User { id, name: format!("user{id}"), bot: true, ..User::default() }
}

fn guild_created(owner_id: i64) -> Kind {
    Kind::GuildCreated(GuildCreated {
        guild: Some(Guild { id: GUILD, name: "bench".into(), owner_id, ..Guild::default() }),
        roles: vec![GuildRole {
            id: GUILD,
            name: "@everyone".into(),
            permissions: cell_runtime::policy::bits::DEFAULT_EVERYONE,
            ..GuildRole::default()
        }],
        channels: vec![Channel { id: 1, name: "general".into(), ..Channel::default() }],
        owner: Some(Member { user: Some(user(owner_id)), ..Member::default() }),
    })
}

/// Submits into the guild's bucket until it is committed; each retry keeps the operation id.
async fn submit(client: &mut DataServiceClient<Wire>, kind: Kind) -> anyhow::Result<Committed> {
    let request = SubmitRequest {
        log: Unit::bucket(GUILD).log(),
        operation_id: rand::random::<[u8; 16]>().to_vec(),
        deadline_unix_ms: unix_ms() + 60_000,
        change: Some(Change { kind: Some(kind) }),
        ..SubmitRequest::default()
    };
    loop {
        match client.submit(request.clone()).await?.into_inner().outcome {
            Some(Outcome::Committed(committed)) => return Ok(committed),
            Some(Outcome::Refusal(refusal)) if refusal.why().is_retryable() && unix_ms() < request.deadline_unix_ms => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => bail!("a change was refused: {other:?}"),
        }
    }
}
