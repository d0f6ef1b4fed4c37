//! Ids an entry is given: Snowflakes strictly rising within the log, drawn into a guild's bucket where a bare id must find its log.

use cell_proto::snowflake;
use cell_proto::unit::bucket_of;
use sha2::{Digest, Sha256};

/// The ids of one entry in the making.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    /// The log's last Snowflake so far.
    pub last: i64,
    /// The entry's time in milliseconds since the Unix epoch.
    pub unix_ms: i64,
}

impl Ids {
    /// The next Snowflake.
    pub fn draw(&mut self) -> i64 {
        self.last = snowflake::next(self.last, self.unix_ms);
        self.last
    }

    /// The next Snowflake that falls into the bucket of `guild_id`. None only if a whole millisecond has no such id.
    pub fn draw_in_bucket_of(&mut self, guild_id: i64) -> Option<i64> {
        let bucket = bucket_of(guild_id);
        self.last = snowflake::next_where(self.last, self.unix_ms, |id| bucket_of(id) == bucket)?;
        Some(self.last)
    }
}

const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

fn base62(mut number: u64, width: usize) -> String {
    let mut digits = vec![b'0'; width];
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(number % 62) as usize];
        number /= 62;
    }
    digits.into_iter().map(char::from).collect()
}

/// The code of a new invite: the guild's id in 11 digits of base 62, then 6 that nobody can guess who does not know the operation id.
pub fn invite_code(guild_id: i64, operation_id: &[u8]) -> String {
    let digest = Sha256::digest([b"invite:", operation_id].concat());
    let mut bytes = [0_u8; 8];
    bytes.copy_from_slice(&digest[..8]);
    base62(guild_id.cast_unsigned(), 11) + &base62(u64::from_be_bytes(bytes), 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_starts_with_its_guild() {
        assert_eq!(base62(61, 11), "0000000000z");
        let code = invite_code(i64::MAX, &[7; 16]);
        assert_eq!((code.len(), &code[..11]), (17, base62(i64::MAX.cast_unsigned(), 11).as_str()));
        assert_ne!(code, invite_code(i64::MAX, &[8; 16]));
    }
}
