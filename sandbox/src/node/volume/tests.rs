//! Volumes on disk as sentences.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Volume};
use serde_json::json;

use super::content::{ContentError, FileContent, Files, files, inside};
use super::place::{PlaceError, link, mounts, relative, write_files};
use super::provision::{Step, build, folder, plan, volume_name};
use crate::node::environment::Sources;

fn made(volume: serde_json::Value) -> Result<Option<Files>, ContentError> {
    let pod = Pod::default();
    let map = Arc::new(ConfigMap {
        data: Some([("a.toml".to_owned(), "x=1".to_owned()), ("b".to_owned(), "2".to_owned())].into()),
        ..ConfigMap::default()
    });
    let secret =
        Arc::new(Secret { data: Some([("key".to_owned(), ByteString(b"s".to_vec()))].into()), ..Secret::default() });
    let sources = Sources {
        pod: &pod,
        pod_ip: "127.1.1.2",
        host_ip: "127.1.1.1",
        node_size: (1000, 1000),
        config_map: &|name| (name == "m").then(|| map.clone()),
        secret: &|name| (name == "s").then(|| secret.clone()),
    };
    let volume: Volume = serde_json::from_value(volume).unwrap();
    files(&volume, &sources, &|audience| (audience == "vault").then(|| b"jwt".to_vec()))
}

#[test]
fn secrets_are_for_their_owner_only_and_items_choose() {
    let secret = made(json!({ "name": "v", "secret": { "secretName": "s" } })).unwrap().unwrap();
    assert_eq!(secret["key"].mode, 0o400);
    let map =
        json!({ "name": "v", "configMap": { "name": "m", "items": [{ "key": "b", "path": "deep/b", "mode": 384 }] } });
    let map = made(map).unwrap().unwrap();
    assert_eq!(map.keys().collect::<Vec<_>>(), ["deep/b"]);
    assert_eq!(map["deep/b"].mode, 0o600);
}

#[test]
fn a_missing_map_is_named_unless_optional_and_a_path_outside_is_refused() {
    assert!(made(json!({ "name": "v", "configMap": { "name": "none" } })).unwrap_err().to_string().contains("none"));
    assert!(
        made(json!({ "name": "v", "configMap": { "name": "none", "optional": true } })).unwrap().unwrap().is_empty()
    );
    let outside = json!({ "name": "v", "configMap": { "name": "m", "items": [{ "key": "b", "path": "../b" }] } });
    assert_eq!(made(outside), Err(ContentError::Path("../b".into())));
    assert!(inside("a/../b").is_err() && inside("").is_err() && inside("/etc").is_err());
}

#[test]
fn projected_volumes_join_sources_and_leave_out_tokens_nobody_gives() {
    let volume = json!({ "name": "v", "projected": { "sources": [
        { "configMap": { "name": "kube-root-ca.crt" } },
        { "serviceAccountToken": { "path": "token" } },
        { "serviceAccountToken": { "path": "vault", "audience": "vault" } },
        { "downwardAPI": { "items": [{ "path": "ip", "fieldRef": { "fieldPath": "status.podIP" } }] } },
    ] } });
    let found = made(volume).unwrap().unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["ip", "vault"]);
    assert_eq!(found["ip"].bytes, b"127.1.1.2");
}

fn content(pairs: &[(&str, &str)]) -> Files {
    let file = |text: &str| FileContent { bytes: text.as_bytes().to_vec(), mode: 0o400 };
    pairs.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
}

#[test]
fn content_is_replaced_whole_and_left_alone_when_unchanged() {
    let root = tempfile::tempdir().unwrap();
    let volume = root.path().join("v");
    assert!(write_files(&volume, &content(&[("a", "1"), ("sub/b", "2")])).unwrap());
    let before = fs::read_link(volume.join("..data")).unwrap();
    assert!(!write_files(&volume, &content(&[("a", "1"), ("sub/b", "2")])).unwrap());
    assert_eq!(fs::read_link(volume.join("..data")).unwrap(), before);
    assert_eq!(fs::read_to_string(volume.join("sub/b")).unwrap(), "2");
    assert_eq!(fs::metadata(volume.join("a")).unwrap().permissions().mode() & 0o777, 0o400);
    assert!(write_files(&volume, &content(&[("a", "3")])).unwrap());
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "3");
    assert!(!volume.join("sub").exists() && !volume.join(before).exists(), "nothing old is left");
}

