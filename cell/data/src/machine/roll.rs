//! Rolling: a full or old segment is sealed by its owner and the next one opened, carrying on its last number, timestamp and Snowflake.
//! An idle log rolls nothing: only an append that is due makes it look.

use cell_proto::v1::{
    CasSegmentRequest, OpenSegmentRequest, ReadCursorRequest, ReadHeadRequest, SegmentReply, Statics,
};
use cell_store::{CURSOR_RETAINED, Reply, Request, StoreError};

use super::LogMachine;
use super::claim::{head_of, value_of};
use super::commit::Batch;
use super::owner::{Job, Left, Owner, same_claim};

type Answer = Option<Result<Reply, StoreError>>;

/// Where a roll stands.
pub(super) enum Roll {
    /// Compare-and-set of the statics to sealed.
    Seal,
    /// The seal's outcome is not known: read.
    SettleSeal,
    /// Create the next if absent; safe to repeat.
    Open {
        /// An earlier try may have made it.
        doubted: bool,
    },
    /// Read the head and the mark of what is retained: was it there before?
    Verify,
}

impl Roll {
    pub(super) fn requests(&self, log: &str, owner: &Owner) -> Vec<Request> {
        let log = log.to_owned();
        vec![match self {
            Self::Seal => CasSegmentRequest {
                log,
                segment: owner.segment,
                expected: Some(owner.statics),
                new: Some(Statics { sealed: true, ..owner.statics }),
            }
            .into(),
            Self::SettleSeal => owner.read_segment(&log, 0, 0),
            Self::Open { .. } => {
                OpenSegmentRequest { log, segment: owner.segment + 1, statics: Some(owner.statics) }.into()
            }
            Self::Verify => {
                let retained = ReadCursorRequest { log: log.clone(), name: CURSOR_RETAINED.to_owned() };
                return vec![ReadHeadRequest { log }.into(), retained.into()];
            }
        }]
    }
}

impl LogMachine {
    pub(super) fn roll_is_due(&self, owner: &Owner) -> bool {
        owner.segment_entries >= self.limits.segment_entries
            || owner.segment_bytes >= self.limits.segment_bytes
            || (owner.segment_entries > 0 && self.now_us - owner.opened_at_us >= self.limits.segment_age_us)
    }

    pub(super) fn start_roll(&mut self, owner: &mut Owner) {
        owner.job = Job::Roll(Roll::Seal);
    }

    pub(super) fn roll_answered(
        &mut self,
        owner: &mut Owner,
        roll: Roll,
        result: Result<SegmentReply, StoreError>,
    ) -> Option<Left> {
        let reply = match result {
            Ok(reply) => reply,
            Err(_) => {
                let next = match roll {
                    Roll::Seal | Roll::SettleSeal => Roll::SettleSeal,
                    Roll::Open { .. } => Roll::Open { doubted: true },
                    Roll::Verify => Roll::Verify,
                };
                return self.again(owner, Job::Roll(next));
            }
        };
        self.went_well();
        let statics = reply.statics;
        match roll {
            Roll::Seal | Roll::SettleSeal => {
                let sealed = Statics { sealed: true, ..owner.statics };
                match statics {
                    Some(row) if row == sealed => {
                        self.uncertain.clear();
                        owner.job = Job::Roll(Roll::Open { doubted: false });
                    }
                    Some(row) if row == owner.statics => owner.job = Job::Roll(Roll::Seal),
                    // A late append of this owner's landed in between.
                    Some(row) if owner.is_mine(&row) => {
                        self.known.forget();
                        owner.job = Job::Settle(Batch::default());
                    }
                    _ => return Some(Left::Refusal(self.not_owner(None))),
                }
            }
            Roll::Open { doubted } => {
                let mine = reply.applied || (doubted && statics == Some(owner.statics));
                if !mine {
                    return Some(Left::Refusal(self.not_owner(None)));
                }
                if self.rules.verify_roll {
                    owner.job = Job::Roll(Roll::Verify);
                } else {
                    self.rolled(owner);
                }
            }
            // Answered below, with two answers.
            Roll::Verify => owner.job = Job::Roll(Roll::Verify),
        }
        None
    }

    /// Two claims may have come and gone between the seal and the opening, and the segment opened here with them: an append to it would
    /// be one that nobody sees.
    pub(super) fn roll_verified(&mut self, owner: &mut Owner, head: Answer, retained: Answer) -> Option<Left> {
        let (Ok(head), Ok(retained)) = (head_of(head), value_of(retained)) else {
            return self.again(owner, Job::Roll(Roll::Verify));
        };
        self.went_well();
        let mine = head.as_ref().is_some_and(|head| same_claim(head, &owner.head));
        if !mine || retained > owner.segment + 1 {
            return Some(Left::Refusal(self.not_owner(head.as_ref())));
        }
        self.rolled(owner);
        None
    }

    fn rolled(&self, owner: &mut Owner) {
        owner.segment += 1;
        owner.segment_entries = 0;
        owner.segment_bytes = 0;
        owner.opened_at_us = self.now_us;
        owner.hint_due = true;
    }
}
