//! Random sequences of keys, leases, compactions and watches, in lock-step; the smallest that differs is printed. CELL_ASKS replays one,
//! CELL_SEQUENCES says how many are played.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions,
    Txn, TxnOp, TxnOpResponse, WatchFilterType, WatchOptions, WatchStream,
};

use super::generate::{Ask, sequence};
use super::*;
use crate::shrink::fewest;

const LENGTH: usize = 40;
const SEED: u64 = 20_261_130;
const SEQUENCES: u64 = 12;

/// One side: where it began, its leases, its open watches.
struct Side {
    client: Client,
    base: i64,
    prefix: String,
    /// The lease of a slot has the same id on both sides, and one that nobody used before.
    first_lease: i64,
    watches: Vec<(WatchStream, Vec<String>)>,
    /// The newest revision answered: a watch that says it has come so far has told everything.
    newest: i64,
}

impl Side {
    async fn new(mut client: Client, prefix: &str, first_lease: i64) -> Self {
        let put = client.put(format!("{prefix}begin"), "", None).await.unwrap();
        let base = put.header().unwrap().revision();
        Self { client, base, prefix: prefix.to_owned(), first_lease, watches: Vec::new(), newest: base }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn lease(&self, slot: usize) -> i64 {
        self.first_lease + i64::try_from(slot).unwrap()
    }

    fn told(&self, kv: &KeyValue) -> String {
        let created = if kv.create_revision() == 0 { 0 } else { kv.create_revision() - self.base };
        let lease = if kv.lease() == 0 { String::new() } else { format!("lease {}", kv.lease() - self.first_lease) };
        let (key, value) = (kv.key_str().unwrap(), kv.value_str().unwrap());
        format!("{key}={value} c{created} m{} v{} {lease}", kv.mod_revision() - self.base, kv.version())
    }

    fn all(&self, kvs: &[KeyValue]) -> Vec<String> {
        kvs.iter().map(|kv| self.told(kv)).collect()
    }

    /// What is answered, or refused.
    async fn take(&mut self, ask: &Ask) -> String {
        match self.asked(ask).await {
            Ok((revision, told)) => {
                self.newest = self.newest.max(revision);
                format!("{} {told}", revision - self.base)
            }
            // Revisions in the words of a refusal are this side's own.
            Err(Error::GRpcStatus(status)) => {
                let words = status.message().replace(|c: char| c.is_ascii_digit(), "");
                format!("refused {:?} {words}", status.code())
            }
            Err(other) => format!("broken {other}"),
        }
    }

    async fn asked(&mut self, ask: &Ask) -> Result<(i64, String), Error> {
        match ask {
            Ask::Put { key, value, lease, keep_value, keep_lease } => {
                let mut options = PutOptions::new().with_prev_key();
                if let Some(slot) = lease {
                    options = options.with_lease(self.lease(*slot));
                }
                if *keep_value {
                    options = options.with_ignore_value();
                }
                if *keep_lease {
                    options = options.with_ignore_lease();
                }
                let put = self.client.put(self.key(key), value.as_str(), Some(options)).await?;
                Ok((put.header().unwrap().revision(), format!("{:?}", put.prev_key().map(|kv| self.told(kv)))))
            }
            Ask::Delete { key, prefix } => {
                let options = DeleteOptions::new().with_prev_key();
                let options = if *prefix { options.with_prefix() } else { options };
                let gone = self.client.delete(self.key(key), Some(options)).await?;
                Ok((gone.header().unwrap().revision(), format!("{} {:?}", gone.deleted(), self.all(gone.prev_kvs()))))
            }
            Ask::Get { key, prefix, revision, limit, keys_only, count_only } => {
                let mut options = GetOptions::new().with_limit(*limit);
                if *prefix {
                    options = options.with_prefix();
                }
                if let Some(revision) = revision {
                    options = options.with_revision(self.base + revision);
                }
                if *keys_only {
                    options = options.with_keys_only();
                }
                if *count_only {
                    options = options.with_count_only();
                }
                let got = self.client.get(self.key(key), Some(options)).await?;
                let told = format!("{} {} {:?}", got.count(), got.more(), self.all(got.kvs()));
                Ok((got.header().unwrap().revision(), told))
            }
            Ask::Swap { .. } | Ask::Claim { .. } => self.transact(ask).await,
            Ask::Compact { revision } => {
                let done = self.client.compact(self.base + revision, None).await?;
                Ok((done.header().unwrap().revision(), "compacted".into()))
            }
            Ask::Watch { .. } => self.watch(ask).await,
            _ => self.asked_of_leases(ask).await,
        }
    }

    async fn transact(&mut self, ask: &Ask) -> Result<(i64, String), Error> {
        let txn = match ask {
            Ask::Swap { key, old, new } => {
                let key = self.key(key);
                Txn::new()
                    .when([Compare::value(key.clone(), CompareOp::Equal, old.as_str())])
                    .and_then([TxnOp::put(key.clone(), new.as_str(), Some(PutOptions::new().with_prev_key()))])
                    .or_else([TxnOp::get(key, None)])
            }
            Ask::Claim { key, lease, gone } => {
                let options = lease.map(|slot| PutOptions::new().with_lease(self.lease(slot)));
                Txn::new()
                    .when([Compare::create_revision(self.key(key), CompareOp::Equal, 0)])
                    .and_then([TxnOp::put(self.key(key), "claimed", options), TxnOp::delete(self.key(gone), None)])
            }
            _ => Txn::new(),
        };
        let done = self.client.txn(txn).await?;
        let told: Vec<String> = done
            .op_responses()
            .iter()
            .map(|response| match response {
                TxnOpResponse::Put(put) => format!("put {:?}", put.prev_key().map(|kv| self.told(kv))),
                TxnOpResponse::Delete(gone) => format!("deleted {}", gone.deleted()),
                TxnOpResponse::Get(got) => format!("got {:?}", self.all(got.kvs())),
                TxnOpResponse::Txn(_) => "txn".into(),
            })
            .collect();
        Ok((done.header().unwrap().revision(), format!("{} {told:?}", done.succeeded())))
    }

    async fn asked_of_leases(&mut self, ask: &Ask) -> Result<(i64, String), Error> {
        match ask {
            Ask::Grant { lease, ttl } => {
                let options = LeaseGrantOptions::new().with_id(self.lease(*lease));
                let granted = self.client.lease_grant(*ttl, Some(options)).await?;
                Ok((granted.header().unwrap().revision(), format!("granted for {}", granted.ttl())))
            }
            Ask::Revoke { lease } => {
                let gone = self.client.lease_revoke(self.lease(*lease)).await?;
                Ok((gone.header().unwrap().revision(), "revoked".into()))
            }
            Ask::KeepAlive { lease } => {
                let (mut keeper, mut stream) = self.client.lease_keep_alive(self.lease(*lease)).await?;
                keeper.keep_alive().await?;
                let kept = soon(stream.message()).await?.expect("an answer");
                Ok((kept.header().unwrap().revision(), format!("kept for {}", kept.ttl())))
            }
            Ask::TimeToLive { lease } => {
                let options = LeaseTimeToLiveOptions::new().with_keys();
                let found = self.client.lease_time_to_live(self.lease(*lease), Some(options)).await?;
                let mut keys: Vec<&str> = found.keys().iter().map(|key| std::str::from_utf8(key).unwrap()).collect();
                keys.sort_unstable();
                // Seconds pass while it is asked.
                Ok((
                    found.header().unwrap().revision(),
                    format!("granted {} {} {keys:?}", found.granted_ttl(), found.ttl() < 0),
                ))
            }
            _ => Ok((self.base, String::new())),
        }
    }

    async fn watch(&mut self, ask: &Ask) -> Result<(i64, String), Error> {
        let Ask::Watch { key, prefix, revision, before, no_puts, no_deletes } = ask else {
            return Ok((0, String::new()));
        };
        let mut options = WatchOptions::new();
        if *prefix {
            options = options.with_prefix();
        }
        if let Some(revision) = revision {
            options = options.with_start_revision(self.base + revision);
        }
        if *before {
            options = options.with_prev_key();
        }
        let filters = [(*no_puts, WatchFilterType::NoPut), (*no_deletes, WatchFilterType::NoDelete)];
        let filters: Vec<_> = filters.into_iter().filter_map(|(on, filter)| on.then_some(filter)).collect();
        if !filters.is_empty() {
            options = options.with_filters(filters);
        }
        let mut stream = self.client.watch(self.key(key), Some(options)).await?;
        let first = soon(stream.message()).await?.expect("an answer");
        let mut told = vec![format!("created {} cancelled {}", first.created(), first.canceled())];
        // One that is behind when its history is compacted is cancelled, and when it has caught up is nobody's promise: it catches up now.
        if revision.is_none_or(|revision| self.base + revision <= self.newest) {
            self.follow(&mut stream, &mut told).await;
        }
        self.watches.push((stream, told));
        Ok((self.base, "watching".into()))
    }

    /// Everything that every watch tells, to the newest revision.
    async fn histories(mut self, length: usize) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        // A watch that is to begin in the future says nothing of its progress: no sequence looks further ahead than this.
        while self.newest < self.base + i64::try_from(length).unwrap() + 4 {
            self.newest = self.client.put(self.key("unseen"), "", None).await.unwrap().header().unwrap().revision();
        }
        for (mut stream, mut told) in std::mem::take(&mut self.watches) {
            self.follow(&mut stream, &mut told).await;
            all.push(told);
        }
        all
    }

