//! Snowflake ids: 42 bits of milliseconds since the Discord epoch, 22 low bits. Pure: the clock and the low bits are arguments.

/// Milliseconds from the Unix epoch to the Snowflake epoch (2015-01-01).
pub const EPOCH_MS: i64 = 1_420_070_400_000;
const LOW_BITS: u32 = 22;
/// How far ahead of a clock an id may have been made, in milliseconds: two machines' clocks differ by less.
pub const AHEAD_MS: i64 = 60_000;

/// Milliseconds since the Unix epoch in which the id was made.
pub fn timestamp_ms(id: i64) -> i64 {
    (id >> LOW_BITS) + EPOCH_MS
}

/// The smallest id of a millisecond. Times before the epoch give the smallest id of all.
pub fn first_of_ms(unix_ms: i64) -> i64 {
    (unix_ms - EPOCH_MS).max(0) << LOW_BITS
}

/// The next id of a log: above `last`, made at `unix_ms` or, when the clock stands behind `last`, right after it.
pub fn next(last: i64, unix_ms: i64) -> i64 {
    first_of_ms(unix_ms).max(last + 1)
}

/// The next id above `last` for which `fits` holds, starting at a fresh millisecond so that the low bits are free. `None` when none
/// of the millisecond's 4,194,304 ids fits.
pub fn next_where(last: i64, unix_ms: i64, fits: impl Fn(i64) -> bool) -> Option<i64> {
    let millisecond = first_of_ms(unix_ms).max(((last >> LOW_BITS) + 1) << LOW_BITS);
    (millisecond..millisecond + (1 << LOW_BITS)).find(|id| fits(*id))
}

/// The message bucket of an id: ten days each, as the messages table is partitioned.
pub fn message_bucket(id: i64) -> i64 {
    (id >> LOW_BITS) / (10 * 24 * 3600 * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::bucket_of;

    #[test]
    fn ids_rise_even_when_the_clock_goes_back() {
        let first = next(0, EPOCH_MS + 10);
        let second = next(first, EPOCH_MS + 3);
        assert!(second > first);
        assert_eq!(timestamp_ms(second), EPOCH_MS + 10);
    }

    #[test]
    fn a_channel_id_can_be_drawn_into_its_guilds_bucket() {
        let guild = first_of_ms(EPOCH_MS + 99) + 7;
        let channel = next_where(guild, EPOCH_MS + 99, |id| bucket_of(id) == bucket_of(guild)).unwrap();
        assert!(channel > guild);
        assert_eq!(bucket_of(channel), bucket_of(guild));
    }
}
