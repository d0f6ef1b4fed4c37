//! From a StorageMigration's spec to what the step machine is given. Pure.

use std::collections::BTreeSet;

use cell_crds::{StorageMigration, TargetStage};
use cell_plan::migrations::{Record, Spec, Stage, Wishes};
use cell_proto::unit::Unit;
use kube::ResourceExt;

/// Reads what a migration asks for. The run is named for the UID.
///
/// # Errors
/// What can never be done, for people.
pub(super) fn read(one: &StorageMigration) -> Result<Spec, String> {
    let spec = &one.spec;
    if spec.source == spec.target {
        return Err(format!("spec.target: source and target are both StorageCell {}", spec.source));
    }
    let mut units = BTreeSet::new();
    for name in &spec.scope.units {
        match name.parse::<Unit>() {
            Ok(Unit::Bucket(_)) => {}
            Ok(Unit::Guild(_)) => return Err(format!("spec.scope.units: {name} is a guild; name its bucket")),
            Err(error) => return Err(format!("spec.scope.units: {error}")),
        }
        if !units.insert(name.clone()) {
            return Err(format!("spec.scope.units: {name} is named twice"));
        }
    }
    Ok(Spec {
        run_id: one.uid().unwrap_or_default(),
        source: spec.source.clone(),
        target: spec.target.clone(),
        units: units.into_iter().collect(),
        rollback_window_ms: i64::from(spec.rollback_window_seconds) * 1000,
    })
}

fn stage(target: TargetStage) -> Stage {
    match target {
        TargetStage::Prepare => Stage::Prepare,
        TargetStage::DualWrite => Stage::DualWrite,
        TargetStage::Backfill => Stage::Backfill,
        TargetStage::Verify => Stage::Verify,
        TargetStage::ShadowRead => Stage::ShadowRead,
        TargetStage::Cutover => Stage::Cutover,
        TargetStage::Complete => Stage::Complete,
    }
}

/// What people want now. A deletion is a wish to abort until every log is cut over; after that it only waits.
pub(super) fn wishes(one: &StorageMigration, record: &Record) -> Wishes {
    let spec = &one.spec;
    let deleting = one.metadata.deletion_timestamp.is_some() && !record.was_all_cut();
    let unsigned = |number: i32| u32::try_from(number).unwrap_or_default();
    Wishes {
        abort: spec.abort || deleting,
        rollback: spec.rollback,
        accept_loss: spec.accept_loss,
        ignore_unreachable: spec.ignore_unreachable,
        paused: spec.throttle.paused,
        rows_per_second: spec.throttle.rows_per_second.map(unsigned).unwrap_or_default(),
        target_stage: stage(spec.target_stage),
        verify_requests: unsigned(spec.verify_requests),
        shadow_per_10000: unsigned(spec.shadow_read.per_ten_thousand),
        min_samples: u64::from(unsigned(spec.shadow_read.min_samples)),
        max_mismatch: u64::from(unsigned(spec.shadow_read.max_mismatch)),
        receipt_max_age_ms: i64::from(spec.receipt_max_age_seconds) * 1000,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn migration(spec: serde_json::Value) -> StorageMigration {
        let mut one = StorageMigration::new("m", serde_json::from_value(spec).unwrap());
        one.metadata.uid = Some("uid".into());
        one
    }

    #[test]
    fn the_default_stops_before_anything_is_cut_over() {
        let one = migration(json!({"source": "a", "target": "b"}));
        let spec = read(&one).unwrap();
        assert_eq!((spec.run_id.as_str(), spec.rollback_window_ms), ("uid", 3_600_000));
        let wishes = wishes(&one, &Record::new(spec, 0));
        assert_eq!(wishes.target_stage, Stage::ShadowRead);
        assert_eq!((wishes.min_samples, wishes.max_mismatch, wishes.shadow_per_10000), (100, 0, 100));
    }

    #[test]
    fn what_the_schema_cannot_refuse_is_refused_here() {
        let refused = |spec| read(&migration(spec)).unwrap_err();
        assert!(refused(json!({"source": "a", "target": "a"})).contains("both"));
        let units = |units: &[&str]| json!({"source": "a", "target": "b", "scope": {"units": units}});
        assert!(refused(units(&["b4096"])).contains("b4096"));
        assert!(refused(units(&["b0001", "b0001"])).contains("twice"));
    }

    #[test]
    fn a_deletion_is_an_abort_only_until_everything_is_cut_over() {
        let mut one = migration(json!({"source": "a", "target": "b"}));
        one.metadata.deletion_timestamp = Some(crate::report::now());
        let mut record = Record::new(read(&one).unwrap(), 0);
        assert!(wishes(&one, &record).abort);
        record.hold_since_ms = Some(1);
        assert!(!wishes(&one, &record).abort);
    }
}
