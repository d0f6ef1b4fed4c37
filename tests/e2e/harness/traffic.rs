//! Numbered sends under way during a test, and the ledger that remembers which were acknowledged.

use std::collections::{HashMap, HashSet};
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
    deleted: Arc<Mutex<HashSet<u32>>>,
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

    /// Deletes the newest acknowledged sends that are still there.
    pub async fn delete(&self, sandbox: &Sandbox, guild: &Guild, count: usize) {
        let gone = self.deleted.lock().unwrap().clone();
        let there: Vec<Sent> =
            self.acknowledged.lock().unwrap().iter().copied().filter(|(number, _)| !gone.contains(number)).collect();
        for (number, id) in there.into_iter().rev().take(count) {
            let path = format!("/channels/{}/messages/{id}", guild.channel);
            let (method, authorization) = (Method::DELETE, guild.token.as_str());
            sandbox.rest.call(&Call { method, path, authorization, body: None, within: SEND_WITHIN }).await.unwrap();
            self.deleted.lock().unwrap().insert(number);
        }
    }

    /// Every acknowledged send is in history once, under the id that was answered, unless it was deleted; nothing is there twice.
    pub async fn check_history(&self, sandbox: &Sandbox, guild: &Guild) {
        let trouble = self.trouble.lock().unwrap().clone();
        assert!(trouble.is_empty(), "sends came to nothing: {trouble:?}");
        let history: Vec<_> =
            guild.history(sandbox).await.into_iter().map(|seen| (seen.number, seen.message_id)).collect();
        let deleted = self.deleted.lock().unwrap().clone();
        let (gone, kept): (Vec<Sent>, Vec<Sent>) =
            self.acknowledged.lock().unwrap().iter().partition(|(number, _)| deleted.contains(number));
        assert_eq!(judge_history(&kept, &history), Ok(()));
        let back: Vec<_> = history.iter().filter(|seen| gone.contains(seen)).collect();
        assert!(back.is_empty(), "deleted and there again: {back:?}");
    }

    /// The session lives, and heard every send acknowledged since `from` exactly once, in channel order.
    pub async fn check_listener(&self, listener: &Listener, from: usize) {
        let acknowledged = self.acknowledged.lock().unwrap()[from..].to_vec();
        wait_for("the session to hear everything", 20, async || {
            judge_heard(&acknowledged, &listener.messages())
                .map_err(|why| format!("{why}; ended: {:?}", listener.ended()))
        })
        .await;
        assert_eq!(listener.ended(), None);
    }
}

/// A send's number and the id of its message.
type Sent = (u32, i64);

/// What contradicts "each acknowledged send is there once, under its id, and nothing is there twice".
fn judge_history(acknowledged: &[Sent], history: &[Sent]) -> Result<(), String> {
    if acknowledged.is_empty() {
        return Err("nothing was acknowledged, so nothing is proven".to_owned());
    }
    let mut found: HashMap<u32, Vec<i64>> = HashMap::new();
    history.iter().for_each(|(number, id)| found.entry(*number).or_default().push(*id));
    for (number, id) in acknowledged {
        let ids = found.get(number).map_or(&[][..], Vec::as_slice);
        if ids != [*id] {
            return Err(format!("send {number} was acknowledged as {id} and is in history as {ids:?}"));
        }
    }
    match found.iter().find(|(_, ids)| ids.len() > 1) {
        Some((number, ids)) => Err(format!("send {number} is in history as {ids:?}")),
        None => Ok(()),
    }
}

/// What contradicts "each acknowledged send was heard once, in channel order".
fn judge_heard(acknowledged: &[Sent], heard: &[Sent]) -> Result<(), String> {
    if let Some(pair) = heard.windows(2).find(|pair| pair[0].1 >= pair[1].1) {
        return Err(format!("twice or out of order: {pair:?}"));
    }
    let known: HashSet<Sent> = heard.iter().copied().collect();
    let missing: Vec<_> = acknowledged.iter().filter(|sent| !known.contains(sent)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("{} were not heard, among them {:?}", missing.len(), &missing[..missing.len().min(5)]))
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

#[test]
fn the_ledger_sees_what_is_lost_doubled_or_out_of_order() {
    let sent = [(1, 10), (2, 20), (3, 30)];
    assert_eq!(
        judge_history(&sent, &[(1, 10), (2, 20), (3, 30), (4, 40)]),
        Ok(()),
        "what was not acknowledged may be there"
    );
    for wrong in [&[(1, 10), (3, 30)][..], &[(1, 10), (2, 20), (2, 20), (3, 30)], &[(1, 10), (2, 25), (3, 30)]] {
        assert!(judge_history(&sent, wrong).is_err(), "{wrong:?}");
    }
    assert!(judge_history(&sent, &[(1, 10), (2, 20), (3, 30), (4, 40), (4, 41)]).is_err(), "nor twice");
    assert!(judge_history(&[], &[]).is_err());
    assert_eq!(judge_heard(&sent[1..], &[(2, 20), (3, 30), (4, 40)]), Ok(()));
    for wrong in [&[(1, 10), (3, 30)][..], &[(1, 10), (2, 20), (2, 20), (3, 30)], &[(2, 20), (1, 10), (3, 30)]] {
        assert!(judge_heard(&sent, wrong).is_err(), "{wrong:?}");
    }
}
