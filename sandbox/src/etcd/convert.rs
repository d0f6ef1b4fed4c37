//! Shapes that every service answers with: headers, keys, events.

use etcd_client::proto::{PbEvent, PbKeyValue, PbResponseHeader};

use super::keys;
use crate::store::{EventKind, KeyValue, WatchEvent};

/// One member, one cluster, never a new leader: constants serve.
pub(super) const CLUSTER_ID: u64 = 0x6365_6c6c_706c_616e;
pub(super) const MEMBER_ID: u64 = 1;
pub(super) const RAFT_TERM: u64 = 1;

/// A header that names the store's revision.
pub(super) fn header(revision: i64) -> Option<PbResponseHeader> {
    Some(PbResponseHeader { cluster_id: CLUSTER_ID, member_id: MEMBER_ID, revision, raft_term: RAFT_TERM })
}

/// A version as etcd's clients know it.
pub(super) fn key_value(kv: &KeyValue) -> PbKeyValue {
    PbKeyValue { value: kv.value.to_vec(), lease: kv.lease, ..key_only(kv) }
}

/// A version without its value and lease, as etcd 3.7 answers when asked for keys only.
pub(super) fn key_only(kv: &KeyValue) -> PbKeyValue {
    PbKeyValue {
        key: keys::outer(&kv.key).unwrap_or_default().to_vec(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: Vec::new(),
        lease: 0,
    }
}

/// A change as etcd's clients know it.
pub(super) fn event(event: &WatchEvent) -> PbEvent {
    let kind = match event.kind {
        EventKind::Put => 0,
        EventKind::Delete => 1,
    };
    PbEvent { r#type: kind, kv: Some(key_value(&event.kv)), prev_kv: event.prev.as_deref().map(key_value) }
}
