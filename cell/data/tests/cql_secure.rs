//! A server that speaks only TLS and only to who has a password. Without `CELL_CQL_CA` (a PEM file, as tests/real/cassandra.py sets it)
//! nothing is run, and a line says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cell_data::StoreSet;
use cell_data::cql::{Connection, Settings, connect, probe};
use cell_runtime::directory::View;
use cell_runtime::{Channels, Directory, DirectoryConfig};

const KEYSPACE: &str = "cellplane_secure";

fn file(contact: &str, ca: Option<&str>, (user, password): (&str, &str)) -> String {
    serde_json::json!({
        "name": "safe", "engine": "cassandra", "contactPoints": [contact], "keyspace": KEYSPACE, "caPem": ca,
        "username": user, "password": password,
    })
    .to_string()
}

async fn statement(admin: &Connection, text: &str) {
    admin.session.query_unpaged(text, ()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_passwords_are_needed_told_apart_and_rotated() {
    let Some(path) = std::env::var("CELL_CQL_CA").ok().filter(|path| !path.is_empty()) else {
        println!("skipped: CELL_CQL_CA is not set; tests/real/cassandra.py sets it");
        return;
    };
    let contact = std::env::var("CELL_CQL_CONTACT").unwrap();
    let ca = std::fs::read_to_string(path).unwrap();
    let root = ("cassandra", "cassandra");
    // The first user is made a moment after the server is up.
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = loop {
        let report = probe::probe("safe", &file(&contact, Some(&ca), root), true).await;
        if report.ok || Instant::now() > deadline {
            break report;
        }
    };
    println!("{}", report.to_json());
    assert!(report.ok, "{report:?}");

    let without_tls = probe::probe("safe", &file(&contact, None, root), false).await;
    assert!(!without_tls.ok && without_tls.server.is_none(), "{without_tls:?}");
    let wrong = probe::probe("safe", &file(&contact, Some(&ca), ("cassandra", "hunter2")), false).await;
    assert!(!wrong.ok && !wrong.to_json().contains("hunter2"), "{wrong:?}");
    println!("wrong password: {}", wrong.problems.join("; "));

    let settings = Settings::parse("safe", &file(&contact, Some(&ca), root)).unwrap();
    let admin = connect(settings).await.unwrap();
    statement(&admin, "CREATE ROLE reader WITH PASSWORD = 'r' AND LOGIN = true").await;
    statement(&admin, &format!("GRANT SELECT ON KEYSPACE {KEYSPACE} TO reader")).await;
    let reader = probe::probe("safe", &file(&contact, Some(&ca), ("reader", "r")), false).await;
    assert!(reader.summary().missing_privileges.contains(&"create".to_owned()), "{reader:?}");

    for role in ["before", "after"] {
        statement(&admin, &format!("CREATE ROLE {role} WITH PASSWORD = 'p' AND LOGIN = true")).await;
        statement(&admin, &format!("GRANT ALL ON KEYSPACE {KEYSPACE} TO {role}")).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("safe.json");
    std::fs::write(&place, file(&contact, Some(&ca), ("before", "p"))).unwrap();
    let config = DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir: None };
    let directory = Directory::with_view(config, View::default());
    let stores = StoreSet::new(directory, Arc::new(Channels::default()), Some(folder.path().to_path_buf()));
    let store = stores.get("safe").unwrap();
    store.write_cursor("b0001", "applied", 1).await.unwrap();
    std::fs::write(&place, file(&contact, Some(&ca), ("after", "p"))).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut value = 1;
    while !is_connected(&admin, "after").await {
        assert!(Instant::now() < deadline, "the new user never connected");
        value += 1;
        assert_eq!(store.write_cursor("b0001", "applied", value).await.unwrap(), value);
    }
    // The one before ends once nothing is in flight on it.
    while is_connected(&admin, "before").await {
        assert!(Instant::now() < deadline, "the user before never left");
        value += 1;
        assert_eq!(store.write_cursor("b0001", "applied", value).await.unwrap(), value);
    }
}

async fn is_connected(admin: &Connection, user: &str) -> bool {
    let result = admin.session.query_unpaged("SELECT username FROM system_views.clients", ()).await.unwrap();
    let rows = result.into_rows_result().unwrap();
    rows.rows::<(Option<String>,)>().unwrap().any(|row| row.unwrap().0.as_deref() == Some(user))
}
