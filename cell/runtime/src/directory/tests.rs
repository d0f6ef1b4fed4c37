use cell_proto::directory::{Buckets, Member, Role};

use super::*;

fn member(id: &str) -> Member {
    Member {
        id: id.into(),
        role: Role::Data,
        cell: "a".into(),
        storage_cell: "main".into(),
        incarnation: 3,
        grpc_address: "127.0.0.1:1".into(),
        http_address: None,
        admin_address: "127.0.0.1:2".into(),
        draining: false,
    }
}

fn config(state_dir: Option<PathBuf>) -> DirectoryConfig {
    DirectoryConfig { endpoints: vec!["127.0.0.1:1".into()], prefix: "/t/".into(), state_dir }
}

#[test]
fn a_snapshot_brings_back_the_whole_view() {
    let mut view = View::default();
    view.set_member(member("a-data-0"));
    view.set_buckets(Buckets { cells: vec!["a".into()], assignment: vec![0; 4096] });
    view.set_route(
        "g5",
        RouteHint { cell: "a".into(), term: 2, data_owner: "a-data-0".into(), ..RouteHint::default() },
    );
    let again = View::from_snapshot(view.to_snapshot());
    assert_eq!(again.to_snapshot().routes, view.to_snapshot().routes);
    assert_eq!(again.member("a-data-0"), view.member("a-data-0"));
    assert_eq!(again.place("b4095").unwrap().cell, "a");
}

#[test]
fn an_equal_term_fills_in_what_was_not_known() {
    let mut view = View::default();
    view.set_route("g5", RouteHint { cell: "a".into(), term: 2, data_owner: "d".into(), ..RouteHint::default() });
    view.set_route("g5", RouteHint { cell: "a".into(), term: 2, guild_owner: "g".into(), ..RouteHint::default() });
    let place = view.place("g5").unwrap();
    assert_eq!((place.data_owner.as_str(), place.guild_owner.as_str()), ("d", "g"));
}

#[tokio::test]
async fn with_etcd_away_the_snapshot_on_disk_serves() {
    let folder = tempfile::tempdir().unwrap();
    let mut view = View::default();
    view.set_member(member("a-data-0"));
    std::fs::write(folder.path().join("directory.json"), serde_json::to_vec(&view.to_snapshot()).unwrap()).unwrap();
    let shutdown = CancellationToken::new();
    let directory = Directory::start(config(Some(folder.path().into())), shutdown.clone());
    assert!(directory.wait_usable(Duration::from_secs(5)).await);
    assert!(!directory.is_synced());
    assert!(directory.view().member("a-data-0").is_some());
    shutdown.cancel();
}

#[tokio::test]
async fn a_redirect_corrects_the_view_in_memory() {
    let directory = Directory::with_view(config(None), View::default());
    directory.change(|view| view.set_member(member("a-data-0")));
    let route = Route {
        log: "g9".into(),
        cell: "a".into(),
        term: 4,
        data_address: "127.0.0.1:1".into(),
        guild_address: String::new(),
    };
    directory.correct(&route);
    assert_eq!(crate::route::data_member(&directory.view(), "g9").unwrap().id, "a-data-0");
}
