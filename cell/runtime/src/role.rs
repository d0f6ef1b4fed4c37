//! What every role is told and how every role starts and ends: ports, the directory, the admin port, the registration, the way out.
//! It decides nothing of what a role serves.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::{Member, Role};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};

use crate::admin::{Admin, Readiness};
use crate::directory::{Directory, DirectoryConfig, Registration};
use crate::listen::{self, ListenError};

/// How long a first view of the directory may take before the log says that the role waits for it.
const DIRECTORY_WAIT: Duration = Duration::from_secs(30);
/// How long streams that never end may hold the end up once everything else is done.
const STREAM_GRACE: Duration = Duration::from_secs(1);

/// What every role is told by its flags.
#[derive(Clone, Debug)]
pub struct RoleConfig {
    /// The cell it serves; the StorageCell's own name for a store.
    pub cell: String,
    /// The StorageCell its cell is on.
    pub storage_cell: String,
    /// Unique in the fleet and stable across restarts: the Pod's name.
    pub member_id: String,
    /// What others dial.
    pub address: IpAddr,
    /// What is listened on.
    pub listen_address: IpAddr,
    /// Port of the gRPC services; 0: any free one, registered as found.
    pub grpc_port: u16,
    /// Port of `/livez`, `/readyz` and `/metrics`; 0: any free one.
    pub admin_port: u16,
    /// Where etcd and the snapshot are.
    pub directory: DirectoryConfig,
    /// Listening beyond loopback without TLS was agreed to.
    pub plaintext: bool,
}

/// Why any role could not run.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    /// A port could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The gRPC server failed.
    #[error("failed to serve gRPC: {0}")]
    Serve(#[from] tonic::transport::Error),
}

impl RoleConfig {
    /// Opens one of the role's ports. The flag is named when that fails.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn listen(&self, port: u16, flag: &str) -> Result<TcpListener, ListenError> {
        let address = SocketAddr::new(self.listen_address, port);
        listen::check_plaintext(address, self.plaintext, flag)?;
        listen::bind(address, flag).await
    }

    /// What others dial to reach an open port.
    ///
    /// # Errors
    /// [`ListenError`] when the system does not say which port it gave.
    pub fn reached_at(&self, listener: &TcpListener, flag: &str) -> Result<String, ListenError> {
        let local = listener.local_addr().map_err(|source| ListenError::Bind {
            address: SocketAddr::new(self.listen_address, 0),
            flag: flag.to_owned(),
            source,
        })?;
        Ok(SocketAddr::new(self.address, local.port()).to_string())
    }

    /// Opens the ports every role has and begins to read the directory. Nobody is told of the process yet.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn open(&self, role: Role) -> Result<Opened, ListenError> {
        let grpc = self.listen(self.grpc_port, "--grpc-port").await?;
        let admin = self.listen(self.admin_port, "--admin-port").await?;
        let member = Member {
            id: self.member_id.clone(),
            role,
            cell: self.cell.clone(),
            storage_cell: self.storage_cell.clone(),
            incarnation: crate::clock::unix_us().cast_unsigned(),
            grpc_address: self.reached_at(&grpc, "--grpc-port")?,
            http_address: None,
            admin_address: self.reached_at(&admin, "--admin-port")?,
            draining: false,
        };
        let end = CancellationToken::new();
        let directory = Directory::start(self.directory.clone(), end.clone());
        Ok(Opened { grpc, admin, member, directory, ends: end.clone().drop_guard(), end })
    }
}

/// A process with open ports that nobody knows of.
pub struct Opened {
    /// For [`serve_grpc`].
    pub grpc: TcpListener,
    /// What is registered by [`Process::register`].
    pub member: Member,
    /// Being read.
    pub directory: Directory,
    /// Cancelled after the drain, which needs the directory and the services: they outlive the signal.
    pub end: CancellationToken,
    admin: TcpListener,
    ends: DropGuard,
}

impl Opened {
    /// Serves the admin port, not ready yet; the gRPC listener is the role's to serve.
    pub fn start(self, registry: Registry) -> (Process, TcpListener) {
        let readiness = Readiness::not_ready("the directory has not been read yet");
        tokio::spawn(Admin::new(readiness.clone(), registry).serve(self.admin, self.end.clone()));
        let Self { member, directory, end, ends, grpc, .. } = self;
        (Process { member, directory, end, readiness, _ends: ends }, grpc)
    }
}

