//! Where a log is served: which StorageCell's head holds, by the pointers that heads carry (LOG.md rule 14). It reads nothing itself: it
//! says which head to read next, and what the heads read so far mean.

use cell_proto::v1::{Head, ReadHeadRequest, Reason, Refusal};
use cell_store::Request;

/// What a pointer to another StorageCell starts with.
const STORAGE: &str = "storage:";
/// The appender of a copy's head that must never be claimed; followed by the run that released it.
const RELEASED: &str = "!released:";
/// Heads followed at most: one per StorageCell a log ever was in.
const MAX_HOPS: usize = 8;

/// Terms and numbers that a failover to a copy leaves out (`accept_loss`): the lost origin may have used some of them.
pub const FAILOVER_GAP: u64 = 1 << 20;

/// Whether a head without a pointer was left behind by a failover to the other one: their terms lie further apart than claims raise them.
pub(crate) fn has_failed_over(left: &Head, to: &Head) -> bool {
    left.moved_to.is_empty() && to.moved_to.is_empty() && to.term >= left.term.saturating_add(FAILOVER_GAP / 2)
}

/// The StorageCell a head points to.
pub fn pointer_of(head: &Head) -> Option<&str> {
    head.moved_to.strip_prefix(STORAGE)
}

/// The pointer to a StorageCell, as heads carry it.
pub fn pointer_to(storage_cell: &str) -> String {
    format!("{STORAGE}{storage_cell}")
}

/// The run that released a copy; none when the head may be claimed through a pointer.
pub fn released_by(head: &Head) -> Option<&str> {
    head.appender.strip_prefix(RELEASED)
}

/// The appender of a released copy's head.
pub fn released(run_id: &str) -> String {
    format!("{RELEASED}{run_id}")
}

/// The place that serves a log.
#[derive(Clone, PartialEq, Debug)]
pub struct Place {
    /// The StorageCell.
    pub store: String,
    /// Its head of the log, as read.
    pub head: Option<Head>,
    /// The highest term seen on the way: a claim's must be above.
    pub above: u64,
    /// The cell that the newest head names.
    pub cell: String,
}

impl Place {
    /// The head as callers should see it: the one whose word holds, with the cell it names.
    pub fn serving_head(&self) -> Option<Head> {
        let head = self.head.clone()?;
        if pointer_of(&head).is_none() {
            return Some(head);
        }
        // Sealed elsewhere and not claimed here yet.
        Some(Head {
            term: self.above,
            cell: self.cell.clone(),
            appender: String::new(),
            moved_to: String::new(),
            ..head
        })
    }
}

/// How a search goes on.
#[derive(Debug)]
pub(crate) enum Search {
    /// Read the next head.
    Go,
    Found(Place),
    Refuse(Refusal),
}

/// Follows a log's pointers from one StorageCell on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Locator {
    log: String,
    at: String,
    seen: Vec<(String, Head)>,
    /// Rule 14: of two heads that point to each other, the higher term sealed last.
    pub(crate) newest_pointer_holds: bool,
}

impl Locator {
    pub(crate) fn new(log: &str, from: &str) -> Self {
        Self { log: log.to_owned(), at: from.to_owned(), seen: Vec::new(), newest_pointer_holds: true }
    }

    /// The StorageCell to ask now.
    pub(crate) fn store(&self) -> &str {
        &self.at
    }

    pub(crate) fn request(&self) -> Request {
        ReadHeadRequest { log: self.log.clone() }.into()
    }

    pub(crate) fn answered(&mut self, head: Option<Head>) -> Search {
        let Some(head) = head else { return self.found(None) };
        let Some(next) = pointer_of(&head).map(str::to_owned) else { return self.found(Some(head)) };
        self.seen.push((self.at.clone(), head));
        if let Some(first) = self.seen.iter().position(|(store, _)| *store == next) {
            return self.circle(first);
        }
        if self.seen.len() >= MAX_HOPS {
            let message = format!("the pointers of {} lead through {MAX_HOPS} StorageCells", self.log);
            return Search::Refuse(Refusal::new(Reason::StoreUnavailable, message));
        }
        self.at = next;
        Search::Go
    }

    fn found(&self, head: Option<Head>) -> Search {
        let newest = self.seen.iter().map(|(_, head)| head).chain(head.as_ref()).max_by_key(|head| head.term);
        Search::Found(Place {
            store: self.at.clone(),
            above: newest.map_or(0, |head| head.term),
            cell: head.as_ref().or(newest).map(|head| head.cell.clone()).unwrap_or_default(),
            head,
        })
    }

