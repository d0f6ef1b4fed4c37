//! What a migration costs the side that serves: sends to a real data service over an embedded store on disk, one after the other, with no
//! migration and while the log is shipped to a target that is well, that fails every request, and that answers after ten seconds. Every
//! block of sends with a migration has one without right before it, so that both see the same machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use async_trait::async_trait;
use cell_data::driver::{DataServer, DataServerConfig, Stores};
use cell_data::machine::Limits;
use cell_proto::directory::{Member, Migration, Role};
use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    Change, Channel, CreateHeadsRequest, EndCopyRequest, Guild, GuildCreated, Head, Member as GuildMember, Message,
    MessageCreated, Role as GuildRole, ShipRequest, SubmitRequest, User,
};
use cell_runtime::{CancellationToken, Directory, DirectoryConfig, View, unix_ms};
use cell_store::{EmbeddedConfig, EmbeddedStore, Reply, Request, Store, StoreError};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel as Wire, Server};

use crate::fleet::GUILD;
use crate::measure;

/// Sends of a block, and blocks with each target.
const SENDS: usize = 300;
const BLOCKS: usize = 5;
const LATE: Duration = Duration::from_secs(10);
const OWNER: i64 = 7;

/// How the target is.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Well,
    Fails,
    Late,
}

/// The target, which is not always well.
struct Target {
    store: EmbeddedStore,
    mood: AtomicU8,
}

#[async_trait]
impl Store for Target {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        match self.mood.load(Ordering::Relaxed) {
            mood if mood == Mood::Fails as u8 => Err(StoreError::Unavailable("it fails for the benchmark".into())),
            mood if mood == Mood::Late as u8 => {
                tokio::time::sleep(LATE).await;
                self.store.call(request).await
            }
            _ => self.store.call(request).await,
        }
    }
}

struct World {
    directory: Directory,
    target: Arc<Target>,
    client: DataServiceClient<Wire>,
    log: String,
    channel_id: i64,
    operations: u64,
    _folder: tempfile::TempDir,
}

fn engine(folder: &std::path::Path, name: &str) -> anyhow::Result<EmbeddedStore> {
    let config = EmbeddedConfig { data_dir: folder.join(name), storage_cell: name.into(), reserve_bytes: 0 };
    Ok(EmbeddedStore::open(config)?)
}

fn member(address: SocketAddr) -> Member {
    Member {
        id: "data-0".into(),
        role: Role::Data,
        cell: "a".into(),
        storage_cell: "old".into(),
        incarnation: 1,
        grpc_address: address.to_string(),
        http_address: None,
        admin_address: address.to_string(),
        draining: false,
    }
}

