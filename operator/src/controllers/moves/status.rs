//! Mirrors a run in the Move's status: steps and transitions at once, figures rounded and rarely, nothing when nothing changed.

use std::time::{Duration, Instant};

use cell_crds::{Move, MoveResult, MoveStatus, Reason, RollbackReadiness};
use cell_plan::moves::{Direction, Outcome as Ended, Record, RollbackWindow, Step, Wish};
use serde_json::json;

use crate::context::Context;
use crate::directory::StoredRun;
use crate::error::ReconcileError;
use crate::names::manager;
use crate::report::{Standing, announce, is_transition, now, time_of};

/// Figures are written at most this often; a new step is written at once.
const FIGURES_EVERY: Duration = Duration::from_secs(5);
/// A wait shorter than this many tries is no news.
const QUIET_TRIES: u32 = 3;

/// Reports one run within one pass.
pub(super) struct Reporter<'a> {
    one: &'a Move,
    context: &'a Context,
    written: MoveStatus,
    written_at: Option<Instant>,
}

impl<'a> Reporter<'a> {
    pub(super) fn new(one: &'a Move, context: &'a Context) -> Self {
        Self { one, context, written: one.status.clone().unwrap_or_default(), written_at: None }
    }

    /// Of an unfinished run. `generation` is that of the Move whose wishes were looked at.
    pub(super) async fn report(&mut self, run: &StoredRun, generation: Option<i64>) -> Result<(), ReconcileError> {
        let record = &run.record;
        if record.outcome.is_some() {
            return Ok(());
        }
        let standing = standing(record);
        let mut status = status(generation, &self.written, record, &standing);
        let news = status.step != self.written.step
            || status.observed_generation != self.written.observed_generation
            || status.result != self.written.result
            || status.run_id != self.written.run_id
            || status.rollback_readiness != self.written.rollback_readiness
            || is_transition(&self.written.conditions, &status.conditions);
        if !news {
            let old = self.written.conditions.clone();
            let recently = self.written_at.is_some_and(|at| at.elapsed() < FIGURES_EVERY);
            let settling = record.attempt > 0 && record.attempt < QUIET_TRIES;
            if recently || settling {
                return Ok(());
            }
            if status.blocked_by == self.written.blocked_by {
                status.conditions = old;
            }
        }
        self.write(status, &standing).await
    }

    /// Of a run that has ended.
    pub(super) async fn finish(&mut self, run: &StoredRun, generation: Option<i64>) -> Result<(), ReconcileError> {
        let standing = standing(&run.record);
        let status = status(generation, &self.written, &run.record, &standing);
        self.write(status, &standing).await
    }

    async fn write(&mut self, status: MoveStatus, standing: &Standing) -> Result<(), ReconcileError> {
        if status == self.written {
            return Ok(());
        }
        let wanted = json!(status);
        let written = self.context.applier.status(&manager("move", "status"), self.one, wanted.clone()).await?;
        let strange = strange(written.and_then(|one| one.status), &wanted);
        if !strange.is_empty() {
            self.context.applier.clear_status(self.one, &strange).await?;
        }
        let stepped = status.step != self.written.step;
        if stepped || is_transition(&self.written.conditions, &status.conditions) {
            let action = status.step.clone().unwrap_or_else(|| "Move".into());
            announce(&self.context.recorder, self.one, standing, &action).await;
        }
        self.written = status;
        self.written_at = Some(Instant::now());
        Ok(())
    }
}

/// Fields of a status that are not of the operator's making.
fn strange(written: Option<MoveStatus>, wanted: &serde_json::Value) -> Vec<String> {
    let written = json!(written.unwrap_or_default());
    let fields = written.as_object().into_iter().flatten();
    fields.filter(|(field, _)| wanted.get(field).is_none()).map(|(field, _)| field.clone()).collect()
}

/// A Move that has no run yet.
pub(super) async fn report_waiting(one: &Move, context: &Context, standing: &Standing) -> Result<(), ReconcileError> {
    let before = one.status.clone().unwrap_or_default();
    let status = MoveStatus {
        observed_generation: one.metadata.generation,
        conditions: standing.conditions(&before.conditions, one.metadata.generation),
        step: before.step.clone().or_else(|| Some("Validate".into())),
        blocked_by: standing.blocked_by(),
        ..before
    };
    Reporter::new(one, context).write(status, standing).await
}

/// A Move whose run has ended and is forgotten: only the generation that was looked at can change.
pub(super) async fn report_generation(one: &Move, context: &Context) -> Result<(), ReconcileError> {
    let mut status = one.status.clone().unwrap_or_default();
    status.observed_generation = one.metadata.generation;
    status.conditions.iter_mut().for_each(|condition| condition.observed_generation = one.metadata.generation);
    if one.status.as_ref() == Some(&status) {
        return Ok(());
    }
    context.applier.status(&manager("move", "status"), one, json!(status)).await.map(|_| ())
}

