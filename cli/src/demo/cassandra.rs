//! Two real Cassandra nodes for `demo --real`, each a cluster of its own: fetched by Maven into the user's cache, run by the machine's Java 17
//! on an address of the sandbox. Small heaps, no tuning: they are there to be right, not fast.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::exit::CommandError;
use crate::progress::{Phase, Progress};
use crate::sandbox::network::Network;
use crate::sandbox::process::{Launch, ProcessRecord, start};

/// The version that is fetched.
pub const VERSION: &str = "5.0.9";
/// The port that drivers connect to.
pub const CQL_PORT: u16 = 9042;
/// The name that a node without a snitch of its own gives its datacenter.
pub const DATACENTER: &str = "datacenter1";
const READY_WITHIN: Duration = Duration::from_secs(180);
const STOP_GRACE: Duration = Duration::from_secs(20);
/// What is remembered of a started node, in its folder.
const RECORD: &str = "process.json";
const HEAP: &str = "512m";
/// What Cassandra 5 needs opened on Java 17 (its own `jvm17-server.options` has the same list).
const EXPORTS: [&str; 10] = [
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.file",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
];
const OPENS: [&str; 18] = [
    "jdk.compiler/com.sun.tools.javac",
    "jdk.management/com.sun.management.internal",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.ref",
    "java.base/java.io",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.loader",
    "java.base/sun.nio.ch",
];

fn refused(reason: String, next: &str) -> CommandError {
    CommandError::refused("--real", reason, next)
}

/// Where the program is kept between runs.
fn library() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
    cache.join("cellplane").join(format!("cassandra-{VERSION}"))
}

/// What Maven is told: Cassandra and what it needs, as jars in one folder.
fn project() -> String {
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
         <groupId>cellplane</groupId><artifactId>cassandra</artifactId><version>1</version><packaging>pom</packaging>\
         <dependencies><dependency><groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId>\
         <version>{VERSION}</version></dependency></dependencies></project>"
    )
}

/// Brings the program, unless it is there.
///
/// # Errors
/// [`CommandError`], saying what the machine lacks.
pub async fn fetch(progress: &Progress) -> Result<(), CommandError> {
    let library = library();
    let complete = library.join(".complete");
    if complete.exists() {
        return Ok(());
    }
    let phase = progress.phase("cassandra", None);
    phase.note(&format!("Maven brings Cassandra {VERSION} into {}", library.display()));
    let work = tokio::task::spawn_blocking(move || {
        fs::create_dir_all(&library)?;
        let pom = library.join("pom.xml");
        fs::write(&pom, project())?;
        let ended = Command::new("mvn")
            .args(["-B", "-q", "-ntp", "-f"])
            .arg(&pom)
            .arg("org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies")
            .arg(format!("-DoutputDirectory={}", library.display()))
            .arg("-DincludeScope=runtime")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        if ended.success() {
            fs::write(library.join(".complete"), VERSION)
        } else {
            Err(std::io::Error::other(ended.to_string()))
        }
    });
    match work.await.map_err(anyhow::Error::from)? {
        Ok(()) => {
            phase.finish(&format!("Cassandra {VERSION} is in the cache"));
            Ok(())
        }
        Err(error) => Err(refused(
            format!("Maven did not bring Cassandra {VERSION}: {error}"),
            "install Java 17 and Maven (mvn), or run the demo without --real",
        )),
    }
}

/// One running node.
#[derive(Clone, Debug)]
pub struct Node {
    record: ProcessRecord,
    address: Ipv4Addr,
    log: PathBuf,
}

