//! Releasing a copy (rule 15): its head is marked, by compare-and-set, so that nobody ever claims it through a pointer. The serving head's
//! term was raised before, so nobody who could still cut over to it holds the log.

use cell_proto::v1::{CasHeadRequest, Head, ReadHeadRequest};
use cell_store::{Reply, Request, StoreError};

use super::{Copy, Step, View, Went};
use crate::machine::places::{pointer_of, pointer_to, released, released_by};

pub(super) enum Release {
    Head,
    Mark(Head),
}

impl Copy {
    pub(super) fn release_requests(&self, release: &Release, view: &View<'_>) -> Vec<(String, Request)> {
        let request = match release {
            Release::Head => ReadHeadRequest { log: view.log() }.into(),
            Release::Mark(head) => {
                let appender = released(&self.run_id);
                let new = Head { appender, moved_to: pointer_to(&view.owner.store), ..head.clone() };
                CasHeadRequest { log: view.log(), expected: Some(head.clone()), new: Some(new) }.into()
            }
        };
        vec![(self.target.clone(), request)]
    }

    pub(super) fn release_answered(&mut self, _: Release, results: Vec<Result<Reply, StoreError>>) -> Went {
        let head = match results.into_iter().next() {
            Some(Ok(Reply::Head(reply))) => reply.head,
            Some(Ok(Reply::CasHead(reply))) => reply.current,
            Some(Err(error)) => return Went::Failed(Step::Release(Release::Head), error.to_string()),
            _ => return Went::Failed(Step::Release(Release::Head), "the store answered something else".to_owned()),
        };
        match head {
            Some(head) if released_by(&head).is_some() => Went::Released,
            Some(head) if pointer_of(&head).is_some() => Went::On(Step::Release(Release::Mark(head))),
            Some(head) if head.moved_to.is_empty() => {
                let why = format!("{} has a head of the log that points nowhere; a person must look", self.target);
                Went::Failed(Step::Release(Release::Head), why)
            }
            // Without a head, or sealed for a merge: nobody can claim it.
            _ => Went::Released,
        }
    }
}
