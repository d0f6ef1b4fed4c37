//! The sandbox process. It serves the etcd API and the Kubernetes API and runs the small controllers.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use cell_sandbox::server::{Options, Ready, run};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// An embedded cluster for laptops and tests.
#[derive(Debug, Parser)]
#[command(name = "cell-sandbox", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve both APIs until SIGTERM; prints one line of JSON once ready.
    Serve {
        /// Holds the store, the certificate authority, the token and the kubeconfig.
        #[arg(long)]
        state_dir: PathBuf,
        /// A loopback address.
        #[arg(long, default_value = "127.0.0.1")]
        listen_address: IpAddr,
        /// Port of the etcd API; 0 chooses one.
        #[arg(long, default_value_t = 2379)]
        etcd_port: u16,
        /// Port of the Kubernetes API; 0 chooses one.
        #[arg(long, default_value_t = 6443)]
        kubernetes_port: u16,
        /// Serve the APIs only.
        #[arg(long)]
        no_controllers: bool,
    },
}

fn main() -> ExitCode {
    // An error means a provider is installed already, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,lsm_tree=warn,fjall=warn"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    let Command::Serve { state_dir, listen_address, etcd_port, kubernetes_port, no_controllers } =
        Arguments::parse().command;
    let options = Options { state_dir, listen_address, etcd_port, kubernetes_port, controllers: !no_controllers };
    let served = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(serve(options)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Every error of ours tells its causes itself.
            eprintln!("cell-sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(options: Options) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    run(options, announce, stop).await?;
    Ok(())
}

fn announce(ready: &Ready) {
    let line = serde_json::to_string(ready).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    // A closed stdout means nobody waits for the line.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
