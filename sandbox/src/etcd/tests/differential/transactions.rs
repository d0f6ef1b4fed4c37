//! Random transactions, nested ones as well, with every comparison and every way to read.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, KeyValue, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, TxnResponse, WatchOptions,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const NAMES: [&str; 6] = ["a", "a/1", "a/2", "b", "b/1", "c"];
const OPS: [CompareOp; 4] = [CompareOp::Equal, CompareOp::NotEqual, CompareOp::Greater, CompareOp::Less];

/// One side: a client and the revision it began at.
struct Side {
    client: Client,
    base: i64,
    prefix: String,
    lease: i64,
}

impl Side {
    async fn new(mut client: Client, prefix: &str) -> Self {
        let put = client.put(format!("{prefix}begin"), "", None).await.unwrap();
        let lease = client.lease_grant(3600, None).await.unwrap().id();
        Self { client, base: put.header().unwrap().revision(), prefix: prefix.to_owned(), lease }
    }

    /// A key's fields, with revisions counted from the beginning and the lease told only as being there.
    fn told(&self, kv: &KeyValue) -> String {
        // A deletion has no creation; everything else was made after the beginning.
        let created = if kv.create_revision() == 0 { 0 } else { kv.create_revision() - self.base };
        let modified = kv.mod_revision() - self.base;
        let (key, value) = (kv.key_str().unwrap(), kv.value_str().unwrap());
        let lease = if kv.lease() == self.lease { "leased" } else { "" };
        format!("{key}={value} c{created} m{modified} v{} {lease}", kv.version())
    }

    fn tell(&self, response: &TxnResponse) -> Vec<String> {
        let mut told = vec![format!("succeeded {}", response.succeeded())];
        for response in response.op_responses() {
            match response {
                TxnOpResponse::Put(put) => told.push(format!("put {:?}", put.prev_key().map(|kv| self.told(kv)))),
                TxnOpResponse::Delete(gone) => {
                    told.push(format!("deleted {}", gone.deleted()));
                    told.extend(gone.prev_kvs().iter().map(|kv| self.told(kv)));
                }
                TxnOpResponse::Get(got) => {
                    told.push(format!("got {} of {}, more {}", got.kvs().len(), got.count(), got.more()));
                    told.extend(got.kvs().iter().map(|kv| self.told(kv)));
                }
                TxnOpResponse::Txn(inner) => told.extend(self.tell(&inner)),
            }
        }
        told
    }

    /// Builds the same transaction on both sides from equal random numbers.
    fn random_txn(&self, random: &mut StdRng, depth: usize) -> Txn {
        let compares: Vec<_> = (0..random.random_range(0..3)).map(|_| self.random_compare(random)).collect();
        let then: Vec<_> = (0..random.random_range(0..4)).map(|_| self.random_op(random, depth)).collect();
        let otherwise: Vec<_> = (0..random.random_range(0..3)).map(|_| self.random_op(random, depth)).collect();
        Txn::new().when(compares).and_then(then).or_else(otherwise)
    }

    fn random_key(&self, random: &mut StdRng) -> String {
        format!("{}{}", self.prefix, NAMES[random.random_range(0..NAMES.len())])
    }

    fn random_compare(&self, random: &mut StdRng) -> Compare {
        let (key, op) = (self.random_key(random), OPS[random.random_range(0..4)]);
        let number = random.random_range(0..4);
        let revision = |random: &mut StdRng| match random.random_range(-1..30) {
            -1 => 0,
            relative => self.base + relative,
        };
        let compare = match random.random_range(0..5) {
            0 => Compare::version(key, op, number),
            1 => Compare::create_revision(key, op, revision(random)),
            2 => Compare::mod_revision(key, op, revision(random)),
            3 => Compare::lease(key, op, if number < 2 { 0 } else { self.lease }),
            _ => Compare::value(key, op, ["x", "y"][number as usize % 2]),
        };
        match random.random_range(0..4) {
            0 => compare.with_prefix(),
            1 => compare.with_range(self.random_key(random)),
            _ => compare,
        }
    }

