//! What goes into a guild's machine and what comes out: the whole contract between the pure machine and its driver. Holds no decisions.

use std::sync::Arc;

use cell_proto::v1::{
    Entry, GuildSnapshot, InspectGuildReply, LinkDown, MutateRequest, Position, ReachReply, Refusal, Route, RunReply,
    SubmitReply, SubmitRequest, WarmReply,
};

use super::view::GuildView;

/// The time, read by the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Milliseconds of a clock that never goes back.
    pub mono_ms: u64,
    /// Milliseconds since the Unix epoch.
    pub unix_ms: i64,
}

/// One link of a gateway to this process, unique as long as the process lives.
pub type LinkId = u64;
/// Names one request, so that its answer finds it.
pub type Ticket = u64;

/// Everything of a guild as of one entry, read by a worker.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The state.
    pub view: GuildView,
    /// The log it was read from: where the guild lives.
    pub log: String,
    /// The last entry in it.
    pub as_of: u64,
    /// The head's term.
    pub term: u64,
}

/// A page of a log.
#[derive(Clone, Debug, Default)]
pub struct LogPage {
    /// In order, of this guild only.
    pub entries: Vec<Entry>,
    /// Everything of this guild up to here is in this page or before it.
    pub scanned_to: u64,
}

/// Where the guild went from one log to another.
#[derive(Clone, Debug)]
pub struct Junction {
    /// The split or the merge, an entry of the bucket's log.
    pub entry: Entry,
    /// For a split: the last number of the guild's own log before the stay that begins here.
    pub start_after: u64,
}

/// How full the mailbox is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pressure {
    /// All is served.
    #[default]
    Calm,
    /// Typing is shed.
    Alarm,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// This node is the one that should own the guild.
    Own,
    /// This node should not own the guild (any more); the route says who. A guild held by a run stays until the run says so.
    Yield(Option<Route>),
    /// This process ends.
    Drain(Option<Route>),
    /// The answer to [`Effect::Load`].
    Loaded { epoch: u64, outcome: Result<Box<Loaded>, Refusal> },
    /// Entries of the feed opened as `epoch`; `last` is the log's last number when this guild's entries up to it are all delivered,
    /// else the number of the last entry here.
    Feed { epoch: u64, entries: Vec<Entry>, last: u64, term: u64 },
    /// The feed ended.
    FeedEnded { epoch: u64, refusal: Option<Refusal> },
    /// The answer to [`Effect::ReadLog`].
    LogRead { ticket: Ticket, outcome: Result<LogPage, Refusal> },
    /// The answer to [`Effect::FindStart`]: the number.
    StartFound { ticket: Ticket, outcome: Result<u64, Refusal> },
    /// The answer to [`Effect::FindJunctions`], in order.
    JunctionsFound { ticket: Ticket, outcome: Result<Vec<Junction>, Refusal> },
    /// The answer to [`Effect::Claim`].
    Claimed { attempt: u64, outcome: Box<SubmitReply> },

    /// A gateway attaches.
    Attach { link: LinkId, position: Option<Position>, user_ids: Vec<i64>, standby: bool },
    /// A gateway detaches, or its link is gone.
    Detach { link: LinkId },
    /// Users came to a gateway or left it.
    Interest { link: LinkId, add: Vec<i64>, remove: Vec<i64>, sessions: i32 },
    /// A gateway has everything up to here.
    Ack { link: LinkId, position: Position },
    /// Somebody types.
    Typing { channel_id: i64, user_id: i64, at_ms: i64 },
    /// The frame sent with `paced` has left the link's queue.
    Drained { link: LinkId },
    /// The answer to [`Effect::BuildSnapshot`].
    SnapshotBuilt { link: LinkId, ticket: Ticket, snapshot: Box<GuildSnapshot> },

    /// A structural change is asked for.
    Mutate { ticket: Ticket, request: Box<MutateRequest> },
    /// The answer to [`Effect::Submit`].
    Submitted { ticket: Ticket, outcome: Box<SubmitReply> },
    /// The user's own bucket knows about this entry's membership.
    MembershipFed { log: String, number: u64 },
    /// It could not be told.
    MembershipLeftOut { log: String, number: u64 },

    /// Follow the log without owning it. The route names the log and the head's term its sender knows.
    Warm { ticket: Ticket, run_id: String, route: Route },
    /// Tell linked gateways to open standby links.
    AnnounceStandby { ticket: Ticket, run_id: String, target: Route },
    /// Answer once everything up to `at` is here.
    Reach { ticket: Ticket, run_id: String, log: String, at: u64, wait_ms: u32 },
    /// At the target: claim. At the source: tell the gateways and step back.
    TakeOver { ticket: Ticket, run_id: String, claim: bool, route: Option<Route> },
    /// The run is over; the route as in [`Input::Warm`].
    Forget { ticket: Ticket, run_id: String, route: Route },
    /// What is the state?
    Inspect { ticket: Ticket },
    /// A copy of the state, for a worker.
    View { ticket: Ticket },

    /// The mailbox fills or empties.
    Pressure(Pressure),
    /// Time passes.
    Tick,
}

