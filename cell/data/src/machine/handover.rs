//! Giving a log up: the switch to another cell (rule 16), the cutover to another StorageCell (rule 13) and the seal of a guild's log
//! before its merge (rule 18). Until a compare-and-set may have been sent, undoing is local; afterwards a serial read decides, and once
//! the last segment is sealed, undoing is a new claim.

use cell_proto::v1::{CasHeadRequest, CasSegmentRequest, Head, ReadHeadRequest, Statics};
use cell_store::{Reply, Request, StoreError};

use super::owner::{Job, Left, Owner, same_claim, segment_of};
use super::places::pointer_to;
use super::protections::Protections;
use super::types::{Effect, Inheritance};
use super::{Admission, LogMachine, State};

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Handover {
    Switch { to_cell: String, undo: bool },
    Seal { moved_to: String },
    CutOver { to: String, restarts: u64, undo: bool },
}

/// Where it stands.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum HandoverStep {
    /// Seal the last segment.
    Segment,
    /// Its outcome is not known.
    SettleSegment,
    /// Compare-and-set of the head.
    Head { expected: Head, new: Head },
    /// Its outcome is not known.
    SettleHead { expected: Head, new: Head },
}

impl Handover {
    /// The first step; none while the copy that the log goes to is not at the log's end.
    pub(super) fn first_step(&self, owner: &Owner, rules: Protections) -> Option<HandoverStep> {
        match self {
            Self::CutOver { to, restarts, .. } if rules.cutover_waits && !owner.copy_is_whole(to, *restarts) => None,
            Self::CutOver { .. } if rules.cutover_seals_segment => Some(HandoverStep::Segment),
            Self::Seal { .. } if rules.merge_seals_segment => Some(HandoverStep::Segment),
            _ => Some(self.head_step(owner, rules, owner.head.clone())),
        }
    }

    fn head_step(&self, owner: &Owner, rules: Protections, expected: Head) -> HandoverStep {
        let term = expected.term + 1;
        let new = match self {
            Self::Switch { to_cell, .. } if !rules.switch_raises_term => {
                Head { cell: to_cell.clone(), ..expected.clone() }
            }
            Self::Switch { to_cell, .. } => Head {
                cell: to_cell.clone(),
                term,
                appender: String::new(),
                segment: owner.segment,
                ..expected.clone()
            },
            Self::Seal { moved_to } => owner.sealed_head(&expected, moved_to.clone()),
            Self::CutOver { to, .. } => owner.sealed_head(&expected, pointer_to(to)),
        };
        HandoverStep::Head { expected, new }
    }
}

impl Owner {
    fn sealed_head(&self, expected: &Head, moved_to: String) -> Head {
        Head {
            term: expected.term + 1,
            appender: String::new(),
            segment: self.segment,
            moved_to,
            moved_at: self.statics.last,
            ..expected.clone()
        }
    }

    /// The claim that began this life of the log was a failover: its head carries the floor for numbers, which a cutover clears.
    pub(super) fn is_failed_over(&self) -> bool {
        self.head.moved_at > 0
    }

    /// Rule 13: the copy has log, tables and cursors up to the last number.
    fn copy_is_whole(&self, target: &str, restarts: u64) -> bool {
        let whole = |copy: &super::copy::Copy| copy.target == target && copy.is_whole(self.statics.last, restarts);
        self.copy.as_deref().is_some_and(whole)
    }
}

impl HandoverStep {
    pub(super) fn requests(&self, log: &str, owner: &Owner) -> Vec<Request> {
        let log = log.to_owned();
        vec![match self {
            Self::Segment => CasSegmentRequest {
                log,
                segment: owner.segment,
                expected: Some(owner.statics),
                new: Some(Statics { sealed: true, ..owner.statics }),
            }
            .into(),
            Self::SettleSegment => owner.read_segment(&log, 0, 0),
            Self::Head { expected, new } => {
                CasHeadRequest { log, expected: Some(expected.clone()), new: Some(new.clone()) }.into()
            }
            Self::SettleHead { .. } => ReadHeadRequest { log }.into(),
        }]
    }
}

impl LogMachine {
    pub(super) fn close(&mut self, run_id: String) {
        if self.admission == Admission::Open && matches!(self.state, State::Owner(_)) {
            self.admission = Admission::Closed { run_id, told: false };
        }
    }

    /// Undoes what can be undone: after a compare-and-set may have been sent, only its settling can.
    pub(super) fn reopen(&mut self, run_id: &str) {
        if self.closed_by() != Some(run_id) {
            return;
        }
        if let State::Owner(owner) = &mut self.state {
            match (&owner.job, &mut owner.handover) {
                (Job::Handover(_), Some(Handover::Switch { undo, .. } | Handover::CutOver { undo, .. })) => {
                    *undo = true;
                    return;
                }
                (Job::Handover(_), _) => return,
                _ => owner.handover = None,
            }
        }
        self.admission = Admission::Open;
    }

    pub(super) fn wish_switch(&mut self, to_cell: String) {
        self.wish(Handover::Switch { to_cell, undo: false });
    }

