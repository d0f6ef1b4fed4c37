//! What a reply means to the step machine. Whatever may have happened without being confirmed is unknown, never refused.

use cell_plan::moves::{HeadFact, RefusalKind, Response};
use cell_proto::v1::{Head, InspectReply, Reason, Refusal, RunReply};
use tonic::Code;

/// A transport failure: the request may have arrived.
pub(super) fn of_status(status: &tonic::Status, address: &str) -> Response {
    match status.code() {
        Code::Unimplemented | Code::InvalidArgument => Response::Refused {
            kind: RefusalKind::Permanent,
            reason: "Unsupported".into(),
            message: format!("{address}: {}", status.message()),
            retry_after_ms: 0,
        },
        _ => Response::Unknown { message: format!("{address}: {}", status.message()) },
    }
}

pub(super) fn of_refusal(refusal: &Refusal) -> Response {
    let reason = refusal.why();
    let kind = match reason {
        Reason::UnknownOutcome => {
            return Response::Unknown { message: refusal.message.clone() };
        }
        Reason::StaleTerm => RefusalKind::Stale,
        Reason::NotFound => RefusalKind::Missing,
        Reason::OtherRun => RefusalKind::OtherRun,
        Reason::Invalid | Reason::Unsupported | Reason::Forbidden | Reason::TooLarge => RefusalKind::Permanent,
        _ => RefusalKind::Retry,
    };
    Response::Refused {
        kind,
        reason: reason.label().to_owned(),
        message: refusal.message.clone(),
        retry_after_ms: refusal.retry_after_ms,
    }
}

pub(super) fn of_run(reply: &RunReply) -> Response {
    match &reply.refusal {
        Some(refusal) => of_refusal(refusal),
        None if reply.done => Response::Done,
        None => Response::Pending,
    }
}

pub(super) fn of_inspect(reply: &InspectReply) -> Response {
    if let Some(refusal) = &reply.refusal {
        return match refusal.why() {
            Reason::NotFound => Response::Head(None),
            _ => of_refusal(refusal),
        };
    }
    Response::Head(reply.head.as_ref().map(|head| head_fact(head, reply)))
}

fn head_fact(head: &Head, reply: &InspectReply) -> HeadFact {
    HeadFact {
        cell: head.cell.clone(),
        term: head.term,
        merged: head.moved_to.starts_with("log:"),
        last: reply.last,
        closed_by: Some(reply.closed_by_run.clone()).filter(|run| !run.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_happened_is_unknown_and_never_refused() {
        let unknown = of_refusal(&Refusal::new(Reason::UnknownOutcome, "timed out"));
        assert!(matches!(unknown, Response::Unknown { .. }));
        assert!(matches!(of_status(&tonic::Status::deadline_exceeded("late"), "a:1"), Response::Unknown { .. }));
        assert!(matches!(of_status(&tonic::Status::unavailable("reset"), "a:1"), Response::Unknown { .. }));
    }

    #[test]
    fn every_reason_has_a_kind() {
        let kind = |reason| match of_refusal(&Refusal::new(reason, "")) {
            Response::Refused { kind, .. } => kind,
            other => panic!("{other:?}"),
        };
        assert_eq!(kind(Reason::Wait), RefusalKind::Retry);
        assert_eq!(kind(Reason::NotOwner), RefusalKind::Retry);
        assert_eq!(kind(Reason::StaleTerm), RefusalKind::Stale);
        assert_eq!(kind(Reason::NotFound), RefusalKind::Missing);
        assert_eq!(kind(Reason::OtherRun), RefusalKind::OtherRun);
        assert_eq!(kind(Reason::Unsupported), RefusalKind::Permanent);
    }

    #[test]
    fn a_merged_log_is_recognised_by_its_pointer() {
        let head = Head { cell: "a".into(), moved_to: "log:b0042".into(), ..Head::default() };
        let reply = InspectReply { head: Some(head), ..InspectReply::default() };
        assert!(matches!(of_inspect(&reply), Response::Head(Some(HeadFact { merged: true, closed_by: None, .. }))));
    }
}
