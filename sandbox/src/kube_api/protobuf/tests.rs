//! Messages built by hand, and bytes that are none.

use super::*;

fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(content);
    out
}

fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &meta), field(2, raw), field(3, b""), field(4, b"")].concat()
}

#[test]
fn a_deployment_is_read_with_absent_zero_and_embedded_parts_told_apart() {
    let label = field(11, &[field(1, b"app"), field(2, b"web")].concat());
    let created = field(8, &number(1, 0));
    let metadata = field(1, &[field(1, b"web"), field(2, b""), number(7, 0), created, label].concat());
    let port = field(6, &[number(2, 0), number(3, 80), field(4, b"TCP")].concat());
    let probe = field(
        10,
        &[
            field(1, &field(2, &[field(1, b"/"), field(2, &[number(1, 1), field(3, b"http")].concat())].concat())),
            number(2, 0),
        ]
        .concat(),
    );
    let limits = field(8, &field(1, &[field(1, b"cpu"), field(2, &field(1, b"100m"))].concat()));
    let container = field(2, &[field(1, b"c"), field(2, b"i:1"), port, limits, probe].concat());
    let volume = field(1, &[field(1, b"v"), field(2, &field(2, &field(1, b"")))].concat());
    let template = field(3, &field(2, &[volume, container].concat()));
    let spec = field(2, &[number(1, 0), template, number(5, 0)].concat());
    let status = field(3, &number(1, 0));
    let object = decode(&envelope("apps/v1", "Deployment", &[metadata, spec, status].concat())).unwrap();
    let wanted = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}, "creationTimestamp": "1970-01-01T00:00:00Z"},
        "spec": {"replicas": 0, "template": {"spec": {
            "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"limits": {"cpu": "100m"}}, "livenessProbe": {"httpGet": {"path": "/", "port": "http"}}}],
            "volumes": [{"name": "v", "emptyDir": {}}]}}},
        "status": {}});
    assert_eq!(object, wanted);
}

#[test]
fn secrets_are_encoded_and_options_come_under_any_group() {
    let data = field(2, &[field(1, b"key"), field(2, b"\xff\x00")].concat());
    let object = decode(&envelope("v1", "Secret", &data)).unwrap();
    assert_eq!(object["data"], json!({"key": "/wA="}));
    let object = decode(&envelope("apps/v1", "DeleteOptions", &number(1, 5))).unwrap();
    assert_eq!(object["gracePeriodSeconds"], 5);
}

#[test]
fn other_kinds_and_cut_messages_are_refused() {
    assert!(decode(&envelope("example.dev/v1", "Widget", b"")).unwrap_err().message.contains("send JSON"));
    assert!(decode(b"{}").is_err());
    let whole = envelope("v1", "ConfigMap", &field(1, &field(1, b"name")));
    let meta = MAGIC.len() + 2 + "v1ConfigMap".len() + 4;
    for cut in (MAGIC.len() + 1..meta).chain(meta + 1..whole.len() - 4) {
        assert!(decode(&whole[..cut]).is_err(), "cut at {cut}");
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_fall_over(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
        let _ = decode(&envelope("v1", "Pod", &bytes));
        let _ = decode(&bytes);
    }
}
