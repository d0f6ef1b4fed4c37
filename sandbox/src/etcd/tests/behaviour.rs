//! What clients rely on, told without any number that only a fresh store would have: these pass against a real etcd as they are.

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse,
};
use tonic::Code;

use super::*;

fn strings(kvs: &[etcd_client::KeyValue]) -> Vec<&str> {
    kvs.iter().map(|kv| kv.value_str().unwrap()).collect()
}

#[tokio::test]
async fn puts_and_deletes_count_versions_and_revisions() {
    let mut etcd = Fixture::new("versions").await;
    let key = etcd.key("a");
    let first = etcd.client.put(key.clone(), "1", None).await.unwrap();
    let created = first.header().unwrap().revision();
    let second = etcd.client.put(key.clone(), "2", Some(PutOptions::new().with_prev_key())).await.unwrap();
    assert_eq!(second.prev_key().unwrap().value(), b"1");
    let got = etcd.client.get(key.clone(), None).await.unwrap();
    let kv = &got.kvs()[0];
    assert_eq!((kv.key_str().unwrap(), kv.value(), kv.version(), kv.lease()), (key.as_str(), &b"2"[..], 2, 0));
    assert_eq!((kv.create_revision(), kv.mod_revision()), (created, created + 1));
    assert_eq!((got.count(), got.more()), (1, false));

    let deleted = etcd.client.delete(key.clone(), Some(DeleteOptions::new().with_prev_key())).await.unwrap();
    assert_eq!((deleted.deleted(), deleted.prev_kvs()[0].value()), (1, &b"2"[..]));
    let again = etcd.client.delete(key.clone(), None).await.unwrap();
    assert_eq!((again.deleted(), again.header().unwrap().revision()), (0, created + 2));
    etcd.client.put(key.clone(), "3", None).await.unwrap();
    let kv = etcd.client.get(key.clone(), None).await.unwrap().kvs()[0].clone();
    assert_eq!((kv.version(), kv.create_revision()), (1, created + 3));
    let old = etcd.client.get(key, Some(GetOptions::new().with_revision(created + 1))).await.unwrap();
    assert_eq!(strings(old.kvs()), ["2"]);
    assert_eq!(old.header().unwrap().revision(), created + 3);
}

#[tokio::test]
async fn ranges_are_cut_sorted_and_filtered_as_asked() {
    let mut etcd = Fixture::new("ranges").await;
    let mut revisions = Vec::new();
    for (name, value) in [("b", "1"), ("a", "3"), ("c", "2"), ("a", "4")] {
        let put = etcd.client.put(etcd.key(name), value, None).await.unwrap();
        revisions.push(put.header().unwrap().revision());
    }
    let prefix = etcd.prefix.clone();
    let all = || GetOptions::new().with_prefix();
    let got = etcd.client.get(prefix.clone(), Some(all())).await.unwrap();
    assert_eq!(strings(got.kvs()), ["4", "1", "2"]);
    let got = etcd.client.get(prefix.clone(), Some(all().with_limit(2))).await.unwrap();
    assert_eq!((strings(got.kvs()), got.more(), got.count()), (vec!["4", "1"], true, 3));
    let got = etcd.client.get(prefix.clone(), Some(all().with_limit(3))).await.unwrap();
    assert_eq!((got.kvs().len(), got.more()), (3, false));
    let sorts = [
        (SortTarget::Key, SortOrder::Descend, ["2", "1", "4"]),
        (SortTarget::Value, SortOrder::Ascend, ["1", "2", "4"]),
        (SortTarget::Mod, SortOrder::Descend, ["4", "2", "1"]),
        (SortTarget::Create, SortOrder::Ascend, ["1", "4", "2"]),
        (SortTarget::Version, SortOrder::Descend, ["4", "1", "2"]),
    ];
    for (target, order, expected) in sorts {
        let got = etcd.client.get(prefix.clone(), Some(all().with_sort(target, order))).await.unwrap();
        assert_eq!(strings(got.kvs()), expected, "{target:?} {order:?}");
    }
    let cut = all().with_sort(SortTarget::Mod, SortOrder::Descend).with_limit(1);
    let got = etcd.client.get(prefix.clone(), Some(cut)).await.unwrap();
    assert_eq!((strings(got.kvs()), got.more()), (vec!["4"], true));

    let got = etcd.client.get(prefix.clone(), Some(all().with_min_mod_revision(revisions[2]))).await.unwrap();
    assert_eq!((strings(got.kvs()), got.count()), (vec!["4", "2"], 3), "the count is of the whole range");
    let created = all().with_max_create_revision(revisions[1]).with_min_create_revision(revisions[1]);
    let got = etcd.client.get(prefix.clone(), Some(created)).await.unwrap();
    assert_eq!(strings(got.kvs()), ["4"]);
    let got = etcd.client.get(prefix.clone(), Some(all().with_keys_only())).await.unwrap();
    assert_eq!((strings(got.kvs()), got.kvs()[1].mod_revision()), (vec!["", "", ""], revisions[0]));
    let got = etcd.client.get(prefix.clone(), Some(all().with_count_only())).await.unwrap();
    assert_eq!((got.kvs().len(), got.count(), got.more()), (0, 3, false));
    let got = etcd.client.get(etcd.key("b"), Some(GetOptions::new().with_range(etcd.key("c")))).await.unwrap();
    assert_eq!(strings(got.kvs()), ["1"]);
    let inverted = Some(GetOptions::new().with_range(etcd.key("a")));
    assert_eq!(etcd.client.get(etcd.key("c"), inverted).await.unwrap().count(), 0);
    let from = etcd.client.get(etcd.key("c"), Some(GetOptions::new().with_from_key())).await.unwrap();
    assert_eq!(from.kvs()[0].key_str().unwrap(), etcd.key("c"));
}

