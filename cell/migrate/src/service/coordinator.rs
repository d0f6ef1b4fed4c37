//! The coordinator: serves MigrateService over the desk, registers as role `migrate`, and ends when told or when its ledger failed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::directory::{Member, Role};
use cell_proto::unit::Unit;
use cell_proto::v1::migrate_service_server::{MigrateService, MigrateServiceServer};
use cell_proto::v1::{
    LeaseReply, LeaseRequest, MigrateControlRequest, MigrateState, RangeReport, RangeRow, RangesReply, RangesRequest,
    Reason, Refusal, ReportReply,
};
use cell_runtime::{Admin, CancellationToken, Directory, Readiness, listen};
use cell_store::schema::Schema;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::{Place, ServiceError, wire};
use crate::desk::{Desk, DeskError, Leases};
use crate::ledger::Ledger;
use crate::ranges::{Control, LaneName, Settings};
use crate::stream::unit::is_enumerated;

/// Ranges each table is cut into.
const PIECES: u64 = 256;
/// And those whose partitions are named by the units: so many are newest first side by side.
const UNIT_PIECES: u64 = 16;
/// What a worker waits when there is nothing to do.
const ASK_AGAIN_MS: u32 = 500;

/// What `cell migrate coordinator` is told.
#[derive(Clone, Debug)]
pub struct CoordinatorConfig {
    /// Of the process.
    pub place: Place,
    /// Folder of the ledger.
    pub state_dir: PathBuf,
    /// StorageCell that is read.
    pub source: String,
    /// StorageCell that is written.
    pub target: String,
    /// Bucket units; empty: all.
    pub units: Vec<String>,
}

/// Opens the ledger of a run in a folder.
///
/// # Errors
/// [`ServiceError`].
pub fn open_desk(config: &CoordinatorConfig) -> Result<Desk, ServiceError> {
    for unit in &config.units {
        match unit.parse::<Unit>() {
            Ok(Unit::Bucket(_)) => {}
            Ok(Unit::Guild(_)) => {
                return Err(ServiceError::Unit(format!("{unit} is a guild; name its bucket, its guilds go with it")));
            }
            Err(error) => return Err(ServiceError::Unit(error.to_string())),
        }
    }
    std::fs::create_dir_all(&config.state_dir)
        .map_err(|error| ServiceError::Folder(config.state_dir.clone(), error))?;
    // Source and target change places at a cutover; what a run is about is its id and its units.
    let identity = [("run", config.place.run_id.clone()), ("units", config.units.join(","))];
    let name: String =
        config.place.run_id.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
    let ledger =
        Ledger::open(&config.state_dir.join(format!("migration-{name}.sqlite")), &identity).map_err(DeskError::from)?;
    let lane = |name: &str| {
        let pieces = if is_enumerated(name, config.units.len()) { UNIT_PIECES } else { PIECES };
        (LaneName { table: name.to_owned(), unit: String::new() }, pieces)
    };
    let lanes = Schema::platform().tables().map(|table| lane(&table.name)).collect();
    Ok(Desk::open(ledger, Settings::standard(&config.place.run_id), lanes)?)
}

/// MigrateService.
#[derive(Clone)]
pub struct Coordinator {
    desk: Desk,
    run_id: String,
    units: String,
    broken: CancellationToken,
}

impl Coordinator {
    /// Over a desk; `broken` is cancelled when the ledger failed.
    pub fn new(desk: Desk, config: &CoordinatorConfig, broken: CancellationToken) -> Self {
        Self { desk, run_id: config.place.run_id.clone(), units: config.units.join(","), broken }
    }

    /// As a tonic service.
    pub fn into_service(self) -> MigrateServiceServer<Self> {
        MigrateServiceServer::new(self)
    }

    fn other_run(&self, run_id: &str) -> Option<Refusal> {
        let message = || format!("run_id: this coordinator has run {:?}", self.run_id);
        (run_id != self.run_id).then(|| Refusal::new(Reason::OtherRun, message()))
    }

