//! The program `cell-operator`: flags, logs, signals. Everything else is the library's.

use std::net::IpAddr;
use std::process::ExitCode;

use cell_operator::{Config, RunError, run};
use cell_runtime::CancellationToken;
use cell_runtime::telemetry::{self, LogFormat};
use clap::{Parser, ValueEnum};

/// Reconciles a fleet's resources and drives its moves.
#[derive(Parser, Debug)]
#[command(name = "cell-operator", version)]
struct Flags {
    /// Namespace of the fleet.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,
    /// Names this process in the Lease.
    #[arg(long, env = "POD_NAME", default_value = "cell-operator")]
    member_id: String,
    /// Address that others dial and this process listens on.
    #[arg(long, env = "POD_IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Port of the control-plane API.
    #[arg(long, default_value_t = 8443)]
    api_port: u16,
    /// Port of /livez, /readyz and /metrics.
    #[arg(long, default_value_t = 9090)]
    admin_port: u16,
    /// Endpoints (host:port,…) to use in place of Fleet.spec.etcd.endpoints, where this process reaches etcd by other addresses than
    /// the cells do.
    #[arg(long, value_delimiter = ',')]
    etcd_endpoints: Vec<String>,
    /// The API speaks plain HTTP; needed to serve it beyond loopback until TLS exists.
    #[arg(long)]
    plaintext: bool,
    /// The cells' Pods speak plaintext to each other beyond loopback; give it only where their network is trusted.
    #[arg(long)]
    cell_plaintext: bool,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t = Format::Json)]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Json,
    Text,
}

#[tokio::main]
async fn main() -> ExitCode {
    telemetry::install_tls_provider();
    let flags = Flags::parse();
    let format = match flags.log_format {
        Format::Json => LogFormat::Json,
        Format::Text => LogFormat::Text,
    };
    // The client library calls an API server that is away an error; it is expected to be at times, and whoever asked says so once.
    telemetry::init_at(format, "info,kube_client::client::builder=off");
    match start(flags).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the operator ends");
            // At once: nothing of this process may run on under another leader.
            std::process::exit(1)
        }
    }
}

async fn start(flags: Flags) -> anyhow::Result<()> {
    let api = std::net::SocketAddr::new(flags.address, flags.api_port);
    cell_runtime::listen::check_plaintext(api, flags.plaintext, "--api-port")?;
    let kubernetes = kube::Config::infer().await.map_err(|error| RunError::Client(error.to_string()))?;
    let shutdown = CancellationToken::new();
    tokio::spawn(telemetry::cancel_on_signal(shutdown.clone()));
    let config = Config {
        namespace: flags.namespace,
        member_id: flags.member_id,
        address: flags.address,
        api_port: flags.api_port,
        admin_port: flags.admin_port,
        etcd_endpoints: flags.etcd_endpoints,
        cell_plaintext: flags.cell_plaintext,
    };
    Ok(run(config, kubernetes, shutdown).await?)
}