/// A Move that can never have a run.
pub(super) async fn report_refused(one: &Move, context: &Context, standing: &Standing) -> Result<(), ReconcileError> {
    let before = one.status.clone().unwrap_or_default();
    let status = MoveStatus {
        observed_generation: one.metadata.generation,
        conditions: standing.conditions(&before.conditions, one.metadata.generation),
        step: Some("Done".into()),
        step_since: before.step_since.clone().or_else(|| Some(now())),
        result: Some(MoveResult::Refused),
        finished_at: before.finished_at.clone().or_else(|| Some(now())),
        blocked_by: None,
        ..before
    };
    Reporter::new(one, context).write(status, standing).await
}

/// An ended Move is Ready when it did what was last asked of it: it completed, or somebody asked it to undo itself and it did. One
/// that was refused, or that undid itself, is Stalled: what was asked for did not come about and will not.
fn standing(record: &Record) -> Standing {
    match &record.outcome {
        Some(Ended::Completed) => Standing::Ready(Reason::Completed, completed(record)),
        Some(Ended::RolledBack) => {
            Standing::Ready(Reason::RolledBack, format!("undone as asked: {} serves again", record.spec.from))
        }
        Some(Ended::Aborted { reason, .. }) if reason == Reason::AbortRequested.label() => {
            let message = format!("undone as asked before the commit point: {} serves", record.spec.from);
            Standing::Ready(Reason::Aborted, message)
        }
        Some(Ended::Aborted { reason, message }) => {
            let message = format!("the move undid itself before the commit point ({reason}): {message}");
            Standing::Stalled(refused(reason).unwrap_or(Reason::MoveFailed), message)
        }
        Some(Ended::Refused { reason, message }) => {
            Standing::Stalled(refused(reason).unwrap_or(Reason::InvalidSpec), message.clone())
        }
        None => underway(record),
    }
}

fn completed(record: &Record) -> String {
    let held = match record.held_us {
        0 => "how long commands were held is not known".to_owned(),
        held_us => format!("commands were held {held_us} µs"),
    };
    let wish = match record.wish {
        Some(Wish::TooLateToAbort) => "; the abort came after the commit point and was refused",
        Some(Wish::TooLateToRollBack) => "; the rollback came after its window and was refused",
        _ => "",
    };
    format!("{} serves; {held}{wish}", record.spec.to)
}

fn refused(reason: &str) -> Option<Reason> {
    Some(match reason {
        "SameCell" => Reason::SameCell,
        "TargetCordoned" => Reason::Cordoned,
        "NeedsStorageMigration" => Reason::NeedsStorageMigration,
        "MissingTarget" | "MissingSource" => Reason::ReferenceNotFound,
        "NoHead" | "GuildNotFound" => Reason::GuildNotFound,
        "DeadlineExceeded" => Reason::DeadlineExceeded,
        _ => return None,
    })
}

fn underway(record: &Record) -> Standing {
    let wish = match record.wish {
        Some(Wish::TooLateToAbort) => Some("abort refused: the commit point is behind; a rollback is possible"),
        Some(Wish::TooEarlyToRollBack) => Some("rollback refused: the commit point is not reached; abort instead"),
        Some(Wish::TooLateToRollBack) => Some("rollback refused: the rollback window is over"),
        None => None,
    };
    let reason = match (record.wish, record.step, record.direction) {
        (Some(Wish::TooLateToAbort), ..) => Reason::TooLateToAbort,
        (Some(Wish::TooLateToRollBack), ..) => Reason::TooLateToRollback,
        (_, Step::AbortFence | Step::AbortForget, _) if is_deadline(record) => Reason::DeadlineExceeded,
        (_, Step::AbortFence | Step::AbortForget, _) => Reason::AbortRequested,
        (_, _, Direction::Back) => Reason::RollbackRequested,
        _ if record.attempt >= QUIET_TRIES => Reason::Waiting,
        _ => Reason::Moving,
    };
    let blocked = record.blocked_by.as_ref().filter(|_| record.attempt >= QUIET_TRIES);
    let message = match (wish, blocked) {
        (Some(wish), _) => wish.to_owned(),
        (None, Some(blocked)) => format!("step {}: {}", record.step_label(), blocked.message),
        (None, None) => format!("step {}", record.step_label()),
    };
    Standing::Reconciling(reason, message)
}

fn is_deadline(record: &Record) -> bool {
    record.undo_reason.as_ref().is_some_and(|why| why.reason == "DeadlineExceeded")
}

