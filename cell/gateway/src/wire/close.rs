//! The close codes of the client protocol and what each means for the session.

/// Why the server closes a socket. The numbers are the protocol's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseCode {
    /// Something went wrong here, or the gateway drains: reconnect and resume.
    Unknown,
    /// An operation code that clients cannot send.
    UnknownOpcode,
    /// Not JSON, not UTF-8, too long, or a field of the wrong type.
    DecodeError,
    /// Sent before identify.
    NotAuthenticated,
    /// The token is not valid.
    AuthenticationFailed,
    /// Identify or resume on an identified socket.
    AlreadyAuthenticated,
    /// Resume with a sequence that was never sent.
    InvalidSequence,
    /// More than the allowed number of frames.
    RateLimited,
    /// No heartbeat in time.
    SessionTimedOut,
    /// A shard id outside its count.
    InvalidShard,
    /// More guilds than one shard may have.
    ShardingRequired,
    /// A protocol version that is not spoken here.
    InvalidVersion,
    /// Intent bits that do not exist.
    InvalidIntents,
    /// A privileged intent that this fleet does not allow.
    DisallowedIntents,
}

impl CloseCode {
    /// The number on the wire.
    pub fn number(self) -> u16 {
        match self {
            Self::Unknown => 4000,
            Self::UnknownOpcode => 4001,
            Self::DecodeError => 4002,
            Self::NotAuthenticated => 4003,
            Self::AuthenticationFailed => 4004,
            Self::AlreadyAuthenticated => 4005,
            Self::InvalidSequence => 4007,
            Self::RateLimited => 4008,
            Self::SessionTimedOut => 4009,
            Self::InvalidShard => 4010,
            Self::ShardingRequired => 4011,
            Self::InvalidVersion => 4012,
            Self::InvalidIntents => 4013,
            Self::DisallowedIntents => 4014,
        }
    }

    /// The text beside the number, and the metric label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unknown => "unknown error",
            Self::UnknownOpcode => "unknown opcode",
            Self::DecodeError => "decode error",
            Self::NotAuthenticated => "not authenticated",
            Self::AuthenticationFailed => "authentication failed",
            Self::AlreadyAuthenticated => "already authenticated",
            Self::InvalidSequence => "invalid seq",
            Self::RateLimited => "rate limited",
            Self::SessionTimedOut => "session timed out",
            Self::InvalidShard => "invalid shard",
            Self::ShardingRequired => "sharding required",
            Self::InvalidVersion => "invalid API version",
            Self::InvalidIntents => "invalid intents",
            Self::DisallowedIntents => "disallowed intents",
        }
    }
}

/// Whether a close that came from the client ends its session: only the two that say "I am done".
pub fn client_close_ends_session(code: Option<u16>) -> bool {
    matches!(code, Some(1000 | 1001))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_normal_close_of_the_client_ends_its_session() {
        assert!(client_close_ends_session(Some(1000)));
        assert!(client_close_ends_session(Some(1001)));
        for code in [None, Some(1005), Some(1006), Some(4000), Some(4200)] {
            assert!(!client_close_ends_session(code), "{code:?}");
        }
    }
}