    /// Writes down what a watch tells until it says that it has come to the newest revision, or ends.
    async fn follow(&self, stream: &mut WatchStream, told: &mut Vec<String>) {
        if told.last().is_some_and(|line| line.starts_with("cancelled")) {
            return;
        }
        for _ in 0..200 {
            stream.request_progress().await.unwrap();
            // A server that is still behind lets the question go by.
            let wait = Duration::from_millis(100);
            while let Ok(Ok(Some(message))) = tokio::time::timeout(wait, stream.message()).await {
                for event in message.events() {
                    let (kv, prev) = (event.kv().unwrap(), event.prev_kv().map(|kv| self.told(kv)));
                    told.push(format!("{:?} {} before: {prev:?}", event.event_type(), self.told(kv)));
                }
                if message.canceled() {
                    let compacted = message.compact_revision();
                    let since = if compacted == 0 { 0 } else { compacted - self.base };
                    told.push(format!("cancelled: compacted {since}"));
                    return;
                }
                if message.events().is_empty() && message.header().unwrap().revision() >= self.newest {
                    return;
                }
            }
        }
        panic!("no progress is told: {told:?}");
    }
}

/// Plays a sequence on both; the first difference.
async fn play(asks: &[Ask], server: &Server, real: &str) -> Option<String> {
    let prefix = format!("sequence-{}/", uuid::Uuid::new_v4());
    let first_lease = i64::from(rand::random::<u32>()) * 16 + 1;
    let mut ours = Side::new(server.client().await, &prefix, first_lease).await;
    let mut real = Side::new(Client::connect([real], None).await.unwrap(), &prefix, first_lease).await;
    for (i, ask) in asks.iter().enumerate() {
        let (theirs, mine) = (real.take(ask).await, ours.take(ask).await);
        if theirs != mine {
            return Some(format!("step {i} {ask:?}\n    real {theirs}\n    ours {mine}"));
        }
    }
    let leases = [0, 1, 2].map(|slot| ours.lease(slot));
    let clients = [real.client.clone(), ours.client.clone()];
    let (theirs, mine) = (real.histories(asks.len()).await, ours.histories(asks.len()).await);
    for mut client in clients {
        for lease in leases {
            let _ = client.lease_revoke(lease).await;
        }
    }
    (theirs != mine).then(|| format!("watches\n    real {theirs:?}\n    ours {mine:?}"))
}

