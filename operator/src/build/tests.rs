//! The objects, against golden files: a change of any field is seen in review. `UPDATE_GOLDEN=1` writes them anew.

use std::path::PathBuf;

use cell_crds::Availability;
use cell_proto::directory::Role;
use serde::Serialize;

use super::cell::{CellInput, ROLES, budget, entry_label, set};
use super::{Common, fleet, store};
use crate::fixtures::{cell, fleet as a_fleet, storage_cell};

fn golden(name: &str, object: &impl Serialize) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/build/golden").join(name);
    let text = format!("{}\n", serde_json::to_string_pretty(object).unwrap());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, known, "{}: run with UPDATE_GOLDEN=1 and review", path.display());
}

fn with_input<T>(use_it: impl FnOnce(&CellInput<'_>) -> T) -> T {
    let (cell, fleet) = (cell("shared-1", "main"), a_fleet());
    use_it(&CellInput { cell: &cell, fleet: &fleet, token_keys: "prod-token-keys", common: common(&fleet) })
}

fn common(fleet: &cell_crds::Fleet) -> Common<'_> {
    Common { etcd_endpoints: &fleet.spec.etcd.endpoints, plaintext: false }
}

#[test]
fn the_objects_are_as_reviewed() {
    with_input(|input| {
        golden("gateway.json", &set(input, Role::Gateway));
        golden("budget.json", &budget(input.cell, Role::Data));
    });
    let own = Common { etcd_endpoints: &["10.0.0.1:2379".to_owned()], plaintext: false };
    golden("store.json", &store::set(&storage_cell("main"), &a_fleet(), own));
    golden("store-service.json", &store::service(&storage_cell("main")));
    golden("entry.json", &fleet::entry(&a_fleet()));
    golden("dedicated.json", &fleet::dedicated("7", "main", &cell_crds::Roles::default()));
}

#[test]
fn the_roles_of_a_cell_differ_only_where_they_must() {
    with_input(|input| {
        for role in ROLES {
            let spec = set(input, role).spec.unwrap();
            let container = spec.template.spec.unwrap().containers.remove(0);
            let args = container.args.unwrap();
            assert_eq!(args[0], role.label());
            assert_eq!(args.contains(&"--http-port=8080".to_owned()), role == Role::Gateway);
            assert!(args.iter().all(|arg| !arg.contains("=/") || arg.starts_with("--etcd-prefix")), "{args:?}");
            assert_eq!(spec.update_strategy.unwrap().type_.as_deref(), Some("OnDelete"));
        }
    });
}

#[test]
fn pods_speak_plaintext_beyond_loopback_only_where_the_operator_was_told_so() {
    let plain = |set: k8s_openapi::api::apps::v1::StatefulSet| {
        let args = set.spec.unwrap().template.spec.unwrap().containers.remove(0).args.unwrap();
        args.contains(&"--plaintext".to_owned())
    };
    with_input(|input| {
        let told = CellInput { common: Common { plaintext: true, ..input.common }, ..*input };
        for role in ROLES {
            assert_eq!((plain(set(input, role)), plain(set(&told, role))), (false, true), "{role:?}");
        }
        let store = |common| plain(store::set(&storage_cell("main"), &a_fleet(), common));
        assert_eq!((store(input.common), store(told.common)), (false, true));
    });
}

#[test]
fn a_cordon_changes_a_label_and_no_pod_template() {
    let before = with_input(|input| set(input, Role::Gateway));
    let (mut cordoned, fleet) = (cell("shared-1", "main"), a_fleet());
    cordoned.spec.availability = Availability::Cordoned;
    let input = CellInput { cell: &cordoned, fleet: &fleet, token_keys: "prod-token-keys", common: common(&fleet) };
    assert_eq!(set(&input, Role::Gateway), before);
    assert_eq!(entry_label(&cordoned), "false");
}

#[test]
fn every_field_of_a_role_changes_its_set() {
    let before = with_input(|input| set(input, Role::Data));
    let templates = [
        serde_json::json!({"cpu": "2"}),
        serde_json::json!({"memory": "1Gi"}),
        serde_json::json!({"nodeSelector": {"disk": "fast"}}),
        serde_json::json!({"extraArgs": ["--linger-ms=1"]}),
    ];
    for template in templates {
        let (mut changed, fleet) = (cell("shared-1", "main"), a_fleet());
        changed.spec.roles.data.template = Some(serde_json::from_value(template.clone()).unwrap());
        let input = CellInput { cell: &changed, fleet: &fleet, token_keys: "prod-token-keys", common: common(&fleet) };
        assert_ne!(set(&input, Role::Data), before, "{template}");
    }
}

#[test]
fn a_token_key_is_kept_as_given_and_owned_by_nobody() {
    let secret = fleet::keys(&a_fleet(), &[7; 48]);
    assert_eq!(secret.data.unwrap()["current"].0, vec![7; 48]);
    assert!(secret.metadata.owner_references.is_none());
}
