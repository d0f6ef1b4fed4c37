//! The first half of a claim: where the log is, and whether its head may be raised.

use cell_proto::v1::{Head, Reason, Refusal, Route};
use cell_store::{Reply, StoreError};

use super::{Claim, ClaimStep, Next, head_of, value_of};
use crate::domain::tables;
use crate::machine::LogMachine;
use crate::machine::places::{FAILOVER_GAP, Locator, Place, Search, pointer_of, released_by};

type Answer = Option<Result<Reply, StoreError>>;

impl LogMachine {
    pub(super) fn searched(&self, claim: &mut Claim, mut locator: Locator, answer: Answer) -> Next {
        let Ok(head) = head_of(answer) else { return Next::Pause(ClaimStep::Locate(locator)) };
        match locator.answered(head) {
            Search::Go => Next::Step(ClaimStep::Locate(locator)),
            Search::Found(place) => self.located(claim, place),
            Search::Refuse(refusal) => Next::Refuse(refusal),
        }
    }

    fn located(&self, claim: &mut Claim, place: Place) -> Next {
        match &place.head {
            Some(head) if head.moved_to.is_empty() || pointer_of(head).is_some() => self.may_claim(claim, place),
            _ => match self.bucket_log() {
                Some(bucket) => Next::Step(ClaimStep::LocateBucket { locator: self.locator(&bucket), own: place }),
                // Not `NotFound`, which callers read as "no such message".
                None => {
                    let message = format!(
                        "there is no head of {} in {}; the operator creates heads at bootstrap",
                        self.me.log, place.store
                    );
                    Next::Refuse(Refusal::new(Reason::StoreUnavailable, message).retry_after_ms(500))
                }
            },
        }
    }

    /// Rules 14 and 17: a head of this cell is claimed above every term seen on the way to it, which clears its pointer.
    fn may_claim(&self, claim: &mut Claim, place: Place) -> Next {
        let head = place.head.clone().unwrap_or_default();
        if place.cell != self.me.cell {
            let known = Head { cell: place.cell, term: place.above, ..head };
            return Next::Refuse(self.not_owner(Some(&known)));
        }
        let above = if self.rules.claim_above_pointer { place.above } else { head.term };
        claim.new = Head {
            term: above + 1,
            cell: place.cell,
            appender: self.me.member_id.clone(),
            // Without a pointer it is a failover's floor for numbers, which stays.
            moved_at: if head.moved_to.is_empty() { head.moved_at } else { 0 },
            moved_to: String::new(),
            ..head
        };
        claim.store = place.store;
        Next::Step(ClaimStep::Cas { expected: place.head, doubted: false })
    }

    /// A failover: the copy is claimed though nobody sealed its origin. Terms and numbers the origin may have used are left out, so that no
    /// number ever names two entries.
    pub(super) fn copy_located(&self, claim: &mut Claim, head: Answer, applied: Answer) -> Next {
        let (Ok(head), Ok(applied)) = (head_of(head), value_of(applied)) else {
            return Next::Pause(ClaimStep::LocateCopy);
        };
        let known = claim.forced.unwrap_or(0);
        match head {
            Some(head) if released_by(&head).is_some() => {
                Next::Refuse(Refusal::new(Reason::Invalid, "the copy was released; it may lack anything"))
            }
            Some(head) if head.moved_to.is_empty() => {
                // Done before, or never a copy: an ordinary claim.
                claim.forced = None;
                let place =
                    Place { store: claim.store.clone(), above: head.term, cell: head.cell.clone(), head: Some(head) };
                self.may_claim(claim, place)
            }
            Some(head) => {
                claim.new = Head {
                    term: known.max(head.term) + FAILOVER_GAP,
                    cell: self.me.cell.clone(),
                    appender: self.me.member_id.clone(),
                    moved_to: String::new(),
                    moved_at: applied + FAILOVER_GAP,
                    ..head.clone()
                };
                Next::Step(ClaimStep::Cas { expected: Some(head), doubted: false })
            }
            None => Next::Refuse(Refusal::new(
                Reason::NotFound,
                format!("{} holds no copy of {}", claim.store, self.me.log),
            )),
        }
    }

    pub(super) fn bucket_searched(&self, mut locator: Locator, own: Place, answer: Answer) -> Next {
        let Ok(head) = head_of(answer) else { return Next::Pause(ClaimStep::LocateBucket { locator, own }) };
        match locator.answered(head) {
            Search::Go => Next::Step(ClaimStep::LocateBucket { locator, own }),
            Search::Found(bucket) => Next::Step(ClaimStep::LocateSplit { own, bucket }),
            Search::Refuse(refusal) => Next::Refuse(refusal),
        }
    }

    /// Rule 18: a guild's log is opened only from exactly the term that the split names, and where its bucket is served.
    pub(super) fn split_located(
        &self,
        claim: &mut Claim,
        own: Place,
        bucket: Place,
        (rows, there): (Answer, Answer),
    ) -> Next {
        let (Some(Ok(Reply::Rows(rows))), Ok(there)) = (rows, head_of(there)) else {
            return Next::Pause(ClaimStep::LocateSplit { own, bucket });
        };
        // Opened there by an earlier owner, while the search began elsewhere.
        if let Some(head) = there.as_ref().filter(|head| head.moved_to.is_empty()) {
            let cell = head.cell.clone();
            let place = Place { store: bucket.store, above: own.above.max(head.term), cell, head: there };
            return self.may_claim(claim, place);
        }
        let term_cell = rows.rows.first().and_then(|row| row.cells.iter().find(|cell| cell.column == tables::TERM));
        let split = term_cell.and_then(|cell| <[u8; 8]>::try_from(cell.value.as_slice()).ok()).map(u64::from_be_bytes);
        let term = there.as_ref().map_or(0, |head| head.term).max(own.above);
        let named = split.is_some_and(|split| split == term || !self.rules.split_names_term);
        let (Some(head), true) = (bucket.serving_head(), named) else {
            let route = Route { log: self.bucket_log().unwrap_or_default(), ..Route::default() };
            let refusal = Refusal::new(Reason::OtherLog, "the guild lives in its bucket's log; follow the route");
            return Next::Refuse(refusal.with_route(route));
        };
        // A guild that was split out starts in its bucket's cell.
        if head.cell != self.me.cell {
            return Next::Refuse(self.not_owner(Some(&Head { term, ..head })));
        }
        claim.new = Head {
            log: self.me.log.clone(),
            cell: head.cell,
            term: term + 1,
            appender: self.me.member_id.clone(),
            segment: there.as_ref().map_or(1, |head| head.segment),
            moved_to: String::new(),
            moved_at: 0,
        };
        claim.store = bucket.store;
        Next::Step(ClaimStep::Cas { expected: there, doubted: false })
    }

    pub(super) fn head_raised(&self, claim: &Claim, expected: Option<Head>, doubted: bool, result: Answer) -> Next {
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
