//! The one place where drivers read the wall clock; pure machines get the time as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch; 0 when the clock stands before it.
pub fn unix_ms() -> i64 {
    unix_us() / 1000
}

/// Microseconds since the Unix epoch; 0 when the clock stands before it.
pub fn unix_us() -> i64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX)
}
