//! Every field of every spec changed alone, and pairs of them, with the way back: something follows each change, and after the revert
//! everything is as before, whatever the path.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::number;
use super::perturb::ground::Ground;
use super::perturb::mutant::Bug;
use super::perturb::plan::Plan;
use super::perturb::schema::{Change, changes};
use super::perturb::snapshot::{differences, take};
use super::perturb::stage::{Stage, objects};
use super::perturb::truth::OURS;

/// Fields that nothing follows at once, and why.
const PASSIVE: [(&str, &str, &str); 8] = [
    ("cells", "weight", "counts when buckets are shared, once, and for new sessions"),
    ("cells", "evacuationPolicy", "acts only while the cell is evacuated"),
    ("fleets", "dedicatedTemplate", "the shape of cells that are made later"),
    ("fleets", "etcd.endpoints", "an operator with --etcd-endpoints of its own goes on with them"),
    ("storagecells", "keyspace", "of an embedded store there is none"),
    ("storagecells", "replication", "of an embedded store there is none"),
    ("storagecells", "consistency", "of an embedded store there is none"),
    ("guilds", "promotion", "acts only when the guild is hot"),
];

const CHANGED: [(&str, &str, &str); 4] = [
    ("Cell", "cells", "shared-1"),
    ("Fleet", "fleets", "prod"),
    ("StorageCell", "storagecells", "main"),
    ("Guild", "guilds", "g-7"),
];

/// Everything is Ready or says that a person must act, of its newest generation.
async fn decided(stage: &Stage) -> Result<(), String> {
    for plural in OURS {
        for one in objects(&stage.user, &stage.namespace, plural).await {
            let holds = |kind: &str| {
                let conditions = one["status"]["conditions"].as_array();
                conditions.is_some_and(|all| all.iter().any(|one| one["type"] == kind && one["status"] == "True"))
            };
            let seen = one["status"]["observedGeneration"] == one["metadata"]["generation"];
            if !seen || !(holds("Ready") || holds("Stalled")) {
                return Err(format!("{plural}/{}: {}", one["metadata"]["name"], one["status"]));
            }
        }
    }
    Ok(())
}

/// Puts changes on one object and takes them back; answers what is wrong.
async fn there_and_back(stage: &Stage, (plural, name): (&str, &str), these: &[Change]) -> Result<(), String> {
    stage.wire.begin(&Plan::default());
    let before = take(stage, &[]).await;
    let mut done = Vec::new();
    for change in these {
        // Refused at admission is an answer: nothing was changed.
        if stage.set(plural, name, change.there.clone()).await.is_ok() {
            done.push(change);
        }
    }
    if done.is_empty() {
        return Ok(());
    }
    stage.settled("the change being decided on", || decided(stage)).await?;
    let own = format!("{plural}/{name}");
    let status = |line: Option<&String>| {
        let value: Value = line.and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        value["status"].clone()
    };
    let passive = |change: &&Change| PASSIVE.iter().any(|(of, path, _)| *of == plural && change.path.starts_with(path));
    let all_passive = done.iter().all(passive);
    // What is decided on one object may be followed by others a moment later.
    let followed = || async {
        let changed = take(stage, &[]).await;
        let elsewhere = changed.iter().any(|(what, line)| before.get(what) != Some(line) && *what != own);
        let here = status(before.get(&own)) != status(changed.get(&own));
        if all_passive || elsewhere || here { Ok(()) } else { Err("nothing followed".to_owned()) }
    };
    stage.settled("what follows the change", followed).await?;
    for change in done.iter().rev() {
        stage.set(plural, name, change.back.clone()).await?;
    }
    stage.settled("the change taken back", || decided(stage)).await?;
    let as_before = || async {
        let wrong = differences(&before, &take(stage, &[]).await);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    };
    stage.settled("everything being as before", as_before).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spec_changed_and_set_back_leaves_everything_as_it_was() {
    let given = number("CELLPLANE_HARNESS_RUNS", 0);
    let seed = number("CELLPLANE_HARNESS_SEED", 1);
    let until = Instant::now() + Duration::from_secs(if given > 0 { 24 * 3_600 } else { 10 });
    println!("CELLPLANE_HARNESS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let ground = Ground::start().await;
    let stage = Stage::ready(&ground, Bug::None).await.unwrap();
    stage.create("guilds", "g-7", json!({"guildId": "7"})).await;
    stage.settled("the guild", || stage.all_ready()).await.unwrap();
    let mut all = Vec::new();
    for (kind, plural, name) in CHANGED {
        let spec = stage.get(plural, name).await.unwrap()["spec"].clone();
        all.extend(changes(kind, &spec).into_iter().map(|change| (plural, name, change)));
    }
    let singles = all.len();
    let only = std::env::var("CELLPLANE_HARNESS_FIELD").ok();
    all.retain(|(plural, _, change)| {
        only.as_ref().is_none_or(|only| format!("{plural} {}", change.path).starts_with(only))
    });
    all.shuffle(&mut random);
    let mut runs: Vec<(&str, &str, Vec<Change>)> =
        all.iter().map(|(plural, name, change)| (*plural, *name, vec![change.clone()])).collect();
    for _ in 0..given {
        let (plural, name, first) = all.choose(&mut random).unwrap();
        let others: Vec<_> = all.iter().filter(|(of, _, second)| of == plural && second.path != first.path).collect();
        if let Some((_, _, second)) = others.choose(&mut random) {
            let pair = if random.random_bool(0.5) { [first, second] } else { [second, first] };
            runs.push((*plural, *name, pair.map(Clone::clone).into()));
        }
    }
    let mut failed = Vec::new();
    for (index, (plural, name, these)) in runs.iter().enumerate() {
        let said: Vec<String> = these.iter().map(|change| change.there.to_string()).collect();
        println!("{plural}/{name}: {}", said.join(" and "));
        if let Err(why) = there_and_back(&stage, (plural, name), these).await {
            failed.push(format!("{plural}/{name}: {}: {why}", said.join(" and ")));
            break;
        }
        if Instant::now() > until {
            println!(
                "{} of {singles} fields; CELLPLANE_HARNESS_RUNS=100 changes all of them, and as many pairs",
                index + 1
            );
            break;
        }
    }
    assert!(failed.is_empty(), "seed {seed}: {}", failed.join("\n\n"));
}
