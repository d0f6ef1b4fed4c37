//! Numbered sends under way during a test, and the ledger that remembers which were acknowledged.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cellctl::demo::content;
use cellctl::demo::rest::{Call, Rest, RestError};
use http::Method;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{Guild, Listener, Sandbox, wait_for};

const SENDERS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(40);
/// A send is tried this long, with one nonce; past it nobody knows its outcome.
const SEND_WITHIN: Duration = Duration::from_secs(60);

/// What was sent and what came of it. Kept over several traffics of a test.
#[derive(Clone, Default)]
pub struct Ledger {
    next: Arc<AtomicU32>,
    acknowledged: Arc<Mutex<Vec<(u32, i64)>>>,
    trouble: Arc<Mutex<Vec<String>>>,
}

impl Ledger {
    /// How many sends were acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits for this many more sends to be acknowledged.
    pub async fn grow(&self, by: usize) {
        let wanted = self.acknowledged() + by;
        wait_for(&format!("{by} more acknowledged sends"), 60, async || {
            let have = self.acknowledged();
            if have >= wanted { Ok(()) } else { Err(format!("{have} of {wanted}; {:?}", self.trouble.lock().unwrap())) }
        })
        .await;
    }

    /// Every acknowledged send is in history once, under the id that was answered, and nothing is there twice.
    pub async fn check_history(&self, sandbox: &Sandbox, guild: &Guild) {
        let trouble = self.trouble.lock().unwrap().clone();
        assert!(trouble.is_empty(), "sends came to nothing: {trouble:?}");
        let mut found: HashMap<u32, Vec<i64>> = HashMap::new();
        for seen in guild.history(sandbox).await {
            found.entry(seen.number).or_default().push(seen.message_id);
        }
        let acknowledged = self.acknowledged.lock().unwrap().clone();
        assert!(!acknowledged.is_empty(), "nothing was acknowledged, so nothing is proven");
        for (number, id) in &acknowledged {
            let ids = found.get(number).cloned().unwrap_or_default();
            assert_eq!(ids, [*id], "send {number} was acknowledged as {id}");
        }
        let twice: Vec<_> = found.iter().filter(|(_, ids)| ids.len() > 1).collect();
        assert!(twice.is_empty(), "in history more than once: {twice:?}");
    }

    /// The session lives, and heard every send acknowledged since `from` exactly once, in channel order.
    pub async fn check_listener(&self, listener: &Listener, from: usize) {
        let acknowledged = self.acknowledged.lock().unwrap()[from..].to_vec();
        let missing = || {
            let heard: std::collections::HashSet<_> = listener.messages().into_iter().collect();
            acknowledged.iter().filter(|sent| !heard.contains(sent)).copied().collect::<Vec<_>>()
        };
        wait_for("the session to hear everything", 20, async || match missing() {
            none if none.is_empty() => Ok(()),
            some => {
                Err(format!("{} missing: {:?}; ended: {:?}", some.len(), &some[..some.len().min(5)], listener.ended()))
            }
        })
        .await;
        let heard = listener.messages();
        let disorder: Vec<_> = heard.windows(2).filter(|pair| pair[0].1 >= pair[1].1).collect();
        assert!(disorder.is_empty(), "twice or out of order: {disorder:?}");
        assert_eq!(listener.ended(), None);
    }
}

/// Senders at work.
pub struct Traffic {
    stopping: Arc<AtomicBool>,
    senders: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Begins to send into a guild.
    pub fn begin(sandbox: &Sandbox, guild: &Guild, ledger: &Ledger) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let senders = (0..SENDERS).map(|_| {
            let (rest, guild, ledger) = (sandbox.rest.clone(), guild.clone(), ledger.clone());
            let stopping = Arc::clone(&stopping);
            tokio::spawn(async move {
                while !stopping.load(Relaxed) {
                    send(&rest, &guild, &ledger).await;
                    sleep(PAUSE).await;
                }
            })
        });
        Self { senders: senders.collect(), stopping }
    }

    /// Stops and waits for what is under way.
    pub async fn stop(mut self) {
        self.stopping.store(true, Relaxed);
        for sender in self.senders.drain(..) {
            timeout(SEND_WITHIN + Duration::from_secs(25), sender).await.expect("a sender stops").unwrap();
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.senders.iter().for_each(JoinHandle::abort);
    }
}

async fn send(rest: &Rest, guild: &Guild, ledger: &Ledger) {
    let number = ledger.next.fetch_add(1, Relaxed);
    let body = json!({
        "content": content::text(0, number),
        "nonce": content::nonce(0, number),
        "enforce_nonce": true,
    });
    let path = format!("/channels/{}/messages", guild.channel);
    let call = Call { method: Method::POST, path, authorization: &guild.token, body: Some(body), within: SEND_WITHIN };
    let answer: Result<_, RestError> = rest.call(&call).await;
    match answer.as_ref().map(|answer| answer["id"].as_str().and_then(|id| id.parse().ok())) {
        Ok(Some(id)) => ledger.acknowledged.lock().unwrap().push((number, id)),
        Ok(None) => ledger.trouble.lock().unwrap().push(format!("send {number}: an answer without id")),
        Err(error) => ledger.trouble.lock().unwrap().push(format!("send {number}: {error}")),
    }
}