/// Where a guild went.
#[derive(Clone, PartialEq, Debug)]
pub enum Whereto {
    /// The member that claimed it.
    Node(String),
    /// As told by the operator or the directory.
    Route(Route),
    /// The directory may know.
    Unknown,
}

/// The answer to a request that came with a ticket.
#[derive(Clone, Debug)]
pub enum Reply {
    /// To [`Input::Mutate`].
    Mutate(Box<SubmitReply>),
    /// To [`Input::Warm`].
    Warm(WarmReply),
    /// To [`Input::Reach`].
    Reach(ReachReply),
    /// To [`Input::AnnounceStandby`], [`Input::TakeOver`] and [`Input::Forget`].
    Run(RunReply),
    /// To [`Input::Inspect`].
    Inspect(InspectGuildReply),
    /// To [`Input::View`]: absent until it is loaded and this node owns the guild.
    View(Result<Box<GuildView>, Refusal>),
}

/// What the driver is to do.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Read the whole guild from its data owner, off the loop.
    Load { epoch: u64, log: String },
    /// Follow the log from a number on; a feed opened before is dropped.
    OpenFeed { epoch: u64, log: String, from: u64 },
    /// Read a page of a log.
    ReadLog { ticket: Ticket, log: String, from: u64 },
    /// Find the last number of a guild's own log that is not younger than this: where its present stay begins.
    FindStart { ticket: Ticket, log: String, after_us: i64 },
    /// Find the guild's splits and merges after a position, and the split it names. Refused as behind retention when the position itself
    /// is gone.
    FindJunctions { ticket: Ticket, since: Position },
    /// Submit the claim.
    Claim { attempt: u64, request: Box<SubmitRequest> },
    /// Build a snapshot off the loop.
    BuildSnapshot {
        link: LinkId,
        ticket: Ticket,
        view: Box<GuildView>,
        user_ids: Vec<i64>,
        position: Position,
        term: u64,
    },
    /// Look members up off the loop and send them.
    SendMembers { link: LinkId, view: Box<GuildView>, user_ids: Vec<i64>, position: Position },
    /// Send a frame; `paced` asks for [`Input::Drained`] once it left the queue.
    Send { link: LinkId, frame: Arc<LinkDown>, paced: bool },
    /// Tell a gateway where the guild went. It is no longer attached.
    SendMoved { link: LinkId, to: Whereto },
    /// Commit a judged change, retrying until its deadline.
    Submit { ticket: Ticket, request: Box<SubmitRequest> },
    /// Answer a request.
    Reply { ticket: Ticket, reply: Reply },
    /// Tell the user's own bucket, idempotently, in order for each user.
    FeedMembership { log: String, number: u64, users: Vec<i64>, joined: bool },
    /// Compare users' own lists with what the log says from the acknowledged cursor up to this entry; tell the differences. Answered as
    /// if it were this entry's membership.
    CompareMemberships { log: String, until: u64 },
    /// Everything up to here is processed.
    AckFeed { log: String, number: u64 },
    /// Ask the directory again whether this node should own the guild, and say so by [`Input::Own`] or [`Input::Yield`].
    Reconsider,
    /// The claim is committed: publish the hint, and feed the memberships that the owner before may have left out, up to here.
    Owned { log: String, at: u64, guild_term: u64, term: u64 },
    /// Nothing needs this actor any more.
    Stop,
}
