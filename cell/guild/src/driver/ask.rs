//! What a guild's task can be sent: inputs of its machine, gateways with their queues, and requests that want an answer.

use std::sync::Arc;

use cell_proto::v1::{
    InspectGuildReply, MutateRequest, Position, ReachReply, Refusal, Route, RunReply, SubmitReply, WarmReply,
};
use tokio::sync::oneshot;

use super::link_queue::LinkQueue;
use crate::machine::{GuildView, Input};

/// One message to a guild's task.
pub(super) enum Envelope {
    /// For the machine as it is.
    Input(Input),
    /// A gateway attaches.
    Attach { queue: Arc<LinkQueue>, position: Option<Position>, user_ids: Vec<i64>, standby: bool },
    /// A request.
    Ask(Ask),
    /// The process ends: hand over and end the task.
    Drain(Option<Route>),
}

/// A request with the place for its answer.
pub(super) enum Ask {
    Mutate(Box<MutateRequest>, oneshot::Sender<SubmitReply>),
    Warm { run_id: String, route: Route, answer: oneshot::Sender<WarmReply> },
    AnnounceStandby(String, Route, oneshot::Sender<RunReply>),
    Reach { run_id: String, log: String, at: u64, wait_ms: u32, answer: oneshot::Sender<ReachReply> },
    TakeOver { run_id: String, claim: bool, route: Option<Route>, answer: oneshot::Sender<RunReply> },
    Forget { run_id: String, route: Route, answer: oneshot::Sender<RunReply> },
    Inspect(oneshot::Sender<InspectGuildReply>),
    View(oneshot::Sender<Result<Box<GuildView>, Refusal>>),
}

/// The place for an answer, kept until the machine replies.
pub(super) enum Waiter {
    Mutate(oneshot::Sender<SubmitReply>),
    Warm(oneshot::Sender<WarmReply>),
    Run(oneshot::Sender<RunReply>),
    Reach(oneshot::Sender<ReachReply>),
    Inspect(oneshot::Sender<InspectGuildReply>),
    View(oneshot::Sender<Result<Box<GuildView>, Refusal>>),
}

impl Ask {
    /// The machine's input under a ticket, and who waits for the answer.
    pub(super) fn into_input(self, ticket: u64) -> (Input, Waiter) {
        match self {
            Self::Mutate(request, answer) => (Input::Mutate { ticket, request }, Waiter::Mutate(answer)),
            Self::Warm { run_id, route, answer } => (Input::Warm { ticket, run_id, route }, Waiter::Warm(answer)),
            Self::AnnounceStandby(run_id, target, answer) => {
                (Input::AnnounceStandby { ticket, run_id, target }, Waiter::Run(answer))
            }
            Self::Reach { run_id, log, at, wait_ms, answer } => {
                (Input::Reach { ticket, run_id, log, at, wait_ms }, Waiter::Reach(answer))
            }
            Self::TakeOver { run_id, claim, route, answer } => {
                (Input::TakeOver { ticket, run_id, claim, route }, Waiter::Run(answer))
            }
            Self::Forget { run_id, route, answer } => (Input::Forget { ticket, run_id, route }, Waiter::Run(answer)),
            Self::Inspect(answer) => (Input::Inspect { ticket }, Waiter::Inspect(answer)),
            Self::View(answer) => (Input::View { ticket }, Waiter::View(answer)),
        }
    }
}
