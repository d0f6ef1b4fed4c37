//! Who may claim or open which log, and what is taken over from the other one.

use super::state::{BUCKET, GUILD, Kind, Log, Owner, Reading, State, Window};
use super::{Next, SplitModel, Step};
use crate::rules::Rule;

impl SplitModel {
    /// Readings that may be old when they are used.
    pub(super) fn readings(&self, state: &State, process: usize, next: &mut Next) {
        let (bucket, guild) = (&state.logs[BUCKET], &state.logs[GUILD]);
        let seal = Reading { term: guild.term, ..reading(guild) };
        if !guild.open && guild.term > 0 && state.processes[process].seal != Some(seal) {
            next.to(Step::ReadsSeal { process, term: guild.term }, |state| state.processes[process].seal = Some(seal));
        }
        // The split is read from the tables: it is applied, and so is everything before it.
        if let Some(Kind::Split { term }) = bucket.marker(bucket.applied) {
            let split = Reading { term, ..reading(bucket) };
            if state.processes[process].split != Some(split) {
                next.to(Step::ReadsSplit { process, term }, |state| state.processes[process].split = Some(split));
            }
        }
    }

    /// Claiming is free when nobody owns the log.
    pub(super) fn claim(&self, state: &State, process: usize, log: usize, next: &mut Next) {
        let owned = (0..2).any(|other| state.is_owner(other, log));
        if state.is_owner(process, log) || (owned && state.budget.claims == 0) {
            return;
        }
        let found = &state.logs[log];
        if found.open {
            let (window, newest) = self.taken_over(state, log);
            next.to(Step::Claims { process, log, term: found.term + 1 }, |state| {
                state.budget.claims -= u8::from(owned);
                take(state, process, log, window, newest);
            });
        } else if log == GUILD
            && let Some(split) = state.processes[process].split
            && (split.term == found.term || !self.rules.has(Rule::SplitNamesTerm))
        {
            let window = if self.rules.has(Rule::InheritWindow) { split.window } else { 0 };
            let newest = if self.rules.has(Rule::InheritTimestamps) { split.newest } else { 0 };
            next.to(Step::OpensGuild { process, term: found.term + 1 }, |state| {
                state.processes[process].split = None;
                take(state, process, GUILD, window, newest);
            });
        }
    }

    /// What a claimant of an open log reads of the other one.
    fn taken_over(&self, state: &State, log: usize) -> (Window, u8) {
        let (bucket, guild) = (&state.logs[BUCKET], &state.logs[GUILD]);
        let (window, newest) = match log {
            GUILD => (bucket.window(bucket.last), bucket.newest()),
            _ => {
                let merged = bucket.up_to(bucket.last).filter_map(|entry| match entry.kind {
                    Kind::Merge { sealed_at, .. } => Some(sealed_at),
                    _ => None,
                });
                let sealed_at = merged.max();
                let counts =
                    if self.rules.has(Rule::InheritOnlySealed) { sealed_at } else { sealed_at.map(|_| guild.last) };
                (guild.window(counts.unwrap_or(0)), 0)
            }
        };
        (
            if self.rules.has(Rule::InheritWindow) { window } else { 0 },
            if self.rules.has(Rule::InheritTimestamps) { newest } else { 0 },
        )
    }
}

fn reading(log: &Log) -> Reading {
    Reading { term: 0, last: log.last, newest: log.newest(), window: log.window(log.last) }
}

fn take(state: &mut State, process: usize, log: usize, inherited: Window, newest: u8) {
    let target = &mut state.logs[log];
    (target.term, target.open, target.segment_open) = (target.term + 1, true, true);
    target.segment += 1;
    state.processes[process].owns[log] = Owner {
        term: target.term,
        segment: target.segment,
        last: target.last,
        newest: target.newest().max(newest),
        known: target.window(target.last) | inherited,
        inherited,
        in_doubt: false,
    };
}
