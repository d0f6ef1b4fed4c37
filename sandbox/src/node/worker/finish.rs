//! The end of a Pod on this node: its last status, its object, its folders and its address. Data volumes are never removed here.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use rustix::process::Signal;

use super::Worker;
use crate::controllers::act;
use crate::node::process::record::{Found, RunFolder, RunRecord, attempts};
use crate::node::process::start;
use crate::node::shared::Node;

const RETRY: Duration = Duration::from_secs(1);

impl Worker {
    /// Reports the end, lets the API forget the Pod, removes what is left of it. Tries until the API server answers.
    pub(super) async fn finish(&mut self) {
        // Before the API forgets the Pod: whoever hears that it is gone finds nothing of it.
        end_strays(&self.uid).await;
        if self.missing {
            return clear(&self.node, &self.uid);
        }
        loop {
            let api: Api<Pod> = Api::namespaced(self.node.client.clone(), &self.pod.namespace().unwrap_or_default());
            let wanted = self.status();
            let shown = self.pod.status.as_ref().is_some_and(|have| crate::node::status::shows(have, &wanted));
            if !shown {
                let _ = act::patch_status(&api, self.pod.as_ref(), &wanted, &self.node.writes).await;
            }
            match act::delete(&api, self.pod.as_ref(), Some(0), &self.node.writes).await {
                Ok(_) => break,
                Err(error) => {
                    tracing::info!(pod = %self.uid, error = %error, "pod not removed yet, will be tried again")
                }
            }
            tokio::time::sleep(RETRY).await;
        }
        clear(&self.node, &self.uid);
    }
}

/// Ends the Pod's processes that nobody keeps any more.
async fn end_strays(uid: &str) {
    let mark = format!("{uid}/");
    let _ = tokio::task::spawn_blocking(move || start::end_marked(&mark)).await;
}

/// Removes everything of a Pod except data volumes.
fn clear(node: &Node, uid: &str) {
    if let Err(error) = node.addresses.lock().release(uid) {
        tracing::warn!(pod = uid, error = %error, "address not released");
    }
    let state = &node.settings.state;
    for folder in
        [state.join("run").join(uid), state.join("logs").join(uid), node.mounts_folder(uid), node.pod_folder(uid)]
    {
        if let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %folder.display(), error = %error, "folder not removed");
        }
    }
}

/// Ends what runs of a Pod the API no longer knows (SIGTERM, then SIGKILL after `grace`), and removes what is left of it.
pub async fn remove_orphan(node: &Node, uid: &str, grace: Duration) {
    let state = node.settings.state.clone();
    let mut records: Vec<RunRecord> = Vec::new();
    for entry in std::fs::read_dir(state.join("run").join(uid)).into_iter().flatten().flatten() {
        let Some(container) = entry.file_name().to_str().map(str::to_owned) else { continue };
        for attempt in attempts(&state, uid, &container) {
            if let Found::Running(record) | Found::Abandoned(record) =
                RunFolder::of(&state, uid, &container, attempt).find(uid)
            {
                records.push(record);
            }
        }
    }
    for record in &records {
        start::signal(record, Signal::TERM);
    }
    let until = std::time::Instant::now() + grace;
    while records.iter().any(|record| crate::node::process::proc_fs::is_alive(record.pid, record.start_ticks)) {
        if std::time::Instant::now() >= until {
            records.iter().for_each(|record| {
                start::signal(record, Signal::KILL);
            });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    end_strays(uid).await;
    clear(node, uid);
    tracing::info!(pod = uid, processes = records.len(), "orphan removed");
}
