//! What must hold of a log in every state, and what a good end is.

use super::LogModel;
use super::state::{
    Answer, Damage, Entry, Migration, OPERATIONS, Operation, Operations, Owner, Phase, Segment, SegmentState, State,
    fold,
};

impl LogModel {
    pub(super) fn check(&self, state: &State) -> Option<String> {
        match state.damage {
            Some(Damage::EntryChanged) => return Some("a number holds two different entries".to_owned()),
            Some(Damage::TermKept) => return Some("a head changed hands and its term did not rise".to_owned()),
            Some(Damage::Bound) => return Some("a bound of the model is too small".to_owned()),
            None => {}
        }
        overlapping(state)
            .or_else(|| committed_twice(state))
            .or_else(|| acknowledged(state))
            .or_else(|| pointer(state))
            .or_else(|| appenders(state))
            .or_else(|| tables(state))
    }

    /// Nothing is under way, every operation was answered, and a copy that is shipped to is at the end.
    pub(super) fn is_settled(&self, state: &State) -> bool {
        // Nobody can ask for changes of a message that nobody was told of.
        let created = state.answers[Operation::Create as usize];
        let answered =
            |operation: Operation| state.answers[operation as usize] != Answer::Open || created == Answer::GaveUp;
        quiet_owner(state).is_some()
            && self.asks_for().all(answered)
            && state.migration != Migration::Shipping
            && (!state.is_shipping() || copy_is_at_the_end(state))
    }
}

/// The owner, when nothing is under way and nobody else is at it.
fn quiet_owner(state: &State) -> Option<&Owner> {
    let mut active = state.owners.iter().filter(|owner| owner.phase != Phase::Idle);
    let owner = active.next().filter(|_| active.next().is_none())?;
    let store = &state.stores[owner.store as usize];
    let settled = owner.phase == Phase::Serving
        && owner.store == state.current()
        && owner.head == store.head
        && owner.applied == owner.last
        && owner.last == store.last()
        && state.flights == [None; 2];
    settled.then_some(owner)
}

fn copy_is_at_the_end(state: &State) -> bool {
    let [current, other] = [state.current(), 1 - state.current()].map(|index| &state.stores[index as usize]);
    other.last() == current.last() && other.applied == current.last()
}

/// Two segments that hold different entries for one number.
fn overlapping(state: &State) -> Option<String> {
    for store in &state.stores {
        let mut numbers: [Option<Entry>; 16] = [None; 16];
        let place = |segment: &Segment| (segment.before as usize, segment.count as usize, segment.entries);
        for (before, count, entries) in store.existing().map(|(_, segment)| place(segment)) {
            for (offset, entry) in entries.iter().take(count).enumerate() {
                let slot = numbers.get_mut(before + offset)?;
                if slot.is_some() && entry.is_some() && slot != entry {
                    return Some("two segments hold different entries for one number".to_owned());
                }
                *slot = *entry;
            }
        }
    }
    None
}

fn committed_twice(state: &State) -> Option<String> {
    let mut seen = Operations::default();
    for entry in state.history.iter().flatten() {
        if seen.has(entry.operation) {
            return Some(format!("{:?} is committed twice", entry.operation));
        }
        seen.add(entry.operation);
    }
    None
}

/// What a client was told holds of the log that is the truth.
fn acknowledged(state: &State) -> Option<String> {
    let current = state.current();
    let store = &state.stores[current as usize];
    let last = store.last();
    for operation in OPERATIONS {
        let number =
            (1..=last).find(|number| state.entry(current, *number).is_some_and(|entry| entry.operation == operation));
        match (state.answers[operation as usize], number) {
            (Answer::Done, None) => return Some(format!("{operation:?} was acknowledged and is lost")),
            (Answer::Done, Some(number)) if number > store.applied => {
                return Some(format!("{operation:?} was answered before it was applied"));
            }
            (Answer::Refused, Some(_)) => return Some(format!("{operation:?} was refused and is committed")),
            _ => {}
        }
    }
    None
}

/// A target taken over holds everything up to the pointer.
fn pointer(state: &State) -> Option<String> {
    let other = &state.stores[1 - state.current() as usize];
    let current = &state.stores[state.current() as usize];
    let moved_at = other.head.moved_at.filter(|_| state.is_shipping() && other.head.term > 0)?;
    (current.last() < moved_at).then(|| "the target's log is shorter than the pointer says".to_owned())
}

/// No two owners whose appends would be taken, and none without power over an equal or higher term.
fn appenders(state: &State) -> Option<String> {
    let accepting = |owner: &&Owner| {
        let segment = &state.stores[owner.store as usize].segments[owner.segment as usize];
        matches!(owner.phase, Phase::Serving | Phase::Settling)
            && segment.state == SegmentState::Open
            && segment.term == owner.head.term
    };
    let mut appenders = state.owners.iter().filter(accepting);
    let appender = appenders.next()?;
    if appenders.next().is_some() {
        return Some("two owners have their appends taken".to_owned());
    }
    let holds_power = |owner: &&Owner| {
        matches!(owner.phase, Phase::Serving | Phase::Settling | Phase::Closing | Phase::Cutting)
            && *owner != appender
            && owner.head.term >= appender.head.term
    };
    state.owners.iter().find(holds_power).map(|owner| {
        format!("term {} of a former owner is no fence against the owner's {}", owner.head.term, appender.head.term)
    })
}

/// Once quiet, each table shows what the log says.
fn tables(state: &State) -> Option<String> {
    let owner = quiet_owner(state)?;
    let mut entries = Vec::new();
    for number in 1..=owner.last {
        let Some(entry) = state.entry(owner.store, number) else {
            return Some(format!("the log has no entry {number}"));
        };
        entries.push(entry);
    }
    let expected = fold(entries);
    let found = state.stores[owner.store as usize].table.view();
    if found != expected {
        return Some(format!("the table shows {found:?}, the log says {expected:?}"));
    }
    let copied = state.migration == Migration::Copied && copy_is_at_the_end(state);
    let copy = state.stores[1 - owner.store as usize].table.view();
    (copied && copy != expected).then(|| format!("the other table shows {copy:?}, the log says {expected:?}"))
}
