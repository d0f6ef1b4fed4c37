//! Crossing from the bucket's log to the guild's own at a split, and back at a merge: the rest of the log that is left is applied first, then
//! the other one from exactly where the guild's stay in it begins. What cannot be told for sure is read anew as a whole.

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, Merge, Reason, Refusal};

use super::GuildActor;
use super::feed::Follow;
use super::input::{Effect, Junction, LogPage, Now, Ticket};

impl GuildActor {
    fn cross(&mut self) -> Ticket {
        // The feed open now says nothing of interest any more.
        self.epoch += 1;
        let ticket = self.ticket();
        self.follow = Follow::Crossing { ticket };
        ticket
    }

    fn is_crossing(&self, ticket: Ticket) -> bool {
        self.follow == (Follow::Crossing { ticket })
    }

    /// The split was applied.
    pub(super) fn enter_own_log(&mut self) {
        self.memberships.left(&self.log, self.applied);
        self.log = self.own_log();
        (self.applied, self.seen, self.term) = (0, 0, 0);
        let ticket = self.cross();
        self.out.push(Effect::FindStart { ticket, log: self.log.clone(), after_us: self.last_us });
    }

    pub(super) fn start_found(&mut self, ticket: Ticket, outcome: Result<u64, Refusal>) {
        if !self.is_crossing(ticket) {
            return;
        }
        match outcome {
            Ok(start) => {
                (self.applied, self.seen) = (start, start);
                self.open_feed();
                self.check_reaches();
            }
            Err(_) => self.start_load(),
        }
    }

    pub(super) fn feed_ended(&mut self, epoch: u64, refusal: Option<Refusal>) {
        if epoch != self.epoch || self.follow != Follow::Live {
            return;
        }
        match refusal.map_or(Reason::Unspecified, |refusal| refusal.why()) {
            // Where the stay in the guild's own log ended is told by the merge alone: its numbers go on in the next stay.
            Reason::OtherLog if self.log == self.own_log() => self.check_stay(),
            Reason::OtherLog => self.read_rest(None),
            Reason::Unspecified => self.open_feed(),
            _ => self.start_load(),
        }
    }

    fn read_rest(&mut self, merge: Option<Entry>) {
        let ticket = self.cross();
        self.merge_ahead = merge;
        self.out.push(Effect::ReadLog { ticket, log: self.log.clone(), from: self.seen.max(self.applied) + 1 });
    }

    pub(super) fn log_read(&mut self, ticket: Ticket, outcome: Result<LogPage, Refusal>, now: Now) {
        if !self.is_crossing(ticket) {
            return self.link_log_read(ticket, outcome);
        }
        let Ok(mut page) = outcome else { return self.start_load() };
        let merge = self.merge_ahead.take();
        let sealed_at = merge.as_ref().and_then(merge_of).map_or(u64::MAX, |merge| merge.sealed_at);
        page.entries.retain(|entry| entry.number <= sealed_at);
        let (before, scanned_to) = (self.seen, page.scanned_to.min(sealed_at));
        self.apply_all(page.entries, now);
        if self.is_crossing(ticket) {
            self.seen = self.seen.max(scanned_to);
            match merge {
                Some(merge) if self.applied == sealed_at => self.leave_own_log(merge, now),
                merge if self.seen > before => self.read_rest(merge),
                _ => self.start_load(),
            }
        }
        self.check_reaches();
        self.pump_mutations(now);
    }

    /// The stay in the guild's own log is applied to its end: the merge is next.
    fn leave_own_log(&mut self, merge: Entry, now: Now) {
        self.memberships.left(&self.log, self.applied);
        self.log = self.bucket_log();
        (self.applied, self.seen, self.term) = (merge.number.saturating_sub(1), 0, 0);
        self.apply_all(vec![merge], now);
        self.open_feed();
    }

    /// Asks whether the guild left its own log and came back since the last entry seen.
    pub(super) fn check_stay(&mut self) {
        let ticket = self.cross();
        self.out.push(Effect::FindJunctions { ticket, since: self.at.clone() });
    }

    pub(super) fn junctions_found(&mut self, ticket: Ticket, outcome: Result<Vec<Junction>, Refusal>, now: Now) {
        if !self.is_crossing(ticket) {
            return self.link_junctions_found(ticket, outcome);
        }
        let known = |junction: &Junction| self.at.log == self.bucket_log() && junction.entry.number == self.at.number;
        // None; or nobody can tell now, and leaving and coming back takes an operator far longer than a feed's reconnect.
        let next =
            outcome.unwrap_or_default().into_iter().find(|junction| !known(junction)).map(|junction| junction.entry);
        let sealed_at = next.as_ref().and_then(merge_of).map(|merge| merge.sealed_at);
        match (next, sealed_at) {
            (None, _) => self.open_feed(),
            // The state may have been read in a later stay than the one that ended here.
            _ if self.ring.is_ambiguous(&self.at) => self.start_load(),
            (Some(merge), Some(sealed_at)) if sealed_at == self.applied => {
                self.leave_own_log(merge, now);
                self.check_reaches();
                self.pump_mutations(now);
            }
            (Some(merge), Some(sealed_at)) if sealed_at > self.applied => self.read_rest(Some(merge)),
            _ => self.start_load(),
        }
    }
}

pub(super) fn merge_of(entry: &Entry) -> Option<&Merge> {
    match entry.change.as_ref()?.kind.as_ref()? {
        Kind::Merge(merge) => Some(merge),
        _ => None,
    }
}