#[test]
fn what_a_killed_agent_left_half_made_is_neither_shown_nor_kept() {
    let root = tempfile::tempdir().unwrap();
    let volume = root.path().join("v");
    fs::create_dir_all(volume.join("..0")).unwrap();
    fs::write(volume.join("..0/a"), "half").unwrap();
    std::os::unix::fs::symlink("..0", volume.join("..data_new")).unwrap();
    assert!(write_files(&volume, &content(&[("a", "whole")])).unwrap());
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "whole");
    assert!(!volume.join("..0").exists());
}

fn pod_with_mounts(mounts: serde_json::Value) -> Pod {
    let body = json!({ "spec": {
        "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "other", "emptyDir": {} }],
        "containers": mounts,
    } });
    serde_json::from_value(body).unwrap()
}

#[test]
fn mounts_become_links_and_nested_ones_go_inside() {
    let root = tempfile::tempdir().unwrap();
    let pod = pod_with_mounts(json!([{ "name": "c", "volumeMounts": [
        { "name": "other", "mountPath": "/data/cache" }, { "name": "data", "mountPath": "/data" },
    ] }]));
    let wanted = mounts(&pod).unwrap();
    assert_eq!(wanted.keys().collect::<Vec<_>>(), [Path::new("data"), Path::new("data/cache")], "parents come first");
    let volumes = root.path().join("volumes");
    for name in ["data", "other"] {
        fs::create_dir_all(volumes.join(name)).unwrap();
    }
    let folder = root.path().join("pod");
    for _ in 0..2 {
        link(&folder, &wanted, &|name| Some(volumes.join(name))).unwrap();
    }
    fs::write(folder.join("data/cache/x"), "1").unwrap();
    assert_eq!(fs::read_to_string(volumes.join("other/x")).unwrap(), "1");
}

#[test]
fn paths_that_leave_or_clash_are_refused() {
    assert_eq!(relative("/a/./b"), Some(PathBuf::from("a/b")));
    assert_eq!(relative("/a/../../b"), None);
    let outside = pod_with_mounts(json!([{ "name": "c", "volumeMounts": [{ "name": "data", "mountPath": "/../x" }] }]));
    assert!(matches!(mounts(&outside), Err(PlaceError::Outside(_))));
    let clash = pod_with_mounts(json!([
        { "name": "c", "volumeMounts": [{ "name": "data", "mountPath": "/x" }] },
        { "name": "d", "volumeMounts": [{ "name": "other", "mountPath": "/x" }] },
    ]));
    assert!(matches!(mounts(&clash), Err(PlaceError::Clash(_))));
}

fn claim(selected: &str) -> Arc<PersistentVolumeClaim> {
    let body = json!({
        "metadata": { "name": "data-web-0", "namespace": "n", "uid": "11-22",
            "annotations": { "volume.kubernetes.io/selected-node": selected } },
        "spec": { "storageClassName": "cellplane-local", "resources": { "requests": { "storage": "2Gi" } } },
    });
    Arc::new(serde_json::from_value(body).unwrap())
}

#[test]
fn a_volume_is_made_once_by_the_chosen_node_and_removed_only_when_released() {
    let claim = claim("n1");
    assert_eq!(plan("n2", std::slice::from_ref(&claim), &[]), []);
    assert_eq!(plan("n1", std::slice::from_ref(&claim), &[]), [Step::Make(claim.clone())]);
    let mut volume: PersistentVolume = build(&claim, "n1", Path::new("/s/volumes/pvc-11-22"));
    assert_eq!(volume.metadata.name.as_deref(), Some("pvc-11-22"));
    assert_eq!(plan("n1", std::slice::from_ref(&claim), &[Arc::new(volume.clone())]), []);
    volume.status = serde_json::from_value(json!({ "phase": "Bound" })).unwrap();
    assert_eq!(plan("n1", &[], &[Arc::new(volume.clone())]), [], "a missing claim alone removes nothing");
    volume.status = serde_json::from_value(json!({ "phase": "Released" })).unwrap();
    let released = Arc::new(volume);
    assert_eq!(plan("n1", &[], std::slice::from_ref(&released)), [Step::Remove(released.clone())]);
    assert_eq!(plan("n2", &[], &[released]), [], "another node's folder is not ours");
}

#[test]
fn a_volume_name_cannot_leave_the_folder_of_volumes() {
    assert!(folder(Path::new("/s"), "../etc").is_none());
    assert!(folder(Path::new("/s"), "").is_none());
    assert_eq!(folder(Path::new("/s"), &volume_name(&claim("a"))), Some(PathBuf::from("/s/volumes/pvc-11-22")));
}
