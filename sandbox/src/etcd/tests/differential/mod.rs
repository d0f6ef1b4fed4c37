//! The same things asked of this server and of a real etcd: every answer must be the same, revisions counted from where each began. Run
//! them with `--ignored` and CELL_ETCD_ENDPOINT naming an etcd that nobody else uses.

mod etcdctl;
mod generate;
mod sequences;
mod transactions;

use super::*;

/// The real etcd.
fn endpoint() -> String {
    std::env::var("CELL_ETCD_ENDPOINT").expect("CELL_ETCD_ENDPOINT names the real etcd")
}

/// A seed of the environment, or a new one; it is printed.
fn seed() -> u64 {
    let seed = std::env::var("CELL_SEED").map_or_else(|_| rand::random::<u32>().into(), |seed| seed.parse().unwrap());
    println!("CELL_SEED={seed}");
    seed
}
