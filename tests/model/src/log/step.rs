//! What can happen to a log, as a list of words that can be printed and replayed.

use std::fmt;

use super::state::{Batch, Entry, Flight, Operation};

/// One step of an execution. `owner` is a process, `store` 0 the origin and 1 the copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each field is what its name says")]
pub enum Step {
    Crashes { owner: u8 },
    ReadsHead { owner: u8, store: u8, moved: bool },
    FollowsPointer { owner: u8, store: u8 },
    Claims { owner: u8, store: u8, term: u8 },
    ClaimUnknown { owner: u8, store: u8 },
    SettlesHead { owner: u8 },
    Looks { owner: u8, store: u8, segment: u8 },
    Seals { owner: u8, store: u8, segment: u8 },
    Opens { owner: u8, store: u8, segment: u8, last: u8 },
    Verifies { owner: u8 },
    StepsBack { owner: u8 },
    Appends { owner: u8, store: u8, batch: Batch, number: u8 },
    AppendUnknown { owner: u8, batch: Batch },
    AppendRefused { owner: u8, batch: Batch },
    Settles { owner: u8 },
    RefusesProposed { owner: u8, operation: Operation },
    AnswersDuplicate { owner: u8, operation: Operation },
    Refuses { owner: u8, operation: Operation },
    Applies { owner: u8, store: u8, number: u8 },
    ApplyUnknown { owner: u8, number: u8 },
    Rolls { owner: u8, segment: u8 },
    ClosesForSwitch { owner: u8 },
    Switches { owner: u8, term: u8 },
    SwitchUnknown { owner: u8 },
    Undoes { owner: u8 },
    StartsCopy { owner: u8, after: u8 },
    Backfills,
    Ships { owner: u8, to: u8, number: u8, again: bool },
    OpensInCopy { owner: u8, to: u8, segment: u8 },
    AppliesShipped { owner: u8, to: u8, number: u8 },
    ClosesForCutover { owner: u8, to: u8 },
    SealsForCutover { owner: u8, segment: u8 },
    CutsOver { owner: u8, at: u8, term: u8 },
    CutUnknown { owner: u8 },
    DropsCopy { store: u8 },
    Marks { owner: u8, retained: u8 },
    DropsSegment { owner: u8, segment: u8 },
    Lands { flight: Flight, applied: bool },
}

fn store_name(store: u8) -> &'static str {
    if store == 0 { "the origin" } else { "the copy" }
}

fn entries(batch: &Batch) -> String {
    let one = |entry: &Entry| format!("{:?} (time {})", entry.operation, entry.timestamp).to_lowercase();
    batch.iter().flatten().map(one).collect::<Vec<_>>().join(" and ")
}

fn landing(flight: &Flight) -> String {
    match flight {
        Flight::Append { to, batch, last, .. } => {
            format!("append of {} after {last} to segment {} of {}", entries(batch), to.1, store_name(to.0))
        }
        Flight::Head { store, new, .. } => format!("compare-and-set of {}'s head to {new:?}", store_name(*store)),
        Flight::Ship { to, last, .. } => format!("shipping of entry {} to {}", last + 1, store_name(to.0)),
        Flight::Write { store, entry } => {
            format!("table write of {} in {}", entries(&[Some(*entry), None]), store_name(*store))
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Backfills => write!(f, "the backfill copies the origin's rows"),
            Self::DropsCopy { store } => write!(f, "the operator releases and drops {}", store_name(store)),
            Self::Lands { flight, applied: true } => write!(f, "late: the {} lands", landing(&flight)),
            Self::Lands { flight, applied: false } => write!(f, "late: the {} fails its condition", landing(&flight)),
            _ => match self.of_claiming(f) {
                Some(result) => result,
                None => self.of_owning(f),
            },
        }
    }
}

