//! The protocol of one connection: which frame is allowed when, heartbeats, and the frame rate. It answers with one action a frame
//! and never touches a socket.

use super::limits::SlidingWindow;
use crate::wire::close::CloseCode;
use crate::wire::frame::{self, ClientFrame};
use crate::wire::identify::{Identify, Resume};
use crate::wire::request::MembersRequest;

/// What each connection is held to.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionLimits {
    /// As told in Hello.
    pub heartbeat_interval_ms: u64,
    /// Frames in 60 s.
    pub frames_per_minute: u32,
    /// How long a client may stay without identifying.
    pub identify_within_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Hello was sent; identify or resume is awaited.
    Greeted,
    /// An identify or resume is being decided elsewhere.
    Deciding,
    Established,
    Closed,
}

/// What the driver does about a frame.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Answer op 11.
    Acknowledge,
    /// Decide, then call [`Connection::established`] or [`Connection::refused`].
    Identify(Box<Identify>),
    /// Decide, then call [`Connection::established`] or [`Connection::refused`].
    Resume(Resume),
    /// Answer with chunks.
    RequestMembers(MembersRequest),
    /// A request this version does not serve (presence, voice, soundboard): nothing is sent, it is counted.
    Unserved(&'static str),
    /// Close with this code; the session, if there is one, stays resumable.
    Close(CloseCode),
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    limits: ConnectionLimits,
    stage: Stage,
    frames: SlidingWindow,
    opened_ms: u64,
    heard_ms: u64,
}

impl Connection {
    /// Hello is about to be sent.
    pub fn new(limits: ConnectionLimits, now_ms: u64) -> Self {
        Self {
            limits,
            stage: Stage::Greeted,
            frames: SlidingWindow::new(limits.frames_per_minute, 60_000),
            opened_ms: now_ms,
            heard_ms: now_ms,
        }
    }

    /// One frame of the client.
    pub fn frame(&mut self, bytes: &[u8], now_ms: u64) -> Action {
        if self.stage == Stage::Closed {
            return Action::Nothing;
        }
        if !self.frames.admit(now_ms) {
            return self.close(CloseCode::RateLimited);
        }
        match frame::parse(bytes) {
            Ok(frame) => self.act(frame, now_ms),
            Err(code) => self.close(code),
        }
    }

    fn act(&mut self, frame: ClientFrame, now_ms: u64) -> Action {
        if frame.needs_session() && self.stage != Stage::Established {
            return self.close(CloseCode::NotAuthenticated);
        }
        match frame {
            ClientFrame::Heartbeat(_) => {
                self.heard_ms = now_ms;
                Action::Acknowledge
            }
            ClientFrame::Identify(_) | ClientFrame::Resume(_) if self.stage != Stage::Greeted => {
                self.close(CloseCode::AlreadyAuthenticated)
            }
            ClientFrame::Identify(identify) => {
                self.stage = Stage::Deciding;
                Action::Identify(identify)
            }
            ClientFrame::Resume(resume) => {
                self.stage = Stage::Deciding;
                Action::Resume(resume)
            }
            ClientFrame::RequestMembers(request) => Action::RequestMembers(request),
            ClientFrame::Presence => Action::Unserved("presence"),
            ClientFrame::VoiceState { .. } => Action::Unserved("voice"),
            ClientFrame::Unserved(_) => Action::Unserved("other"),
        }
    }

    fn close(&mut self, code: CloseCode) -> Action {
        self.stage = Stage::Closed;
        Action::Close(code)
    }

    /// A session is attached now.
    pub fn established(&mut self) {
        if self.stage == Stage::Deciding {
            self.stage = Stage::Established;
        }
    }

    /// A resume that was decided before this connection's first frame (it came through another gateway).
    pub fn deciding(&mut self) {
        self.stage = Stage::Deciding;
    }

    /// Op 9 was sent: the client may identify or resume on this same socket.
    pub fn refused(&mut self, now_ms: u64) {
        if self.stage != Stage::Closed {
            self.stage = Stage::Greeted;
            self.opened_ms = now_ms;
        }
    }

    /// When to call [`Connection::tick`] next.
    pub fn deadline_ms(&self) -> u64 {
        let silence = self.heard_ms + self.limits.heartbeat_interval_ms * 2;
        if self.stage == Stage::Greeted {
            silence.min(self.opened_ms + self.limits.identify_within_ms)
        } else {
            silence
        }
    }

