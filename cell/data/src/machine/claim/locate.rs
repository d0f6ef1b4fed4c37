//! The first half of a claim: where the log is, and whether its head may be raised.

use cell_proto::unit::Unit;
use cell_proto::v1::{Head, Reason, Refusal, Route};
use cell_store::{Reply, StoreError};

use super::{Claim, ClaimStep, Next, head_of};
use crate::domain::tables;
use crate::machine::LogMachine;

impl LogMachine {
    pub(super) fn located(&self, claim: &mut Claim, head: Option<Head>) -> Next {
        match head {
            Some(head) if head.moved_to.is_empty() => {
                if head.cell != self.me.cell {
                    return Next::Refuse(self.not_owner(Some(&head)));
                }
                claim.new = Head { term: head.term + 1, appender: self.me.member_id.clone(), ..head.clone() };
                Next::Step(ClaimStep::Cas { expected: Some(head), doubted: false })
            }
            current if matches!(self.me.unit, Unit::Guild(_)) => Next::Step(ClaimStep::LocateSplit { current }),
            Some(_) => Next::Refuse(Refusal::new(Reason::Unsupported, "the log was moved to another StorageCell")),
            None => Next::Refuse(Refusal::new(
                Reason::NotFound,
                format!("there is no head of {}; the operator creates heads at bootstrap", self.me.log),
            )),
        }
    }

    /// Rule 18: a guild's log is opened only from exactly the term that the split names.
    pub(super) fn split_located(
        &self,
        claim: &mut Claim,
        current: Option<Head>,
        rows: Option<Result<Reply, StoreError>>,
        bucket: Option<Result<Reply, StoreError>>,
    ) -> Next {
        let (Some(Ok(Reply::Rows(rows))), Ok(bucket)) = (rows, head_of(bucket)) else {
            return Next::Pause(ClaimStep::LocateSplit { current });
        };
        let term_cell = rows.rows.first().and_then(|row| row.cells.iter().find(|cell| cell.column == tables::TERM));
        let split = term_cell.and_then(|cell| <[u8; 8]>::try_from(cell.value.as_slice()).ok()).map(u64::from_be_bytes);
        let term = current.as_ref().map_or(0, |head| head.term);
        let (Some(bucket), Some(_)) = (bucket, split.filter(|split| *split == term || !self.rules.split_names_term))
        else {
            let route = Route { log: self.bucket_log().unwrap_or_default(), ..Route::default() };
            let refusal = Refusal::new(Reason::OtherLog, "the guild lives in its bucket's log; follow the route");
            return Next::Refuse(refusal.with_route(route));
        };
        // A guild that was split out starts in its bucket's cell.
        if bucket.cell != self.me.cell {
            return Next::Refuse(self.not_owner(Some(&Head { term, ..bucket })));
        }
        claim.new = Head {
            log: self.me.log.clone(),
            cell: bucket.cell,
            term: term + 1,
            appender: self.me.member_id.clone(),
            segment: current.as_ref().map_or(1, |head| head.segment),
            moved_to: String::new(),
            moved_at: 0,
        };
        Next::Step(ClaimStep::Cas { expected: current, doubted: false })
    }

    pub(super) fn head_raised(
        &self,
        claim: &Claim,
        expected: Option<Head>,
        doubted: bool,
        result: Option<Result<Reply, StoreError>>,
    ) -> Next {
        match result {
            Some(Ok(Reply::CasHead(reply))) => {
                // Not applied, and yet as wished: an earlier try of this very claim landed late.
                let mine = reply.applied || (doubted && reply.current.as_ref() == Some(&claim.new));
                if mine { Next::Step(ClaimStep::Cursors) } else { Next::Refuse(self.not_owner(reply.current.as_ref())) }
            }
            _ => Next::Pause(ClaimStep::Reread { expected }),
        }
    }
}
