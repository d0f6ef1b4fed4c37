//! Who owns a field of a spec. cellctl changes a field only where no other manager owns it; otherwise it refuses, names the manager
//! and prints the patch for Git. Pure.

use serde_json::{Value, json};

/// Our field manager.
pub const MANAGER: &str = "cellctl";

/// Managers of what the control-plane API made for somebody who asked it to: theirs to change again.
const API_MANAGERS: &str = "cellplane-operator/api-";

/// A change to one field of one object's spec.
#[derive(Clone, PartialEq, Debug)]
pub struct Edit {
    /// The kind, as in manifests.
    pub kind: &'static str,
    /// The object's name.
    pub name: String,
    /// Field of `spec`, such as `placement`.
    pub field: &'static str,
    /// What it shall be; null removes it.
    pub value: Value,
}

/// The managers other than us that own the field or something in it, in order of first appearance.
pub fn other_managers(object: &Value, field: &str) -> Vec<String> {
    let mut managers = Vec::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let manager = entry["manager"].as_str().unwrap_or("unknown");
        let owns = entry["subresource"].as_str().unwrap_or_default().is_empty()
            && !entry["fieldsV1"]["f:spec"][format!("f:{field}")].is_null();
        let ours = manager == MANAGER || manager.starts_with(API_MANAGERS);
        if owns && !ours && !managers.iter().any(|known| known == manager) {
            managers.push(manager.to_owned());
        }
    }
    managers
}

impl Edit {
    /// The merge patch; it applies only to the object as it was read.
    pub fn merge_patch(&self, object: &Value) -> Value {
        let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        json!({"metadata": metadata, "spec": {self.field: self.replacement(&object["spec"][self.field])}})
    }

    /// Whether the object is already so.
    pub fn is_done(&self, object: &Value) -> bool {
        object["spec"][self.field] == self.value
    }

    /// What to change in Git, as a manifest of the changed field alone.
    pub fn patch_for_git(&self) -> Value {
        json!({
            "apiVersion": format!("{}/{}", cell_crds::GROUP, cell_crds::VERSION),
            "kind": self.kind,
            "metadata": {"name": self.name},
            "spec": {self.field: self.value},
        })
    }

    /// A merge patch leaves keys alone that it does not name: those to go are named as null.
    fn replacement(&self, old: &Value) -> Value {
        let (Some(old), Some(new)) = (old.as_object(), self.value.as_object()) else {
            return self.value.clone();
        };
        let removed = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null));
        Value::Object(removed.chain(new.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guild(manager: &str, subresource: &str) -> Value {
        json!({
            "metadata": {"resourceVersion": "7", "managedFields": [
                {"manager": "cellctl", "fieldsV1": {"f:spec": {"f:placement": {}}}},
                {"manager": manager, "subresource": subresource, "fieldsV1": {"f:spec": {"f:placement": {"f:cell": {}}}}},
                {"manager": "other", "fieldsV1": {"f:spec": {"f:promotion": {}}}}]},
            "spec": {"guildId": "5", "placement": {"cell": "a"}},
        })
    }

    fn edit(value: Value) -> Edit {
        Edit { kind: "Guild", name: "g-5".into(), field: "placement", value }
    }

    #[test]
    fn a_field_another_manager_owns_is_found_with_its_name() {
        assert_eq!(other_managers(&guild("argocd", ""), "placement"), vec!["argocd"]);
        assert_eq!(other_managers(&guild("cellctl", ""), "placement"), Vec::<String>::new());
        assert_eq!(other_managers(&guild("operator", "status"), "placement"), Vec::<String>::new());
        assert_eq!(other_managers(&json!({}), "placement"), Vec::<String>::new());
    }

    #[test]
    fn replacing_one_placement_by_another_removes_the_old_one() {
        let patch = edit(json!({"dedicated": {}})).merge_patch(&guild("argocd", ""));
        assert_eq!(patch["spec"]["placement"], json!({"cell": null, "dedicated": {}}));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(edit(Value::Null).merge_patch(&guild("argocd", ""))["spec"], json!({"placement": null}));
    }

    #[test]
    fn what_is_already_so_is_done() {
        assert!(edit(json!({"cell": "a"})).is_done(&guild("argocd", "")));
        assert!(!edit(json!({"cell": "b"})).is_done(&guild("argocd", "")));
        assert!(edit(Value::Null).is_done(&json!({"spec": {}})));
    }

    #[test]
    fn the_patch_for_git_names_the_object_and_only_the_field() {
        assert_eq!(
            edit(json!({"cell": "b"})).patch_for_git(),
            json!({"apiVersion": "cellplane.dev/v1alpha1", "kind": "Guild", "metadata": {"name": "g-5"},
                "spec": {"placement": {"cell": "b"}}})
        );
    }
}