#[tokio::test]
async fn a_transaction_takes_one_branch_and_has_one_revision() {
    let mut etcd = Fixture::new("txn").await;
    let (a, b) = (etcd.key("a"), etcd.key("b"));
    let txn = || {
        Txn::new()
            .when([Compare::create_revision(a.clone(), CompareOp::Equal, 0)])
            .and_then([
                TxnOp::put(a.clone(), "1", None),
                TxnOp::put(b.clone(), "1", None),
                TxnOp::get(a.clone(), None),
                TxnOp::delete(etcd.key("none"), None),
            ])
            .or_else([TxnOp::get(b.clone(), None)])
    };
    let (then, otherwise) = (txn(), txn());
    let response = etcd.client.txn(then).await.unwrap();
    assert!(response.succeeded());
    let revision = response.header().unwrap().revision();
    let responses = response.op_responses();
    let TxnOpResponse::Get(got) = &responses[2] else { panic!("not a get") };
    assert_eq!((strings(got.kvs()), got.kvs()[0].mod_revision()), (vec!["1"], revision), "it reads its own write");
    let TxnOpResponse::Delete(deleted) = &responses[3] else { panic!("not a delete") };
    assert_eq!(deleted.deleted(), 0);

    let response = etcd.client.txn(otherwise).await.unwrap();
    assert!(!response.succeeded());
    let TxnOpResponse::Get(got) = &response.op_responses()[0] else { panic!("not a get") };
    assert_eq!(got.kvs()[0].mod_revision(), revision, "both puts have one revision");
}

#[tokio::test]
async fn conditions_compare_every_field_and_missing_keys_as_zero() {
    let mut etcd = Fixture::new("compare").await;
    let (there, missing) = (etcd.key("there"), etcd.key("missing"));
    etcd.client.put(there.clone(), "m", None).await.unwrap();
    let put = etcd.client.put(there.clone(), "m", None).await.unwrap();
    let revision = put.header().unwrap().revision();
    use CompareOp::{Equal, Greater, Less, NotEqual};
    let cases = [
        (Compare::version(there.clone(), Equal, 2), true),
        (Compare::version(there.clone(), Greater, 2), false),
        (Compare::mod_revision(there.clone(), Less, revision + 1), true),
        (Compare::mod_revision(there.clone(), NotEqual, revision), false),
        (Compare::create_revision(there.clone(), Equal, revision - 1), true),
        (Compare::lease(there.clone(), Equal, 0), true),
        (Compare::value(there.clone(), Greater, "l"), true),
        (Compare::value(there.clone(), Less, "m"), false),
        (Compare::version(missing.clone(), Equal, 0), true),
        (Compare::mod_revision(missing.clone(), Less, 1), true),
        (Compare::value(missing.clone(), NotEqual, "m"), false),
        (Compare::value(etcd.prefix.clone(), Equal, "m").with_prefix(), true),
        (Compare::version(etcd.key("z"), Greater, 0).with_prefix(), false),
    ];
    for (number, (compare, expected)) in cases.into_iter().enumerate() {
        let response = etcd.client.txn(Txn::new().when([compare])).await.unwrap();
        assert_eq!(response.succeeded(), expected, "case {number}");
    }
}

