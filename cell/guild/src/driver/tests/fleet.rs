//! Data services and guild nodes of a small fleet, each guild node on a runtime of its own so that it can be killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cell_data::driver::{DataServer, DataServerConfig};
use cell_proto::directory::{Buckets, Member, Role};
use cell_proto::unit::{Unit, bucket_of, user_id_of_name};
use cell_proto::v1::change::Kind;
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::submit_reply::Outcome;
use cell_proto::v1::{
    Change, Channel, Committed, CreateHeadsRequest, Guild, GuildCreated, Head, Member as GuildMember, Message,
    MessageCreated, MutateRequest, Refusal, Role as GuildRole, SubmitReply, SubmitRequest, User,
};
use cell_runtime::policy::bits;
use cell_runtime::{CancellationToken, Channels, Directory, DirectoryConfig, View, route, unix_ms};
use cell_store::MemoryStore;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel as Wire, Server};

use crate::driver::data::DataClient;
use crate::driver::node::{Node, NodeParts};
use crate::driver::run;
use crate::machine::Limits;

pub const GUILD: i64 = 81_384_788_765_712_384;

pub struct Fleet {
    pub directory: Directory,
    pub data: DataClient,
    store: Arc<MemoryStore>,
    /// Of the data services, by member id: each can be killed.
    runtimes: Mutex<HashMap<String, Runtime>>,
    operations: AtomicU64,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.runtimes.lock().drain().for_each(|(_, runtime)| runtime.shutdown_background());
    }
}

/// A guild node that dies when dropped.
pub struct GuildNode {
    pub id: String,
    pub address: String,
    directory: Directory,
    runtime: Option<Runtime>,
}

impl GuildNode {
    /// As SIGKILL does; the lease lapses.
    pub fn kill(mut self) {
        self.directory.change(|view| view.remove_member(&self.id));
        self.runtime.take().unwrap().shutdown_background();
    }

    pub async fn client(&self) -> GuildServiceClient<Wire> {
        GuildServiceClient::connect(format!("http://{}", self.address)).await.unwrap()
    }
}

impl Drop for GuildNode {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub fn member(role: Role, cell: &str, id: &str, address: &str) -> Member {
    Member {
        id: id.into(),
        role,
        cell: cell.into(),
        storage_cell: "main".into(),
        incarnation: 1,
        grpc_address: address.into(),
        http_address: None,
        admin_address: "127.0.0.1:1".into(),
        draining: false,
    }
}

fn new_runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub fn user(name: &str) -> User {
    User { id: user_id_of_name("user", name), name: name.into(), ..User::default() }
}

pub fn log() -> String {
    Unit::bucket(GUILD).log()
}

impl Fleet {
    /// Cells `a` and `b` with a data service each; every bucket is in `a`.
    pub async fn start() -> Self {
        let config = DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir: None };
        let directory = Directory::with_view(config, View::default());
        let buckets = Buckets { cells: vec!["a".into(), "b".into()], assignment: vec![0; 4096] };
        directory.change(|view| view.set_buckets(buckets));
        let data = DataClient::new(directory.clone(), Arc::new(Channels::default()), "test".into());
        let fleet =
            Self { directory, data, store: Arc::default(), runtimes: Mutex::default(), operations: AtomicU64::new(1) };
        fleet.data_service("a", "a-data-0");
        fleet.data_service("b", "b-data-0");
        let mut client = fleet.data_client("a").await;
        let names = ["ann", "bob", "cleo"].map(|name| bucket_of(user(name).id));
        let buckets = names.into_iter().chain([bucket_of(GUILD)]);
        let head = |bucket| Head { log: Unit::Bucket(bucket).log(), cell: "a".into(), ..Head::default() };
        let request = CreateHeadsRequest { heads: buckets.map(head).collect() };
        assert_eq!(client.create_heads(request).await.unwrap().into_inner().refusal, None);
        fleet
    }

