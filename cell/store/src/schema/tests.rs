use proptest::prelude::*;

use super::*;

fn table(name: &str) -> &'static Table {
    Schema::platform().get(name).unwrap()
}

#[test]
fn keys_come_apart_and_together_again() {
    let partition = [7_i64.to_be_bytes(), 9_i64.to_be_bytes()].concat();
    let values = table("messages").partition_values(&partition).unwrap();
    assert_eq!(values, [KeyValue::BigInt(7), KeyValue::BigInt(9)]);
    assert_eq!(key_bytes(&values), partition);
    let object = [&b"i"[..], b"code"].concat();
    let values = table("guild_objects").clustering_values(&object).unwrap();
    assert_eq!(values, [KeyValue::TinyInt(105), KeyValue::Blob(b"code".to_vec())]);
    assert_eq!(key_bytes(&values), object);
    assert_eq!(table("users").clustering_values(b"").unwrap(), []);
}

#[test]
fn keys_of_another_shape_are_refused() {
    for bytes in [&b""[..], b"1234567", b"123456789", &[0xff; 8]] {
        assert!(matches!(table("users").partition_values(bytes), Err(StoreError::Invalid(_))), "{bytes:?}");
    }
    assert!(table("guild_objects").clustering_values(b"").is_err());
    assert!(table("guild_objects").clustering_values(&[0x80, 1]).is_err());
    assert!(table("users").clustering_values(b"x").is_err());
}

#[test]
fn a_composite_partition_is_hashed_with_lengths_and_ends() {
    let partition = [7_i64.to_be_bytes(), 9_i64.to_be_bytes()].concat();
    let serialised = [&[0, 8][..], &7_i64.to_be_bytes(), &[0, 0, 8], &9_i64.to_be_bytes(), &[0]].concat();
    assert_eq!(table("messages").token(&partition).unwrap(), token(&serialised));
    assert_eq!(table("users").token(&7_i64.to_be_bytes()).unwrap(), token(&7_i64.to_be_bytes()));
}

fn admits(start: &Bound, end: &Bound, key: &[KeyValue]) -> bool {
    let key = key_bytes(key);
    let after_start = match start {
        Bound::Open => true,
        Bound::Empty => false,
        Bound::Inclusive(values) => key >= key_bytes(values),
        Bound::Exclusive(values) => key > key_bytes(values),
    };
    let before_end = match end {
        Bound::Open => true,
        Bound::Empty => false,
        Bound::Inclusive(values) => key <= key_bytes(values),
        Bound::Exclusive(values) => key < key_bytes(values),
    };
    after_start && before_end
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0_u8), Just(1), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()];
    prop::collection::vec(byte, 0..11)
}

proptest! {
    #[test]
    fn bounds_of_any_bytes_hold_for_the_same_rows(start in bytes(), end in bytes(), key in bytes()) {
        for name in ["messages", "guild_objects", "users"] {
            let table = table(name);
            // Keys are cut to the table's shape so that many are whole.
            let key = if name == "messages" { &key[..key.len().min(8)] } else { &key[..] };
            let Ok(values) = table.clustering_values(key) else { continue };
            let expected = key >= start.as_slice() && key < end.as_slice();
            prop_assert_eq!(admits(&table.start(&start), &table.end(&end), &values), expected, "{} {:?}", name, values);
        }
    }
}