impl Step {
    fn of_claiming(&self, f: &mut fmt::Formatter<'_>) -> Option<fmt::Result> {
        Some(match *self {
            Self::Crashes { owner } => write!(f, "p{owner} crashes and starts again"),
            Self::ReadsHead { owner, store, moved: false } => {
                write!(f, "p{owner} reads {}'s head and means to claim it", store_name(store))
            }
            Self::ReadsHead { owner, store, moved: true } => {
                write!(f, "p{owner} reads {}'s head: moved", store_name(store))
            }
            Self::FollowsPointer { owner, store } => {
                write!(f, "p{owner} reads the other head too and means to claim {}", store_name(store))
            }
            Self::Claims { owner, store, term } => write!(f, "p{owner} claims {} at term {term}", store_name(store)),
            Self::ClaimUnknown { owner, store } => {
                write!(f, "p{owner} claims {}: outcome unknown", store_name(store))
            }
            Self::SettlesHead { owner } => write!(f, "p{owner} reads the head serially to settle"),
            Self::Looks { owner, store, segment } => {
                write!(f, "p{owner} reads segment {segment} of {}", store_name(store))
            }
            Self::Seals { owner, store, segment } => {
                write!(f, "p{owner} seals and reads segment {segment} of {}", store_name(store))
            }
            Self::Opens { owner, store, segment, last } => {
                write!(f, "p{owner} opens segment {segment} of {}, last {last}", store_name(store))
            }
            Self::Verifies { owner } => write!(f, "p{owner} finds the head still its own and serves"),
            Self::StepsBack { owner } => write!(f, "p{owner} finds that it is not the owner and steps back"),
            _ => return None,
        })
    }

    fn of_owning(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Appends { owner, store, batch, number } => {
                write!(f, "p{owner} appends {} to {} as entry {number}", entries(&batch), store_name(store))
            }
            Self::AppendUnknown { owner, batch } => {
                write!(f, "p{owner} appends {}: outcome unknown", entries(&batch))
            }
            Self::AppendRefused { owner, batch } => {
                write!(f, "p{owner}'s append of {} is refused on its number", entries(&batch))
            }
            Self::Settles { owner } => write!(f, "p{owner} reads its segment serially to settle"),
            Self::RefusesProposed { owner, operation } => {
                write!(f, "p{owner} settles, finds {operation:?} missing and past its deadline, and refuses it")
            }
            Self::AnswersDuplicate { owner, operation } => {
                write!(f, "p{owner} answers {operation:?} from its dedupe window")
            }
            Self::Refuses { owner, operation } => write!(f, "p{owner} refuses {operation:?}: no such message"),
            Self::Applies { owner, store, number } => {
                write!(f, "p{owner} applies entry {number} to {}'s table", store_name(store))
            }
            Self::ApplyUnknown { owner, number } => write!(f, "p{owner} applies entry {number}: outcome unknown"),
            Self::Rolls { owner, segment } => write!(f, "p{owner} seals its own segment {segment} to roll"),
            Self::ClosesForSwitch { owner } => write!(f, "p{owner} holds commits for a switch"),
            Self::Switches { owner, term } => write!(f, "p{owner} switches the log to the other cell, term {term}"),
            Self::SwitchUnknown { owner } => write!(f, "p{owner} switches the log: outcome unknown"),
            Self::Undoes { owner } => write!(f, "p{owner} undoes"),
            Self::Marks { owner, retained } => write!(f, "p{owner} marks segment {retained} as the first retained"),
            Self::DropsSegment { owner, segment } => write!(f, "p{owner} drops segment {segment}"),
            _ => self.of_migrating(f),
        }
    }

    fn of_migrating(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::StartsCopy { owner, after } => write!(f, "p{owner} starts a copy after entry {after}"),
            Self::Ships { owner, to, number, again } => {
                let more = if again { ", and once more, late" } else { "" };
                write!(f, "p{owner} ships entry {number} to {}{more}", store_name(to))
            }
            Self::OpensInCopy { owner, to, segment } => {
                write!(f, "p{owner} opens segment {segment} in {} to ship", store_name(to))
            }
            Self::AppliesShipped { owner, to, number } => {
                write!(f, "p{owner} applies shipped entry {number} to {}'s table", store_name(to))
            }
            Self::ClosesForCutover { owner, to } => {
                write!(f, "p{owner} holds commits for the cutover to {}", store_name(to))
            }
            Self::SealsForCutover { owner, segment } => write!(f, "p{owner} seals its last segment {segment}"),
            Self::CutsOver { owner, at, term } => {
                write!(f, "p{owner} seals its head: moved at {at}, term {term}")
            }
            Self::CutUnknown { owner } => write!(f, "p{owner} seals its head: outcome unknown"),
            _ => write!(f, "{self:?}"),
        }
    }

    /// Whose step it is.
    pub fn owner(&self) -> Option<u8> {
        let text = format!("{self:?}");
        let (_, rest) = text.split_once("owner: ")?;
        rest.chars().next()?.to_digit(10).map(|digit| digit as u8)
    }
}
