//! The objects, against golden files: a change of any field is seen in review. `UPDATE_GOLDEN=1` writes them anew.

use std::path::PathBuf;

use cell_crds::Availability;
use cell_proto::directory::Role;
use serde::Serialize;

use super::cell::{CellInput, ROLES, budget, entry_label, set};
use super::{Common, fleet, migration, policy, probe, scylla, storage, store};
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
    use_it(&CellInput {
        cell: &cell,
        fleet: &fleet,
        serving: "main",
        token_keys: "prod-token-keys",
        common: common(&fleet),
    })
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
fn a_reserve_reaches_the_store_and_none_leaves_its_pod_as_it_was() {
    let reserved = |reserve: Option<&str>| {
        let (mut storage, fleet) = (storage_cell("main"), a_fleet());
        let embedded = serde_json::json!({"size": "1Gi", "reserve": reserve});
        storage.spec.embedded = Some(serde_json::from_value(embedded).unwrap());
        let set = store::set(&storage, &fleet, common(&fleet));
        let args = set.spec.unwrap().template.spec.unwrap().containers.remove(0).args.unwrap();
        args.into_iter().find(|arg| arg.starts_with("--reserve-bytes"))
    };
    assert_eq!(reserved(Some("1Gi")).as_deref(), Some("--reserve-bytes=1073741824"));
    assert_eq!(reserved(None), None);
}

#[test]
fn which_image_a_store_was_given_is_read_from_what_the_operator_wrote() {
    let fleet = a_fleet();
    let mut set = store::set(&storage_cell("main"), &fleet, common(&fleet));
    // As a webhook does that has images pulled through a registry of its own.
    let pod = set.spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    pod.containers[0].image = Some("mirror.example/cellplane/cell:dev".into());
    assert!(!store::has_other_image(&set, &fleet.spec.image.cell));
    assert!(store::has_other_image(&set, "cellplane/cell:next"));
    set.metadata.annotations = None;
    assert!(!store::has_other_image(&set, "cellplane/cell:next"), "of an older operator's set nothing is known");
}

#[test]
fn a_cordon_changes_a_label_and_no_pod_template() {
    let before = with_input(|input| set(input, Role::Gateway));
    let (mut cordoned, fleet) = (cell("shared-1", "main"), a_fleet());
    cordoned.spec.availability = Availability::Cordoned;
    let input = CellInput {
        cell: &cordoned,
        fleet: &fleet,
        serving: "main",
        token_keys: "prod-token-keys",
        common: common(&fleet),
    };
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
        let input = CellInput {
            cell: &changed,
            fleet: &fleet,
            serving: "main",
            token_keys: "prod-token-keys",
            common: common(&fleet),
        };
        assert_ne!(set(&input, Role::Data), before, "{template}");
    }
}

#[test]
fn a_token_key_is_kept_as_given_and_owned_by_nobody() {
    let secret = fleet::keys(&a_fleet(), &[7; 48]);
    assert_eq!(secret.data.unwrap()["current"].0, vec![7; 48]);
    assert!(secret.metadata.owner_references.is_none());
}

fn database(managed: bool) -> cell_crds::StorageCell {
    let external = serde_json::json!({"contactPoints": ["db-0:9042"], "secretRef": "login", "datacenter": "dc1",
        "tls": {"caSecretRef": "ca"}});
    let rack = serde_json::json!({"name": "a", "members": 3, "storage": "100Gi", "cpu": "4", "memory": "16Gi"});
    let mut spec = serde_json::json!({"engine": "scylla", "keyspace": "cellplane", "replication": {"dc1": 3}});
    if managed {
        spec["managed"] = serde_json::json!({"version": "6.2.0", "racks": [rack]});
    } else {
        spec["external"] = external;
    }
    cell_crds::StorageCell::new("next", serde_json::from_value(spec).unwrap())
}

#[test]
fn the_file_of_a_database_has_what_a_driver_needs_and_an_embedded_one_has_none() {
    let login = storage::Login { username: "u".into(), password: "p".into(), ca_pem: Some("PEM".into()) };
    let (name, content) = storage::file(&database(false), &login).unwrap();
    let content: serde_json::Value = serde_json::from_str(&content).unwrap();
    assert_eq!(name, "next.json");
    let expected = serde_json::json!({"name": "next", "engine": "scylla", "contactPoints": ["db-0:9042"],
        "keyspace": "cellplane", "consistency": "LocalQuorum", "datacenter": "dc1", "username": "u", "password": "p",
        "caPem": "PEM", "replication": {"dc1": 3}});
    assert_eq!(content, expected);
    let (_, managed) = storage::file(&database(true), &storage::Login::default()).unwrap();
    assert!(managed.contains("next-client:9042") && !managed.contains("password"), "{managed}");
    assert!(storage::file(&storage_cell("main"), &login).is_none());
}