    fn random_op(&self, random: &mut StdRng, depth: usize) -> TxnOp {
        let key = self.random_key(random);
        let value = ["x", "y", "z"][random.random_range(0..3)];
        match random.random_range(0..11) {
            0..=3 => TxnOp::put(key, value, Some(PutOptions::new().with_prev_key())),
            4 => TxnOp::put(key, value, Some(PutOptions::new().with_prev_key().with_lease(self.lease))),
            5 => TxnOp::put(key, "", Some(PutOptions::new().with_ignore_value().with_prev_key())),
            6 => TxnOp::put(key, value, Some(PutOptions::new().with_ignore_lease())),
            7 => {
                let options = DeleteOptions::new().with_prev_key();
                let options = if random.random_bool(0.3) { options.with_prefix() } else { options };
                TxnOp::delete(key, Some(options))
            }
            8 | 9 => TxnOp::get(self.prefix.clone(), Some(self.random_get(random))),
            _ if depth < 2 => TxnOp::txn(self.random_txn(random, depth + 1)),
            _ => TxnOp::get(key, None),
        }
    }

    fn random_get(&self, random: &mut StdRng) -> GetOptions {
        let options = GetOptions::new().with_prefix().with_limit(random.random_range(0..4));
        let target = [SortTarget::Key, SortTarget::Create, SortTarget::Mod][random.random_range(0..3)];
        match random.random_range(0..6) {
            0 => options.with_sort(target, SortOrder::Descend),
            1 => options.with_sort(target, SortOrder::Ascend),
            2 => options.with_min_mod_revision(self.base + random.random_range(1..20)),
            3 => options.with_max_create_revision(self.base + random.random_range(1..20)),
            4 => options.with_keys_only(),
            _ => options.with_revision(self.base + random.random_range(0..20)),
        }
    }

    async fn history(&mut self, until: i64) -> Vec<String> {
        let options = WatchOptions::new().with_prefix().with_start_revision(self.base).with_prev_key();
        let mut stream = self.client.watch(self.prefix.clone(), Some(options)).await.unwrap();
        let mut told = Vec::new();
        let mut last = self.base;
        while last < until {
            for event in soon(stream.message()).await.unwrap().unwrap().events() {
                let kv = event.kv().unwrap();
                last = kv.mod_revision();
                let prev = event.prev_kv().map(|kv| self.told(kv));
                told.push(format!("{:?} {} before: {prev:?}", event.event_type(), self.told(kv)));
            }
        }
        told
    }
}

#[tokio::test]
#[ignore = "needs a real etcd, named in CELL_ETCD_ENDPOINT"]
async fn a_real_etcd_answers_every_random_transaction_the_same() {
    let (endpoint, seed) = (endpoint(), seed());
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    let mut random = StdRng::seed_from_u64(seed);
    let mut compared = 0;
    for round in 0..60 {
        let prefix = format!("differential-{}/", uuid::Uuid::new_v4());
        let mut ours = Side::new(server.client().await, &prefix).await;
        let mut real = Side::new(Client::connect([&endpoint], None).await.unwrap(), &prefix).await;
        let mut newest = 0;
        for step in 0..40 {
            let (mut one, mut other) = (random.clone(), random.clone());
            let (our_txn, real_txn) = (ours.random_txn(&mut one, 0), real.random_txn(&mut other, 0));
            random = one;
            match (ours.client.txn(our_txn).await, real.client.txn(real_txn).await) {
                (Ok(a), Ok(b)) => {
                    assert_eq!(ours.tell(&a), real.tell(&b), "round {round} step {step}");
                    newest = a.header().unwrap().revision() - ours.base;
                    assert_eq!(newest, b.header().unwrap().revision() - real.base, "round {round} step {step}");
                    compared += 1;
                }
                (a, b) => assert_eq!(refusal(a), refusal(b), "round {round} step {step}"),
            }
        }
        let (a, b) = (ours.base + newest, real.base + newest);
        assert_eq!(ours.history(a).await, real.history(b).await, "round {round}");
    }
    assert!(compared > 600, "only {compared} transactions were not refused by both");
    server.stop().await;
}
