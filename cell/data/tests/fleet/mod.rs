//! A small fleet in one process for tests: an embedded store behind gRPC, data services each on a runtime of its own so that one can be
//! killed, and a directory without etcd.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cell_data::driver::{DataServer, DataServerConfig, Stores};
use cell_data::machine::Limits;
use cell_proto::directory::{Member, Role};
use cell_proto::unit::{Unit, user_id_of_name};
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    Change, Channel, Committed, CreateHeadsRequest, Guild, GuildCreated, Head, Member as GuildMember, Message,
    MessageCreated, Refusal, Role as GuildRole, SubmitRequest, User,
};
use cell_runtime::{CancellationToken, Channels, Directory, DirectoryConfig, View, unix_ms};
use cell_store::{EmbeddedConfig, EmbeddedStore, RemoteStore, StoreServer};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel as Wire, Server};

pub struct Fleet {
    pub directory: Directory,
    pub store: Arc<EmbeddedStore>,
    pub store_address: String,
    _folder: tempfile::TempDir,
    operations: AtomicU64,
}

pub struct Data {
    pub id: String,
    pub address: String,
    pub shutdown: CancellationToken,
    runtime: Option<Runtime>,
    directory: Directory,
    registry: Arc<OnceLock<Registry>>,
    server: Arc<OnceLock<DataServer>>,
}

impl Data {
    /// As SIGKILL does: nothing is finished, and the lease lapses.
    pub fn kill(mut self) {
        self.directory.change(|view| view.remove_member(&self.id));
        self.runtime.take().unwrap().shutdown_background();
    }

    /// Looks dead to everybody, and goes on.
    pub fn vanish(&self) {
        self.directory.change(|view| view.remove_member(&self.id));
    }

    /// As when its lease has lapsed: it reads its heads.
    pub fn recheck(&self) {
        self.server.get().unwrap().recheck();
    }

    /// As its timer does: it keeps the copies that the directory wants.
    pub fn tend_copies(&self) {
        self.server.get().unwrap().tend_copies();
    }

    /// A counter's value.
    pub async fn metric(&self, name: &str) -> f64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, self.registry.get().unwrap()).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub async fn client(&self) -> DataServiceClient<Wire> {
        DataServiceClient::connect(format!("http://{}", self.address)).await.unwrap()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fleet {
    pub async fn start() -> Self {
        if std::env::var_os("RUST_LOG").is_some() {
            cell_runtime::telemetry::init(cell_runtime::telemetry::LogFormat::Text);
        }
        let folder = tempfile::tempdir().unwrap();
        let config =
            EmbeddedConfig { data_dir: folder.path().join("store"), storage_cell: "main".into(), reserve_bytes: 0 };
        let store = Arc::new(EmbeddedStore::open(config).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let store_address = listener.local_addr().unwrap().to_string();
        let service = StoreServer::new(store.clone(), &mut Registry::default()).into_service();
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))),
        );
        let config = DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir: None };
        let directory = Directory::with_view(config, View::default());
        Self { directory, store, store_address, _folder: folder, operations: AtomicU64::new(1) }
    }

    pub async fn data(&self, cell: &str, id: &str) -> Data {
        self.data_with(cell, id, Limits::default()).await
    }

    pub async fn data_with(&self, cell: &str, id: &str, limits: Limits) -> Data {
        let store = RemoteStore::at(&self.store_address, Arc::new(Channels::default()));
        self.data_on(cell, id, limits, Stores::single(Arc::new(store))).await
    }

    pub async fn data_on(&self, cell: &str, id: &str, limits: Limits, stores: Stores) -> Data {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let shutdown = CancellationToken::new();
        let config = DataServerConfig { cell: cell.into(), member_id: id.into(), address: address.clone(), limits };
        let (directory, token) = (self.directory.clone(), shutdown.clone());
        let (registry, server) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let (filled, started) = (registry.clone(), server.clone());
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let mut metrics = Registry::default();
            let server = DataServer::with_stores(config, stores, directory, &mut metrics, token);
            drop(filled.set(metrics));
            drop(started.set(server.clone()));
            let served = Server::builder().add_service(server.into_service());
            served.serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))).await.unwrap();
        });
        self.directory.change(|view| view.set_member(member(cell, id, &address)));
        Data {
            id: id.into(),
            address,
            shutdown,
            runtime: Some(runtime),
            directory: self.directory.clone(),
            registry,
            server,
        }
    }

    pub fn operation(&self) -> Vec<u8> {
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        [0_u64.to_be_bytes(), number.to_be_bytes()].concat()
    }

    pub fn request(&self, log: &str, kind: Kind) -> SubmitRequest {
        SubmitRequest {
            log: log.into(),
            operation_id: self.operation(),
            deadline_unix_ms: unix_ms() + 30_000,
            actor_id: 7,
            change: Some(Change { kind: Some(kind) }),
            ..SubmitRequest::default()
        }
    }
}