fn status(generation: Option<i64>, before: &MoveStatus, record: &Record, standing: &Standing) -> MoveStatus {
    let step = record.step_label().to_owned();
    let same_step = before.step.as_ref() == Some(&step);
    let (readiness, until) = match record.rollback_window() {
        RollbackWindow::NotYet => (RollbackReadiness::NotYet, None),
        RollbackWindow::Open(until) => (RollbackReadiness::Ready, until.map(time_of)),
        RollbackWindow::Over => (RollbackReadiness::Over, None),
    };
    let result = record.outcome.as_ref().map(|outcome| match outcome {
        Ended::Completed => MoveResult::Completed,
        Ended::Aborted { .. } => MoveResult::Aborted,
        Ended::RolledBack => MoveResult::RolledBack,
        Ended::Refused { .. } => MoveResult::Refused,
    });
    let blocked = record.blocked_by.as_ref().filter(|_| record.outcome.is_none() && record.attempt >= QUIET_TRIES);
    MoveStatus {
        observed_generation: generation,
        conditions: standing.conditions(&before.conditions, generation),
        run_id: Some(record.spec.run_id.clone()),
        step_since: if same_step { before.step_since.clone() } else { Some(time_of(record.step_since_ms)) },
        step: Some(step),
        watermark: i64::try_from(record.watermark).ok().filter(|watermark| *watermark > 0),
        held_microseconds: i64::try_from(record.held_us).ok().filter(|held| *held > 0),
        rollback_readiness: Some(readiness),
        rollback_until: until,
        blocked_by: blocked.map(|blocked| format!("{}: {}", blocked.reason, blocked.message)),
        result,
        finished_at: record.finished_ms.map(time_of),
    }
}

#[cfg(test)]
mod tests {
    use cell_plan::moves::{Blocked, Spec, Subject};

    use super::*;

    fn record() -> Record {
        let spec = Spec {
            run_id: "r".into(),
            subjects: vec![Subject::Bucket { log: "b0001".into() }],
            from: "a".into(),
            to: "b".into(),
            merge: false,
            deadline_ms: 1000,
            rollback_window_ms: 1000,
        };
        Record::new(spec, 0)
    }

    #[test]
    fn a_waiting_run_always_says_for_what() {
        let mut record = record();
        record.blocked_by = Some(Blocked { reason: "Waiting".into(), message: "cell b has no live guild node".into() });
        record.attempt = 5;
        let standing = standing(&record);
        let status = status(Some(1), &MoveStatus::default(), &record, &standing);
        assert_eq!(status.blocked_by.as_deref(), Some("Waiting: cell b has no live guild node"));
        assert_eq!(status.rollback_readiness, Some(RollbackReadiness::NotYet));
        assert_eq!(standing.reason(), Reason::Waiting);
    }

    #[test]
    fn an_ended_run_shows_its_result_and_waits_for_nothing() {
        let mut record = record();
        (record.step, record.outcome, record.finished_ms) = (Step::Done, Some(Ended::Completed), Some(5_000));
        let status = status(Some(1), &MoveStatus::default(), &record, &standing(&record));
        assert_eq!((status.result, status.step.as_deref()), (Some(MoveResult::Completed), Some("Done")));
        assert_eq!((status.blocked_by, status.finished_at), (None, Some(time_of(5_000))));
    }

    #[test]
    fn an_ended_run_is_ready_only_if_it_did_what_was_last_asked_of_it() {
        let ended = |outcome| {
            let mut record = record();
            record.outcome = Some(outcome);
            standing(&record)
        };
        let aborted = |reason: &str| Ended::Aborted { reason: reason.into(), message: "m".into() };
        let refused = |reason: &str| Ended::Refused { reason: reason.into(), message: "m".into() };
        let ready = [(Ended::Completed, Reason::Completed), (Ended::RolledBack, Reason::RolledBack)];
        for (outcome, reason) in ready.into_iter().chain([(aborted("AbortRequested"), Reason::Aborted)]) {
            let standing = ended(outcome);
            assert!(matches!(standing, Standing::Ready(found, _) if found == reason), "{standing:?}");
        }
        for (outcome, reason) in [
            (aborted("DeadlineExceeded"), Reason::DeadlineExceeded),
            (aborted("GuildNotFound"), Reason::GuildNotFound),
            (aborted("NotAtSource"), Reason::MoveFailed),
            (refused("TargetCordoned"), Reason::Cordoned),
            (refused("InvalidUnits"), Reason::InvalidSpec),
        ] {
            let standing = ended(outcome);
            assert!(matches!(standing, Standing::Stalled(found, _) if found == reason), "{standing:?}");
        }
    }

    #[test]
    fn a_completed_run_says_what_became_of_a_late_abort_and_whether_the_hold_is_known() {
        let mut record = record();
        (record.outcome, record.wish) = (Some(Ended::Completed), Some(Wish::TooLateToAbort));
        let message = standing(&record).message().to_owned();
        assert!(message.contains("not known") && message.contains("abort came after the commit point"), "{message}");
    }

    #[test]
    fn a_wish_that_cannot_be_granted_is_answered() {
        let mut record = record();
        record.wish = Some(Wish::TooLateToAbort);
        assert_eq!(standing(&record).reason(), Reason::TooLateToAbort);
    }
}
