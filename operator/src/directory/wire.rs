//! The stored form of a run's record: planner types are not serialisable, so that their shape can change while stored ones stay
//! readable. Fields are only ever added, with a default.

use cell_plan::moves::{Blocked, Direction, Outcome, Record, Spec, Step, Subject, UnitProgress, Wish};
use serde::{Deserialize, Serialize};

/// Makes an enum of the same variants with both conversions.
macro_rules! mirror {
    ($wire:ident = $plan:ident { $($name:ident),* $(,)? }) => {
        // The names are the planner's.
        #[allow(clippy::enum_variant_names)]
        #[derive(Clone, Copy, Serialize, Deserialize)]
        pub(super) enum $wire { $($name,)* }
        impl From<$plan> for $wire {
            fn from(value: $plan) -> Self {
                match value { $($plan::$name => Self::$name,)* }
            }
        }
        impl From<$wire> for $plan {
            fn from(value: $wire) -> Self {
                match value { $($wire::$name => Self::$name,)* }
            }
        }
    };
}

mirror!(
    StepWire = Step {
        Validate,
        ValidateBucket,
        Split,
        Warm,
        Standby,
        Measure,
        Prove,
        Switch,
        Settle,
        Failover,
        TakeOver,
        PointAway,
        Hold,
        Forget,
        Merge,
        Release,
        AbortFence,
        AbortForget,
        Done,
    }
);
pub(super) use mirror;

