//! Random sequences of what an etcd can be asked, as data that can be printed and played again.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

const NAMES: [&str; 6] = ["a", "a/1", "a/2", "b", "b/1", "c"];
const VALUES: [&str; 4] = ["x", "y", "z", ""];

/// One request. Revisions are counted from the beginning of the sequence; leases are slots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    Put {
        key: String,
        value: String,
        lease: Option<usize>,
        keep_value: bool,
        keep_lease: bool,
    },
    Delete {
        key: String,
        prefix: bool,
    },
    Get {
        key: String,
        prefix: bool,
        revision: Option<i64>,
        limit: i64,
        keys_only: bool,
        count_only: bool,
    },
    /// Puts the new value if the key has the old one; otherwise reads it.
    Swap {
        key: String,
        old: String,
        new: String,
    },
    /// Makes the key if it is not there, and deletes another.
    Claim {
        key: String,
        lease: Option<usize>,
        gone: String,
    },
    Grant {
        lease: usize,
        ttl: i64,
    },
    Revoke {
        lease: usize,
    },
    KeepAlive {
        lease: usize,
    },
    TimeToLive {
        lease: usize,
    },
    Compact {
        revision: i64,
    },
    /// A watch: its events are compared at the end.
    Watch {
        key: String,
        prefix: bool,
        revision: Option<i64>,
        before: bool,
        no_puts: bool,
        no_deletes: bool,
    },
}

/// The sequence of a seed.
pub fn sequence(seed: u64, length: usize) -> Vec<Ask> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..length).map(|i| ask(&mut random, i64::try_from(i).unwrap())).collect()
}

fn ask(random: &mut StdRng, so_far: i64) -> Ask {
    let key = NAMES[random.random_range(0..NAMES.len())].to_owned();
    let value = VALUES[random.random_range(0..VALUES.len())].to_owned();
    let lease = random.random_bool(0.25).then(|| random.random_range(0..3));
    let revision = random.random_range(-1..so_far + 3);
    match random.random_range(0..100) {
        0..25 => {
            let (keep_value, keep_lease) = (random.random_bool(0.08), random.random_bool(0.08));
            let value = if keep_value { String::new() } else { value };
            Ask::Put { key, value, lease, keep_value, keep_lease }
        }
        25..35 => Ask::Delete { key, prefix: random.random_bool(0.3) },
        35..50 => Ask::Get {
            key,
            prefix: random.random_bool(0.6),
            revision: random.random_bool(0.5).then_some(revision),
            limit: random.random_range(0..3),
            keys_only: random.random_bool(0.2),
            count_only: random.random_bool(0.1),
        },
        50..58 => Ask::Swap { key, old: value, new: VALUES[random.random_range(0..VALUES.len())].to_owned() },
        58..65 => Ask::Claim { key, lease, gone: NAMES[random.random_range(0..NAMES.len())].to_owned() },
        65..74 => Ask::Grant { lease: random.random_range(0..3), ttl: [100, 3600, 0, -1][random.random_range(0..4)] },
        74..80 => Ask::Revoke { lease: random.random_range(0..3) },
        80..82 => Ask::KeepAlive { lease: random.random_range(0..3) },
        82..86 => Ask::TimeToLive { lease: random.random_range(0..3) },
        86..90 => Ask::Compact { revision },
        _ => Ask::Watch {
            key,
            prefix: random.random_bool(0.7),
            revision: random.random_bool(0.6).then_some(revision.max(1)),
            before: random.random_bool(0.5),
            no_puts: random.random_bool(0.1),
            no_deletes: random.random_bool(0.1),
        },
    }
}
