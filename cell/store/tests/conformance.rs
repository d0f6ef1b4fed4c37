//! One suite of the trait's promises, run against memory, the embedded engine, and the embedded engine behind gRPC.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on should end")]

#[macro_use]
mod suite;

use std::sync::Arc;

use cell_runtime::Channels;
use cell_store::{EmbeddedConfig, EmbeddedStore, MemoryStore, RemoteStore, Store, StoreError, StoreServer};
use prometheus_client::registry::Registry;
use tokio_stream::wrappers::TcpListenerStream;

use suite::{all, append, append_of, head, numbers, open, put, rows, statics, write};

fn embedded(folder: &tempfile::TempDir) -> EmbeddedStore {
    let data_dir = folder.path().join("data");
    EmbeddedStore::open(EmbeddedConfig { data_dir, storage_cell: "main".into(), reserve_bytes: 0 }).unwrap()
}

async fn remote(store: Arc<dyn Store>) -> RemoteStore {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = StoreServer::new(store, &mut Registry::default()).into_service();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    RemoteStore::at(&address, Arc::new(Channels::default()))
}

/// Each promise as a test against each engine.
macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::suite::$name(&super::MemoryStore::default()).await;
            })*
        }
        mod embedded {
            $(#[tokio::test]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                super::suite::$name(&super::embedded(&folder)).await;
            })*
        }
        mod grpc {
            $(#[tokio::test]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                let store = std::sync::Arc::new(super::embedded(&folder));
                super::suite::$name(&super::remote(store).await).await;
            })*
        }
    };
}

promises!(suite);

#[tokio::test]
async fn a_restart_keeps_everything() {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(&folder);
    store.cas_head(None, head("l", "a", 3)).await.unwrap();
    open(&store, 1, statics(1, 0)).await;
    append(&store, 1, 1, 0, 5).await;
    store.write_cursor("l", "applied", 4).await.unwrap();
    write(&store, 10, put(b"k", "v", "x")).await;
    store.close();
    let store = embedded(&folder);
    assert_eq!(store.read_head("l").await.unwrap().unwrap().term, 3);
    assert_eq!(numbers(&store, 1, 0, 100).await, [1, 2, 3, 4, 5]);
    assert_eq!(store.read_cursor("l", "applied").await.unwrap(), 4);
    assert_eq!(rows(&store, all()).await, ["k.v=x@10"]);
    assert!(append(&store, 1, 1, 5, 1).await);
}

#[tokio::test]
async fn a_second_process_is_kept_out() {
    let folder = tempfile::tempdir().unwrap();
    let _first = embedded(&folder);
    let config = EmbeddedConfig { data_dir: folder.path().join("data"), storage_cell: "main".into(), reserve_bytes: 0 };
    let error = EmbeddedStore::open(config).err().unwrap();
    assert!(error.to_string().contains("another process"), "{error}");
}

#[tokio::test]
async fn a_full_volume_refuses_writes_and_goes_on_reading() {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(&folder);
    open(&store, 1, statics(1, 0)).await;
    append(&store, 1, 1, 0, 1).await;
    store.close();
    let data_dir = folder.path().join("data");
    let store =
        EmbeddedStore::open(EmbeddedConfig { data_dir, storage_cell: "main".into(), reserve_bytes: u64::MAX }).unwrap();
    let error = store.append(append_of(1, 1, 1, 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }) && !error.may_have_happened(), "{error:?}");
    assert!(error.to_string().contains("free space"), "{error}");
    assert_eq!(numbers(&store, 1, 0, 10).await, [1]);
    assert!(!store.is_broken());
    // What makes room is still done.
    store.drop_segment("l", 1).await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_not_there_is_an_unknown_outcome_soon() {
    let store = RemoteStore::at("127.0.0.1:1", Arc::new(Channels::default()));
    assert!(store.read_head("b0001").await.unwrap_err().may_have_happened());
}

#[tokio::test]
async fn a_store_of_another_storage_cell_at_the_address_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let store: Arc<dyn Store> = Arc::new(embedded(&folder));
    let service = StoreServer::new(store.clone(), &mut Registry::default()).into_service();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    for (name, right) in [("main", true), ("other", false)] {
        let there = RemoteStore::expecting(name, &address, Arc::new(Channels::default()));
        let written = there.write_cursor("b0001", "applied", 7).await;
        assert_eq!(written.is_ok(), right, "{name}: {written:?}");
        assert!(right || matches!(written, Err(StoreError::Unavailable(_))));
    }
}
