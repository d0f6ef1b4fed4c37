//! Claiming (rules 1–3, 10 and 14): read a head, follow its pointer, raise its term, seal and read the segments, open the next.

use super::state::{COPY, Flight, Head, Owner, Phase, SEGMENTS, Segment, SegmentState, State, Store};
use super::{CELLS, LogModel, Next, Step};
use crate::rules::Rule;

impl LogModel {
    /// Anybody may try to claim when nobody is at it; otherwise it counts as a fault.
    pub(super) fn idle(&self, state: &State, process: u8, next: &mut Next) {
        let alone = state.owners.iter().all(|owner| owner.phase == Phase::Idle);
        if !alone && state.budget.claims == 0 {
            return;
        }
        let stores = if state.is_shipping() || state.current() == COPY { 2 } else { 1 };
        for store in 0..stores {
            let head = state.stores[store as usize].head;
            if head.moved_at.is_none() && head.cell != CELLS[process as usize] {
                continue;
            }
            next.to(Step::ReadsHead { owner: process, store, moved: head.moved_at.is_some() }, |state| {
                if !alone {
                    state.budget.claims -= 1;
                }
                let owner = &mut state.owners[process as usize];
                if head.moved_at.is_some() {
                    *owner = Owner { phase: Phase::Pointed, store, head, ..Owner::default() };
                } else {
                    *owner = claiming(process, store, head, head.term + 1);
                }
            });
        }
    }

    /// Rule 14: a target is claimed only while its term is lower than the pointer's; of two pointers the higher term's holds.
    pub(super) fn follow_pointer(&self, state: &State, process: u8, next: &mut Next) {
        let owner = &state.owners[process as usize];
        let (pointer, other) = (owner.head, 1 - owner.store);
        let found = state.stores[other as usize].head;
        let term = |above: Head| {
            if self.rules.has(Rule::PointerHoldsTerm) { above.term + 1 } else { found.term + 1 }
        };
        let target = match found.moved_at {
            None if found.term > pointer.term && self.rules.has(Rule::TargetBelowPointer) => None,
            None => Some((other, found, term(pointer), pointer.cell)),
            Some(_) if !self.rules.has(Rule::HigherPointerHolds) => None,
            Some(_) if pointer.term > found.term => Some((other, found, term(pointer), pointer.cell)),
            Some(_) => Some((owner.store, pointer, found.term + 1, found.cell)),
        };
        match target {
            Some((store, expected, term, cell)) if cell == CELLS[process as usize] => {
                next.owner(Step::FollowsPointer { owner: process, store }, process, |owner| {
                    *owner = claiming(process, store, expected, term);
                });
            }
            _ => next.steps_back(process),
        }
    }

    /// Rule 1: compare-and-set of the whole row.
    pub(super) fn claim(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let (store, wish) = (owner.store, owner.wish);
        let mut after = *state;
        let applied = self.compare_and_set(&mut after, store, owner.head, wish)
            || (owner.doubted && state.stores[store as usize].head == wish);
        if applied {
            next.to(Step::Claims { owner: process, store, term: wish.term }, |state| {
                *state = after;
                state.owners[process as usize] = walking(&state.stores[store as usize], store, wish);
            });
        } else {
            next.steps_back(process);
        }
        self.doubt_head(state, process, Step::ClaimUnknown { owner: process, store }, Phase::ClaimUnknown, next);
    }

    /// A compare-and-set of a head whose outcome its sender does not learn.
    pub(super) fn doubt_head(&self, state: &State, process: u8, step: Step, phase: Phase, next: &mut Next) {
        let owner = state.owners[process as usize];
        let flight = Flight::Head { store: owner.store, expected: owner.head, new: owner.wish };
        let mut after = *state;
        if state.budget.unknowns > 0 && after.send(flight) {
            next.to(step, |state| {
                *state = after;
                state.budget.unknowns -= 1;
                state.owners[process as usize].phase = phase;
            });
        }
    }

    /// A serial read of the head decides; what is still under way may land after it.
    pub(super) fn settle_head(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let head = state.stores[owner.store as usize].head;
        let happened = head == owner.wish;
        let after = match owner.phase {
            Phase::ClaimUnknown if happened => walking(&state.stores[owner.store as usize], owner.store, head),
            Phase::ClaimUnknown if head == owner.head => Owner { phase: Phase::Claiming, doubted: true, ..owner },
            // An undo is local again: the head is as it was.
            Phase::SwitchUnknown if head == owner.head => {
                Owner { phase: Phase::Serving, wish: Head::default(), ..owner }
            }
            // A cutover that sealed its segment is undone by a new claim (rule 13).
            Phase::CutUnknown if head == owner.head && !self.rules.has(Rule::SealSegmentFirst) => {
                Owner { phase: Phase::Serving, wish: Head::default(), ..owner }
            }
            _ => Owner::default(),
        };
        next.owner(Step::SettlesHead { owner: process }, process, |owner| *owner = after);
    }

