//! What the tests stand on: programs, sandboxes, a guild with traffic and listeners, and the check of what was acknowledged.

mod guild;
mod listener;
mod logs;
mod migrations;
mod moves;
mod programs;
pub mod raw;
mod records;
mod sandbox;
mod seats;
mod traffic;

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep};

pub use guild::Guild;
pub use listener::Listener;
pub use records::Records;
pub use sandbox::{Home, Sandbox};
pub use traffic::{Ledger, Traffic};

const EVERY: Duration = Duration::from_millis(50);

/// Looks until there is something; stops the test at the deadline, saying what the last look saw.
pub async fn wait_for<T>(what: &str, seconds: u64, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        let why = match look().await {
            Ok(found) => return found,
            Err(why) => why,
        };
        assert!(Instant::now() < deadline, "waited {seconds} s for {what}: {why}");
        sleep(EVERY).await;
    }
}

/// Random numbers of a test: another row at each run, the same again with `CELLPLANE_E2E_SEED`.
pub fn random(test: &str) -> StdRng {
    let given = std::env::var("CELLPLANE_E2E_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = given.unwrap_or_else(rand::random);
    println!("{test}: CELLPLANE_E2E_SEED={seed}");
    StdRng::seed_from_u64(seed)
}