impl World {
    async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let source: Arc<dyn Store> = Arc::new(engine(folder.path(), "old")?);
        let target = Arc::new(Target { store: engine(folder.path(), "new")?, mood: AtomicU8::new(Mood::Well as u8) });
        let (old, new) = (source.clone(), target.clone());
        let open = move |name: &str| match name {
            "old" => Ok(old.clone()),
            "new" => Ok(new.clone() as Arc<dyn Store>),
            other => Err(StoreError::Unavailable(format!("no store {other}"))),
        };
        let stores = Stores::new("old", source, Arc::new(open));
        let config = DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/b/".into(), state_dir: None };
        let directory = Directory::with_view(config, View::default());
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = DataServerConfig {
            cell: "a".into(),
            member_id: "data-0".into(),
            address: address.to_string(),
            limits: Limits::default(),
        };
        let mut registry = Registry::default();
        let server =
            DataServer::with_stores(server, stores, directory.clone(), &mut registry, CancellationToken::new());
        tokio::spawn(
            Server::builder()
                .add_service(server.into_service())
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))),
        );
        directory.change(|view| view.set_member(member(address)));
        let wire = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        let (client, log) = (DataServiceClient::new(wire), Unit::bucket(GUILD).log());
        let mut this = Self { directory, target, client, log, channel_id: 0, operations: 0, _folder: folder };
        this.guild().await?;
        Ok(this)
    }

    async fn guild(&mut self) -> anyhow::Result<()> {
        let head = Head { log: self.log.clone(), cell: "a".into(), ..Head::default() };
        let made = self.client.create_heads(CreateHeadsRequest { heads: vec![head] }).await?.into_inner();
        if let Some(refusal) = made.refusal {
            bail!("the head was not made: {refusal:?}");
        }
        let owner = GuildMember { user: Some(user()), ..GuildMember::default() };
        let created = Kind::GuildCreated(GuildCreated {
            guild: Some(Guild { id: GUILD, name: "g".into(), owner_id: OWNER, ..Guild::default() }),
            roles: vec![GuildRole { id: GUILD, name: "@everyone".into(), ..GuildRole::default() }],
            channels: vec![Channel { id: 1, name: "general".into(), ..Channel::default() }],
            owner: Some(owner),
        });
        let Kind::GuildCreated(created) = self.submit(created).await? else { bail!("another change came back") };
        self.channel_id = created.channels.first().context("the guild has no channel")?.id;
        Ok(())
    }

    async fn submit(&mut self, kind: Kind) -> anyhow::Result<Kind> {
        self.operations += 1;
        let request = SubmitRequest {
            log: self.log.clone(),
            operation_id: [[0; 8], self.operations.to_be_bytes()].concat(),
            deadline_unix_ms: unix_ms() + 30_000,
            actor_id: OWNER,
            change: Some(Change { kind: Some(kind) }),
            ..SubmitRequest::default()
        };
        match self.client.submit(request).await?.into_inner().outcome {
            Some(Outcome::Committed(committed)) => {
                committed.entry.and_then(|entry| entry.change?.kind).context("nothing was committed")
            }
            other => bail!("a send was refused: {other:?}"),
        }
    }

    /// The times of so many sends. One that is refused fails the benchmark.
    async fn block(&mut self) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(SENDS);
        for number in 0..SENDS {
            let message = Message {
                channel_id: self.channel_id,
                guild_id: GUILD,
                author: Some(user()),
                content: format!("{number} {}", "m".repeat(80)),
                ..Message::default()
            };
            let began = Instant::now();
            self.submit(Kind::MessageCreated(MessageCreated { message: Some(message) })).await?;
            times.push(began.elapsed());
        }
        Ok(times)
    }

    /// Ships until the copy has everything, or stops and releases it; the target is well meanwhile.
    async fn ship(&mut self, run: usize, on: bool) -> anyhow::Result<()> {
        self.target.mood.store(Mood::Well as u8, Ordering::Relaxed);
        let (run_id, source, target) = (format!("run-{run}"), "old".to_owned(), "new".to_owned());
        let migration = Migration {
            run_id: run_id.clone(),
            source: source.clone(),
            target: target.clone(),
            units: Vec::new(),
            ship: on,
            shadow_per_10000: 0,
        };
        self.directory.change(|view| view.set_migration(migration.clone()));
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            let (log, run_id, source, target) = (self.log.clone(), run_id.clone(), source.clone(), target.clone());
            let done = if on {
                let reply = self.client.ship(ShipRequest { log, run_id, source, target }).await?.into_inner();
                reply.refusal.is_none() && reply.blocked_by.is_empty() && reply.shipped == reply.last
            } else {
                self.client.end_copy(EndCopyRequest { log, run_id, source, target }).await?.into_inner().done
            };
            if done {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the copy was not {} within a minute", if on { "made" } else { "released" })
    }
}

fn user() -> User {
    User { id: OWNER, name: "ann".into(), ..User::default() }
}

/// Runs it.
///
/// # Errors
/// When anything does not start, or a send is refused.
pub async fn run() -> anyhow::Result<()> {
    let mut world = World::start().await?;
    world.block().await?;
    let mut run = 0;
    for (mood, what) in [
        (Mood::Well, "p99 of a send, shipped to a target that is well"),
        (Mood::Fails, "p99 of a send, shipped to a target that fails every request"),
        (Mood::Late, "p99 of a send, shipped to a target that answers after 10 s"),
    ] {
        let (mut alone, mut shipped) = (Vec::new(), Vec::new());
        for _ in 0..BLOCKS {
            alone.extend(world.block().await?);
            run += 1;
            world.ship(run, true).await?;
            world.target.mood.store(mood as u8, Ordering::Relaxed);
            shipped.extend(world.block().await?);
            world.ship(run, false).await?;
        }
        for (percent, name) in [(50, "p50"), (99, "p99")] {
            let (ours, other) = (measure::quantile(&shipped, percent), measure::quantile(&alone, percent));
            let ratio = ours.as_secs_f64() / other.as_secs_f64();
            measure::row(
                &what.replace("p99", name),
                &format!("{ours:.1?}"),
                &format!("{other:.1?} (no migration)"),
                ratio,
            );
        }
    }
    Ok(())
}
