//! Tests of the etcd API with an unmodified client. Those in `behaviour` run against a real etcd too: name its address in
//! CELL_ETCD_ENDPOINT (one that nobody else uses).

mod behaviour;
mod differential;
mod own;
mod watches;

use std::path::Path;
use std::time::Duration;

use etcd_client::{Client, Error};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::serve;
use crate::store::{Store, StoreOptions};

/// A served store in a directory.
struct Server {
    store: Store,
    endpoint: String,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(dir: &Path) -> Self {
        Self::start_with(dir, 1).await
    }

    /// With the shortest lease it grants; an etcd of default settings has two seconds.
    async fn start_with(dir: &Path, min_lease_ttl_seconds: i64) -> Self {
        let options = StoreOptions { auto_compaction: None, min_lease_ttl_seconds, ..StoreOptions::sandbox() };
        let store = Store::open(dir, options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let shutdown = CancellationToken::new();
        let serving = serve(store.clone(), listener, shutdown.clone());
        let task = tokio::spawn(async { serving.await.unwrap() });
        Self { store, endpoint, shutdown, task }
    }

    async fn client(&self) -> Client {
        Client::connect([&self.endpoint], None).await.unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        soon(self.task).await.unwrap();
        self.store.close().await;
    }
}

/// A client to a fresh sandbox, or to the real etcd named by the environment.
struct Fixture {
    client: Client,
    _server: Option<Server>,
    _dir: tempfile::TempDir,
    /// A prefix nobody else uses.
    prefix: String,
}

impl Fixture {
    async fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (client, server) = match std::env::var("CELL_ETCD_ENDPOINT") {
            Ok(endpoint) => (Client::connect([endpoint], None).await.unwrap(), None),
            Err(_) => {
                let server = Server::start(dir.path()).await;
                (server.client().await, Some(server))
            }
        };
        let prefix = format!("{name}-{}/", uuid::Uuid::new_v4());
        Self { client, _server: server, _dir: dir, prefix }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// Waits for something that must come; the deadline is only for the test to end when it does not.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it did not happen within 30 s")
}

/// The status of a refused call.
fn refusal<T>(result: Result<T, Error>) -> (Code, String) {
    match result {
        Err(Error::GRpcStatus(status)) => (status.code(), status.message().to_owned()),
        Err(other) => panic!("not refused by the server: {other}"),
        Ok(_) => panic!("not refused"),
    }
}