    pub fn data_service(&self, cell: &str, id: &str) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let config = DataServerConfig {
            cell: cell.into(),
            member_id: id.into(),
            address: address.clone(),
            limits: cell_data::machine::Limits::default(),
        };
        let (store, directory) = (self.store.clone(), self.directory.clone());
        let runtime = new_runtime();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let server = DataServer::new(config, store, directory, &mut Registry::default(), CancellationToken::new());
            let served = Server::builder().tcp_nodelay(true).add_service(server.into_service());
            served.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        self.runtimes.lock().insert(id.into(), runtime);
        self.directory.change(|view| view.set_member(member(Role::Data, cell, id, &address)));
    }

    /// As SIGKILL does; the lease lapses.
    pub fn kill_data(&self, id: &str) {
        self.directory.change(|view| view.remove_member(id));
        self.runtimes.lock().remove(id).unwrap().shutdown_background();
    }

    pub async fn data_client(&self, cell: &str) -> DataServiceClient<Wire> {
        let address = self.data_address(cell);
        DataServiceClient::connect(format!("http://{address}")).await.unwrap()
    }

    pub fn data_address(&self, cell: &str) -> String {
        self.directory.view().member(&format!("{cell}-data-0")).unwrap().grpc_address.clone()
    }

    pub fn guild_node(&self, cell: &str, id: &str) -> GuildNode {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let runtime = new_runtime();
        let parts = NodeParts {
            member_id: id.into(),
            incarnation: 1,
            limits: Limits::default(),
            guild_limit: 100,
            directory: self.directory.clone(),
            channels: Arc::new(Channels::default()),
        };
        runtime.spawn(async move {
            let node = Node::new(parts);
            tokio::spawn(run::recheck(node.clone(), CancellationToken::new()));
            run::serve(node, TcpListener::from_std(listener).unwrap(), CancellationToken::new()).await.unwrap();
        });
        self.directory.change(|view| view.set_member(member(Role::Guild, cell, id, &address)));
        GuildNode { id: id.into(), address, directory: self.directory.clone(), runtime: Some(runtime) }
    }

    /// The node that should own the guild, as far as the directory knows.
    pub fn winner(&self) -> Option<String> {
        let view = self.directory.view();
        let log = route::unit_of_guild(&view, GUILD).log();
        route::guild_member(&view, &log, GUILD).map(|member| member.grpc_address.clone())
    }

    pub fn operation(&self) -> Vec<u8> {
        u128::from(self.operations.fetch_add(1, Ordering::Relaxed)).to_be_bytes().to_vec()
    }

    /// Submits as a gateway does: follows redirects, waits, keeps the operation id.
    pub async fn submit(&self, kind: Kind) -> Committed {
        let request = SubmitRequest {
            log: route::unit_of_guild(&self.directory.view(), GUILD).log(),
            operation_id: self.operation(),
            deadline_unix_ms: unix_ms() + 20_000,
            actor_id: user("ann").id,
            change: Some(Change { kind: Some(kind) }),
            ..SubmitRequest::default()
        };
        committed(self.data.submit(request).await).unwrap()
    }

    /// Ann's guild with one channel, whose id is given.
    pub async fn create_guild(&self) -> i64 {
        let owner = user("ann");
        let everyone = GuildRole {
            id: GUILD,
            name: "@everyone".into(),
            permissions: bits::DEFAULT_EVERYONE,
            ..GuildRole::default()
        };
        let created = GuildCreated {
            guild: Some(Guild { id: GUILD, name: "guild".into(), owner_id: owner.id, ..Guild::default() }),
            roles: vec![everyone],
            channels: vec![Channel { name: "general".into(), ..Channel::default() }],
            owner: Some(GuildMember { user: Some(owner), ..GuildMember::default() }),
        };
        let committed = self.submit(Kind::GuildCreated(created)).await;
        match committed.entry.unwrap().change.unwrap().kind.unwrap() {
            Kind::GuildCreated(created) => created.channels[0].id,
            other => panic!("{other:?}"),
        }
    }

    pub async fn say(&self, channel_id: i64, content: &str) {
        let message = Message {
            channel_id,
            guild_id: GUILD,
            author: Some(user("ann")),
            content: content.into(),
            ..Message::default()
        };
        self.submit(Kind::MessageCreated(MessageCreated { message: Some(message) })).await;
    }

    /// Asks the guild's owner for a structural change, following redirects until it is judged.
    pub async fn mutate(&self, actor: &User, kind: Kind) -> Result<Committed, Refusal> {
        let request = MutateRequest {
            guild_id: GUILD,
            log: String::new(),
            operation_id: self.operation(),
            deadline_unix_ms: unix_ms() + 20_000,
            actor_id: actor.id,
            change: Some(Change { kind: Some(kind) }),
        };
        loop {
            let address = self.winner().unwrap();
            let mut client = GuildServiceClient::connect(format!("http://{address}")).await.unwrap();
            match committed(client.mutate(request.clone()).await.unwrap().into_inner()) {
                Err(refusal) if refusal.why().is_retryable() && unix_ms() < request.deadline_unix_ms => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Waits until a user's own list of guilds says so.
    pub async fn wait_listed(&self, user: &User, listed: bool) {
        eventually(|| async { self.data.user_guilds(user.id).await.unwrap().contains(&GUILD) == listed }).await;
    }
}

pub fn committed(reply: SubmitReply) -> Result<Committed, Refusal> {
    match reply.outcome.unwrap() {
        Outcome::Committed(committed) => Ok(committed),
        Outcome::Refusal(refusal) => Err(refusal),
    }
}

/// Waits for a condition, at most 20 s.
pub async fn eventually<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), holds).await.expect("the condition holds in time");
}
