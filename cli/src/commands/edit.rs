//! Changes one field of one object's spec, unless another manager owns it. Read, judge, patch what was read; once more when somebody
//! came between.

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::Value;

use super::confirm::confirm;
use crate::args::Global;
use crate::connect::{Connection, from_kube, within};
use crate::exit::CommandError;
use crate::kinds::Kind;
use crate::output::yaml;
use crate::ownership::{Edit, MANAGER, other_managers};
use crate::progress::Progress;

/// What came of an edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edited {
    /// It was so already.
    Unchanged,
    /// The field was changed.
    Changed,
    /// The object was made.
    Created,
}

/// How to edit.
#[derive(Debug)]
pub struct Editing<'a> {
    /// The kind.
    pub kind: Kind,
    /// Take the field from its manager.
    pub take_over: bool,
    /// The object to make when there is none; without it, a missing object is an error.
    pub absent: Option<Value>,
    /// For `--yes`.
    pub global: &'a Global,
}

/// Makes the edit.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field and it is not taken over; its text ends with the patch for Git.
pub async fn edit(connection: &Connection, change: &Edit, how: &Editing<'_>) -> Result<Edited, CommandError> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(connection.client.clone(), &connection.namespace, &how.kind.resource());
    for attempt in 0.. {
        let Some(found) = within(api.get_opt(&change.name)).await? else {
            return create(&api, change, how).await;
        };
        let object = serde_json::to_value(&found).map_err(|error| anyhow::Error::from(error).context("read object"))?;
        if change.is_done(&object) {
            return Ok(Edited::Unchanged);
        }
        judge(change, &object, how)?;
        let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(change.merge_patch(&object));
        match api.patch(&change.name, &parameters, &patch).await {
            Ok(_) => return Ok(Edited::Changed),
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < 3 => {}
            Err(error) => return Err(from_kube(error)),
        }
    }
    Ok(Edited::Unchanged)
}

async fn create(api: &Api<DynamicObject>, change: &Edit, how: &Editing<'_>) -> Result<Edited, CommandError> {
    let Some(absent) = &how.absent else {
        let noun = how.kind.plural();
        return Err(CommandError::Failed(anyhow::anyhow!(
            "{} {:?} not found; see cellctl get {noun}",
            change.kind,
            change.name
        )));
    };
    let object: DynamicObject =
        serde_json::from_value(absent.clone()).map_err(|error| anyhow::Error::from(error).context("build object"))?;
    let parameters = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    within(api.create(&parameters, &object)).await.map(|_| Edited::Created)
}

fn judge(change: &Edit, object: &Value, how: &Editing<'_>) -> Result<(), CommandError> {
    let managers = other_managers(object, change.field);
    if managers.is_empty() {
        return Ok(());
    }
    let field = format!("{}.spec.{}", change.kind, change.field);
    let patch = yaml(&change.patch_for_git())?;
    let owners = managers.join(", ");
    if how.take_over {
        Progress::to_stderr().say(&format!(
            "warning: {field} of {} is managed by {owners}, which may set it back; change it there too:\n{patch}",
            change.name
        ));
        return confirm(how.global, &format!("Take {field} over from {owners}"));
    }
    Err(CommandError::refused(
        field,
        format!("{} is managed by {owners}; make this change where it is managed:\n{patch}", change.name),
        "commit the patch above, or give --override to take the field over",
    ))
}
