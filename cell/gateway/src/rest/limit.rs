//! REST rates: one over all routes of a user, one for messages into a channel, and slow mode. Pure; per gateway process.

use std::borrow::Cow;
use std::collections::HashMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::Limits;
use crate::session::limits::{SlidingWindow, make_room};

/// How a limited route's bucket stands: the five headers, all or none.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    limit: u32,
    remaining: u32,
    reset_after_ms: u64,
    reset_unix_ms: i64,
    bucket: Cow<'static, str>,
}

impl Quota {
    /// The rate over all routes, told under a bucket of the route's own: stable, as clients keep what they learn by it.
    pub fn of_route(self, method: &str, route: &str) -> Self {
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = method.bytes().chain([b' ']).chain(route.bytes()).fold(0xcbf2_9ce4_8422_2325, fold);
        Self { bucket: format!("{hash:016x}").into(), ..self }
    }

    /// Writes the five headers.
    pub fn write(self, headers: &mut HeaderMap) {
        let seconds = |milliseconds: f64| format!("{:.3}", milliseconds / 1000.0);
        for (name, value) in [
            ("x-ratelimit-limit", self.limit.to_string()),
            ("x-ratelimit-remaining", self.remaining.to_string()),
            ("x-ratelimit-reset", seconds(self.reset_unix_ms as f64)),
            ("x-ratelimit-reset-after", seconds(self.reset_after_ms as f64)),
            ("x-ratelimit-bucket", self.bucket.into_owned()),
        ] {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

/// A request over a limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Limited {
    /// The limit over all routes.
    pub global: bool,
    /// How the bucket stands.
    pub quota: Quota,
}

impl Limited {
    /// When to retry; header and body are drawn from the same number.
    pub fn retry_after_seconds(&self) -> f64 {
        self.quota.reset_after_ms.max(1) as f64 / 1000.0
    }
}

/// Slow mode: how long this user must wait in this channel, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow(pub u64);

/// Bucket of message creation. Stable: clients append the channel themselves.
const MESSAGES_BUCKET: &str = "80c17d2f203122d936070c88c8d10f33";
const GLOBAL_BUCKET: &str = "global";
const GLOBAL_WINDOW_MS: u64 = 1000;
const MESSAGES_WINDOW_MS: u64 = 5000;
/// From so many on, idle windows are forgotten.
const MAX_WINDOWS: usize = 100_000;

/// All REST rates of this process.
#[derive(Debug)]
pub struct RestLimits {
    limits: Limits,
    global: HashMap<i64, SlidingWindow>,
    messages: HashMap<(i64, i64), SlidingWindow>,
    slow: HashMap<(i64, i64), u64>,
}

impl RestLimits {
    /// Nothing counted yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, global: HashMap::new(), messages: HashMap::new(), slow: HashMap::new() }
    }

    /// Counts a request of a user.
    ///
    /// # Errors
    /// [`Limited`].
    pub fn admit(&mut self, user_id: i64, now_ms: u64, unix_ms: i64) -> Result<Quota, Limited> {
        make_room(&mut self.global, MAX_WINDOWS, |window| window.is_idle(now_ms));
        let limit = self.limits.rest_global_per_second;
        let window = self.global.entry(user_id).or_insert_with(|| SlidingWindow::new(limit, GLOBAL_WINDOW_MS));
        let admitted = window.admit(now_ms);
        let quota = quota(window, limit, GLOBAL_BUCKET, (now_ms, unix_ms));
        if admitted { Ok(quota) } else { Err(Limited { global: true, quota }) }
    }

    /// Counts a message of a user into a channel.
    ///
    /// # Errors
    /// [`Limited`].
    pub fn admit_message(&mut self, key: (i64, i64), now_ms: u64, unix_ms: i64) -> Result<Quota, Limited> {
        make_room(&mut self.messages, MAX_WINDOWS, |window| window.is_idle(now_ms));
        let limit = self.limits.rest_messages_per_5s;
        let window = self.messages.entry(key).or_insert_with(|| SlidingWindow::new(limit, MESSAGES_WINDOW_MS));
        let admitted = window.admit(now_ms);
        let quota = quota(window, limit, MESSAGES_BUCKET, (now_ms, unix_ms));
        if admitted { Ok(quota) } else { Err(Limited { global: false, quota }) }
    }

    /// Whether slow mode lets a user write into a channel now; counts it if so.
    ///
    /// # Errors
    /// [`Slow`].
    pub fn admit_slow(&mut self, key: (i64, i64), every_ms: u64, now_ms: u64) -> Result<(), Slow> {
        // The longest slow mode of the protocol is six hours.
        make_room(&mut self.slow, MAX_WINDOWS, |at_ms| now_ms.saturating_sub(*at_ms) >= 6 * 3600 * 1000);
        if let Some(at_ms) = self.slow.get(&key)
            && now_ms < at_ms + every_ms
        {
            return Err(Slow(at_ms + every_ms - now_ms));
        }
        self.slow.insert(key, now_ms);
        Ok(())
    }
}

fn quota(window: &mut SlidingWindow, limit: u32, bucket: &'static str, now: (u64, i64)) -> Quota {
    let (now_ms, unix_ms) = now;
    let reset_after_ms = window.reset_after_ms(now_ms);
    let remaining = window.remaining(now_ms);
    Quota { limit, remaining, reset_after_ms, reset_unix_ms: unix_ms + reset_after_ms as i64, bucket: bucket.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> RestLimits {
        RestLimits::new(Limits { rest_global_per_second: 2, rest_messages_per_5s: 1, ..Limits::standard() })
    }

    #[test]
    fn a_limited_route_has_all_five_headers_and_a_stable_bucket() {
        let mut limits = limits();
        let admitted = limits.admit_message((1, 2), 0, 0).unwrap();
        let refused = limits.admit_message((1, 2), 10, 10).unwrap_err();
        assert_eq!(admitted.bucket, refused.quota.bucket);
        let mut headers = HeaderMap::new();
        admitted.write(&mut headers);
        for name in ["limit", "remaining", "reset", "reset-after", "bucket"] {
            assert!(headers.contains_key(format!("x-ratelimit-{name}")), "{name}");
        }
        assert!(refused.retry_after_seconds() > 0.0);
        assert!(limits.admit_message((1, 3), 10, 10).is_ok(), "another channel has its own bucket");
    }

    #[test]
    fn each_route_has_a_stable_bucket_of_its_own() {
        let mut limits = limits();
        let admitted = limits.admit(1, 0, 0).unwrap();
        let bucket = |method, route| admitted.clone().of_route(method, route).bucket;
        assert_eq!(bucket("POST", "/guilds"), bucket("POST", "/guilds"));
        assert_ne!(bucket("POST", "/guilds"), bucket("GET", "/guilds"));
        assert_eq!(admitted.remaining, 1);
    }

    #[test]
    fn the_global_rate_is_per_user() {
        let mut limits = limits();
        assert!(limits.admit(1, 0, 0).is_ok() && limits.admit(1, 0, 0).is_ok());
        assert!(limits.admit(1, 1, 1).unwrap_err().global);
        assert!(limits.admit(2, 1, 1).is_ok());
        assert!(limits.admit(1, 1100, 1100).is_ok());
    }

    #[test]
    fn slow_mode_counts_only_what_it_lets_pass() {
        let mut limits = limits();
        assert_eq!(limits.admit_slow((1, 2), 10_000, 1000), Ok(()));
        assert_eq!(limits.admit_slow((1, 2), 10_000, 6000), Err(Slow(5000)));
        assert_eq!(limits.admit_slow((1, 2), 10_000, 11_000), Ok(()));
    }
}
