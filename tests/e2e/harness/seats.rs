//! How many sandboxes run at once on this machine: a sandbox is some twenty processes, and a crowded one proves nothing.

use std::fs::{File, OpenOptions};
use std::time::Duration;

use tokio::time::{Instant, sleep};

const SEATS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(900);

/// Held while a sandbox exists; the system gives it back when the process ends, however it ends.
#[derive(Debug)]
pub struct Seat {
    _lock: File,
}

impl Seat {
    /// Waits for a free seat.
    pub async fn take() -> Self {
        let folder = std::env::temp_dir().join("cellplane-e2e-seats");
        std::fs::create_dir_all(&folder).unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            for number in 0..SEATS {
                let path = folder.join(number.to_string());
                let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
                if file.try_lock().is_ok() {
                    return Self { _lock: file };
                }
            }
            assert!(Instant::now() < deadline, "no seat for another sandbox within {} s", PATIENCE.as_secs());
            sleep(Duration::from_millis(100)).await;
        }
    }
}
