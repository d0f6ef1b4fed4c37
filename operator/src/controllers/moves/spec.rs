//! From a Move's spec to what the step machine is given. Pure; everything that the schema could not refuse is refused here.

use cell_crds::{Move, MoveSpec};
use cell_plan::checks::MoveRefusal;
use cell_plan::moves::{Spec, Subject};
use cell_proto::unit::Unit;
use kube::ResourceExt;

/// Reads what a Move asks for. The run is named for the Move's UID.
///
/// # Errors
/// [`MoveRefusal`] when it can never be done.
pub(super) fn read(one: &Move, now_ms: i64) -> Result<Spec, MoveRefusal> {
    let spec = &one.spec;
    if spec.from == spec.to && !spec.merge_into_bucket {
        return Err(MoveRefusal::SameCell(spec.to.clone()));
    }
    let created = one.creation_timestamp().map_or(now_ms, |time| time.0.as_millisecond());
    Ok(Spec {
        run_id: one.uid().unwrap_or_default(),
        subjects: subjects(spec)?,
        from: spec.from.clone(),
        to: spec.to.clone(),
        merge: spec.merge_into_bucket,
        deadline_ms: created.max(now_ms) + i64::from(spec.deadline_seconds) * 1000,
        rollback_window_ms: i64::from(spec.rollback_window_seconds) * 1000,
    })
}

fn subjects(spec: &MoveSpec) -> Result<Vec<Subject>, MoveRefusal> {
    if let Some(guild) = &spec.guild {
        let id: i64 = guild.parse().map_err(|_| MoveRefusal::Units(format!("guild {guild} is not a guild id")))?;
        return Ok(vec![subject(Unit::Guild(id), true)]);
    }
    let mut subjects = Vec::new();
    for name in spec.units.iter().flatten() {
        let unit: Unit = name.parse().map_err(|error| MoveRefusal::Units(format!("{error}")))?;
        let subject = subject(unit, false);
        if subjects.contains(&subject) {
            return Err(MoveRefusal::Units(format!("{name} is named twice")));
        }
        if spec.merge_into_bucket && matches!(subject, Subject::Bucket { .. }) {
            return Err(MoveRefusal::Units(format!("{name} is a bucket: only guilds are merged into one")));
        }
        subjects.push(subject);
    }
    if subjects.is_empty() {
        return Err(MoveRefusal::Units("neither units nor guild name anything".into()));
    }
    Ok(subjects)
}

fn subject(unit: Unit, may_split: bool) -> Subject {
    match unit {
        Unit::Bucket(_) => Subject::Bucket { log: unit.log() },
        Unit::Guild(guild_id) => {
            Subject::Guild { guild_id, log: unit.log(), bucket: Unit::bucket(guild_id).log(), may_split }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn a_move(spec: serde_json::Value) -> Move {
        let mut one = Move::new("m", serde_json::from_value(spec).unwrap());
        one.metadata.uid = Some("uid".into());
        one
    }

    #[test]
    fn a_guild_is_split_out_where_needed_and_named_units_are_not() {
        let spec = read(&a_move(json!({"guild": "7", "from": "a", "to": "b"})), 1_000).unwrap();
        assert_eq!(spec.run_id, "uid");
        assert_eq!((spec.deadline_ms, spec.rollback_window_ms), (601_000, 30_000));
        assert!(
            matches!(&spec.subjects[..], [Subject::Guild { guild_id: 7, may_split: true, log, .. }] if log == "g7")
        );
        let spec = read(&a_move(json!({"units": ["b0001", "g7"], "from": "a", "to": "b"})), 0).unwrap();
        assert!(matches!(&spec.subjects[1], Subject::Guild { may_split: false, .. }));
    }

    #[test]
    fn what_the_schema_cannot_refuse_is_refused_here() {
        let refused = |spec| read(&a_move(spec), 0).unwrap_err().label();
        assert_eq!(refused(json!({"guild": "7", "from": "a", "to": "a"})), "SameCell");
        let merge = json!({"guild": "7", "from": "a", "to": "a", "mergeIntoBucket": true});
        assert!(read(&a_move(merge), 0).unwrap().is_merge_in_place());
        assert_eq!(refused(json!({"guild": "9999999999999999999", "from": "a", "to": "b"})), "InvalidUnits");
        assert_eq!(refused(json!({"units": ["b4096"], "from": "a", "to": "b"})), "InvalidUnits");
        assert_eq!(refused(json!({"units": ["b0001", "b0001"], "from": "a", "to": "b"})), "InvalidUnits");
        assert_eq!(
            refused(json!({"units": ["b0001"], "mergeIntoBucket": true, "from": "a", "to": "b"})),
            "InvalidUnits"
        );
    }
}
