//! The agent: one worker for each Pod bound to its node, and the parts beside them (heartbeat, log server, entry, local volumes). It
//! starts no process itself and leaves every process running when it stops.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::runtime::events::{Recorder, Reporter};
use kube::{Client, Config, ResourceExt};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::addresses::{AddressError, Addresses};
use super::clock::Clock;
use super::entry;
use super::images::{ImageError, Images};
use super::logs::certificate::{self, CertificateError};
use super::logs::{listen, server};
use super::machine::backoff::BackoffPolicy;
use super::options::Options;
use super::register::{self, Identity};
use super::shared::{Counters, Node, Settings, Shared};
use super::volume::provision;
use super::worker::{self, Message};
use crate::controllers::act::Writes;
use crate::controllers::mirror::{of_all_namespaces, of_cluster};
use crate::controllers::pods;
use crate::controllers::quantity;
use crate::controllers::world::Changes;

/// Why the agent cannot start.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The state directory.
    #[error("state directory {0}: {1}")]
    State(String, std::io::Error),
    /// Another agent uses it.
    #[error("state directory {0} is in use by another node agent: stop it or give another --state-dir")]
    InUse(String),
    /// The kubeconfig.
    #[error("kubeconfig {0}: {1}")]
    Kubeconfig(String, String),
    /// An image flag.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The Pod range.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A flag's value.
    #[error("--{0} {1} is not valid: give {2}")]
    Flag(&'static str, String, &'static str),
    /// The log server's certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The log server's port.
    #[error("listen on {0}: {1}: give another --address or --port")]
    Listen(String, std::io::Error),
}

/// Runs the agent until `shutdown` completes. Pods go on afterwards.
///
/// # Errors
/// [`AgentError`] when it cannot start.
pub async fn run(options: Options, shutdown: impl Future<Output = ()>) -> Result<(), AgentError> {
    let _lock = own_state(&options.state_dir)?;
    let (client, token) = connect(&options.kubeconfig).await?;
    let files = certificate::Files {
        server: options.tls_cert.clone().zip(options.tls_key.clone()),
        clients: options.client_ca.clone(),
    };
    let tls = certificate::server(options.address, &options.node_name, &files)?;
    let listener = TcpListener::bind((options.address, options.port))
        .await
        .map_err(|error| AgentError::Listen(format!("{}:{}", options.address, options.port), error))?;
    let port = listener.local_addr().map(|address| address.port()).unwrap_or(options.port);
    let settings = settings(&options)?;
    let identity = identity(&options, &settings, port)?;
    let (node, feeds) = share(client, settings, &options)?;
    let mut tasks = JoinSet::new();
    for feed in feeds {
        tasks.spawn(feed);
    }
    let (services, services_feed) = of_all_namespaces::<Service>(&node.client);
    if options.entry {
        tasks.spawn(services_feed);
        let most = entry_limit(options.entry_connections, file_limit());
        tasks.spawn(entry::forward::run(node.clone(), services, most));
    }
    tasks.spawn(listen::serve(listener, server::router(node.clone(), token), tls, node.clone()));
    tasks.spawn(register::run(node.clone(), identity));
    tasks.spawn(provision::run(node.clone()));
    tasks.spawn(keep_pods(node.clone(), options.orphan_grace));
    tracing::info!(node = node.settings.node, address = %node.settings.address, port, "node agent started");
    shutdown.await;
    tasks.shutdown().await;
    tracing::info!(node = node.settings.node, "node agent stopped, its pods go on");
    Ok(())
}

/// Files this process may open, raised to what is allowed; Pods inherit it.
fn file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Entry connections that fit the file limit: two files each, and some left for everything else.
fn entry_limit(wanted: u32, files: u64) -> usize {
    let fit = files.saturating_sub(512) / 2;
    if fit < u64::from(wanted) {
        tracing::warn!(
            wanted,
            fit,
            files,
            "file limit too low for the entry connections wanted: raise it or lower them"
        );
    }
    usize::try_from(fit.min(u64::from(wanted))).unwrap_or(usize::MAX)
}

fn own_state(state: &Path) -> Result<File, AgentError> {
    let failed = |error| AgentError::State(state.display().to_string(), error);
    for folder in ["pods", "run", "logs", "mounts", "volumes"] {
        std::fs::create_dir_all(state.join(folder)).map_err(failed)?;
    }
    let lock = File::create(state.join("agent.lock")).map_err(failed)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| AgentError::InUse(state.display().to_string()))?;
    Ok(lock)
}