    pub(super) fn wish_seal(&mut self, moved_to: String) {
        self.wish(Handover::Seal { moved_to });
    }

    /// Only to a copy of the same run, and only if it is not begun anew meanwhile: it would lack what is not backfilled.
    pub(super) fn wish_cutover(&mut self, to: String, run_id: &str, wanted: Option<u64>) {
        let State::Owner(owner) = &self.state else { return };
        let Some(copy) = owner.copy.as_ref().filter(|copy| copy.target == to) else { return };
        let is_ready = |known: &u64| match wanted {
            Some(wanted) => wanted == *known,
            None => copy.is_kept_since_cut(owner.is_failed_over()),
        };
        if let Some(restarts) = copy.incarnation(run_id).filter(is_ready) {
            self.wish(Handover::CutOver { to, restarts, undo: false });
        }
    }

    fn wish(&mut self, handover: Handover) {
        let closed = self.admission != Admission::Open;
        self.with_owner(|owner| {
            if closed && owner.handover.is_none() {
                owner.handover = Some(handover);
            }
        });
    }

    pub(super) fn handover_answered(
        &mut self,
        owner: &mut Owner,
        step: HandoverStep,
        result: Option<Result<Reply, StoreError>>,
    ) -> Option<Left> {
        match step {
            HandoverStep::Segment | HandoverStep::SettleSegment => {
                let Ok(reply) = segment_of(result) else {
                    return self.again(owner, Job::Handover(HandoverStep::SettleSegment));
                };
                let sealed = Statics { sealed: true, ..owner.statics };
                match (reply.statics, owner.handover.clone()) {
                    // Sealed, and not wanted any more: only a new claim opens the log again.
                    (Some(row), Some(Handover::CutOver { undo: true, .. })) if row == sealed => {
                        Some(Left::Refusal(self.not_owner(None)))
                    }
                    (Some(row), Some(Handover::CutOver { undo: true, .. })) if row == owner.statics => {
                        self.undone(owner)
                    }
                    (Some(row), Some(handover)) if row == sealed => {
                        owner.job = Job::Handover(handover.head_step(owner, self.rules, owner.head.clone()));
                        None
                    }
                    (Some(row), _) if row == owner.statics => {
                        owner.job = Job::Handover(HandoverStep::Segment);
                        None
                    }
                    (Some(row), _) if owner.is_mine(&row) => {
                        self.known.forget();
                        owner.job = Job::Settle(super::commit::Batch::default());
                        None
                    }
                    _ => Some(Left::Refusal(self.not_owner(None))),
                }
            }
            HandoverStep::Head { expected, new } => match result {
                Some(Ok(Reply::CasHead(reply))) => self.head_known(owner, reply.current, expected, new),
                // Nothing happened, but an earlier try may have: the settling tells either way.
                _ if self.rules.settle_switch => {
                    self.again(owner, Job::Handover(HandoverStep::SettleHead { expected, new }))
                }
                _ => self.undone(owner),
            },
            HandoverStep::SettleHead { expected, new } => match result {
                Some(Ok(Reply::Head(reply))) => self.head_known(owner, reply.head, expected, new),
                _ => self.again(owner, Job::Handover(HandoverStep::SettleHead { expected, new })),
            },
        }
    }

    /// The head as it is now: switched, still this owner's, or somebody else's.
    fn head_known(&mut self, owner: &mut Owner, current: Option<Head>, expected: Head, new: Head) -> Option<Left> {
        self.went_well();
        let Some(current) = current else { return Some(Left::Refusal(self.not_owner(None))) };
        if current == new {
            return Some(Left::Done(Box::new(self.handed(owner, new))));
        }
        if !same_claim(&current, &owner.head) {
            return Some(Left::Refusal(self.not_owner(Some(&current))));
        }
        match owner.handover.clone() {
            Some(Handover::Switch { undo: true, .. }) | None => self.undone(owner),
            Some(Handover::CutOver { undo: true, .. }) => Some(Left::Refusal(self.not_owner(Some(&current)))),
            Some(_) if current == expected => {
                owner.job = Job::Handover(HandoverStep::Head { expected, new });
                None
            }
            Some(handover) => {
                owner.job = Job::Handover(handover.head_step(owner, self.rules, current));
                None
            }
        }
    }

    fn undone(&mut self, owner: &mut Owner) -> Option<Left> {
        owner.handover = None;
        self.admission = Admission::Open;
        None
    }

    fn handed(&mut self, owner: &Owner, head: Head) -> Effect {
        match &owner.handover {
            Some(Handover::Seal { .. }) => Effect::Sealed {
                head,
                inheritance: Inheritance {
                    log: self.me.log.clone(),
                    store: owner.store.clone(),
                    operations: self.window.operations(),
                    last_timestamp_us: owner.statics.last_timestamp_us,
                    last_snowflake: owner.statics.last_snowflake,
                },
            },
            Some(Handover::CutOver { .. }) => Effect::CutOver { head, last: owner.statics.last },
            _ => Effect::Switched { head, last: owner.statics.last },
        }
    }
}
