//! A whole gateway process, from start to drain, with etcd away and a snapshot to go on with.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cell_gateway::{Config, RunError, run};
use cell_proto::directory::Role;
use cell_runtime::{CancellationToken, DirectoryConfig};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fake::client::{ALICE, Client, DEADLINE, limits, token};
use crate::fake::{Fake, fleet_member};
use crate::real::{free_port, role_config};

fn config(folder: &std::path::Path) -> Config {
    let random: [u8; 2] = rand::random();
    let address = IpAddr::V4(Ipv4Addr::new(127, 91, random[0], random[1].clamp(1, 254)));
    let (keys, state) = (folder.join("keys"), folder.join("state"));
    std::fs::create_dir_all(&keys).unwrap();
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(keys.join("current"), [9; 32]).unwrap();
    let http_port = free_port(address);
    Config {
        role: role_config(
            "a",
            "a-gateway-0",
            (address, 0).into(),
            DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir: Some(state) },
        ),
        http_port,
        public_url: format!("http://{address}:{http_port}"),
        token_keys_dir: keys,
        grace: Duration::from_secs(3),
        linger: Duration::ZERO,
        limits: limits(),
    }
}

#[tokio::test]
async fn a_process_serves_from_its_snapshot_and_drains_when_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.user(ALICE, "alice");
    let mut view = crate::fake::serve(&fake).await;
    view.set_member(fleet_member("a-gateway-9", Role::Gateway, "127.0.0.1:1"));
    let config = config(folder.path());
    let state = config.role.directory.state_dir.clone().unwrap();
    std::fs::write(state.join("directory.json"), serde_json::to_vec(&view.to_snapshot()).unwrap()).unwrap();
    let url = format!("ws://{}:{}/?v=10", config.role.address, config.http_port);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(run(config, shutdown.clone()));
    let connect = async {
        loop {
            match tokio_tungstenite::connect_async(&url).await {
                Ok((socket, _)) => return socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let socket = tokio::time::timeout(DEADLINE, connect).await.expect("the gateway did not start");
    let mut client = Client { socket, last: 0 };
    assert_eq!(client.next().await["op"], 10);
    client.send(json!({"op": 2, "d": {"token": token(ALICE), "intents": 0}})).await;
    assert_eq!(client.next().await["t"], "READY");
    shutdown.cancel();
    let told: Value = client.next().await;
    assert_eq!(told["op"], 7);
    assert_eq!(client.close_code().await, 4000);
    while let Some(Ok(_)) = client.socket.next().await {}
    let ended = tokio::time::timeout(DEADLINE, running).await.expect("the gateway did not stop in time");
    assert!(ended.unwrap().is_ok());
}

#[tokio::test]
async fn a_gateway_that_drains_still_takes_requests_until_the_entry_has_forgotten_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config { linger: Duration::from_secs(5), ..config(folder.path()) };
    config.role.admin_port = free_port(config.role.address);
    let mut view = cell_runtime::View::default();
    view.set_member(fleet_member("a-gateway-9", Role::Gateway, "127.0.0.1:1"));
    let state = config.role.directory.state_dir.clone().unwrap();
    std::fs::write(state.join("directory.json"), serde_json::to_vec(&view.to_snapshot()).unwrap()).unwrap();
    let (address, http, admin) = (config.role.address, config.http_port, config.role.admin_port);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(run(config, shutdown.clone()));
    let status = async |port: u16, path: &str| {
        let mut stream = tokio::net::TcpStream::connect((address, port)).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.split(' ').nth(1)?.parse::<u16>().ok()
    };
    let until = async |wanted: Option<u16>| {
        let reached = async {
            while status(admin, "/readyz").await != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(DEADLINE, reached).await.expect("the gateway's readiness did not change");
    };
    until(Some(200)).await;
    shutdown.cancel();
    until(Some(503)).await;
    assert_eq!(status(http, "/api/v10/gateway").await, Some(200), "refused before the entry could know");
    let ended = tokio::time::timeout(DEADLINE, running).await.expect("the gateway did not stop in time");
    assert!(ended.unwrap().is_ok());
    assert_eq!(status(http, "/api/v10/gateway").await, None, "it serves after its end");
}

#[tokio::test]
async fn a_start_that_cannot_work_names_what_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let good = config(folder.path());
    let without_keys = Config { token_keys_dir: folder.path().join("nowhere"), ..good.clone() };
    let error = run(without_keys, CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, RunError::Keys(_)) && error.to_string().contains("nowhere"), "{error}");
    let held = tokio::net::TcpListener::bind((good.role.listen_address, 0)).await.unwrap();
    let in_use = Config { http_port: held.local_addr().unwrap().port(), ..good.clone() };
    let error = run(in_use, CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("--http-port"), "{error}");
    let mut outside = good;
    outside.role.listen_address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let error = run(outside, CancellationToken::new()).await.unwrap_err();
    assert!(error.to_string().contains("--plaintext"), "{error}");
}