fn member(cell: &str, id: &str, address: &str) -> Member {
    Member {
        id: id.into(),
        role: Role::Data,
        cell: cell.into(),
        storage_cell: "main".into(),
        incarnation: 1,
        grpc_address: address.into(),
        http_address: None,
        admin_address: "127.0.0.1:1".into(),
        draining: false,
    }
}

pub async fn create_head(client: &mut DataServiceClient<Wire>, log: &str, cell: &str) {
    let head = Head { log: log.into(), cell: cell.into(), ..Head::default() };
    let reply = client.create_heads(CreateHeadsRequest { heads: vec![head] }).await.unwrap().into_inner();
    assert_eq!(reply.refusal, None);
}

pub async fn submit(client: &mut DataServiceClient<Wire>, request: SubmitRequest) -> Result<Committed, Refusal> {
    match client.submit(request).await.unwrap().into_inner().outcome.unwrap() {
        Outcome::Committed(committed) => Ok(committed),
        Outcome::Refusal(refusal) => Err(refusal),
    }
}

/// Submits until it is committed; each retry keeps the operation id.
pub async fn insist(client: &mut DataServiceClient<Wire>, request: SubmitRequest) -> Committed {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match submit(client, request.clone()).await {
            Ok(committed) => return committed,
            Err(refusal) => {
                assert!(refusal.why().is_retryable(), "{refusal:?}");
                assert!(tokio::time::Instant::now() < deadline, "{refusal:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

pub fn user(name: &str) -> User {
    User { id: user_id_of_name("user", name), name: name.into(), ..User::default() }
}

pub const GUILD: i64 = 81_384_788_765_712_384;

pub fn bucket_log() -> String {
    Unit::bucket(GUILD).log()
}

pub fn guild_created() -> Kind {
    let owner = user("ann");
    Kind::GuildCreated(GuildCreated {
        guild: Some(Guild { id: GUILD, name: "g".into(), owner_id: owner.id, ..Guild::default() }),
        roles: vec![GuildRole { id: GUILD, name: "@everyone".into(), ..GuildRole::default() }],
        channels: vec![Channel { id: 1, name: "general".into(), ..Channel::default() }],
        owner: Some(GuildMember { user: Some(owner), ..GuildMember::default() }),
    })
}

pub fn message(channel_id: i64, content: &str) -> Kind {
    Kind::MessageCreated(MessageCreated {
        message: Some(Message {
            channel_id,
            guild_id: GUILD,
            author: Some(user("ann")),
            content: content.into(),
            ..Message::default()
        }),
    })
}

/// Creates the guild; answers its first channel.
pub async fn create_guild(fleet: &Fleet, client: &mut DataServiceClient<Wire>) -> i64 {
    let committed = insist(client, fleet.request(&bucket_log(), guild_created())).await;
    match committed.entry.unwrap().change.unwrap().kind.unwrap() {
        Kind::GuildCreated(created) => created.channels[0].id,
        other => panic!("{other:?}"),
    }
}
