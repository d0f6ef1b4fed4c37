//! Finding a copy or making one (rules 10–12): its head, its segments under this owner's term, and where it starts. A copy that cannot be
//! gone on with is begun anew: its head is marked as released first, and only marked as a copy again when the new beginning stands.

use cell_proto::v1::{
    CasHeadRequest, DropSegmentRequest, Head, OpenSegmentRequest, ReadCursorRequest, ReadHeadRequest,
    ReadSegmentRequest, SegmentReply, Statics, WriteCursorRequest,
};
use cell_store::{CURSOR_RETAINED, CURSOR_SEGMENT, Reply, Request, StoreError};

use super::ship::Moving;
use super::{Answer, CURSOR_RESTARTS, Copy, Step, View, Went, started_cursor};
use crate::machine::owner::segment_of;
use crate::machine::places::{FAILOVER_GAP, has_failed_over, pointer_of, pointer_to, released, released_by};
use crate::machine::walk::{Step as WalkStep, Walk, Wanted};

/// Looks at the copy's head without anything shipped in between, before they are slowed down.
const MAX_ATTACHES: u32 = 8;

/// What is known of a copy while it is looked at.
#[derive(Clone, Default)]
pub(super) struct Found {
    /// It may not be gone on with.
    anew: bool,
    first: u64,
    retained: u64,
    applied: u64,
}

pub(super) enum Attach {
    Head,
    /// Of the copy's log.
    Cursors(Found),
    /// Of this incarnation of the copy.
    Progress(Found),
    Walk(Found, Box<Walk>),
    /// Compare-and-set of the copy's head.
    Mark {
        new: Head,
    },
    /// Back from the newest segment of the serving log: where does the dedupe window begin?
    Search {
        found: Found,
        at: u64,
        open: u64,
    },
    /// The first entry of what is retained.
    SearchFirst {
        found: Found,
        at: u64,
        open: u64,
    },
    Open {
        found: Found,
        segment: u64,
        statics: Statics,
    },
    /// Cursors of a new beginning.
    Note {
        found: Found,
        segment: u64,
    },
    Drop {
        at: u64,
        segment: u64,
    },
}

fn failed<T>(result: &Result<T, StoreError>) -> String {
    result.as_ref().err().map_or_else(|| "the store answered something else".to_owned(), ToString::to_string)
}

fn again(why: String) -> Went {
    Went::Failed(Step::Attach(Attach::Head), why)
}

fn on(attach: Attach) -> Went {
    Went::On(Step::Attach(attach))
}

impl Copy {
    fn copied_cursor(&self) -> String {
        format!("copied:{}", self.restarts)
    }

    pub(super) fn cursor_writes(&self, log: &str, value: u64) -> Vec<(String, Request)> {
        let write = |name: String| {
            let request = WriteCursorRequest { log: log.to_owned(), name, value };
            (self.target.clone(), request.into())
        };
        vec![write(self.copied_cursor()), write(cell_store::CURSOR_APPLIED.to_owned())]
    }

    pub(super) fn attach_requests(&self, attach: &Attach, view: &View<'_>) -> Vec<(String, Request)> {
        let there = |request: Request| (self.target.clone(), request);
        let read = |name: String| there(ReadCursorRequest { log: view.log(), name }.into());
        let write = |name: String, value: u64| there(WriteCursorRequest { log: view.log(), name, value }.into());
        let log = view.log();
        match attach {
            Attach::Head => vec![there(ReadHeadRequest { log }.into())],
            Attach::Cursors(_) => {
                [CURSOR_SEGMENT, CURSOR_RETAINED, CURSOR_RESTARTS].map(|name| read(name.to_owned())).into()
            }
            Attach::Progress(_) => vec![read(self.copied_cursor()), read(started_cursor(self.restarts))],
            Attach::Walk(_, walk) => walk.requests().into_iter().map(there).collect(),
            Attach::Mark { new } => {
                vec![there(CasHeadRequest { log, expected: self.head.clone(), new: Some(new.clone()) }.into())]
            }
            Attach::Search { at, .. } | Attach::SearchFirst { at, .. } => {
                let limit = i32::from(matches!(attach, Attach::SearchFirst { .. }));
                let read = ReadSegmentRequest { log, segment: *at, from: 0, limit, bodies_from: u64::MAX };
                vec![(view.owner.store.clone(), read.into())]
            }
            Attach::Open { segment, statics, .. } => {
                vec![there(OpenSegmentRequest { log, segment: *segment, statics: Some(*statics) }.into())]
            }
            Attach::Note { segment, .. } => {
                let mut writes = self.cursor_writes(&log, self.started_at);
                writes.push(write(started_cursor(self.restarts), self.started_at));
                writes.push(write(CURSOR_RETAINED.to_owned(), *segment));
                writes.push(write(CURSOR_RESTARTS.to_owned(), self.restarts));
                writes
            }
            Attach::Drop { at, .. } => vec![there(DropSegmentRequest { log, segment: *at }.into())],
        }
    }