impl Node {
    /// Starts a node with its files below `folder`.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn start(address: Ipv4Addr, folder: &Path) -> Result<Self, CommandError> {
        let failed = |error: std::io::Error| anyhow::Error::from(error).context(format!("use {}", folder.display()));
        fs::create_dir_all(folder.join("tmp")).map_err(failed)?;
        fs::write(folder.join("cassandra.yaml"), settings(address, folder)).map_err(failed)?;
        fs::write(folder.join("logback.xml"), LOGBACK).map_err(failed)?;
        let log = folder.join("out.log");
        let java =
            std::env::var_os("JAVA_HOME").map_or_else(find_java, |home| Some(PathBuf::from(home).join("bin/java")));
        let java = java.ok_or_else(|| refused("there is no java on the PATH".to_owned(), "install Java 17"))?;
        let component = format!("cassandra-{address}");
        let launch = Launch { component: &component, program: &java, arguments: arguments(address, folder), log: &log };
        let record = start(launch).map_err(anyhow::Error::from)?;
        let text = serde_json::to_vec(&record).map_err(anyhow::Error::from)?;
        fs::write(folder.join(RECORD), text).map_err(failed)?;
        Ok(Self { record, address, log })
    }

    /// Waits until drivers can connect.
    ///
    /// # Errors
    /// [`CommandError`] when it ended, or takes too long.
    pub async fn ready(&self, phase: &Phase) -> Result<(), CommandError> {
        let deadline = Instant::now() + READY_WITHIN;
        let address = SocketAddr::from((self.address, CQL_PORT));
        while TcpStream::connect(address).await.is_err() {
            phase.note(&format!("Cassandra at {address} starts"));
            let late = Instant::now() > deadline;
            if late || !self.record.is_alive() {
                let what = if late { "is not ready in time" } else { "ended" };
                return Err(CommandError::Failed(anyhow::anyhow!(
                    "Cassandra at {address} {what}; its log is {} (it needs Java 17)",
                    self.log.display()
                )));
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// `host:port` for drivers.
    pub fn contact_point(&self) -> String {
        format!("{}:{CQL_PORT}", self.address)
    }

    /// The spec of a StorageCell on it.
    pub fn storage(&self) -> Value {
        json!({
            "engine": "cassandra",
            "external": {"contactPoints": [self.contact_point()], "datacenter": DATACENTER},
            "keyspace": "cellplane",
            "replication": {DATACENTER: 1},
        })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.record.pid
    }

    /// Ends it.
    pub async fn stop(&self, progress: &Progress) {
        if let Err(error) = self.record.stop(STOP_GRACE).await {
            progress.say(&format!("warning: {error}"));
        }
    }
}

/// The two nodes of `demo --real`, started side by side.
///
/// # Errors
/// [`CommandError`].
pub async fn start_two(network: Network, root: &Path, progress: &Progress) -> Result<Vec<Node>, CommandError> {
    fetch(progress).await?;
    let phase = progress.phase("databases", None);
    let mut nodes = Vec::new();
    for number in [1, 2] {
        nodes.push(Node::start(network.database_address(number), &root.join(format!("cassandra-{number}")))?);
    }
    for node in &nodes {
        if let Err(error) = node.ready(&phase).await {
            for node in &nodes {
                node.stop(progress).await;
            }
            return Err(error);
        }
    }
    phase.finish(&format!("Cassandra {VERSION} runs at {} and {}", nodes[0].contact_point(), nodes[1].contact_point()));
    Ok(nodes)
}

fn records(root: &Path) -> impl Iterator<Item = ProcessRecord> {
    fs::read_dir(root).into_iter().flatten().flatten().filter_map(|entry| {
        let bytes = fs::read(entry.path().join(RECORD)).ok()?;
        serde_json::from_slice(&bytes).ok()
    })
}

/// Whether nodes run that a demo with this folder started.
pub fn any_below(root: &Path) -> bool {
    records(root).any(|record| record.is_alive())
}

/// Ends the nodes that a demo with this folder started.
pub async fn stop_below(root: &Path) {
    for record in records(root) {
        let _ = record.stop(STOP_GRACE).await;
    }
}

fn find_java() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("java")).find(|program| program.is_file())
}

