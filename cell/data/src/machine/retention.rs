//! Dropping old segments: the oldest one, whole, once it is older than the retention and behind every cursor that still needs it. The
//! last segment is never dropped, so the log's end is always found.

use std::collections::BTreeMap;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{DropSegmentRequest, Entry, ReadCursorRequest, ReadSegmentRequest};
use cell_store::{CURSOR_FEED, CURSOR_RETAINED, Reply, Request, StoreError};

use super::LogMachine;
use super::owner::{Job, Left, Owner, cursor};
use crate::domain;

const PAGE: i32 = 2000;

/// The cursor of one guild's owner in a log.
pub fn feed_cursor(guild_id: i64) -> String {
    if guild_id == 0 { CURSOR_FEED.to_owned() } else { format!("{CURSOR_FEED}:{guild_id}") }
}

/// Where the look at the oldest segment stands.
pub(super) enum Retention {
    /// Which is the oldest?
    Oldest,
    /// Read it: for each guild the last entry its owner must have processed.
    Read {
        segment: u64,
        from: u64,
        fed: BTreeMap<i64, u64>,
    },
    /// Read the guilds' cursors.
    Cursors {
        segment: u64,
        fed: BTreeMap<i64, u64>,
    },
    /// Say that it is gone, before it is.
    Mark {
        segment: u64,
    },
    Drop {
        segment: u64,
    },
}

impl Retention {
    pub(super) fn start() -> Self {
        Self::Oldest
    }

    pub(super) fn requests(&self, log: &str) -> Vec<Request> {
        let read_cursor = |name: String| ReadCursorRequest { log: log.to_owned(), name }.into();
        match self {
            Self::Oldest => vec![read_cursor(CURSOR_RETAINED.to_owned())],
            Self::Read { segment, from, .. } => {
                vec![
                    ReadSegmentRequest {
                        log: log.to_owned(),
                        segment: *segment,
                        from: *from,
                        limit: PAGE,
                        bodies_from: 0,
                    }
                    .into(),
                ]
            }
            Self::Cursors { fed, .. } => fed.keys().map(|guild_id| read_cursor(feed_cursor(*guild_id))).collect(),
            Self::Mark { segment } => vec![cursor(log, CURSOR_RETAINED, segment + 1)],
            Self::Drop { segment } => vec![DropSegmentRequest { log: log.to_owned(), segment: *segment }.into()],
        }
    }
}

/// Whether a guild's owner must have seen the entry before it may go: it feeds its members' lists from it.
fn must_be_fed(entry: &Entry) -> Option<i64> {
    let kind = entry.change.as_ref()?.kind.as_ref()?;
    let feeds = match kind {
        Kind::GuildCreated(_) | Kind::MemberRemoved(_) | Kind::GuildDeleted(_) => true,
        Kind::MemberPut(put) => put.joined,
        _ => false,
    };
    if feeds { domain::guild_of(kind) } else { None }
}

impl LogMachine {
    pub(super) fn retention_answered(
        &mut self,
        owner: &mut Owner,
        retention: Retention,
        results: Vec<Result<Reply, StoreError>>,
    ) -> Option<Left> {
        // A failed look is no trouble: the next one comes in a minute.
        let Ok(replies) = results.into_iter().collect::<Result<Vec<Reply>, StoreError>>() else { return None };
        let next = match retention {
            Retention::Oldest => match replies.first() {
                Some(Reply::ReadCursor(reply)) if reply.value > 1 && !owner.retention_checked => {
                    // Marked by an owner that may have died before it dropped it; dropping twice is harmless.
                    Some(Retention::Drop { segment: reply.value - 1 })
                }
                Some(Reply::ReadCursor(reply)) if reply.value.max(1) < owner.segment => {
                    Some(Retention::Read { segment: reply.value.max(1), from: 0, fed: BTreeMap::new() })
                }
                _ => None,
            },
            Retention::Read { segment, fed, .. } => self.oldest_read(owner, segment, fed, replies),
            Retention::Cursors { segment, fed } => {
                let behind =
                    |(reply, last): (&Reply, &u64)| matches!(reply, Reply::ReadCursor(cursor) if cursor.value >= *last);
                let all = replies.len() == fed.len() && replies.iter().zip(fed.values()).all(behind);
                all.then_some(Retention::Mark { segment })
            }
            Retention::Mark { segment } => Some(Retention::Drop { segment }),
            Retention::Drop { .. } => {
                // There may be more.
                owner.retention_checked = true;
                owner.retention_due_us = self.now_us;
                None
            }
        };
        if let Some(next) = next {
            owner.job = Job::Retention(next);
        }
        None
    }

    fn oldest_read(
        &self,
        owner: &Owner,
        segment: u64,
        mut fed: BTreeMap<i64, u64>,
        replies: Vec<Reply>,
    ) -> Option<Retention> {
        let Some(Reply::Segment(reply)) = replies.into_iter().next() else { return None };
        // Dropped before, the mark lost.
        let Some(statics) = reply.statics else { return Some(Retention::Mark { segment }) };
        let old = statics.last_timestamp_us < self.now_us - self.limits.retention_us;
        if !statics.sealed || !old || statics.last > owner.cursor {
            return None;
        }
        // A copy holds back what it lacks, but not for ever: then it is begun anew.
        let lost_us = self.now_us - self.limits.retention_us - self.limits.copy_retention_us;
        let lacks = owner.copy.as_ref().is_some_and(|copy| copy.shipped() < statics.last);
        if lacks && statics.last_timestamp_us >= lost_us {
            return None;
        }
        let last_read = reply.entries.last().map_or(statics.last, |stored| stored.number);
        for stored in reply.entries {
            let Ok(entry) = domain::entry_of(&stored) else { return None };
            if let Some(guild_id) = must_be_fed(&entry) {
                fed.insert(guild_id, entry.number);
            }
        }
        Some(match (last_read < statics.last, fed.is_empty()) {
            (true, _) => Retention::Read { segment, from: last_read + 1, fed },
            (false, true) => Retention::Mark { segment },
            (false, false) => Retention::Cursors { segment, fed },
        })
    }
}