    pub(super) fn attach_answered(
        &mut self,
        attach: Attach,
        results: Vec<Result<Reply, StoreError>>,
        view: &View<'_>,
    ) -> Went {
        if results.iter().any(Result::is_err) {
            // Whatever it was: it is looked at from the beginning.
            let why = results.iter().find(|result| result.is_err()).map(failed).unwrap_or_default();
            return again(why);
        }
        let cursor = |index: usize| match results.get(index) {
            Some(Ok(Reply::ReadCursor(reply))) => reply.value,
            _ => 0,
        };
        match attach {
            Attach::Head => self.head_found(results.into_iter().next(), view),
            Attach::Cursors(mut found) => {
                found.first = found.first.max(cursor(0)).max(cursor(1)).max(1);
                found.retained = cursor(1);
                self.restarts = cursor(2);
                on(Attach::Progress(found))
            }
            Attach::Progress(mut found) => {
                found.applied = found.applied.max(cursor(0));
                self.started_at = cursor(1);
                let wanted = Wanted {
                    seal_term: view.rules.ship_term.then(|| view.term()),
                    check_term: true,
                    own_term: true,
                    above: u64::MAX,
                    since_us: i64::MAX,
                    retained: found.retained,
                };
                let walk = Walk::new(view.log(), found.first, wanted);
                on(Attach::Walk(found, Box::new(walk)))
            }
            Attach::Walk(found, mut walk) => match walk.answered(segment_of(results.into_iter().next())) {
                WalkStep::Go => on(Attach::Walk(found, walk)),
                WalkStep::Pause => again("the copy's segments could not be read".to_owned()),
                WalkStep::Outrun => Went::Outrun,
                WalkStep::Done => self.walked(found, &walk, view),
            },
            // Applied or not: what the head says now is what counts.
            Attach::Mark { .. } => on(Attach::Head),
            Attach::Search { found, at, open } => {
                let Ok(reply) = segment_of(results.into_iter().next()) else { return again("no answer".to_owned()) };
                self.searched(found, (at, open), reply.statics, view)
            }
            Attach::SearchFirst { found, open, .. } => {
                let Ok(reply) = segment_of(results.into_iter().next()) else { return again("no answer".to_owned()) };
                self.first_found(found, open, &reply, view)
            }
            Attach::Open { found, segment, statics } => {
                self.opened(found, segment, statics, segment_of(results.into_iter().next()))
            }
            Attach::Note { found, segment } => self.drop_next(found.retained.max(1), segment, view),
            Attach::Drop { at, segment } => self.drop_next(at + 1, segment, view),
        }
    }

    fn head_found(&mut self, answer: Answer, view: &View<'_>) -> Went {
        let Some(Ok(Reply::Head(reply))) = answer else { return again("the store answered something else".to_owned()) };
        self.head = reply.head;
        self.attaches += 1;
        if self.attaches > MAX_ATTACHES {
            self.attaches = 0;
            return again("the copy is begun again and again; it is tried more slowly".to_owned());
        }
        let Some(head) = &self.head else { return on(Attach::Cursors(Found::default())) };
        let first = head.segment;
        match (released_by(head), pointer_of(head)) {
            (Some(run_id), _) if run_id == self.run_id && view.rules.released_begins_anew => {
                self.blocked_by = "this run released the copy; start another migration".to_owned();
                Went::On(Step::Ended)
            }
            (None, Some(origin)) if origin == view.owner.store => {
                // A former origin has applied everything up to its seal.
                on(Attach::Cursors(Found { first, applied: head.moved_at, ..Found::default() }))
            }
            (Some(_), Some(origin)) if origin == view.owner.store && !view.rules.released_begins_anew => {
                on(Attach::Cursors(Found { first, ..Found::default() }))
            }
            (None, None) if head.moved_to.is_empty() => self.bare_head(head.clone(), view),
            _ => on(Attach::Cursors(Found { anew: true, first, ..Found::default() })),
        }
    }

    /// A head without a pointer serves — or served, before a failover took the log away from it.
    fn bare_head(&self, head: Head, view: &View<'_>) -> Went {
        if has_failed_over(&view.owner.head, &head) {
            return Went::FailedOver;
        }
        if head.term >= view.term() {
            return Went::Outrun;
        }
        if view.term() < head.term + FAILOVER_GAP / 2 {
            let why = format!("{} has a head of the log that points nowhere; a person must look", self.target);
            return Went::Failed(Step::Attach(Attach::Head), why);
        }
        let term = head.term + 1;
        on(Attach::Mark { new: Head { term, ..self.marked(head, Some("failover"), view) } })
    }