const LOGBACK: &str = "<configuration><appender name=\"OUT\" class=\"ch.qos.logback.core.ConsoleAppender\"><encoder><pattern>%-5level %d{HH:mm:ss.SSS} %logger{0} - %msg%n</pattern></encoder></appender><root level=\"WARN\"><appender-ref ref=\"OUT\"/></root></configuration>\n";

fn settings(address: Ipv4Addr, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "cluster_name: cellplane-demo-{address}\n\
         num_tokens: 16\n\
         auto_bootstrap: false\n\
         partitioner: org.apache.cassandra.dht.Murmur3Partitioner\n\
         endpoint_snitch: SimpleSnitch\n\
         seed_provider:\n  - class_name: org.apache.cassandra.locator.SimpleSeedProvider\n    parameters: [{{seeds: \"{address}\"}}]\n\
         listen_address: {address}\n\
         rpc_address: {address}\n\
         native_transport_port: {CQL_PORT}\n\
         storage_port: 7000\n\
         data_file_directories: [{folder}/data]\n\
         commitlog_directory: {folder}/commitlog\n\
         hints_directory: {folder}/hints\n\
         saved_caches_directory: {folder}/saved_caches\n\
         cdc_raw_directory: {folder}/cdc_raw\n\
         commitlog_sync: periodic\n\
         commitlog_sync_period: 10000ms\n\
         commitlog_segment_size: 8MiB\n\
         commitlog_total_space: 128MiB\n\
         memtable_heap_space: 64MiB\n\
         memtable_offheap_space: 64MiB\n\
         file_cache_size: 32MiB\n\
         key_cache_size: 8MiB\n\
         concurrent_compactors: 1\n\
         auto_snapshot: false\n\
         cas_contention_timeout: 5000ms\n"
    )
}

fn arguments(address: Ipv4Addr, folder: &Path) -> Vec<String> {
    let library = library();
    let shown = folder.display();
    let mut arguments: Vec<String> = [
        &format!("-Xms{HEAP}"),
        &format!("-Xmx{HEAP}"),
        "-Xss512k",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:MaxDirectMemorySize=256m",
        "-XX:+PerfDisableSharedMem",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djdk.attach.allowAttachSelf=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Djava.net.preferIPv4Stack=true",
        "-Dcassandra-foreground=yes",
        "-Dcassandra.skip_wait_for_gossip_to_settle=0",
        "-Dcassandra.ring_delay_ms=1000",
        "-Dcassandra.consistent.rangemovement=false",
    ]
    .map(str::to_owned)
    .into();
    arguments.extend(EXPORTS.into_iter().map(|name| format!("--add-exports={name}=ALL-UNNAMED")));
    arguments.extend(OPENS.into_iter().map(|name| format!("--add-opens={name}=ALL-UNNAMED")));
    arguments.push(format!("-Djava.io.tmpdir={shown}/tmp"));
    arguments.push(format!("-Djna.tmpdir={shown}/tmp"));
    arguments.push(format!("-Dcassandra.config=file://{shown}/cassandra.yaml"));
    arguments.push(format!("-Dlogback.configurationFile=file://{shown}/logback.xml"));
    arguments.push(format!("-Dcassandra.storagedir={shown}"));
    arguments.push(format!("-Dcassandra.logdir={shown}"));
    // JMX listens on loopback only; a port of its own for each node.
    arguments.push(format!("-Dcassandra.jmx.local.port={}", 7100 + u16::from(address.octets()[3])));
    arguments.push("-Dcom.sun.management.jmxremote.authenticate=false".to_owned());
    if let Some(jamm) = agent(&library) {
        arguments.push(format!("-javaagent:{}", jamm.display()));
    }
    arguments.extend(["-cp".to_owned(), format!("{shown}:{}/*", library.display())]);
    arguments.push("org.apache.cassandra.service.CassandraDaemon".to_owned());
    arguments
}

/// The agent by which Cassandra measures objects.
fn agent(library: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(library).ok()?.flatten().map(|entry| entry.path());
    entries.find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("jamm-")))
}