    /// Rules 2 and 3: what is open is sealed, what is sealed is read, and the first absent number is opened.
    pub(super) fn walk(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let store = &state.stores[owner.store as usize];
        let mut reader = owner;
        let outruns = |segment: &Segment| self.rules.has(Rule::WalkChecksTerm) && segment.term >= owner.head.term;
        loop {
            let segment = &store.segments[reader.segment as usize];
            let beyond_hint = reader.segment > store.retained && !self.rules.has(Rule::WalkPastHint);
            match segment.state {
                SegmentState::Sealed | SegmentState::Open if beyond_hint => reader.segment += 1,
                _ if segment.state != SegmentState::Absent && outruns(segment) => return next.steps_back(process),
                SegmentState::Sealed => self.read(&mut reader, segment),
                SegmentState::Open if !self.rules.has(Rule::CompareWholeRow) => {
                    return self.seal_in_two_steps(process, reader, segment, next);
                }
                SegmentState::Open => {
                    let (store, index) = (owner.store, reader.segment);
                    return next.to(Step::Seals { owner: process, store, segment: index }, |state| {
                        let found = &mut state.stores[store as usize].segments[index as usize];
                        if self.rules.has(Rule::ClaimSeals) {
                            (found.state, found.term) = (SegmentState::Sealed, owner.head.term);
                        }
                        self.read(&mut reader, found);
                        state.owners[process as usize] = reader;
                    });
                }
                SegmentState::Absent => break,
            }
            if reader.segment as usize >= SEGMENTS {
                return next.to(Step::StepsBack { owner: process }, |state| {
                    state.damage = Some(super::state::Damage::Bound);
                });
            }
        }
        self.open(state, process, reader, next);
    }

    /// Without rule 1: the statics read before overwrite whatever they have become meanwhile.
    fn seal_in_two_steps(&self, process: u8, mut reader: Owner, segment: &Segment, next: &mut Next) {
        let (store, index) = (reader.store, reader.segment);
        if !reader.doubted {
            self.read(&mut reader, segment);
            let looked = Owner { segment: index, doubted: true, ..reader };
            next.owner(Step::Looks { owner: process, store, segment: index }, process, |owner| *owner = looked);
            return;
        }
        let seen = reader.last;
        next.to(Step::Seals { owner: process, store, segment: index }, |state| {
            let sealed = &mut state.stores[store as usize].segments[index as usize];
            (sealed.state, sealed.term) = (SegmentState::Sealed, reader.head.term);
            sealed.count = seen.saturating_sub(sealed.before);
            sealed.entries[sealed.count as usize..].fill(None);
            state.owners[process as usize] = Owner { segment: index + 1, doubted: false, ..reader };
        });
    }

    /// Takes in what a segment says.
    fn read(&self, reader: &mut Owner, segment: &Segment) {
        if reader.last == 0 {
            reader.unread = segment.before;
        }
        reader.segment += 1;
        reader.last = segment.last();
        let newest = segment.last_timestamp();
        reader.last_timestamp = if self.rules.has(Rule::HandOn) { newest.max(reader.last_timestamp) } else { newest };
        if self.rules.has(Rule::LoadWindow) {
            segment.entries.iter().flatten().for_each(|entry| reader.known.add(entry.operation));
        }
    }

    fn open(&self, state: &State, process: u8, reader: Owner, next: &mut Next) {
        let verify = self.rules.has(Rule::VerifyHead) || self.rules.has(Rule::VerifyRetained);
        let applied = state.stores[reader.store as usize].applied.min(reader.last).max(reader.unread);
        let mut after = reader;
        after.applied = if self.rules.has(Rule::Reapply) { applied } else { reader.last };
        after.phase = if verify { Phase::Verifying } else { Phase::Serving };
        let (owner, store, segment) = (process, reader.store, reader.segment);
        next.to(Step::Opens { owner, store, segment, last: reader.last }, |state| {
            state.stores[store as usize].segments[segment as usize] = self.new_segment(&reader);
            state.owners[process as usize] = after;
        });
    }

    /// A segment that carries on where its opener's knowledge ends.
    pub(super) fn new_segment(&self, opener: &Owner) -> Segment {
        let handed_timestamp = if self.rules.has(Rule::HandOn) { opener.last_timestamp } else { 0 };
        Segment {
            state: SegmentState::Open,
            term: opener.head.term,
            before: opener.last,
            handed_timestamp,
            ..Segment::default()
        }
    }

    /// Rule 2: a segment that was dropped must not be taken for one that never was. Another owner's claim shows in the head; that the
    /// owner before, unaware of this claim, dropped it shows only in the mark.
    pub(super) fn verify(&self, state: &State, process: u8, next: &mut Next) {
        let owner = state.owners[process as usize];
        let store = &state.stores[owner.store as usize];
        let own = store.head == owner.head || !self.rules.has(Rule::VerifyHead);
        let kept = store.retained <= owner.segment || !self.rules.has(Rule::VerifyRetained);
        if own && kept {
            next.owner(Step::Verifies { owner: process }, process, |owner| owner.phase = Phase::Serving);
        } else {
            next.steps_back(process);
        }
    }
}

fn claiming(process: u8, store: u8, expected: Head, term: u8) -> Owner {
    let wish = Head { term, cell: CELLS[process as usize], appender: Some(process), moved_at: None };
    Owner { phase: Phase::Claiming, store, head: expected, wish, ..Owner::default() }
}

fn walking(found: &Store, store: u8, head: Head) -> Owner {
    Owner { phase: Phase::Walking, store, head, segment: found.retained, ..Owner::default() }
}