    /// The copy's head, as a copy or as one that must not be claimed.
    fn marked(&self, head: Head, released_for: Option<&str>, view: &View<'_>) -> Head {
        Head {
            log: view.log(),
            cell: view.owner.head.cell.clone(),
            appender: released_for.map(released).unwrap_or_default(),
            segment: head.segment.max(1),
            moved_to: pointer_to(&view.owner.store),
            moved_at: 0,
            ..head
        }
    }

    /// It lacks entries that are nowhere any more: it is begun anew.
    pub(super) fn begin_anew(&self, view: &View<'_>) -> Step {
        let why = format!("behind-{}", self.restarts);
        let head = self.head.clone().unwrap_or_default();
        Step::Attach(Attach::Mark { new: self.marked(head, Some(&why), view) })
    }

    fn walked(&mut self, found: Found, walk: &Walk, view: &View<'_>) -> Went {
        let open = walk.next_segment();
        let alive = self.head.is_some() && !found.anew;
        match walk.tail {
            Some((_, tail)) if alive && tail.last <= view.owner.statics.last => {
                let last = tail.last.max(self.skip_to);
                let applied = found.applied.min(tail.last);
                let applied = if applied == tail.last { last } else { applied };
                let term = if view.rules.ship_term { view.term() } else { tail.term };
                let statics = Statics { term, sealed: false, last, ..tail };
                on(Attach::Open { found: Found { applied, ..found }, segment: open, statics })
            }
            // More than the log ever had: left by an origin that was lost.
            Some(_) if alive => Went::On(self.begin_anew(view)),
            None if self.head.is_none() => on(Attach::Mark { new: self.marked(Head::default(), None, view) }),
            Some(_) if self.head.is_none() => {
                on(Attach::Mark { new: self.marked(Head::default(), Some("no-head"), view) })
            }
            tail => {
                if found.anew && tail.is_some() {
                    self.restarts += 1;
                }
                let found = Found { anew: true, ..found };
                if !view.rules.copy_window {
                    return self.begin_at(found, open, view.owner.statics, view);
                }
                on(Attach::Search { found, at: view.owner.segment.saturating_sub(1), open })
            }
        }
    }

    /// Rule 12: at least one dedupe window back, and not after the first entry that is not applied.
    fn searched(&mut self, found: Found, (at, open): (u64, u64), statics: Option<Statics>, view: &View<'_>) -> Went {
        match statics {
            None => on(Attach::SearchFirst { found, at: at + 1, open }),
            Some(statics)
                if statics.last_timestamp_us < view.now_us - view.limits.window_us
                    && statics.last <= view.owner.cursor =>
            {
                self.begin_at(found, open, statics, view)
            }
            Some(_) => on(Attach::Search { found, at: at.saturating_sub(1), open }),
        }
    }

    fn first_found(&mut self, found: Found, open: u64, reply: &SegmentReply, view: &View<'_>) -> Went {
        let last = reply.entries.first().map(|entry| entry.number.saturating_sub(1));
        let last = last.or(reply.statics.map(|statics| statics.last)).unwrap_or(0);
        self.begin_at(found, open, Statics { last, ..Statics::default() }, view)
    }

    fn begin_at(&mut self, found: Found, segment: u64, before: Statics, view: &View<'_>) -> Went {
        // At the very end nothing follows that would tell the last timestamp and Snowflake.
        let before = if before.last == view.owner.statics.last { view.owner.statics } else { before };
        self.started_at = before.last;
        let statics = Statics { term: view.term(), sealed: false, ..before };
        on(Attach::Open { found: Found { applied: before.last, ..found }, segment, statics })
    }

    fn opened(&mut self, found: Found, segment: u64, wished: Statics, reply: Result<SegmentReply, StoreError>) -> Went {
        match reply {
            Ok(reply) if reply.applied => {
                self.segment = segment;
                self.statics = wished;
                (self.segment_entries, self.segment_bytes) = (0, 0);
                self.next = wished.last + 1;
                self.applied = found.applied;
                self.durable = found.applied;
                if found.anew {
                    return on(Attach::Note { found, segment });
                }
                self.settled()
            }
            // Something is there by now: look again.
            Ok(_) => on(Attach::Head),
            Err(error) => again(error.to_string()),
        }
    }

    /// What an older beginning left is dropped before the head says that this is a copy.
    fn drop_next(&mut self, at: u64, segment: u64, view: &View<'_>) -> Went {
        if at < segment {
            return on(Attach::Drop { at, segment });
        }
        match &self.head {
            Some(head) if released_by(head).is_none() && pointer_of(head) == Some(view.owner.store.as_str()) => {
                self.settled()
            }
            head => {
                let head = head.clone().unwrap_or_default();
                on(Attach::Mark { new: self.marked(head, None, view) })
            }
        }
    }

    fn settled(&mut self) -> Went {
        self.failures = 0;
        self.blocked_by.clear();
        self.read_segment = None;
        Went::On(Step::Moving(Moving::Idle))
    }
}