    fn failed(&self, error: &DeskError) -> Status {
        if !matches!(error, DeskError::Control(_)) {
            tracing::error!(%error, "the ledger failed");
            self.broken.cancel();
        }
        Status::unavailable(error.to_string())
    }
}

#[tonic::async_trait]
impl MigrateService for Coordinator {
    async fn control(&self, request: Request<MigrateControlRequest>) -> Result<Response<MigrateState>, Status> {
        let request = request.into_inner();
        let refused =
            |refusal| MigrateState { refusal: Some(refusal), run_id: self.run_id.clone(), ..MigrateState::default() };
        if let Some(refusal) = self.other_run(&request.run_id) {
            return Ok(Response::new(refused(refusal)));
        }
        if let Some(unit) = request.again.iter().find(|unit| !matches!(unit.parse(), Ok(Unit::Bucket(_)))) {
            let refusal = Refusal::new(Reason::Invalid, format!("again: {unit:?} is no bucket unit"));
            return Ok(Response::new(refused(refusal)));
        }
        // Without a phase it only asks.
        let control = wire::control(request);
        let answered = if control.phase.is_some() { self.desk.control(control).await } else { self.desk.state().await };
        match answered {
            Ok(state) => Ok(Response::new(wire::state(state))),
            Err(DeskError::Control(error)) => {
                Ok(Response::new(refused(Refusal::new(Reason::StaleTerm, error.to_string()))))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    async fn ranges(&self, request: Request<RangesRequest>) -> Result<Response<RangesReply>, Status> {
        let request = request.into_inner();
        if let Some(refusal) = self.other_run(&request.run_id) {
            return Ok(Response::new(RangesReply { refusal: Some(refusal), ..RangesReply::default() }));
        }
        let (rows, next) = self.desk.ranges(&request.after, usize::try_from(request.limit).unwrap_or(0));
        let ranges = rows.into_iter().map(|row| RangeRow {
            table: row.table,
            first_token: row.first_token,
            last_token: row.last_token,
            state: row.state,
            rows: row.rows,
            attempts: row.attempts,
            failure: row.failure,
        });
        Ok(Response::new(RangesReply { ranges: ranges.collect(), next, refusal: None }))
    }

    async fn lease(&self, request: Request<LeaseRequest>) -> Result<Response<LeaseReply>, Status> {
        let request = request.into_inner();
        if let Some(refusal) = self.other_run(&request.run_id) {
            return Ok(Response::new(LeaseReply {
                refusal: Some(refusal),
                ask_again_ms: 5_000,
                ..LeaseReply::default()
            }));
        }
        let worker: String = request.worker.chars().take(253).collect();
        match self.desk.lease(&worker).await {
            Ok(Some(grant)) => Ok(Response::new(wire::grant_to_wire(grant, &self.units))),
            Ok(None) => Ok(Response::new(LeaseReply { ask_again_ms: ASK_AGAIN_MS, ..LeaseReply::default() })),
            Err(error) => Err(self.failed(&error)),
        }
    }

    async fn report(&self, request: Request<RangeReport>) -> Result<Response<ReportReply>, Status> {
        let request = request.into_inner();
        if self.other_run(&request.run_id).is_some() {
            return Ok(Response::new(ReportReply { stop: true, ..ReportReply::default() }));
        }
        match self.desk.report(wire::progress_of_wire(request)).await {
            Ok(verdict) => Ok(Response::new(wire::verdict_to_wire(verdict))),
            Err(error) => Err(self.failed(&error)),
        }
    }
}

/// Serves until `shutdown`.
///
/// # Errors
/// [`ServiceError`].
pub async fn run(config: CoordinatorConfig, shutdown: CancellationToken) -> Result<(), ServiceError> {
    let place = config.place.clone();
    let (grpc, admin) = (
        SocketAddr::new(place.listen_address, place.grpc_port),
        SocketAddr::new(place.listen_address, place.admin_port),
    );
    listen::check_plaintext(grpc, place.plaintext, "--grpc-port")?;
    let desk = open_desk(&config)?;
    // What the run was begun with; the operator may turn it round later.
    if desk.state().await?.round == 0 {
        let (source, target) = (config.source.clone(), config.target.clone());
        desk.control(Control { source, target, ..Control::default() }).await?;
    }
    let (grpc, admin) = (listen::bind(grpc, "--grpc-port").await?, listen::bind(admin, "--admin-port").await?);
    let grpc_port = grpc.local_addr().map_err(ServiceError::Address)?.port();
    let admin_port = admin.local_addr().map_err(ServiceError::Address)?.port();
    let mut registry = Registry::with_prefix("cellplane");
    let gauges = Gauges::new(&mut registry);
    let readiness = Readiness::not_ready("starting");
    let broken = shutdown.child_token();
    tokio::spawn(Admin::new(readiness.clone(), registry).serve(admin, broken.clone()));
    let directory = Directory::start(place.directory.clone(), broken.clone());
    let registration = directory.register(Member {
        id: place.member_id.clone(),
        role: Role::Migrate,
        cell: place.migration.clone(),
        storage_cell: config.target.clone(),
        incarnation: cell_runtime::unix_ms().cast_unsigned(),
        grpc_address: SocketAddr::new(place.address, grpc_port).to_string(),
        http_address: None,
        admin_address: SocketAddr::new(place.address, admin_port).to_string(),
        draining: false,
    });
    readiness.set_ready();
    tracing::info!(migration = %place.migration, run = %place.run_id, grpc_port, "the coordinator serves");
    tokio::spawn(gauges.follow(desk.clone(), broken.clone()));
    let service = Coordinator::new(desk, &config, broken.clone()).into_service();
    let incoming = TcpIncoming::from(grpc).with_nodelay(Some(true));
    let served = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .add_service(service)
        .serve_with_incoming_shutdown(incoming, broken.clone().cancelled_owned());
    let served = tokio::select! {
        served = served => served,
        () = async { broken.cancelled().await; tokio::time::sleep(Duration::from_secs(2)).await } => Ok(()),
    };
    registration.withdraw().await;
    served?;
    if shutdown.is_cancelled() { Ok(()) } else { Err(DeskError::Broken.into()) }
}

/// What a dashboard shows of a run.
struct Gauges {
    done_ppm: Gauge,
    rows: Gauge,
    failed: Gauge,
    redone: Gauge,
}

impl Gauges {
    fn new(registry: &mut Registry) -> Arc<Self> {
        let gauges = Self {
            done_ppm: Gauge::default(),
            rows: Gauge::default(),
            failed: Gauge::default(),
            redone: Gauge::default(),
        };
        registry.register(
            "migration_done_ppm",
            "Parts per million of the token space done in this phase",
            gauges.done_ppm.clone(),
        );
        registry.register("migration_rows", "Rows copied or compared in this phase", gauges.rows.clone());
        registry.register(
            "migration_ranges_failed",
            "Ranges given up in this round; findings name them",
            gauges.failed.clone(),
        );
        registry.register(
            "migration_ranges_redone",
            "Ranges done again because a process ended",
            gauges.redone.clone(),
        );
        Arc::new(gauges)
    }

    async fn follow(self: Arc<Self>, desk: Desk, end: CancellationToken) {
        while tokio::time::timeout(Duration::from_secs(2), end.cancelled()).await.is_err() {
            let Ok(state) = desk.state().await else { return };
            let of = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            self.done_ppm.set(i64::from(state.done_ppm));
            self.rows.set(of(state.counts.rows));
            self.failed.set(i64::from(state.ranges_failed));
            self.redone.set(of(state.counts.redone));
        }
    }
}
