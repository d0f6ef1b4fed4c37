//! How often and how long a run tries. Numbers only; what is tried is the steps' to say.

/// Bounds of retries, the same for every run.
pub struct Tuning;

impl Tuning {
    /// First pause between two tries, in milliseconds; doubled at each further one.
    pub const FIRST_PAUSE_MS: i64 = 100;
    /// Longest pause between two tries.
    pub const LONGEST_PAUSE_MS: i64 = 5_000;
    /// A source without any live data service for this long is dead: its log is claimed. Several times a member's lease.
    pub const SOURCE_DEAD_AFTER_MS: i64 = 20_000;
    /// After this long no switch sent before can change a head whose owner kept its term: longer than request and hold together.
    pub const SWITCH_OVER_AFTER_MS: i64 = 20_000;
    /// Tries of a request that only speeds up, or that nobody lives to hear, before the run goes on without it.
    pub const COURTESY_TRIES: u32 = 4;
    /// How long a live guild node is asked to let a run go. One that never heard it would refuse every later run of the guild.
    pub const FORGET_FOR_MS: i64 = 300_000;
    /// Refused switches before the target is warmed again.
    pub const SWITCHES_BEFORE_REWARM: u32 = 3;
}
