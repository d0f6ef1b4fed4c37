use std::collections::BTreeMap;

use super::*;

/// A server that answers as scripted and knows nothing else.
struct Script(BTreeMap<&'static str, Result<Option<String>, NoAnswer>>);

#[async_trait]
impl Ask for Script {
    async fn ask(&self, statement: &str) -> Result<Option<String>, NoAnswer> {
        let known = self.0.iter().find(|(part, _)| statement.contains(**part));
        known.map_or(Err(NoAnswer::Unknown), |(_, answer)| answer.clone())
    }
}

fn says(text: &str) -> Result<Option<String>, NoAnswer> {
    Ok(Some(text.to_owned()))
}

#[tokio::test]
async fn a_cassandra_has_none_of_the_extras() {
    let script = Script(BTreeMap::from([("release_version", says("5.0.9"))]));
    let found = Capabilities::of(&script, false).await.unwrap();
    assert_eq!((found.engine, found.version.as_str()), (Engine::Cassandra, "5.0.9"));
    assert_eq!((found.scan_suffix().as_str(), found.keyspace_suffix()), ("", ""));
    assert!(!found.shard_aware && !found.tablets);
}

#[tokio::test]
async fn a_new_scylla_has_all_of_them() {
    let script = Script(BTreeMap::from([
        ("system.versions", says("2025.4.1-0.20251201")),
        ("system.tablets", Ok(None)),
        ("BYPASS CACHE", says("local")),
        ("USING TIMEOUT", says("local")),
    ]));
    let found = Capabilities::of(&script, true).await.unwrap();
    assert!(found.shard_aware && found.tablets && found.conditions_on_tablets);
    assert_eq!(found.scan_suffix(), " BYPASS CACHE USING TIMEOUT 30s");
    assert_eq!(found.keyspace_suffix(), "");
}

#[tokio::test]
async fn a_scylla_without_conditions_on_tablets_gets_a_keyspace_without_tablets() {
    let script = Script(BTreeMap::from([("system.versions", says("6.2.3")), ("system.tablets", Ok(None))]));
    let found = Capabilities::of(&script, true).await.unwrap();
    assert_eq!(found.keyspace_suffix(), " AND tablets = {'enabled': false}");
    assert_eq!(found.scan_suffix(), "");
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_is_not_taken_for_one_that_cannot() {
    let script = Script(BTreeMap::from([("system.versions", Err(NoAnswer::Unreachable("gone".into())))]));
    assert!(matches!(Capabilities::of(&script, false).await, Err(NoAnswer::Unreachable(_))));
}
