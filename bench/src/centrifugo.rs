//! The peer of `sockets`: as many subscribers of one channel of a Centrifugo that this starts, counted as ours are. It decides nothing about
//! ours. The program is given; how to get it stands in `RESULTS.md`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::{SinkExt, StreamExt, TryStreamExt};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::fleet::LIMIT;
use crate::measure;
use crate::sockets::{Delivered, MESSAGES};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Of a push, beside its data.
const FRAME_BYTES: usize = 50;

#[derive(Default)]
struct Counts {
    subscribed: AtomicU64,
    pushes: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
}

/// The running server and its subscribers; they end with this.
struct Peer {
    pid: u32,
    address: String,
    client: Client<HttpConnector, Full<Bytes>>,
    counts: Arc<Counts>,
    changed: watch::Receiver<()>,
    _child: Child,
    _folder: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

/// Sends as many messages as `sockets` does, so long that each payload has about `payload` bytes.
pub async fn deliver(program: &Path, sessions: usize, payload: u64) -> anyhow::Result<Delivered> {
    let mut peer = Peer::start(program, sessions).await?;
    let data = "x".repeat(usize::try_from(payload)?.saturating_sub(FRAME_BYTES));
    let wanted = sessions as u64;
    peer.publish(&data).await?;
    peer.wait(|counts| &counts.pushes, wanted).await?;
    let (cpu, bytes) = (measure::processor_time(peer.pid)?, peer.counts.bytes.load(Ordering::Relaxed));
    let mut took = Vec::new();
    for number in 2..=u64::from(MESSAGES) + 1 {
        let began = Instant::now();
        peer.publish(&data).await?;
        peer.wait(|counts| &counts.pushes, number * wanted).await?;
        took.push(began.elapsed());
    }
    let used = measure::processor_time(peer.pid)?.saturating_sub(cpu);
    let deliveries = MESSAGES * u32::try_from(sessions)?;
    let payload = (peer.counts.bytes.load(Ordering::Relaxed) - bytes) / u64::from(deliveries);
    Ok(Delivered { each: used / deliveries, took, payload })
}

impl Peer {
    async fn start(program: &Path, sessions: usize) -> anyhow::Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = tempfile::tempdir()?;
        let config = json!({
            "http_server": { "address": "127.0.0.1", "port": port.to_string() },
            "http_api": { "insecure": true },
            "client": { "insecure": true, "allowed_origins": ["*"], "connection_limit": 0 },
            "log": { "level": "error" },
        });
        let file = folder.path().join("config.json");
        std::fs::write(&file, config.to_string())?;
        let mut child = Command::new(program).arg("--config").arg(&file).kill_on_drop(true).spawn()?;
        let pid = child.id().context("Centrifugo ended at once")?;
        let address = format!("127.0.0.1:{port}");
        let ready = async {
            while TcpStream::connect(&address).await.is_err() {
                if let Some(status) = child.try_wait()? {
                    bail!("Centrifugo ended: {status}");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        };
        tokio::time::timeout(LIMIT, ready).await??;
        let counts = Arc::new(Counts::default());
        let (tell, changed) = watch::channel(());
        let tell = Arc::new(tell);
        let url = format!("ws://{address}/connection/websocket");
        let sockets: Vec<Socket> =
            futures::stream::iter(0..sessions).map(|_| subscribe(&url)).buffer_unordered(32).try_collect().await?;
        let mut tasks = JoinSet::new();
        for socket in sockets {
            tasks.spawn(listen(socket, counts.clone(), tell.clone()));
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        let mut this = Self { pid, address, client, counts, changed, _child: child, _folder: folder, _tasks: tasks };
        this.wait(|counts| &counts.subscribed, sessions as u64).await?;
        Ok(this)
    }

    async fn publish(&self, data: &str) -> anyhow::Result<()> {
        let request = http::Request::post(format!("http://{}/api/publish", self.address))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(json!({ "channel": "bench", "data": data }).to_string())))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("Centrifugo answered {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }

    async fn wait(&mut self, count: impl Fn(&Counts) -> &AtomicU64, wanted: u64) -> anyhow::Result<()> {
        let counts = self.counts.clone();
        let come = || count(&counts).load(Ordering::Relaxed);
        let all = async { while come() < wanted && self.changed.changed().await.is_ok() {} };
        let timely = tokio::time::timeout(LIMIT, all).await;
        let lost = counts.lost.load(Ordering::Relaxed);
        if timely.is_err() || lost > 0 {
            bail!("{} of {wanted} came to subscribers of Centrifugo; {lost} connections were lost", come());
        }
        Ok(())
    }
}

async fn subscribe(url: &str) -> anyhow::Result<Socket> {
    let (mut socket, _) = tokio_tungstenite::connect_async(url).await.context("connect to Centrifugo")?;
    socket.send(Message::text(r#"{"id":1,"connect":{}}"#)).await?;
    socket.send(Message::text(r#"{"id":2,"subscribe":{"channel":"bench"}}"#)).await?;
    Ok(socket)
}

async fn listen(mut socket: Socket, counts: Arc<Counts>, tell: Arc<watch::Sender<()>>) {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => {
                counts.bytes.fetch_add(text.len() as u64, Ordering::Relaxed);
                for line in text.lines() {
                    // Its ping; who does not answer is cut.
                    if line == "{}" && socket.send(Message::text("{}")).await.is_err() {
                        counts.lost.fetch_add(1, Ordering::Relaxed);
                    } else if line.starts_with(r#"{"push""#) {
                        counts.pushes.fetch_add(1, Ordering::Relaxed);
                    } else if line.starts_with(r#"{"id":2,"subscribe""#) {
                        counts.subscribed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            _ => {
                counts.lost.fetch_add(1, Ordering::Relaxed);
                tell.send_replace(());
                return;
            }
        }
        tell.send_replace(());
    }
}
