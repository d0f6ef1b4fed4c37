//! The Store's promises on a real CQL server. Without `CELL_CQL_CONTACT` (host:port of a node, with others after commas) nothing is run,
//! and a line says so: `cargo test` needs no database.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

#[macro_use]
#[path = "../../store/tests/suite/mod.rs"]
mod suite;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use cell_data::cql::{Connection, CqlStore, Settings, connect, migrations};
use cell_store::Store;
use cell_store::schema::{KeyType, Schema, Table};
use futures::FutureExt;

type Run<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

fn contact() -> Option<String> {
    let contact = std::env::var("CELL_CQL_CONTACT").ok().filter(|contact| !contact.is_empty());
    if contact.is_none() {
        println!("skipped: CELL_CQL_CONTACT is not set; the suites on real components set it");
    }
    contact
}

fn settings(contact: &str, keyspace: &str) -> Settings {
    let points: Vec<_> = contact.split(',').collect();
    let file = serde_json::json!({
        "name": "real", "engine": "cassandra", "contactPoints": points, "keyspace": keyspace,
        "username": "cassandra", "password": "cassandra",
    });
    Settings::parse("real", &file.to_string()).unwrap()
}

/// The platform's tables, and the one that the suite writes to.
fn schema() -> Schema {
    let blob = KeyType::Blob;
    Schema::platform().clone().with(Table::new("t", &[("p", blob)], &[("c", blob)], &["v", "w"]))
}

async fn statement(connection: &Connection, text: &str) {
    connection.session.query_unpaged(text, ()).await.unwrap();
}

struct World {
    keyspace: String,
    store: CqlStore,
    admin: Connection,
}

impl World {
    async fn new(contact: &str, what: &str) -> Self {
        let keyspace = format!("cellplane_{what}_{}", std::process::id());
        let admin = connect(settings(contact, &keyspace)).await.unwrap();
        assert_eq!(migrations::version(&admin).await.unwrap(), None);
        let refused = CqlStore::over(connect(settings(contact, &keyspace)).await.unwrap(), schema()).await;
        assert!(refused.err().unwrap().to_string().contains("--apply-schema"));
        // Twice: every step may be repeated.
        for _ in 0..2 {
            assert_eq!(migrations::ensure(&admin, &schema()).await.unwrap(), migrations::VERSION);
        }
        let store = CqlStore::over(connect(settings(contact, &keyspace)).await.unwrap(), schema()).await.unwrap();
        Self { keyspace, store, admin }
    }

    async fn clear(&self) {
        let schema = schema();
        let tables = schema.tables().map(|table| table.name.clone());
        for table in tables.chain(["heads", "segments", "cursors"].map(str::to_owned)) {
            statement(&self.admin, &format!("TRUNCATE \"{}\".\"{table}\"", self.keyspace)).await;
        }
    }

    async fn end(self) {
        statement(&self.admin, &format!("DROP KEYSPACE \"{}\"", self.keyspace)).await;
    }
}

macro_rules! list {
    ($($name:ident),* $(,)?) => {
        const PROMISES: &[(&str, for<'a> fn(&'a dyn Store) -> Run<'a>)] =
            &[$((stringify!($name), |store| Box::pin(suite::$name(store)))),*];
    };
}

promises!(list);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_holds_on_a_real_server() {
    let Some(contact) = contact() else { return };
    let only = std::env::var("CELL_CQL_ONLY").unwrap_or_default();
    let world = World::new(&contact, "promises").await;
    println!("server: {:?}", world.store.capabilities());
    let mut broken = Vec::new();
    for (name, promise) in PROMISES.iter().filter(|(name, _)| name.contains(&only)) {
        world.clear().await;
        let kept = AssertUnwindSafe(promise(&world.store)).catch_unwind().await.is_ok();
        println!("{name}: {}", if kept { "kept" } else { "BROKEN" });
        broken.extend((!kept).then_some(*name));
    }
    world.end().await;
    assert!(broken.is_empty(), "broken on this server: {broken:#?}");
}

#[test]
fn tokens_are_the_drivers() {
    use scylla::routing::partitioner::{Murmur3Partitioner, Partitioner};
    let mut key = Vec::new();
    for length in 0..70_u32 {
        assert_eq!(cell_store::schema::token(&key), Murmur3Partitioner.hash_one(&key).value(), "{key:?}");
        key.push((length.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]);
    }
}
