//! Shipping (rule 11): the same conditional append into the copy's log, then its tables, then the cursors. An outcome that is not known is
//! settled by a serial read of the copy; entries have one content for ever, so their numbers tell.

use std::sync::Arc;

use cell_proto::v1::{
    AppendRequest, Entry, ReadSegmentRequest, SegmentReply, Statics, StoredEntry, WriteCursorRequest, WriteRequest,
};
use cell_store::{Reply, Request, StoreError};
use prost::Message as _;

use super::attach::Attach;
use super::{Answer, Copy, Step, View, Went, ship_cursor};
use crate::domain::{self, tables};
use crate::machine::owner::segment_of;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Start,
    Back,
    Forward,
}

pub(super) enum Moving {
    Idle,
    /// Entries that are not in memory any more, from the serving log.
    Read {
        segment: u64,
        way: Way,
    },
    Append(Vec<Arc<Entry>>),
    Settle(Vec<Arc<Entry>>),
    Apply(Vec<Arc<Entry>>),
    /// The copy's own cursors.
    Cursors(u64),
    /// The one in the serving store.
    ShipCursor(u64),
}

fn on(moving: Moving) -> Went {
    Went::On(Step::Moving(moving))
}

fn stored(entry: &Arc<Entry>) -> StoredEntry {
    StoredEntry {
        number: entry.number,
        timestamp_us: entry.timestamp_us,
        operation_id: entry.operation_id.clone(),
        body: entry.encode_to_vec(),
    }
}

impl Copy {
    /// What to do when nothing is under way.
    pub(super) fn choose(&mut self, view: &View<'_>) {
        let last = view.owner.statics.last;
        let lag = self.applied.saturating_sub(self.durable);
        let due = lag >= view.limits.cursor_entries || view.now_us >= self.cursor_due_us || view.is_awaited();
        if self.applied < last && lag < view.limits.cursor_entries {
            if self.behind_since_us == 0 {
                self.behind_since_us = view.now_us;
            }
            self.step = self.next_batch(view);
        } else if lag > 0 && due {
            self.step = Step::Moving(Moving::Cursors(self.applied));
        } else if self.shipped < self.durable && (due || lag == 0) {
            self.step = Step::Moving(Moving::ShipCursor(self.durable));
        }
    }

    fn next_batch(&mut self, view: &View<'_>) -> Step {
        if self.segment_entries >= view.limits.segment_entries || self.segment_bytes >= view.limits.segment_bytes {
            // Rolled by attaching anew: the full segment is sealed and the next one opened.
            self.segment_entries = 0;
            self.segment_bytes = 0;
            return Step::Attach(Attach::Head);
        }
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < view.limits.batch_entries
            && bytes < view.limits.batch_bytes
            && let Some(entry) = view.window.recent(self.applied + entries.len() as u64 + 1)
            && entry.number <= view.owner.statics.last
        {
            bytes += entry.encoded_len();
            entries.push(entry.clone());
        }
        if entries.is_empty() {
            let segment = self.read_segment.unwrap_or(view.owner.segment);
            return Step::Moving(Moving::Read { segment, way: Way::Start });
        }
        self.begin(entries)
    }

    fn begin(&self, entries: Vec<Arc<Entry>>) -> Step {
        let appended = entries.last().is_none_or(|entry| entry.number < self.next);
        Step::Moving(if appended { Moving::Apply(entries) } else { Moving::Append(entries) })
    }