async fn connect(path: &Path) -> Result<(Client, Option<String>), AgentError> {
    let failed = |error: &dyn std::fmt::Display| AgentError::Kubeconfig(path.display().to_string(), error.to_string());
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|error| failed(&error))?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    let token = bearer_token(&config.auth_info);
    let client = Client::try_from(config).map_err(|error| failed(&error))?;
    Ok((client, token))
}

/// The kubeconfig's bearer token, given or in a file; a client certificate has none.
fn bearer_token(auth: &AuthInfo) -> Option<String> {
    let given = serde_json::to_value(auth).ok().and_then(|auth| auth.get("token")?.as_str().map(str::to_owned));
    let in_file = || std::fs::read_to_string(auth.token_file.as_ref()?).ok().map(|text| text.trim().to_owned());
    given.or_else(in_file).filter(|token| !token.is_empty())
}

fn settings(options: &Options) -> Result<Settings, AgentError> {
    let state = absolute(&options.state_dir)?;
    let program = std::env::current_exe().map_err(|error| AgentError::State("own program".into(), error))?;
    let first_ms = u64::try_from(options.restart_backoff.as_millis()).unwrap_or(10_000);
    let (cpu, memory) = machine_size();
    let sized =
        |flag: &'static str, text: &Option<String>, otherwise: i64, read: fn(&Quantity) -> Option<i64>| match text {
            None => Ok(otherwise),
            Some(text) => read(&Quantity(text.clone()))
                .filter(|value| *value > 0)
                .ok_or_else(|| AgentError::Flag(flag, text.clone(), "a quantity above 0, for example 4 or 8Gi")),
        };
    Ok(Settings {
        node: options.node_name.clone(),
        address: options.address,
        state,
        program,
        kubeconfig: absolute(&options.kubeconfig)?,
        path: std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".into()),
        size: (
            sized("cpu", &options.cpu, cpu, quantity::milli)?,
            sized("memory", &options.memory, memory, quantity::units)?,
        ),
        backoff: BackoffPolicy {
            first_ms,
            most_ms: first_ms.saturating_mul(30),
            forget_ms: first_ms.saturating_mul(60),
        },
        log_bytes: options.log_bytes,
        log_files: options.log_files,
        most_processes: options.max_processes,
        taints: options.taints.clone(),
    })
}

fn absolute(path: &Path) -> Result<PathBuf, AgentError> {
    std::path::absolute(path).map_err(|error| AgentError::State(path.display().to_string(), error))
}

/// The machine's CPU (thousandths) and memory (bytes).
fn machine_size() -> (i64, i64) {
    let cpus = std::thread::available_parallelism().map(|count| count.get()).unwrap_or(1);
    let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<i64>().ok()
    });
    (i64::try_from(cpus).unwrap_or(1) * 1000, memory.unwrap_or(1 << 20) * 1024)
}

fn identity(options: &Options, settings: &Settings, port: u16) -> Result<Identity, AgentError> {
    let mut more = std::collections::BTreeMap::new();
    for label in &options.labels {
        let (key, value) = label
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| AgentError::Flag("label", label.clone(), "KEY=VALUE"))?;
        more.insert(key.to_owned(), value.to_owned());
    }
    Ok(Identity {
        labels: Identity::labels(&options.node_name, &options.zone, more),
        pod_cidr: options.pod_cidr.clone(),
        cpu: format!("{}m", settings.size.0),
        memory: settings.size.1.to_string(),
        pods: options.max_pods,
        port,
        heartbeat: options.heartbeat,
    })
}

type Feed = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

