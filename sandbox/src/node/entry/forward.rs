//! Listens and copies. Connections are bounded for the whole agent and counted; a Pod that refuses is passed over for the next. The
//! copy ends each direction by itself, so a half-closed connection goes on.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::runtime::events::EventType;
use parking_lot::RwLock;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::ports::{EntryPort, backends, entry_ports};
use crate::controllers::act;
use crate::controllers::mirror::Mirror;
use crate::controllers::world::Changes;
use crate::node::shared::Node;

const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
const BIND_AGAIN: Duration = Duration::from_secs(5);
const TRIES: usize = 3;

struct Open {
    entry: Arc<RwLock<EntryPort>>,
    task: JoinHandle<()>,
}

/// Keeps the listeners as the Services want them, for ever. `most` bounds open connections.
pub async fn run(node: Node, services: Mirror<Service>, most: usize) {
    let permits = Arc::new(Semaphore::new(most));
    let mut open: BTreeMap<u16, Open> = BTreeMap::new();
    let mut failed: BTreeMap<u16, String> = BTreeMap::new();
    let mut changes = Changes::new(vec![services.changes()]);
    loop {
        if services.synced() {
            let wanted = entry_ports(&services.all());
            open.retain(|port, listening| {
                let keep = wanted.contains_key(port) && !listening.task.is_finished();
                if !keep {
                    listening.task.abort();
                    tracing::info!(port, "entry closed");
                }
                keep
            });
            failed.retain(|port, _| wanted.contains_key(port));
            for (port, entry) in wanted {
                if let Some(listening) = open.get(&port) {
                    *listening.entry.write() = entry;
                } else if let Some(listening) = listen(&node, port, entry, &permits, &mut failed).await {
                    open.insert(port, listening);
                }
            }
        }
        changes.next(BIND_AGAIN).await;
    }
}

async fn listen(
    node: &Node,
    port: u16,
    entry: EntryPort,
    permits: &Arc<Semaphore>,
    failed: &mut BTreeMap<u16, String>,
) -> Option<Open> {
    let address = SocketAddr::new(node.settings.address, port);
    match TcpListener::bind(address).await {
        Ok(listener) => {
            failed.remove(&port);
            tracing::info!(%address, service = %entry.service.name_any(), "entry opened");
            let entry = Arc::new(RwLock::new(entry));
            let task = tokio::spawn(accept(node.clone(), listener, entry.clone(), permits.clone()));
            Some(Open { entry, task })
        }
        Err(error) => {
            let words = format!("node {} cannot listen on {address}: {error}", node.settings.node);
            if failed.insert(port, words.clone()).as_ref() != Some(&words) {
                tracing::warn!(%address, error = %error, "entry not opened, will be tried again");
                act::remark(&node.recorder, entry.service.as_ref(), EventType::Warning, "EntryPortUnavailable", words)
                    .await;
            }
            None
        }
    }
}

async fn accept(node: Node, listener: TcpListener, entry: Arc<RwLock<EntryPort>>, permits: Arc<Semaphore>) {
    let turn = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of files: leave the backlog standing for a moment instead of spinning.
                tracing::warn!(error = %error, "entry connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else {
            node.counters.entry_overflow.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        node.counters.entry_accepted.fetch_add(1, Ordering::Relaxed);
        let (node, entry, turn) = (node.clone(), entry.clone(), turn.clone());
        tokio::spawn(async move {
            let _permit = permit;
            serve(&node, stream, &entry, &turn).await;
        });
    }
}

async fn serve(node: &Node, mut stream: TcpStream, entry: &RwLock<EntryPort>, turn: &AtomicUsize) {
    let behind = {
        let entry = entry.read();
        backends(&entry, &node.pods.all())
    };
    let first = turn.fetch_add(1, Ordering::Relaxed);
    for step in 0..behind.len().min(TRIES) {
        let Some(address) = behind.get((first + step) % behind.len()) else { continue };
        if let Ok(Ok(mut inner)) = tokio::time::timeout(CONNECT_DEADLINE, TcpStream::connect(address)).await {
            let _ = stream.set_nodelay(true);
            let _ = inner.set_nodelay(true);
            if let Err(error) = copy_bidirectional(&mut stream, &mut inner).await {
                tracing::debug!(%address, error = %error, "entry connection broke");
            }
            return;
        }
    }
    node.counters.entry_unserved.fetch_add(1, Ordering::Relaxed);
}