mirror!(DirectionWire = Direction { Forward, Back });
mirror!(WishWire = Wish { TooLateToAbort, TooEarlyToRollBack, TooLateToRollBack });

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordWire {
    run_id: String,
    subjects: Vec<SubjectWire>,
    from: String,
    to: String,
    merge: bool,
    deadline_ms: i64,
    rollback_window_ms: i64,
    step: StepWire,
    direction: DirectionWire,
    cursor: usize,
    units: Vec<UnitWire>,
    attempt: u32,
    failed_switches: u32,
    not_before_ms: i64,
    source_dead_since_ms: Option<i64>,
    blocked_by: Option<WhyWire>,
    undo_reason: Option<WhyWire>,
    wish: Option<WishWire>,
    outcome: Option<OutcomeWire>,
    started_ms: i64,
    step_since_ms: i64,
    hold_since_ms: Option<i64>,
    finished_ms: Option<i64>,
    watermark: u64,
    held_us: u64,
    requests: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubjectWire {
    log: String,
    /// Absent for a bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guild: Option<GuildWire>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GuildWire {
    id: String,
    bucket: String,
    may_split: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UnitWire {
    checked: bool,
    warmed: bool,
    term: u64,
    last: u64,
    sent: bool,
    unsettled: bool,
    moved: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct WhyWire {
    reason: String,
    message: String,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum OutcomeWire {
    Completed,
    Aborted { reason: String, message: String },
    RolledBack,
    Refused { reason: String, message: String },
}

impl From<&Subject> for SubjectWire {
    fn from(subject: &Subject) -> Self {
        match subject {
            Subject::Bucket { log } => Self { log: log.clone(), guild: None },
            Subject::Guild { guild_id, log, bucket, may_split } => Self {
                log: log.clone(),
                guild: Some(GuildWire { id: guild_id.to_string(), bucket: bucket.clone(), may_split: *may_split }),
            },
        }
    }
}

impl From<SubjectWire> for Subject {
    fn from(wire: SubjectWire) -> Self {
        match wire.guild.and_then(|guild| Some((guild.id.parse().ok()?, guild))) {
            None => Self::Bucket { log: wire.log },
            Some((guild_id, guild)) => {
                Self::Guild { guild_id, log: wire.log, bucket: guild.bucket, may_split: guild.may_split }
            }
        }
    }
}

impl From<&Blocked> for WhyWire {
    fn from(why: &Blocked) -> Self {
        Self { reason: why.reason.clone(), message: why.message.clone() }
    }
}

impl From<WhyWire> for Blocked {
    fn from(why: WhyWire) -> Self {
        Self { reason: why.reason, message: why.message }
    }
}

impl From<&Outcome> for OutcomeWire {
    fn from(outcome: &Outcome) -> Self {
        match outcome.clone() {
            Outcome::Completed => Self::Completed,
            Outcome::Aborted { reason, message } => Self::Aborted { reason, message },
            Outcome::RolledBack => Self::RolledBack,
            Outcome::Refused { reason, message } => Self::Refused { reason, message },
        }
    }
}

impl From<OutcomeWire> for Outcome {
    fn from(outcome: OutcomeWire) -> Self {
        match outcome {
            OutcomeWire::Completed => Self::Completed,
            OutcomeWire::Aborted { reason, message } => Self::Aborted { reason, message },
            OutcomeWire::RolledBack => Self::RolledBack,
            OutcomeWire::Refused { reason, message } => Self::Refused { reason, message },
        }
    }
}

impl From<&UnitProgress> for UnitWire {
    fn from(unit: &UnitProgress) -> Self {
        let UnitProgress { checked, warmed, term, last, sent, unsettled, moved } = *unit;
        Self { checked, warmed, term, last, sent, unsettled, moved }
    }
}

impl From<UnitWire> for UnitProgress {
    fn from(unit: UnitWire) -> Self {
        let UnitWire { checked, warmed, term, last, sent, unsettled, moved } = unit;
        Self { checked, warmed, term, last, sent, unsettled, moved }
    }
}

impl From<&Record> for RecordWire {
    fn from(record: &Record) -> Self {
        let spec = &record.spec;
        Self {
            run_id: spec.run_id.clone(),
            subjects: spec.subjects.iter().map(Into::into).collect(),
            from: spec.from.clone(),
            to: spec.to.clone(),
            merge: spec.merge,
            deadline_ms: spec.deadline_ms,
            rollback_window_ms: spec.rollback_window_ms,
            step: record.step.into(),
            direction: record.direction.into(),
            cursor: record.cursor,
            units: record.units.iter().map(Into::into).collect(),
            attempt: record.attempt,
            failed_switches: record.failed_switches,
            not_before_ms: record.not_before_ms,
            source_dead_since_ms: record.source_dead_since_ms,
            blocked_by: record.blocked_by.as_ref().map(Into::into),
            undo_reason: record.undo_reason.as_ref().map(Into::into),
            wish: record.wish.map(Into::into),
            outcome: record.outcome.as_ref().map(Into::into),
            started_ms: record.started_ms,
            step_since_ms: record.step_since_ms,
            hold_since_ms: record.hold_since_ms,
            finished_ms: record.finished_ms,
            watermark: record.watermark,
            held_us: record.held_us,
            requests: record.requests,
        }
    }
}

impl From<RecordWire> for Record {
    fn from(wire: RecordWire) -> Self {
        let spec = Spec {
            run_id: wire.run_id,
            subjects: wire.subjects.into_iter().map(Into::into).collect(),
            from: wire.from,
            to: wire.to,
            merge: wire.merge,
            deadline_ms: wire.deadline_ms,
            rollback_window_ms: wire.rollback_window_ms,
        };
        Self {
            spec,
            step: wire.step.into(),
            direction: wire.direction.into(),
            cursor: wire.cursor,
            units: wire.units.into_iter().map(Into::into).collect(),
            attempt: wire.attempt,
            failed_switches: wire.failed_switches,
            not_before_ms: wire.not_before_ms,
            source_dead_since_ms: wire.source_dead_since_ms,
            blocked_by: wire.blocked_by.map(Into::into),
            undo_reason: wire.undo_reason.map(Into::into),
            wish: wire.wish.map(Into::into),
            outcome: wire.outcome.map(Into::into),
            started_ms: wire.started_ms,
            step_since_ms: wire.step_since_ms,
            hold_since_ms: wire.hold_since_ms,
            finished_ms: wire.finished_ms,
            watermark: wire.watermark,
            held_us: wire.held_us,
            requests: wire.requests,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_stored_form() {
        let subject = |may_split| Subject::Guild {
            guild_id: i64::MAX,
            log: "g9223372036854775807".into(),
            bucket: "b0042".into(),
            may_split,
        };
        let spec = Spec {
            run_id: "run".into(),
            subjects: vec![subject(true), Subject::Bucket { log: "b0001".into() }],
            from: "a".into(),
            to: "b".into(),
            merge: true,
            deadline_ms: 5,
            rollback_window_ms: 6,
        };
        let mut record = Record::new(spec, 7);
        record.outcome = Some(Outcome::Aborted { reason: "R".into(), message: "m".into() });
        record.blocked_by = Some(Blocked { reason: "B".into(), message: "n".into() });
        record.wish = Some(Wish::TooLateToAbort);
        record.units[1] = UnitProgress { sent: true, unsettled: true, term: u64::MAX, ..UnitProgress::default() };
        let text = serde_json::to_string(&RecordWire::from(&record)).unwrap();
        let back: RecordWire = serde_json::from_str(&text).unwrap();
        assert_eq!(Record::from(back), record);
    }
}
