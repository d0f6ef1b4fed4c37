//! The sandbox process. It serves the etcd API and the Kubernetes API and runs the small controllers.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use cell_sandbox::faults::control::Ask;
use cell_sandbox::faults::rule::Rule;
use cell_sandbox::server::{Options, Ready, run};
use cell_sandbox::{copies, faults};
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
    /// Write everything the sandbox holds (objects and etcd keys, not the volumes of its Pods) to a file, while it runs or not.
    Backup {
        /// The sandbox's state directory.
        #[arg(long)]
        state_dir: PathBuf,
        /// Replace the file, if there is one.
        #[arg(long)]
        overwrite: bool,
        /// The file; it will hold Secrets, so only its owner may read it.
        file: PathBuf,
    },
    /// Make a stopped or new sandbox hold what a backup does. Its clients are told to list anew.
    Restore {
        /// The sandbox's state directory.
        #[arg(long)]
        state_dir: PathBuf,
        /// Replace everything the sandbox holds now.
        #[arg(long)]
        overwrite: bool,
        /// The file.
        file: PathBuf,
    },
    /// A proxy in front of a Kubernetes API server, this sandbox's or any, that makes it behave badly by rule and by seed.
    #[command(subcommand)]
    Faults(FaultsCommand),
}

/// Where the proxy keeps its kubeconfig and authority.
#[derive(Debug, clap::Args)]
struct Where {
    /// The proxy's state directory.
    #[arg(long)]
    state_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
enum FaultsCommand {
    /// Serve until SIGTERM; prints one line of JSON once ready. Clients use the kubeconfig in its state directory.
    Serve {
        #[command(flatten)]
        place: Where,
        /// How to reach the server behind it.
        #[arg(long)]
        kubeconfig: PathBuf,
        /// A loopback address.
        #[arg(long, default_value = "127.0.0.1")]
        listen_address: IpAddr,
        /// 0 chooses one.
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// The same seed gives the same faults.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// A rule to begin with; repeatable. For example `refuse=409,verb=update,resource=pods,share=0.2,limit=3`.
        #[arg(long = "rule", value_name = "RULE")]
        rules: Vec<Rule>,
    },
    /// List the rules of a running proxy and what they did.
    List {
        #[command(flatten)]
        place: Where,
    },
    /// Add rules to a running proxy.
    Add {
        #[command(flatten)]
        place: Where,
        /// The rules.
        #[arg(required = true)]
        rules: Vec<Rule>,
    },
    /// Remove one rule of a running proxy, or all.
    Clear {
        #[command(flatten)]
        place: Where,
        /// The rule's number.
        #[arg(long)]
        id: Option<u64>,
    },
}

fn main() -> ExitCode {
    // An error means a provider is installed already, which is as good.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,lsm_tree=warn,fjall=warn"));
    // Standard error is a file on a disk that may be full: a line that cannot be written is lost, and must not end whoever wrote it.
    let logs = tracing_subscriber::fmt().json().with_env_filter(filter).log_internal_errors(false);
    logs.with_writer(std::io::stderr).init();
    let done = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(obey(Arguments::parse().command)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Every error of ours tells its causes itself.
            eprintln!("cell-sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn obey(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve { state_dir, listen_address, etcd_port, kubernetes_port, no_controllers } => {
            let controllers = !no_controllers;
            serve(Options { state_dir, listen_address, etcd_port, kubernetes_port, controllers }).await
        }
        Command::Backup { state_dir, overwrite, file } => say(&copies::backup(&state_dir, &file, overwrite).await?),
        Command::Restore { state_dir, overwrite, file } => say(&copies::restore(&state_dir, &file, overwrite)?),
        Command::Faults(command) => faults(command).await,
    }
}

async fn faults(command: FaultsCommand) -> anyhow::Result<()> {
    let (place, ask) = match command {
        FaultsCommand::Serve { place, kubeconfig, listen_address, port, seed, rules } => {
            let stop = signalled()?;
            let listen = SocketAddr::new(listen_address, port);
            let proxy = faults::proxy::serve(&kubeconfig, &place.state_dir, listen, seed).await?;
            proxy.faults().add(rules).map_err(anyhow::Error::msg)?;
            say(&serde_json::json!({
                "ready": true, "kubernetes": format!("https://{}", proxy.address), "kubeconfig": proxy.kubeconfig, "seed": seed,
            }))?;
            stop.await;
            proxy.stop().await;
            return Ok(());
        }
        FaultsCommand::List { place } => (place, Ask::List),
        FaultsCommand::Add { place, rules } => (place, Ask::Add(rules.iter().map(ToString::to_string).collect())),
        FaultsCommand::Clear { place, id } => (place, Ask::Clear(id)),
    };
    say(&faults::control::ask(&place.state_dir, ask).await?)
}

/// One line of JSON for whoever called.
fn say(outcome: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(outcome)?)?;
    Ok(out.flush()?)
}

async fn serve(options: Options) -> anyhow::Result<()> {
    let stop = signalled()?;
    run(options, announce, stop).await?;
    Ok(())
}

/// Completes at SIGTERM or SIGINT, which are heard from now on.
fn signalled() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn announce(ready: &Ready) {
    let line = serde_json::to_string(ready).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    // A closed stdout means nobody waits for the line.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