#[tokio::test]
async fn a_nested_transaction_is_judged_before_the_outer_one_writes() {
    let mut etcd = Fixture::new("nested").await;
    let key = etcd.key("a");
    let inner = Txn::new()
        .when([Compare::version(key.clone(), CompareOp::Equal, 0)])
        .and_then([TxnOp::get(key.clone(), None)])
        .or_else([TxnOp::get(etcd.key("other"), None)]);
    let outer = Txn::new().and_then([TxnOp::put(key.clone(), "1", None), TxnOp::txn(inner)]);
    let response = etcd.client.txn(outer).await.unwrap();
    let TxnOpResponse::Txn(inner) = response.op_responses().remove(1) else { panic!("not a txn") };
    assert!(inner.succeeded());
    let TxnOpResponse::Get(got) = inner.op_responses().remove(0) else { panic!("not a get") };
    assert_eq!(strings(got.kvs()), ["1"]);
}

#[tokio::test]
async fn bad_requests_are_refused_in_etcds_words_and_change_nothing() {
    let mut etcd = Fixture::new("refused").await;
    let key = etcd.key("a");
    let before = etcd.client.put(key.clone(), "1", None).await.unwrap().header().unwrap().revision();
    let client = &mut etcd.client;
    let keep = |options: PutOptions| Some(options);
    let invalid = |text: &str| (Code::InvalidArgument, format!("etcdserver: {text}"));

    assert_eq!(refusal(client.put("", "1", None).await), invalid("key is not provided"));
    assert_eq!(refusal(client.get("", None).await), invalid("key is not provided"));
    assert_eq!(refusal(client.delete("", None).await), invalid("key is not provided"));
    let value_given = client.put(key.clone(), "2", keep(PutOptions::new().with_ignore_value())).await;
    assert_eq!(refusal(value_given), invalid("value is provided"));
    let lease_given = PutOptions::new().with_ignore_lease().with_lease(3);
    assert_eq!(refusal(client.put(key.clone(), "2", keep(lease_given)).await), invalid("lease is provided"));
    let missing = client.put(format!("{key}/none"), "", keep(PutOptions::new().with_ignore_value())).await;
    assert_eq!(refusal(missing), invalid("key not found"));
    let no_lease = client.put(key.clone(), "2", keep(PutOptions::new().with_lease(987_654_321))).await;
    assert_eq!(refusal(no_lease), (Code::NotFound, "etcdserver: requested lease not found".to_owned()));
    let twice = Txn::new().and_then([TxnOp::put(key.clone(), "2", None), TxnOp::put(key.clone(), "3", None)]);
    assert_eq!(refusal(client.txn(twice).await), invalid("duplicate key given in txn request"));
    let many = Txn::new().and_then((0..129).map(|_| TxnOp::get(key.clone(), None)).collect::<Vec<_>>());
    assert_eq!(refusal(client.txn(many).await), invalid("too many operations in txn request"));
    let large = client.put(key.clone(), vec![b'x'; 1600 * 1024], None).await;
    assert_eq!(refusal(large), invalid("request is too large"));
    let future = client.get(key.clone(), Some(GetOptions::new().with_revision(before + 1000))).await;
    let text = "etcdserver: mvcc: required revision is a future revision";
    assert_eq!(refusal(future), (Code::OutOfRange, text.to_owned()));
    let half = Txn::new().and_then([
        TxnOp::put(key.clone(), "2", None),
        TxnOp::put(format!("{key}b"), "2", keep(PutOptions::new().with_lease(5))),
    ]);
    assert_eq!(refusal(client.txn(half).await).0, Code::NotFound);

    let got = client.get(key, None).await.unwrap();
    assert_eq!((got.kvs()[0].value(), got.kvs()[0].mod_revision()), (&b"1"[..], before));
}

