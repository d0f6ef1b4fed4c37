//! The operator: makes a fleet's cells as its resources ask, and drives moves. One process leads; its writes are fenced. It never
//! writes a user's spec, and never touches a head itself.

mod apply;
mod automation;
mod build;
mod context;
mod controllers;
mod directory;
mod error;
mod health;
mod leader;
mod loads;
mod metrics;
mod names;
mod report;
mod rpc;
mod server;

#[cfg(test)]
mod fixtures;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cell_runtime::listen::{self, ListenError};
use cell_runtime::{CancellationToken, Readiness};
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};

use crate::apply::Applier;
use crate::context::{Context, Settings};
use crate::directory::Hub;
use crate::health::{Ages, Health};
use crate::leader::LostLeadership;
use crate::metrics::Metrics;
use crate::server::Door;

/// Longest wait for what runs when the process is asked to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How the operator is run.
#[derive(Clone, Debug)]
pub struct Config {
    /// The fleet's namespace.
    pub namespace: String,
    /// Names this process in the Lease: the Pod's name.
    pub member_id: String,
    /// The address others dial.
    pub address: IpAddr,
    /// Port of the control-plane API; 0 for any.
    pub api_port: u16,
    /// Port of health and metrics; 0 for any.
    pub admin_port: u16,
    /// Endpoints that this process uses in place of `Fleet.spec.etcd.endpoints`; empty for none.
    pub etcd_endpoints: Vec<String>,
    /// The cells' Pods are told to speak plaintext beyond loopback.
    pub cell_plaintext: bool,
}

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Leadership; the process must end at once.
    #[error(transparent)]
    Lost(#[from] LostLeadership),
    /// The kubeconfig.
    #[error("failed to make a Kubernetes client: {0}; check KUBECONFIG or the Pod's service account")]
    Client(String),
    /// A listener failed while serving.
    #[error("failed to serve {what}: {source}")]
    Serve {
        /// Which.
        what: &'static str,
        /// The system's words.
        source: std::io::Error,
    },
}

/// Runs until `shutdown`, or until leadership is lost. `config` is of the Kubernetes API.
///
/// # Errors
/// [`RunError`]. After [`RunError::Lost`] the caller ends the process without waiting for anything.
pub async fn run(config: Config, kubernetes: kube::Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let client = client(kubernetes.clone(), Retries::Default)?;
    let lease_client = self::client(kubernetes, Retries::Never)?;
    let admin = listen::bind(SocketAddr::new(config.address, config.admin_port), "--admin-port").await?;
    let api = listen::bind(SocketAddr::new(config.address, config.api_port), "--api-port").await?;
    let api_address = api.local_addr().map_err(|source| RunError::Serve { what: "the API", source })?;
    let (metrics, registry) = Metrics::new();
    let ages = Arc::new(Ages::default());
    let readiness = Readiness::not_ready("the Kubernetes API has not been reached yet");
    let health = Health {
        readiness: readiness.clone(),
        ages: ages.clone(),
        metrics: metrics.clone(),
        registry: Arc::new(registry),
    };
    let admin = tokio::spawn(health.serve(admin, shutdown.clone()));
    let door = Door::default();
    let served = CancellationToken::new();
    let serving = async {
        let late = async {
            shutdown.cancelled().await;
            tokio::time::sleep(STOP_LIMIT).await;
        };
        let ended = tokio::select! {
            ended = server::serve(door.router(), api, shutdown.clone()) => ended,
            // A client that keeps its connection open does not keep the process.
            () = late => Ok(()),
        };
        served.cancel();
        ended.map_err(|source| RunError::Serve { what: "the API", source })
    };
    let working = async {
        let standing_by = |leader: &str| {
            door.led_by(leader);
            readiness.set_ready();
        };
        let (namespace, id) = (&config.namespace, &config.member_id);
        let keeper = leader::acquire(lease_client, namespace, id, standing_by, shutdown.clone()).await;
        let Some(keeper) = keeper else { return Ok(()) };
        readiness.set_not_ready("the caches are being filled");
        door.led_by(&config.member_id);
        metrics.leader.set(1);
        let leader =
            Leader { leadership: keeper.leadership(), metrics, ages, api_address, readiness, door: door.clone() };
        // The Lease is given up only after everything that writes has stopped.
        let released = CancellationToken::new();
        let lead = lead(&config, client, leader, &shutdown, &served);
        let keep = keeper.keep(released.clone());
        tokio::pin!(lead, keep);
        tokio::select! {
            lost = &mut keep => lost?,
            () = &mut lead => {
                released.cancel();
                keep.await?;
            }
        }
        Ok(())
    };
    // The first that fails ends the process at once.
    tokio::try_join!(serving, working)?;
    admin.abort();
    Ok(())
}

/// What a leader works with.
struct Leader {
    leadership: leader::Leadership,
    metrics: Metrics,
    ages: Arc<Ages>,
    api_address: SocketAddr,
    readiness: Readiness,
    door: Door,
}

/// Runs the controllers and opens the API until `shutdown`; returns when all that writes has stopped, `served` included.
async fn lead(
    config: &Config,
    client: Client,
    leader: Leader,
    shutdown: &CancellationToken,
    served: &CancellationToken,
) {
    let (controllers, stores) = controllers::stores(&client, &config.namespace);
    let settings = Settings {
        namespace: config.namespace.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        control_plane_address: format!("http://{}", leader.api_address),
        cell_plaintext: config.cell_plaintext,
    };
    let reporter = Reporter { controller: names::MANAGER.to_owned(), instance: Some(config.member_id.clone()) };
    // The link outlives the controllers, so that a run's last step can be stored while the process stops.
    let link_stop = CancellationToken::new();
    let context = Arc::new(Context::new(
        Applier::new(client.clone(), &config.namespace, leader.metrics.clone()),
        Recorder::new(client.clone(), reporter),
        Hub::new(leader.leadership, config.etcd_endpoints.clone(), link_stop.clone()),
        stores,
        (leader.metrics, leader.ages),
        settings,
    ));
    let mut tasks = controllers::start(controllers, &context, shutdown);
    tokio::select! {
        () = context.when_filled() => {
            leader.door.open(server::router(context.clone(), client));
            leader.readiness.set_ready();
            tracing::info!(address = %leader.api_address, "serving the control-plane API");
        }
        () = shutdown.cancelled() => {}
    }
    shutdown.cancelled().await;
    let drained = tokio::time::timeout(STOP_LIMIT, async {
        served.cancelled().await;
        while tasks.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        tracing::warn!("reconciles did not end in time and are dropped; their runs go on from what is stored");
    }
    link_stop.cancel();
}

enum Retries {
    Default,
    /// For the Lease: a renewal that is repeated behind our back is worth nothing.
    Never,
}

fn client(mut config: kube::Config, retries: Retries) -> Result<Client, RunError> {
    if matches!(retries, Retries::Never) {
        config.default_retry = false;
        config.connect_timeout = Some(leader::REQUEST_TIMEOUT);
        config.read_timeout = Some(leader::REQUEST_TIMEOUT);
        config.write_timeout = Some(leader::REQUEST_TIMEOUT);
    }
    Client::try_from(config).map_err(|error| RunError::Client(error.to_string()))
}