    /// Heads that point to each other: one was sealed last, and where it points to the log goes on.
    fn circle(&self, first: usize) -> Search {
        let circle = self.seen.get(first..).unwrap_or_default();
        let last_sealed =
            if self.newest_pointer_holds { circle.iter().max_by_key(|(_, head)| head.term) } else { circle.first() };
        let target = last_sealed.and_then(|(_, sealed)| {
            let to = pointer_of(sealed)?;
            circle.iter().find(|(store, _)| store == to).map(|(store, head)| (store, head, sealed))
        });
        match target {
            Some((_, head, sealed)) if head == sealed => self.refuse_circle(),
            Some((_, head, _)) if released_by(head).is_some() => {
                let message =
                    format!("the copy of {} that its pointer names was released; a person must look", self.log);
                Search::Refuse(Refusal::new(Reason::StoreUnavailable, message))
            }
            Some((store, head, sealed)) => Search::Found(Place {
                store: store.clone(),
                head: Some(head.clone()),
                above: sealed.term.max(head.term),
                cell: sealed.cell.clone(),
            }),
            None => self.refuse_circle(),
        }
    }
}

impl Locator {
    fn refuse_circle(&self) -> Search {
        let message = format!("the head of {} points to itself; a person must look", self.log);
        Search::Refuse(Refusal::new(Reason::StoreUnavailable, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(term: u64, moved_to: &str) -> Option<Head> {
        let moved_to = if moved_to.is_empty() { String::new() } else { pointer_to(moved_to) };
        Some(Head { log: "b0001".into(), cell: "c".into(), term, moved_to, ..Head::default() })
    }

    fn locate(heads: &[(&str, Option<Head>)], from: &str) -> Result<(String, u64), Refusal> {
        let mut locator = Locator::new("b0001", from);
        loop {
            let head = heads.iter().find(|(store, _)| *store == locator.store()).and_then(|(_, head)| head.clone());
            match locator.answered(head) {
                Search::Go => {}
                Search::Found(place) => return Ok((place.store, place.above)),
                Search::Refuse(refusal) => return Err(refusal),
            }
        }
    }

    #[test]
    fn a_bare_head_serves_wherever_the_search_starts() {
        let heads = [("a", head(3, "")), ("b", head(0, "a"))];
        assert_eq!(locate(&heads, "a").unwrap(), ("a".into(), 3));
        assert_eq!(locate(&heads, "b").unwrap(), ("a".into(), 3));
    }

    #[test]
    fn of_two_bare_heads_the_one_far_above_was_failed_over_to() {
        let (left, copy) = (head(3, "").unwrap(), head(0, "a").unwrap());
        let to = head(3 + FAILOVER_GAP, "").unwrap();
        assert!(has_failed_over(&left, &to));
        assert!(!has_failed_over(&to, &left));
        assert!(!has_failed_over(&left, &copy));
        assert!(!has_failed_over(&left, &head(40, "").unwrap()));
    }

    #[test]
    fn of_two_pointers_the_higher_term_sealed_last() {
        assert_eq!(locate(&[("a", head(4, "b")), ("b", head(0, "a"))], "a").unwrap(), ("b".into(), 4));
        assert_eq!(locate(&[("a", head(4, "b")), ("b", head(6, "a"))], "a").unwrap(), ("a".into(), 6));
        assert_eq!(locate(&[("a", head(4, "b")), ("b", head(6, "a"))], "b").unwrap(), ("a".into(), 6));
    }

    #[test]
    fn pointers_are_followed_through_several_storage_cells() {
        let heads = [("a", head(4, "b")), ("b", head(9, "c")), ("c", head(2, "b"))];
        assert_eq!(locate(&heads, "a").unwrap(), ("c".into(), 9));
    }

    #[test]
    fn a_released_copy_is_never_claimed_through_a_pointer() {
        let dead = Head { appender: released("run-1"), ..head(0, "a").unwrap() };
        assert_eq!(locate(&[("a", head(4, "b")), ("b", Some(dead))], "a").unwrap_err().why(), Reason::StoreUnavailable);
        assert!(locate(&[("a", head(4, "a"))], "a").is_err());
    }
}