#[test]
fn a_scylla_cluster_is_as_its_definition_asks_and_its_readiness_is_read_from_its_status() {
    let storage = database(true);
    let wanted = scylla::cluster(&storage).unwrap();
    assert_eq!(wanted["spec"]["datacenter"]["racks"][0]["storage"]["capacity"], "100Gi");
    assert!(wanted["metadata"]["ownerReferences"].is_null(), "it outlives its StorageCell where data is retained");
    let condition = |kind: &str, status: &str| serde_json::json!({"type": kind, "status": status, "message": "m"});
    let live = |ready: i64, conditions: serde_json::Value| {
        serde_json::json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": conditions,
            "racks": {"a": {"members": 3, "readyMembers": ready}}}})
    };
    let up = serde_json::json!([condition("Available", "True"), condition("Degraded", "False")]);
    assert_eq!(scylla::readiness(&live(3, up.clone()), &storage), Ok(3));
    assert!(scylla::readiness(&live(2, up), &storage).unwrap_err().contains("2 of 3"));
    let down = serde_json::json!([condition("Available", "True"), condition("Degraded", "True")]);
    assert!(scylla::readiness(&live(3, down), &storage).unwrap_err().contains("degraded"));
    assert!(scylla::readiness(&serde_json::json!({"metadata": {"generation": 1}}), &storage).is_err());
}

#[test]
fn only_data_services_and_migrations_reach_a_database() {
    let policy = policy::database(&storage_cell("main")).unwrap();
    let text = serde_json::to_string(&policy).unwrap();
    assert!(text.contains(r#"["coordinator","data","probe","worker"]"#), "{text}");
    assert!(!text.contains("gateway") && !text.contains("guild"));
    let managed = policy::database(&database(true)).unwrap().spec.unwrap().ingress.unwrap();
    let open = managed.last().unwrap().ports.clone().unwrap();
    let covers = |port: i32| {
        open.iter().any(|range| {
            let first = serde_json::to_value(&range.port).unwrap().as_i64().unwrap();
            (first..=i64::from(range.end_port.unwrap())).contains(&i64::from(port))
        })
    };
    assert!(![9042, 9142, 19_042, 19_142].into_iter().any(covers) && covers(7000) && covers(10_001));
    assert!(policy::database(&database(false)).is_none(), "it guards itself");
}

#[test]
fn gateways_and_guild_nodes_may_dial_anything_but_databases() {
    let mut elsewhere = database(false);
    let external = elsewhere.spec.external.as_mut().unwrap();
    external.contact_points =
        ["db-1:9042", "db-2:9999", "[::1]:1", "fd00::2", "x:53", "x:9000", "x:2379"].map(str::to_owned).into();
    let spec = with_input(|input| policy::dialling(input.cell, input.fleet, &[elsewhere]).spec.unwrap());
    let pods = serde_json::to_string(&spec.pod_selector).unwrap();
    assert!(pods.contains(r#"["gateway","guild"]"#) && pods.contains("shared-1"), "{pods}");
    assert_eq!(spec.policy_types.unwrap(), ["Egress"]);
    let open = spec.egress.unwrap().remove(0).ports.unwrap();
    let covers = |protocol: &str, port: i64| {
        open.iter().filter(|range| range.protocol.as_deref() == Some(protocol)).any(|range| {
            let first = serde_json::to_value(&range.port).unwrap().as_i64().unwrap();
            (first..=i64::from(range.end_port.unwrap())).contains(&port)
        })
    };
    assert!(![1, 9042, 9142, 9999, 19_042, 19_142].into_iter().any(|port| covers("TCP", port)));
    assert!([2, 53, 443, 2379, 7000, 9000, 9041, 9043, 65_535].into_iter().all(|port| covers("TCP", port)));
    assert!(covers("UDP", 53), "names are still resolved");
}

#[test]
fn a_migrations_processes_are_told_what_they_need() {
    let spec = serde_json::json!({"source": "main", "target": "next", "scope": {"units": ["b0001", "b0002"]}});
    let one = cell_crds::StorageMigration::new("mig", serde_json::from_value(spec).unwrap());
    let fleet = a_fleet();
    let input = migration::MigrationInput { migration: &one, run_id: "run", fleet: &fleet, common: common(&fleet) };
    let args = |pod: k8s_openapi::api::core::v1::PodTemplateSpec| {
        pod.spec.unwrap().containers.remove(0).args.unwrap().join(" ")
    };
    let set = migration::coordinator_set(&input).spec.unwrap();
    let told = args(set.template);
    assert!(told.starts_with("migrate coordinator --run-id=run --migration=mig"), "{told}");
    assert!(told.contains("--source=main --target=next --units=b0001,b0002"), "{told}");
    assert_eq!(set.volume_claim_templates.unwrap().len(), 1, "what is done outlives the Pod");
    let deployment = migration::worker_deployment(&input).spec.unwrap();
    let told = args(deployment.template);
    assert!(told.starts_with("migrate worker") && !told.contains("--source"), "{told}");
    let probe = probe::ProbeInput {
        job: "next-probe-0",
        storage_cell: "next",
        secret: "next-probe-storage",
        owner: None,
        fleet: &fleet,
    };
    let job = probe::job(&probe).spec.unwrap();
    assert_eq!(job.template.spec.as_ref().unwrap().restart_policy.as_deref(), Some("Never"));
    assert!(args(job.template).starts_with("migrate probe --storage-dir=etc/cellplane/storage --name=next"));
}
