//! Which store a StorageCell's name leads to: by its file when there is one, by the directory when there is none.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cell_data::StoreSet;
use cell_data::cql::{Settings, connect, migrations, probe};
use cell_runtime::directory::View;
use cell_runtime::{Channels, Directory, DirectoryConfig};
use cell_store::StoreError;
use cell_store::schema::Schema;

fn set(folder: Option<&Path>) -> StoreSet {
    let config = DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir: None };
    let directory = Directory::with_view(config, View::default());
    StoreSet::new(directory, Arc::new(Channels::default()), folder.map(Path::to_path_buf))
}

fn file(contact: &str, keyspace: &str, user: &str) -> String {
    serde_json::json!({
        "name": "main", "engine": "cassandra", "contactPoints": [contact], "keyspace": keyspace,
        "username": user, "password": "hunter2",
    })
    .to_string()
}

#[tokio::test]
async fn without_a_file_the_directory_says_where_a_store_is() {
    let folder = tempfile::tempdir().unwrap();
    for set in [set(None), set(Some(folder.path()))] {
        let error = set.get("main").unwrap().read_head("b0001").await.unwrap_err();
        assert!(error.to_string().contains("no live store of StorageCell main"), "{error}");
    }
}

#[tokio::test]
async fn a_name_that_leads_out_of_the_folder_is_refused() {
    let set = set(None);
    for name in ["", "../main", "a/b", ".hidden", "Main"] {
        assert!(matches!(set.get(name), Err(StoreError::Invalid(_))), "{name}");
    }
}

#[tokio::test]
async fn a_wrong_file_is_named_by_field_and_its_mending_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("main.json");
    std::fs::write(&path, file("127.0.0.1:1", "No Such", "u")).unwrap();
    let store = set(Some(folder.path())).get("main").unwrap();
    let error = store.read_head("b0001").await.unwrap_err().to_string();
    assert!(error.contains("keyspace") && error.contains("main") && !error.contains("hunter2"), "{error}");
    // Another file is tried at once; nobody listens there.
    std::fs::write(&path, file("127.0.0.1:1", "cellplane", "u")).unwrap();
    let error = store.read_head("b0001").await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(text) if text.contains("connect")), "{error}");
}

#[tokio::test]
async fn a_probe_of_what_is_not_there_says_why() {
    let report = probe::probe("main", &file("127.0.0.1:1", "cellplane", "u"), false).await;
    assert!(!report.ok && report.problems.len() == 1, "{report:?}");
    assert!(report.to_json().contains("\"ok\":false"));
    assert!(!report.to_json().contains("hunter2"));
    // A termination message keeps 2 KiB of a log's end.
    let summary = probe::ProbeReport::failed("main", "x".repeat(9000)).summary().to_json();
    assert!(summary.len() < 1024 && summary.contains("\"schemaVersion\":0,\"missingPrivileges\":[]"), "{summary}");
    let report = probe::probe("main", "{}", false).await;
    assert!(report.problems[0].contains("main"), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_rotate_under_requests_without_one_lost() {
    let Some(contact) = std::env::var("CELL_CQL_CONTACT").ok().filter(|contact| !contact.is_empty()) else {
        println!("skipped: CELL_CQL_CONTACT is not set; the suites on real components set it");
        return;
    };
    let contact = contact.split(',').next().unwrap();
    let keyspace = format!("cellplane_rotate_{}", std::process::id());
    let report = probe::probe("main", &file(contact, &keyspace, "one"), false).await;
    assert!(report.problems.iter().any(|problem| problem.contains("--apply-schema")), "{report:?}");
    let report = probe::probe("main", &file(contact, &keyspace, "one"), true).await;
    println!("{}", report.to_json());
    assert!(report.ok && report.conditions && report.schema_version == Some(migrations::VERSION), "{report:?}");
    assert!(report.privileges.alter && report.nodes.iter().all(|node| node.reachable), "{report:?}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("main.json");
    std::fs::write(&path, file(contact, &keyspace, "one")).unwrap();
    let stores = set(Some(folder.path()));
    let store = stores.get("main").unwrap();
    assert_eq!(store.describe().await.unwrap().engine, "cassandra");
    let until = Instant::now() + Duration::from_secs(12);
    let mut round = 0;
    while Instant::now() < until {
        round += 1;
        if round % 100 == 0 {
            // A new user, and a file that is no use in between: the connection before goes on.
            let text =
                if round % 200 == 0 { "half a fi".to_owned() } else { file(contact, &keyspace, &format!("u{round}")) };
            std::fs::write(&path, text).unwrap();
        }
        assert_eq!(store.write_cursor("b0001", "applied", round).await.unwrap(), round);
        assert_eq!(stores.get("main").unwrap().read_cursor("b0001", "applied").await.unwrap(), round);
    }
    let settings = Settings::parse("main", &file(contact, &keyspace, "one")).unwrap();
    let admin = connect(settings).await.unwrap();
    assert_eq!(migrations::ensure(&admin, Schema::platform()).await.unwrap(), migrations::VERSION);
    // One of the release before is refused by data services and brought forward by the probe, with what it holds.
    for text in ["DROP TABLE KS.read_states", "DELETE FROM KS.schema_versions WHERE id = 0 AND version = 2"] {
        admin.session.query_unpaged(text.replace("KS", &format!("\"{keyspace}\"")), ()).await.unwrap();
    }
    let refused = migrations::check(&admin).await.unwrap_err().to_string();
    assert!(refused.contains("schema version 1") && refused.contains("--apply-schema"), "{refused}");
    assert_eq!(migrations::ensure(&admin, Schema::platform()).await.unwrap(), migrations::VERSION);
    migrations::check(&admin).await.unwrap();
    assert_eq!(stores.get("main").unwrap().read_cursor("b0001", "applied").await.unwrap(), round);
    let table = format!("SELECT last FROM \"{keyspace}\".read_states WHERE user_id = 1");
    admin.session.query_unpaged(table, ()).await.unwrap();
    // A schema from the future is refused by all.
    let future = format!("INSERT INTO \"{keyspace}\".schema_versions (id, version) VALUES (0, 99)");
    admin.session.query_unpaged(future, ()).await.unwrap();
    assert!(matches!(migrations::check(&admin).await, Err(StoreError::NewerVersion { found: 99, .. })));
    assert!(matches!(migrations::ensure(&admin, Schema::platform()).await, Err(StoreError::NewerVersion { .. })));
    admin.session.query_unpaged(format!("DROP KEYSPACE \"{keyspace}\""), ()).await.unwrap();
}