    /// The deadline has come: whether the connection is to be closed. Two intervals without a heartbeat mean a half-open socket.
    pub fn tick(&mut self, now_ms: u64) -> Option<CloseCode> {
        if self.stage == Stage::Closed || now_ms < self.deadline_ms() {
            return None;
        }
        self.stage = Stage::Closed;
        Some(CloseCode::SessionTimedOut)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDENTIFY: &[u8] = br#"{"op":2,"d":{"token":"t","intents":0}}"#;
    const RESUME: &[u8] = br#"{"op":6,"d":{"token":"t","session_id":"s","seq":0}}"#;
    const HEARTBEAT: &[u8] = br#"{"op":1,"d":null}"#;

    fn connection() -> Connection {
        let limits =
            ConnectionLimits { heartbeat_interval_ms: 40_000, frames_per_minute: 120, identify_within_ms: 60_000 };
        Connection::new(limits, 0)
    }

    fn established() -> Connection {
        let mut connection = connection();
        assert!(matches!(connection.frame(IDENTIFY, 0), Action::Identify(_)));
        connection.established();
        connection
    }

    #[test]
    fn what_needs_a_session_closes_with_4003_before_identify() {
        for bytes in [
            &br#"{"op":3,"d":{"status":"online"}}"#[..],
            br#"{"op":4,"d":{"guild_id":"1"}}"#,
            br#"{"op":8,"d":{"guild_id":"1","query":""}}"#,
        ] {
            assert_eq!(connection().frame(bytes, 0), Action::Close(CloseCode::NotAuthenticated));
        }
    }

    #[test]
    fn a_heartbeat_is_acknowledged_in_every_stage() {
        assert_eq!(connection().frame(HEARTBEAT, 0), Action::Acknowledge);
        let mut deciding = connection();
        deciding.frame(IDENTIFY, 0);
        assert_eq!(deciding.frame(HEARTBEAT, 0), Action::Acknowledge);
        assert_eq!(established().frame(HEARTBEAT, 0), Action::Acknowledge);
    }

    #[test]
    fn a_second_identify_or_resume_closes_with_4005() {
        assert_eq!(established().frame(IDENTIFY, 1), Action::Close(CloseCode::AlreadyAuthenticated));
        assert_eq!(established().frame(RESUME, 1), Action::Close(CloseCode::AlreadyAuthenticated));
        let mut deciding = connection();
        deciding.frame(RESUME, 0);
        assert_eq!(deciding.frame(IDENTIFY, 0), Action::Close(CloseCode::AlreadyAuthenticated));
    }

    #[test]
    fn after_op_9_resume_and_identify_on_the_same_socket_are_accepted() {
        let mut connection = connection();
        assert!(matches!(connection.frame(RESUME, 0), Action::Resume(_)));
        connection.refused(0);
        assert!(matches!(connection.frame(RESUME, 1), Action::Resume(_)));
        connection.refused(1);
        assert!(matches!(connection.frame(IDENTIFY, 2), Action::Identify(_)));
    }

    #[test]
    fn the_frame_rate_closes_with_4008() {
        let mut connection = established();
        for n in 1..120 {
            assert_eq!(connection.frame(HEARTBEAT, n), Action::Acknowledge);
        }
        assert_eq!(connection.frame(HEARTBEAT, 121), Action::Close(CloseCode::RateLimited));
        assert_eq!(connection.frame(HEARTBEAT, 122), Action::Nothing, "nothing after the close");
    }

    #[test]
    fn missed_heartbeats_close_with_4009_and_beats_keep_it_open() {
        let mut connection = established();
        assert_eq!(connection.tick(79_999), None);
        connection.frame(HEARTBEAT, 79_999);
        assert_eq!(connection.tick(100_000), None);
        assert_eq!(connection.tick(159_999), Some(CloseCode::SessionTimedOut));
    }

    #[test]
    fn a_client_that_never_identifies_is_closed() {
        let mut connection = connection();
        connection.frame(HEARTBEAT, 50_000);
        assert_eq!(connection.tick(60_000), Some(CloseCode::SessionTimedOut));
    }

    #[test]
    fn voice_and_presence_are_let_through_without_an_answer() {
        let mut connection = established();
        assert_eq!(connection.frame(br#"{"op":4,"d":{"guild_id":1,"channel_id":2}}"#, 0), Action::Unserved("voice"));
        assert_eq!(connection.frame(br#"{"op":3,"d":{"since":null}}"#, 0), Action::Unserved("presence"));
    }

    proptest! {
        #[test]
        fn random_frames_never_panic_and_end_in_a_defined_close_code(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..20),
            identified in any::<bool>(),
        ) {
            let mut connection = if identified { established() } else { connection() };
            for bytes in frames {
                if let Action::Close(code) = connection.frame(&bytes, 0) {
                    prop_assert!((4000..=4014).contains(&code.number()));
                }
            }
        }
    }
}