/// A process whose admin port answers.
pub struct Process {
    /// What is registered.
    pub member: Member,
    /// Kept fresh until the end.
    pub directory: Directory,
    /// Cancelled by [`Registered::finish`], or when this is dropped.
    pub end: CancellationToken,
    readiness: Readiness,
    _ends: DropGuard,
}

impl Process {
    /// Waits until the directory was read or its snapshot was found; false when `shutdown` came first.
    pub async fn wait_for_directory(&self, shutdown: &CancellationToken) -> bool {
        let usable = async {
            while !self.directory.wait_usable(DIRECTORY_WAIT).await {
                tracing::warn!("etcd is away and there is no snapshot of the directory; waiting for either");
            }
        };
        tokio::select! {
            () = usable => true,
            () = shutdown.cancelled() => false,
        }
    }

    /// Tells everyone of this process: it serves from here on.
    pub fn register(self) -> Registered {
        let registration = Arc::new(self.directory.register(self.member.clone()));
        self.readiness.set_ready();
        let Member { id, role, cell, grpc_address, .. } = &self.member;
        tracing::info!(%cell, member_id = %id, role = role.label(), %grpc_address, "the role serves");
        Registered { process: self, registration }
    }
}

/// A process that others know of.
pub struct Registered {
    /// Held under a lease.
    pub registration: Arc<Registration>,
    process: Process,
}

impl Registered {
    /// Says to everyone that this process is finishing; what it has is drained next.
    pub fn set_draining(&self) {
        self.registration.set_draining();
        self.process.readiness.set_not_ready("draining");
    }

    /// Ends what outlived the drain and withdraws the registration.
    pub async fn finish(self) {
        self.process.end.cancel();
        self.registration.withdraw().await;
    }
}

/// A gRPC server as every role has it: dead peers are found by pings, small frames go at once.
pub fn grpc_server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .max_concurrent_streams(Some(100_000))
        .initial_stream_window_size(Some(1 << 20))
        .initial_connection_window_size(Some(8 << 20))
}

/// Serves until `end`; streams that do not end by themselves are cut a moment later.
///
/// # Errors
/// The server's.
pub async fn serve_grpc(
    services: Router,
    listener: TcpListener,
    end: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let serve = services.serve_with_incoming_shutdown(incoming, end.clone().cancelled_owned());
    let cut = async {
        end.cancelled().await;
        tokio::time::sleep(STREAM_GRACE).await;
    };
    tokio::select! {
        served = serve => served,
        () = cut => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RoleConfig {
        RoleConfig {
            cell: "a".into(),
            storage_cell: "main".into(),
            member_id: "a-data-0".into(),
            address: IpAddr::from([127, 0, 0, 1]),
            listen_address: IpAddr::from([127, 0, 0, 1]),
            grpc_port: 0,
            admin_port: 0,
            directory: DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir: None },
            plaintext: false,
        }
    }

    #[tokio::test]
    async fn a_start_that_cannot_work_names_the_flag() {
        let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = held.local_addr().unwrap().port();
        let error = RoleConfig { grpc_port: port, ..config() }.open(Role::Data).await.err().unwrap();
        assert!(error.to_string().contains("--grpc-port"), "{error}");
        let error = RoleConfig { admin_port: port, ..config() }.open(Role::Data).await.err().unwrap();
        assert!(error.to_string().contains("--admin-port"), "{error}");
        let outside = RoleConfig { listen_address: IpAddr::from([0, 0, 0, 0]), ..config() };
        let error = outside.open(Role::Data).await.err().unwrap();
        assert!(error.to_string().contains("--plaintext"), "{error}");
    }

    #[tokio::test]
    async fn a_process_that_waits_for_the_directory_stops_when_told() {
        let (process, _grpc) = config().open(Role::Data).await.unwrap().start(Registry::default());
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        assert!(!process.wait_for_directory(&shutdown).await);
        assert!(!process.readiness.is_ready());
        let registered = process.register();
        assert!(registered.process.readiness.is_ready());
        registered.set_draining();
        assert!(!registered.process.readiness.is_ready());
        let end = registered.process.end.clone();
        registered.finish().await;
        assert!(end.is_cancelled());
    }
}