#[tokio::test]
#[ignore = "needs a real etcd, named in CELL_ETCD_ENDPOINT"]
async fn a_real_etcd_plays_every_random_sequence_the_same() {
    let real = endpoint();
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_with(dir.path(), 2).await;
    if let Ok(text) = std::env::var("CELL_ASKS") {
        let asks: Vec<Ask> = serde_json::from_str(&text).expect("CELL_ASKS is a sequence as printed");
        assert_eq!(play(&asks, &server, &real).await, None);
        return;
    }
    let count = std::env::var("CELL_SEQUENCES").map_or(SEQUENCES, |count| count.parse().unwrap());
    for first in [SEED, seed()] {
        for seed in first..first + count {
            let asks = sequence(seed, LENGTH);
            if play(&asks, &server, &real).await.is_some() {
                let smallest = fewest(asks, &mut 200, async |asks| play(asks, &server, &real).await.is_some()).await;
                let difference = play(&smallest, &server, &real).await;
                let text = serde_json::to_string(&smallest).unwrap();
                panic!("CELL_SEED={seed}\n  CELL_ASKS='{text}'\n  {}", difference.unwrap_or_default());
            }
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_server_plays_every_random_sequence_as_another_of_its_kind_does() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (one, other) = (Server::start(one.path()).await, Server::start(other.path()).await);
    for seed in SEED..SEED + 5 {
        assert_eq!(play(&sequence(seed, LENGTH), &one, &other.endpoint).await, None, "CELL_SEED={seed}");
    }
    one.stop().await;
    other.stop().await;
}
