//! Intent bits: which events a session asked for.

/// The bits a session identified with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Intents(u32);

/// Guild structure: guilds, roles, channels.
pub const GUILDS: u32 = 1;
/// Members joining, changing, leaving. Privileged.
pub const GUILD_MEMBERS: u32 = 1 << 1;
/// Invites.
pub const GUILD_INVITES: u32 = 1 << 6;
/// Messages in guilds.
pub const GUILD_MESSAGES: u32 = 1 << 9;
/// Typing in guilds.
pub const GUILD_MESSAGE_TYPING: u32 = 1 << 11;
/// The text of messages. Privileged.
pub const MESSAGE_CONTENT: u32 = 1 << 15;

const KNOWN: u32 = 0x0001_FFFF | 1 << 20 | 1 << 21 | 1 << 24 | 1 << 25;
const PRIVILEGED: u32 = 1 << 1 | 1 << 8 | 1 << 15;

/// Why a number is not a set of intents here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntentsError {
    /// Bits that do not exist.
    Unknown,
    /// Privileged bits that this fleet does not allow.
    Disallowed,
}

impl Intents {
    /// Checks the number a client sent against the privileged bits that are allowed.
    pub fn parse(number: i64, allowed_privileged: u32) -> Result<Self, IntentsError> {
        let bits = u32::try_from(number).map_err(|_| IntentsError::Unknown)?;
        if bits & !KNOWN != 0 {
            return Err(IntentsError::Unknown);
        }
        if bits & PRIVILEGED & !allowed_privileged != 0 {
            return Err(IntentsError::Disallowed);
        }
        Ok(Self(bits))
    }

    /// Whether any bit of `wanted` is set; an empty `wanted` is always granted.
    pub fn covers(self, wanted: u32) -> bool {
        wanted == 0 || self.0 & wanted != 0
    }
}

/// All privileged bits: the default of what is allowed.
pub fn all_privileged() -> u32 {
    PRIVILEGED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_and_disallowed_bits_are_told_apart() {
        assert_eq!(Intents::parse(1 << 17, PRIVILEGED), Err(IntentsError::Unknown));
        assert_eq!(Intents::parse(-1, PRIVILEGED), Err(IntentsError::Unknown));
        assert_eq!(Intents::parse(1 << 33, PRIVILEGED), Err(IntentsError::Unknown));
        assert_eq!(Intents::parse(1 << 15, 0), Err(IntentsError::Disallowed));
        assert!(Intents::parse(0x331_FFFF, PRIVILEGED).is_ok());
    }
}
