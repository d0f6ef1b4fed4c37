//! Which ten-day buckets of channels are known to hold no message, so that nobody reads them again. A bucket that is over stays empty: new
//! messages have new ids. What is known is forgotten after an hour, so that no mistake lasts.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use cell_proto::snowflake::{first_of_ms, message_bucket};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;

/// Buckets known at once; at one more, all are forgotten.
const MAX_KNOWN: usize = 65_536;
/// How long they are known.
const KEPT: Duration = Duration::from_secs(3600);
/// How long a bucket must be over: an entry of it may have been committed and wait for its tables.
const OVER_MS: i64 = 24 * 3_600_000;

struct Known {
    since: Instant,
    buckets: HashSet<(i64, i64)>,
}

/// The buckets that one process knows to be empty in the stores that serve.
pub(super) struct EmptyBuckets {
    known: Mutex<Known>,
    skipped: Counter,
    overflows: Counter,
}

impl EmptyBuckets {
    pub(super) fn new(skipped: Counter, overflows: Counter) -> Self {
        let known = Known { since: Instant::now(), buckets: HashSet::new() };
        Self { known: Mutex::new(known), skipped, overflows }
    }

    /// Whether reading a channel's bucket is in vain.
    pub(super) fn skips(&self, channel_id: i64, bucket: i64) -> bool {
        let mut known = self.known.lock();
        if known.since.elapsed() > KEPT {
            known.buckets.clear();
            known.since = Instant::now();
        }
        let skips = known.buckets.contains(&(channel_id, bucket));
        if skips {
            self.skipped.inc();
        }
        skips
    }

    /// A read of ids in `[from, to)` found nothing in a bucket.
    pub(super) fn found_nothing(&self, channel_id: i64, bucket: i64, (from, to): (i64, i64), unix_ms: i64) {
        let whole = message_bucket(from) < bucket && message_bucket(to) > bucket;
        let over = message_bucket(first_of_ms(unix_ms - OVER_MS)) > bucket;
        if !whole || !over {
            return;
        }
        let mut known = self.known.lock();
        if known.buckets.len() >= MAX_KNOWN {
            known.buckets.clear();
            self.overflows.inc();
        }
        known.buckets.insert((channel_id, bucket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_796_000_000_000;

    fn empty() -> EmptyBuckets {
        EmptyBuckets::new(Counter::default(), Counter::default())
    }

    #[test]
    fn a_bucket_read_whole_and_over_is_read_no_more() {
        let (empty, current) = (empty(), message_bucket(first_of_ms(NOW_MS)));
        empty.found_nothing(7, current - 2, (0, i64::MAX), NOW_MS);
        assert!(empty.skips(7, current - 2));
        assert!(!empty.skips(8, current - 2) && !empty.skips(7, current - 3));
        assert_eq!(empty.skipped.get(), 1);
    }

    #[test]
    fn a_bucket_that_may_still_fill_or_was_read_in_part_is_read_again() {
        let (empty, current) = (empty(), message_bucket(first_of_ms(NOW_MS)));
        empty.found_nothing(7, current, (0, i64::MAX), NOW_MS);
        let within = first_of_ms(NOW_MS - 20 * 24 * 3_600_000);
        empty.found_nothing(7, message_bucket(within), (0, within), NOW_MS);
        assert!(!empty.skips(7, current) && !empty.skips(7, message_bucket(within)));
    }

    #[test]
    fn what_is_known_stays_bounded() {
        let empty = empty();
        for channel in 0..=i64::try_from(MAX_KNOWN).unwrap() {
            empty.found_nothing(channel, 5, (0, i64::MAX), NOW_MS);
        }
        assert_eq!(empty.overflows.get(), 1);
        assert!(empty.known.lock().buckets.len() <= MAX_KNOWN);
    }
}