    pub(super) fn moving_requests(&self, moving: &Moving, view: &View<'_>) -> Vec<(String, Request)> {
        let (there, here) = (self.target.clone(), view.owner.store.clone());
        let log = view.log();
        match moving {
            Moving::Idle => Vec::new(),
            Moving::Read { segment, .. } => {
                let limit = i32::try_from(view.limits.batch_entries).unwrap_or(i32::MAX);
                let (segment, from) = (*segment, self.applied + 1);
                vec![(here, ReadSegmentRequest { log, segment, from, limit, bodies_from: 0 }.into())]
            }
            Moving::Append(entries) => {
                let entries: Vec<StoredEntry> =
                    entries.iter().filter(|entry| entry.number >= self.next).map(stored).collect();
                let timestamp = entries.last().map_or(0, |entry| entry.timestamp_us);
                let append = AppendRequest {
                    log,
                    segment: self.segment,
                    term: self.statics.term,
                    last: self.next.saturating_sub(1),
                    last_timestamp_us: timestamp.max(self.statics.last_timestamp_us),
                    // An upper bound: ids of later claimants start above it.
                    last_snowflake: view.owner.statics.last_snowflake.max(self.statics.last_snowflake),
                    entries,
                };
                vec![(there, append.into())]
            }
            Moving::Settle(_) => {
                let read = ReadSegmentRequest { log, segment: self.segment, from: 0, limit: 0, bodies_from: 0 };
                vec![(there, read.into())]
            }
            Moving::Apply(entries) => {
                let mut mutations: Vec<_> = entries.iter().flat_map(|entry| tables::mutations(entry)).collect();
                if !view.rules.ship_timestamps {
                    mutations.iter_mut().for_each(|mutation| mutation.timestamp_us = view.now_us);
                }
                let timestamp_us = entries.first().map_or(1, |entry| entry.timestamp_us);
                vec![(there, WriteRequest { timestamp_us, mutations, ttl_seconds: 0 }.into())]
            }
            Moving::Cursors(value) => self.cursor_writes(&log, *value),
            Moving::ShipCursor(value) => {
                vec![(here, WriteCursorRequest { log, name: ship_cursor(&self.target), value: *value }.into())]
            }
        }
    }

    pub(super) fn moving_answered(
        &mut self,
        moving: Moving,
        results: Vec<Result<Reply, StoreError>>,
        view: &View<'_>,
    ) -> Went {
        if let (Moving::Cursors(_), Some(error)) = (&moving, results.iter().find_map(|result| result.as_ref().err())) {
            return Went::Failed(Step::Moving(moving), error.to_string());
        }
        let answer = results.into_iter().next();
        match moving {
            Moving::Idle => on(Moving::Idle),
            Moving::Read { segment, way } => self.read_answered(segment, way, segment_of(answer), view),
            Moving::Append(entries) => self.append_answered(entries, segment_of(answer), view),
            Moving::Settle(entries) => match segment_of(answer) {
                Ok(reply) => self.settled_at(entries, reply.statics, view),
                Err(error) => Went::Failed(Step::Moving(Moving::Settle(entries)), error.to_string()),
            },
            Moving::Apply(entries) => self.apply_answered(entries, answer, view),
            Moving::Cursors(value) => {
                self.went_well();
                self.durable = value;
                self.cursor_due_us = view.now_us + view.limits.cursor_us;
                on(Moving::Idle)
            }
            Moving::ShipCursor(value) => match answer {
                Some(Ok(_)) => {
                    self.shipped = value;
                    on(Moving::Idle)
                }
                _ => {
                    Went::Failed(Step::Moving(Moving::ShipCursor(value)), "the serving store did not answer".to_owned())
                }
            },
        }
    }

    fn went_well(&mut self) {
        self.failures = 0;
        self.blocked_by.clear();
    }

    fn read_answered(
        &mut self,
        segment: u64,
        way: Way,
        result: Result<SegmentReply, StoreError>,
        view: &View<'_>,
    ) -> Went {
        let here = Moving::Read { segment, way };
        let reply = match result {
            Ok(reply) => reply,
            Err(error) => return Went::Failed(Step::Moving(here), error.to_string()),
        };
        let (wanted, current) = (self.applied + 1, view.owner.segment);
        let back = || match segment {
            0 | 1 => Went::On(self.begin_anew(view)),
            _ => on(Moving::Read { segment: segment - 1, way: Way::Back }),
        };
        // Dropped: nothing older is kept either.
        let Some(statics) = reply.statics else { return Went::On(self.begin_anew(view)) };
        match reply.entries.first().map(|entry| entry.number) {
            Some(first) if first > wanted && way != Way::Forward => back(),
            None if statics.last >= wanted && way != Way::Forward => back(),
            // The segment before ends below, this one begins above: a failover left the numbers in between out.
            Some(first) if first > wanted => self.skip(first - 1),
            None if statics.last >= wanted => self.skip(statics.last),
            None if segment < current => on(Moving::Read { segment: segment + 1, way: Way::Forward }),
            None => Went::Failed(Step::Moving(Moving::Idle), "the serving log could not be read to its end".to_owned()),
            Some(_) => {
                let known = |entry: &&StoredEntry| entry.number <= view.owner.statics.last;
                let decoded: Result<Vec<Entry>, _> = reply.entries.iter().filter(known).map(domain::entry_of).collect();
                let Ok(entries) = decoded else {
                    return Went::Failed(Step::Moving(here), "the log holds an entry that cannot be read".to_owned());
                };
                if entries.is_empty() {
                    return Went::Failed(
                        Step::Moving(Moving::Idle),
                        "the owner does not know its own end yet".to_owned(),
                    );
                }
                self.read_segment = Some(segment);
                Went::On(self.begin(entries.into_iter().map(Arc::new).collect()))
            }
        }
    }

