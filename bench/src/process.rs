//! A gateway in a process of its own, so that its memory and processor time are nobody else's: this program again, with the hidden
//! subcommand `gateway`. Rates that protect a public fleet are lifted; nothing else differs from the role as shipped.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use cell_gateway::session::limits::StartLimits;
use cell_gateway::{Config, Limits};
use cell_runtime::tokens::{Bearer, Identity, TokenKeys};
use cell_runtime::{CancellationToken, DirectoryConfig};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::process::{Child, Command};

use crate::fleet::{Fleet, LIMIT, LOCAL, PREFIX, role_config};

const KEY: [u8; 32] = [9; 32];

/// What the child is told.
#[derive(clap::Args)]
pub struct Flags {
    #[arg(long)]
    etcd: String,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    http_port: u16,
    #[arg(long)]
    cell: String,
}

/// Serves until the parent ends it.
pub async fn serve(flags: Flags) -> anyhow::Result<()> {
    let keys = flags.folder.join("keys");
    std::fs::create_dir_all(&keys)?;
    std::fs::write(keys.join("current"), KEY)?;
    let limits = Limits {
        rest_global_per_second: 1_000_000,
        rest_messages_per_5s: 1_000_000,
        starts: StartLimits { daily: 1_000_000, max_concurrency: 16, burst: 1_000_000 },
        ..Limits::standard()
    };
    let directory =
        DirectoryConfig { endpoints: vec![flags.etcd], prefix: PREFIX.into(), state_dir: Some(flags.folder) };
    let config = Config {
        role: role_config(&flags.cell, format!("{}-gateway-0", flags.cell), directory),
        http_port: flags.http_port,
        public_url: format!("http://{LOCAL}:{}", flags.http_port),
        token_keys_dir: keys,
        grace: Duration::from_secs(1),
        linger: Duration::ZERO,
        limits,
    };
    Ok(cell_gateway::run(config, CancellationToken::new()).await?)
}

/// A token that the gateway takes.
pub fn token(user_id: i64) -> anyhow::Result<String> {
    Ok(TokenKeys::new(KEY.to_vec(), None)?.sign(Identity { user_id, bearer: Bearer::Bot }, 0)?)
}

/// The running child; it ends with this.
pub struct Gateway {
    /// Its process id.
    pub pid: u32,
    /// `host:port` of REST and websockets.
    pub http: String,
    client: Client<HttpConnector, Full<Bytes>>,
    _child: Child,
}

impl Gateway {
    /// Starts one and waits until it serves.
    pub async fn start(fleet: &Fleet, cell: &str, name: &str) -> anyhow::Result<Self> {
        // Free a moment ago; when another process takes it first the start says so.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut child = Command::new(std::env::current_exe()?)
            .arg("gateway")
            .args(["--etcd", &fleet.etcd, "--cell", cell, "--http-port", &port.to_string()])
            .arg("--folder")
            .arg(fleet.folder(name)?)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().context("the gateway ended at once")?;
        let http = format!("127.0.0.1:{port}");
        let ready = async {
            while tokio::net::TcpStream::connect(&http).await.is_err() {
                if let Some(status) = child.try_wait()? {
                    bail!("the gateway ended: {status}");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT, ready).await??;
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(Self { pid, http, client, _child: child })
    }

    /// Sends a message and waits for the answer.
    pub async fn send(&self, token: &str, channel_id: i64) -> anyhow::Result<()> {
        let content = "a message of some eighty characters, as people write them to each other all day";
        let request = http::Request::post(format!("http://{}/api/v10/channels/{channel_id}/messages", self.http))
            .header("authorization", format!("Bot {token}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(serde_json::json!({ "content": content }).to_string())))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("a message was answered {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }
}

/// The body at a plain HTTP address.
pub async fn get(url: &str) -> anyhow::Result<String> {
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let body = client.get(url.parse()?).await?.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}