fn share(client: Client, settings: Settings, options: &Options) -> Result<(Node, Vec<Feed>), AgentError> {
    let (pods, pods_feed) = of_all_namespaces(&client);
    let (config_maps, config_maps_feed) = of_all_namespaces(&client);
    let (secrets, secrets_feed) = of_all_namespaces(&client);
    let (claims, claims_feed) = of_all_namespaces(&client);
    let (volumes, volumes_feed) = of_cluster(&client);
    let feeds: Vec<Feed> = vec![
        Box::pin(pods_feed),
        Box::pin(config_maps_feed),
        Box::pin(secrets_feed),
        Box::pin(claims_feed),
        Box::pin(volumes_feed),
    ];
    let reporter = Reporter { controller: "cell-node".into(), instance: Some(settings.node.clone()) };
    let node = Arc::new(Shared {
        recorder: Recorder::new(client.clone(), reporter),
        clock: Clock::default(),
        images: Images::parse(&options.images)?,
        addresses: Mutex::new(Addresses::open(&settings.state, &options.pod_cidr)?),
        pods,
        config_maps,
        secrets,
        claims,
        volumes,
        writes: Writes::default(),
        counters: Counters::default(),
        settings,
        client,
    });
    Ok((node, feeds))
}

struct Kept {
    inbox: mpsc::Sender<Message>,
    told: Arc<Pod>,
    missing: bool,
}

/// Keeps one worker per Pod of this node, for ever.
pub async fn keep_pods(node: Node, orphan_grace: Duration) {
    let mut changes = Changes::new(vec![node.pods.changes()]);
    while !node.pods.synced() || !node.config_maps.synced() || !node.secrets.synced() {
        changes.next(Duration::from_millis(50)).await;
    }
    let mut workers: JoinSet<String> = JoinSet::new();
    let mut kept: HashMap<String, Kept> = HashMap::new();
    let mut finished: HashSet<String> = HashSet::new();
    sweep_orphans(&node, orphan_grace, &mut workers);
    loop {
        look(&node, &mut kept, &mut finished, &mut workers);
        tokio::select! {
            () = changes.next(Duration::from_secs(10)) => {}
            Some(ended) = workers.join_next() => match ended {
                Ok(uid) => {
                    kept.remove(&uid);
                    finished.insert(uid);
                }
                Err(error) => {
                    tracing::error!(error = %error, "a pod worker broke, its pod is adopted anew");
                    kept.retain(|_, keeper| !keeper.inbox.is_closed());
                }
            },
        }
    }
}

/// `finished` are Pods that ended here while the mirror may still show them: they are not taken up again.
fn look(node: &Node, kept: &mut HashMap<String, Kept>, finished: &mut HashSet<String>, workers: &mut JoinSet<String>) {
    let mine: HashMap<String, Arc<Pod>> = node
        .pods
        .all()
        .into_iter()
        .filter(|pod| pods::node(pod) == Some(node.settings.node.as_str()))
        .map(|pod| (pod.uid().unwrap_or_default(), pod))
        .collect();
    for (uid, keeper) in kept.iter_mut() {
        match mine.get(uid) {
            Some(pod) if Arc::ptr_eq(pod, &keeper.told) => {}
            // A full inbox is tried again at the next look: what is told is the newest state, so nothing is lost.
            Some(pod) => {
                if keeper.inbox.try_send(Message::Pod(pod.clone())).is_ok() {
                    keeper.told = pod.clone();
                }
            }
            None if keeper.missing => {}
            None => keeper.missing = keeper.inbox.try_send(Message::Missing).is_ok(),
        }
    }
    finished.retain(|uid| mine.contains_key(uid));
    for (uid, pod) in mine {
        let over = pods::is_ended(&pod) && !pods::is_leaving(&pod);
        if !kept.contains_key(&uid) && !finished.contains(&uid) && !over {
            let (inbox, messages) = mpsc::channel(64);
            kept.insert(uid.clone(), Kept { inbox, told: pod.clone(), missing: false });
            let node = node.clone();
            workers.spawn(async move {
                worker::run(node, pod, messages).await;
                uid
            });
        }
    }
}

/// Processes and folders of Pods the API no longer has are removed once, at the start.
fn sweep_orphans(node: &Node, grace: Duration, workers: &mut JoinSet<String>) {
    let known: Vec<String> = node.pods.all().iter().filter_map(|pod| pod.uid()).collect();
    let mut found = Vec::new();
    for folder in ["run", "pods"] {
        for entry in std::fs::read_dir(node.settings.state.join(folder)).into_iter().flatten().flatten() {
            if let Some(uid) = entry.file_name().to_str().map(str::to_owned)
                && !known.contains(&uid)
                && !found.contains(&uid)
            {
                found.push(uid);
            }
        }
    }
    for uid in found {
        let node = node.clone();
        workers.spawn(async move {
            worker::remove_orphan(&node, &uid, grace).await;
            uid
        });
    }
}