    /// Nothing has the numbers up to this one. The copy's log needs a segment that begins above them.
    fn skip(&mut self, to: u64) -> Went {
        if self.next > to {
            self.applied = to;
            return on(Moving::Idle);
        }
        self.skip_to = to;
        on_attach()
    }

    fn append_answered(
        &mut self,
        entries: Vec<Arc<Entry>>,
        result: Result<SegmentReply, StoreError>,
        view: &View<'_>,
    ) -> Went {
        match result {
            Ok(SegmentReply { applied: true, statics: Some(statics), .. }) => {
                self.appended(&entries, statics);
                on(Moving::Apply(entries))
            }
            Ok(reply) => self.settled_at(entries, reply.statics, view),
            Err(error) if error.may_have_happened() && view.rules.ship_settles => {
                Went::Failed(Step::Moving(Moving::Settle(entries)), error.to_string())
            }
            Err(error) if error.may_have_happened() => {
                let last = entries.last().map_or(0, |entry| entry.number);
                self.appended(&entries, Statics { last, ..self.statics });
                on(Moving::Apply(entries))
            }
            Err(error) => Went::Failed(Step::Moving(Moving::Append(entries)), error.to_string()),
        }
    }

    fn appended(&mut self, entries: &[Arc<Entry>], statics: Statics) {
        let new = entries.iter().filter(|entry| entry.number >= self.next);
        for entry in new {
            self.segment_entries += 1;
            self.segment_bytes += entry.encoded_len() as u64;
        }
        self.statics = statics;
        self.next = statics.last + 1;
    }

    /// What the copy's segment says after a refusal or an unknown outcome.
    fn settled_at(&mut self, entries: Vec<Arc<Entry>>, statics: Option<Statics>, view: &View<'_>) -> Went {
        let last = entries.last().map_or(0, |entry| entry.number);
        match statics {
            Some(row) if row.term > view.term() => Went::Outrun,
            Some(row)
                if row.term == self.statics.term && !row.sealed && row.last <= last && row.last + 1 >= self.next =>
            {
                self.appended(&entries, row);
                Went::On(self.begin(entries))
            }
            _ => on_attach(),
        }
    }

    fn apply_answered(&mut self, entries: Vec<Arc<Entry>>, answer: Answer, view: &View<'_>) -> Went {
        match answer {
            Some(Ok(_)) => {
                self.went_well();
                if self.durable == self.applied {
                    self.cursor_due_us = view.now_us + view.limits.cursor_us;
                }
                let last = entries.last().map_or(self.applied, |entry| entry.number);
                self.attaches = 0;
                self.entries_total += entries.len() as u64;
                self.applied = last;
                let next = view.window.recent(last + 1).or(entries.last());
                self.behind_since_us = if last >= view.owner.statics.last {
                    0
                } else {
                    next.map_or(view.now_us, |entry| entry.timestamp_us)
                };
                on(Moving::Idle)
            }
            Some(Err(error)) => Went::Failed(Step::Moving(Moving::Apply(entries)), error.to_string()),
            None => Went::Failed(Step::Moving(Moving::Apply(entries)), "the store answered something else".to_owned()),
        }
    }
}

fn on_attach() -> Went {
    Went::On(Step::Attach(Attach::Head))
}
