//! The server: which services there are, and how it stops.

use std::time::Duration;

use etcd_client::proto::{PbClusterServer, PbKvServer, PbLeaseServer, PbMaintenanceServer, PbWatchServer};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use super::cluster::ClusterService;
use super::kv::KvService;
use super::lease::LeaseService;
use super::maintenance::MaintenanceService;
use super::refusal::unimplemented;
use super::watch::WatchService;
use crate::store::Store;

/// How long open connections may take to end once the server is told to stop.
const STOP_WITHIN: Duration = Duration::from_secs(3);
/// Larger requests are cut off before they are read whole; the store's own bound on transactions is lower and answers properly.
const MAX_MESSAGE: usize = 8 * 1024 * 1024;

/// Why the server ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("read the address of the etcd listener: {0}")]
    Address(std::io::Error),
    #[error("serve the etcd api: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves etcd's API on `listener` until `shutdown` is cancelled, then ends every stream and returns within a few seconds. The store
/// stays open: idle connections may still hold it, so close it by [`Store::close`].
///
/// # Errors
/// [`ServeError`] when the listener cannot be used.
pub async fn serve(store: Store, listener: TcpListener, shutdown: CancellationToken) -> Result<(), ServeError> {
    let address = listener.local_addr().map_err(ServeError::Address)?;
    let kv = PbKvServer::new(KvService { store: store.clone() }).max_decoding_message_size(MAX_MESSAGE);
    let lease = PbLeaseServer::new(LeaseService { store: store.clone(), shutdown: shutdown.clone() });
    let watch = PbWatchServer::new(WatchService { store: store.clone(), shutdown: shutdown.clone() });
    let maintenance = PbMaintenanceServer::new(MaintenanceService { store: store.clone() });
    let cluster = PbClusterServer::new(ClusterService { store, address });
    let routes = Routes::new(kv).add_service(lease).add_service(watch).add_service(maintenance).add_service(cluster);
    let routes = Routes::from(routes.into_axum_router().fallback(refuse));

    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let stopped = shutdown.clone();
    let server = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, stopped.cancelled_owned());
    let overdue = async {
        shutdown.cancelled().await;
        tokio::time::sleep(STOP_WITHIN).await;
    };
    tokio::select! {
        ended = server => Ok(ended?),
        () = overdue => Ok(()),
    }
}

async fn refuse(uri: http::Uri) -> http::Response<tonic::body::Body> {
    unimplemented(&format!("the call {}", uri.path())).into_http()
}
