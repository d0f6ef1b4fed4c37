//! `cellctl sandbox up`: preflight, programs, network, processes, objects, ready. Every step leaves alone what is so already, so that
//! running it again finishes what was interrupted, and brings back what a power cut ended.

use std::net::Ipv4Addr;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::{WhichArgs, from_state, status};
use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::progress::Progress;
use crate::sandbox::launch::Launcher;
use crate::sandbox::network::{self, MAX_NODES, Network};
use crate::sandbox::objects::embedded_storage;
use crate::sandbox::process::written_ms;
use crate::sandbox::state::{Ports, Settings, StateDir};
use crate::sandbox::{install, preflight, programs, ready};

const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Flags of `up`.
#[derive(Args, Debug)]
pub struct UpArgs {
    /// Which sandbox.
    #[command(flatten)]
    pub which: WhichArgs,
    /// How many nodes a new sandbox gets, in zones a, b and c
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_NODES)))]
    pub nodes: u8,
    /// Use the programs as they are, although this is a checkout
    #[arg(long)]
    pub no_build: bool,
}

/// Starts the sandbox.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: UpArgs, global: &Global) -> Result<Exit, CommandError> {
    let state = args.which.state()?;
    let progress = Progress::to_stderr();
    let order = Order { name: &args.which.name, nodes: args.nodes, build: !args.no_build, storage: embedded_storage() };
    up(&state, &order, global.timeout.unwrap_or(READY_TIMEOUT), &progress).await?;
    status::print(&state, global.output).await
}

/// What is asked for.
#[derive(Debug)]
pub struct Order<'a> {
    /// Name of a new sandbox.
    pub name: &'a str,
    /// Nodes of a new sandbox.
    pub nodes: u8,
    /// Build the programs in a checkout.
    pub build: bool,
    /// Spec of a new sandbox's StorageCell.
    pub storage: Value,
}

/// Brings a sandbox up and returns once its Fleet is Ready.
///
/// # Errors
/// [`CommandError`].
pub async fn up(
    state: &StateDir,
    order: &Order<'_>,
    timeout: Duration,
    progress: &Progress,
) -> Result<(), CommandError> {
    let limit = preflight::raise_file_limit();
    if limit.now != limit.before {
        progress.say(&format!("preflight: raised the limit of open files from {} to {}", limit.before, limit.now));
    }
    preflight::check_files(limit)?;
    let programs = programs::find(order.build, progress).map_err(anyhow::Error::from)?;
    let _lock = state.lock().map_err(from_state)?;
    preflight::check_disk(state.root())?;
    let network = reserve(state, progress)?;
    let settings = settings(state, order, network, progress)?;
    let launcher = Launcher { state, network, settings: &settings, programs: &programs, progress };
    let connection = launcher.start().await?;
    install::install(&connection.client, network, &settings, written_ms(&programs.operator), &order.storage).await?;
    ready::wait(&connection.client, state, settings.nodes, timeout, progress).await
}

/// Reserves the sandbox's network, or finds the one it has.
///
/// # Errors
/// [`CommandError`].
pub fn reserve(state: &StateDir, progress: &Progress) -> Result<Network, CommandError> {
    let before = state.network();
    let network = network::reserve(&network::registry(), state.root(), network::nothing_listens)
        .map_err(|error| CommandError::refused("network", error.to_string(), "cellctl sandbox down --delete"))?;
    if before.is_some_and(|before| before != network) {
        progress.say(&format!("network: another sandbox took this one's; it moves to {}", network.control_address()));
    }
    Ok(network)
}

/// The settings of the sandbox: those it was made with, or new ones with ports that are free.
fn settings(
    state: &StateDir,
    order: &Order<'_>,
    network: Network,
    progress: &Progress,
) -> Result<Settings, CommandError> {
    if let Some(settings) = state.settings().map_err(from_state)? {
        if settings.nodes != order.nodes && order.nodes != 3 {
            progress.say(&format!("this sandbox has {} nodes; --nodes is for a new one", settings.nodes));
        }
        return Ok(settings);
    }
    let port = |address: Ipv4Addr, ports: [u16; 3]| {
        network::first_free_port(address, &ports).ok_or_else(|| {
            let reason = format!("ports {ports:?} are all in use on {address}");
            CommandError::refused("port", reason, "stop what listens there (ss -ltnp)")
        })
    };
    let control = network.control_address();
    let ports = Ports {
        etcd: port(control, [2379, 12_379, 22_379])?,
        kubernetes: port(control, [6443, 16_443, 26_443])?,
        entry: port(network.node_address(1), [30_080, 30_081, 30_082])?,
    };
    let settings = Settings::new(order.name, order.nodes, ports);
    state.write_settings(&settings).map_err(from_state)?;
    Ok(settings)
}