#[tokio::test]
async fn a_put_can_keep_the_value_or_the_lease() {
    let mut etcd = Fixture::new("keep").await;
    let key = etcd.key("a");
    let lease = etcd.client.lease_grant(60, None).await.unwrap().id();
    etcd.client.put(key.clone(), "1", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    etcd.client.put(key.clone(), "2", Some(PutOptions::new().with_ignore_lease())).await.unwrap();
    let kv = etcd.client.get(key.clone(), None).await.unwrap().kvs()[0].clone();
    assert_eq!((kv.value(), kv.lease()), (&b"2"[..], lease));
    etcd.client.put(key.clone(), "", Some(PutOptions::new().with_ignore_value())).await.unwrap();
    let kv = etcd.client.get(key.clone(), None).await.unwrap().kvs()[0].clone();
    assert_eq!((kv.value(), kv.lease()), (&b"2"[..], 0));
    etcd.client.lease_revoke(lease).await.unwrap();
    assert_eq!(etcd.client.get(key, None).await.unwrap().count(), 1, "it left the lease before");
}

#[tokio::test]
async fn a_lease_lives_while_it_is_kept_alive_and_takes_its_keys_with_it() {
    let mut etcd = Fixture::new("lease").await;
    // Long enough for a busy machine; that renewal counts from the renewal is tested on the pure machine.
    let kept = etcd.client.lease_grant(30, None).await.unwrap();
    let left = etcd.client.lease_grant(2, None).await.unwrap();
    assert!(left.ttl() >= 2 && left.id() > 0);
    for (name, lease) in [("kept", kept.id()), ("left/1", left.id()), ("left/2", left.id())] {
        etcd.client.put(etcd.key(name), "v", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    }
    let asked = Some(LeaseTimeToLiveOptions::new().with_keys());
    let info = etcd.client.lease_time_to_live(left.id(), asked).await.unwrap();
    assert_eq!(info.granted_ttl(), left.ttl());
    assert!((0..=left.ttl()).contains(&info.ttl()));
    let mut keys = info.keys().to_vec();
    keys.sort();
    assert_eq!(keys, [etcd.key("left/1").into_bytes(), etcd.key("left/2").into_bytes()]);
    let listed = etcd.client.leases().await.unwrap();
    assert!(listed.leases().iter().any(|lease| lease.id() == kept.id()));

    let (mut keeper, mut answers) = etcd.client.lease_keep_alive(kept.id()).await.unwrap();
    soon(async {
        loop {
            keeper.keep_alive().await.unwrap();
            assert_eq!(answers.message().await.unwrap().unwrap().ttl(), kept.ttl());
            let found = etcd.client.get(etcd.prefix.clone(), Some(GetOptions::new().with_prefix())).await.unwrap();
            if found.count() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(etcd.client.lease_time_to_live(left.id(), None).await.unwrap().ttl(), -1);
    assert!(etcd.client.lease_keep_alive(left.id()).await.is_err());
    let gone = etcd.client.lease_revoke(left.id()).await;
    assert_eq!(refusal(gone), (Code::NotFound, "etcdserver: requested lease not found".to_owned()));
    etcd.client.lease_revoke(kept.id()).await.unwrap();
    assert_eq!(etcd.client.get(etcd.key("kept"), None).await.unwrap().count(), 0);
}

#[tokio::test]
async fn lease_ids_can_be_chosen_once_and_times_have_a_limit() {
    let mut etcd = Fixture::new("lease-id").await;
    let id = i64::from(uuid::Uuid::new_v4().as_fields().0) + 1;
    let chosen = || Some(LeaseGrantOptions::new().with_id(id));
    assert_eq!(etcd.client.lease_grant(60, chosen()).await.unwrap().id(), id);
    let taken = etcd.client.lease_grant(60, chosen()).await;
    assert_eq!(refusal(taken), (Code::FailedPrecondition, "etcdserver: lease already exists".to_owned()));
    let long = etcd.client.lease_grant(9_000_000_001, None).await;
    assert_eq!(refusal(long), (Code::OutOfRange, "etcdserver: too large lease TTL".to_owned()));
    etcd.client.lease_revoke(id).await.unwrap();
}
