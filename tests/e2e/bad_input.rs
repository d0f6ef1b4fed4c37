//! Bad input: resources and command lines that must be refused with the field named, and nothing lost by it.

use cellctl::kinds::Kind;
use serde_json::{Value, json};

use crate::fields;
use crate::harness::{Guild, Ledger, Sandbox, Traffic, wait_for};

/// Refused at the door: kind, name, spec, and what the refusal must name.
fn forbidden() -> Vec<(Kind, String, Value, &'static str)> {
    let roles = |replicas: i64| json!({"gateway": {"replicas": replicas}});
    let cell = |extra: Value| with(json!({"storageCellRef": "main"}), extra);
    let a_move = |extra: Value| with(json!({"guild": "5", "from": "shared-1", "to": "shared-2"}), extra);
    let guild = |extra: Value| with(json!({"guildId": "5"}), extra);
    let promotion = |extra: Value| guild(json!({"promotion": with(json!({"auto": true}), extra)}));
    let named = |kind, name: &str, spec, word| (kind, name.to_owned(), spec, word);
    let mut all = vec![
        named(Kind::Moves, "m", json!({"guild": "5", "from": "a", "to": "a"}), "same cell"),
        named(Kind::Moves, "m", a_move(json!({"units": ["b0001"]})), "exactly one"),
        named(Kind::Moves, "m", json!({"from": "a", "to": "b"}), "exactly one"),
        named(Kind::Moves, "m", a_move(json!({"guild": "0"})), "spec.guild"),
        named(Kind::Moves, "m", a_move(json!({"guild": "-1"})), "spec.guild"),
        named(Kind::Moves, "m", a_move(json!({"guild": 5})), "spec.guild"),
        named(Kind::Moves, "m", json!({"units": ["x1"], "from": "a", "to": "b"}), "spec.units"),
        named(Kind::Moves, "m", json!({"units": [], "from": "a", "to": "b"}), "spec.units"),
        named(Kind::Moves, "m", a_move(json!({"deadlineSeconds": 0})), "spec.deadlineSeconds"),
        named(Kind::Moves, "m", a_move(json!({"deadlineSeconds": 86_401})), "spec.deadlineSeconds"),
        named(Kind::Moves, "m", a_move(json!({"rollbackWindowSeconds": -1})), "spec.rollbackWindowSeconds"),
        named(Kind::Moves, "m", a_move(json!({"rollbackWindowSeconds": 604_801})), "spec.rollbackWindowSeconds"),
        named(Kind::Moves, "m", a_move(json!({"ttlAfterFinishedSeconds": -1})), "spec.ttlAfterFinishedSeconds"),
        named(Kind::Moves, "m", a_move(json!({"cause": "Whim"})), "spec.cause"),
        named(Kind::Moves, "m", a_move(json!({"to": "c".repeat(41)})), "spec.to"),
        named(Kind::Moves, "m", a_move(json!({"to": "../x"})), "spec.to"),
        named(Kind::Moves, "m", a_move(json!({"from": "a/b"})), "spec.from"),
        named(Kind::Moves, "m", a_move(json!({"guild": "9223372036854775808"})), "9223372036854775807"),
        named(Kind::Moves, &"m".repeat(64), a_move(json!({})), "63 characters"),
        named(Kind::Guilds, "g-6", guild(json!({})), "g-<spec.guildId>"),
        named(Kind::Guilds, "g-9999999999999999999", json!({"guildId": "9999999999999999999"}), "9223372036854775807"),
        named(Kind::Guilds, "g-5", guild(json!({"placement": {"cell": "../x"}})), "spec.placement.cell"),
        named(Kind::Guilds, "g-5", guild(json!({"placement": {}})), "exactly one"),
        named(Kind::Guilds, "g-5", guild(json!({"placement": {"cell": "a", "dedicated": {}}})), "exactly one"),
        named(Kind::Guilds, "g-5", promotion(json!({"sessionsAbove": 0})), "spec.promotion.sessionsAbove"),
        named(Kind::Guilds, "g-5", promotion(json!({"holdForSeconds": -1})), "spec.promotion.holdForSeconds"),
        named(
            Kind::Guilds,
            "g-5",
            promotion(json!({"messagesPerSecondAbove": 0})),
            "spec.promotion.messagesPerSecondAbove",
        ),
        named(Kind::Cells, &"c".repeat(41), cell(json!({})), "40 characters"),
        named(Kind::Cells, "c", json!({}), "spec.storageCellRef"),
        named(Kind::Cells, "c", cell(json!({"storageCellRef": ".."})), "spec.storageCellRef"),
        named(Kind::Cells, "c", cell(json!({"availability": "Gone"})), "spec.availability"),
        named(Kind::Cells, "c", cell(json!({"roles": roles(0)})), "spec.roles.gateway.replicas"),
        named(Kind::Cells, "c", cell(json!({"roles": roles(501)})), "spec.roles.gateway.replicas"),
        named(Kind::StorageCells, "s", json!({"engine": "postgres"}), "spec.engine"),
        named(Kind::StorageCells, "s", json!({"engine": "embedded", "embedded": {"size": "lots"}}), "embedded.size"),
        named(Kind::StorageCells, "s", json!({"engine": "embedded", "embedded": {"reserve": "1"}}), "embedded.reserve"),
        named(Kind::StorageCells, "s", json!({"engine": "scylla", "embedded": {}}), "only for engine embedded"),
        named(Kind::Fleets, "main", json!({"bootstrapCells": ["shared-2"]}), "bootstrapCells"),
    ];
    all.extend([0, 1001, -5].map(|weight| named(Kind::Cells, "c", cell(json!({"weight": weight})), "spec.weight")));
    all
}

fn with(mut base: Value, extra: Value) -> Value {
    for (key, value) in extra.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

/// The condition of this type, once the operator has set it.
async fn condition(sandbox: &Sandbox, kind: Kind, name: &str, wanted: &str) -> Value {
    wait_for(&format!("{name} to be {wanted}"), 30, async || {
        let found = sandbox.get(kind, name).await?;
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let condition = conditions.into_iter().find(|one| one["type"] == wanted && one["status"] == "True");
        condition.ok_or_else(|| found["status"].to_string())
    })
    .await
}

async fn refused_at_the_door(sandbox: &Sandbox) {
    let mut wrong = Vec::new();
    for (kind, name, spec, word) in forbidden() {
        match sandbox.apply(kind, &name, spec.clone()).await {
            Ok(_) => wrong.push(format!("{kind:?} {spec} was taken")),
            Err(message) if !message.contains(word) => {
                wrong.push(format!("{kind:?} {spec}: no {word:?} in: {message}"))
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the schema cannot know, the operator says in a condition that names the field.
async fn stalled_with_a_reason(sandbox: &Sandbox, guild: &Guild) {
    let home = guild.cell(sandbox).await;
    let other = guild.other_cell(sandbox).await;
    let of_guild = |from: &str, to: &str| json!({"guild": guild.id, "from": from, "to": to});
    sandbox.cellctl(&["cell", "cordon", &other]).await.done();
    for (name, spec, reason, word) in [
        ("to-cordoned", of_guild(&home, &other), "Cordoned", "spec.to"),
        ("to-nowhere", of_guild(&home, "nowhere"), "ReferenceNotFound", "spec.to"),
        ("from-nowhere", of_guild("nowhere", &home), "ReferenceNotFound", "spec.from"),
        ("too-large", json!({"units": ["b4096"], "from": home, "to": other}), "InvalidSpec", "spec.units"),
    ] {
        sandbox.apply(Kind::Moves, name, spec).await.unwrap();
        let stalled = condition(sandbox, Kind::Moves, name, "Stalled").await;
        assert_eq!(stalled["reason"], reason, "{name}: {stalled}");
        assert!(stalled["message"].as_str().unwrap().contains(word), "{name}: {stalled}");
        assert_eq!(sandbox.get(Kind::Moves, name).await.unwrap()["status"]["result"], "Refused", "{name}");
    }
    let refused = sandbox.cellctl(&["guild", "move", "start", &guild.id, "--to", &other, "--yes"]).await;
    assert_eq!((refused.code, refused.stdout.as_str()), (3, ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("cordoned"), "{}", refused.stderr);
    sandbox.cellctl(&["cell", "uncordon", &other]).await.done();

    sandbox.apply(Kind::Moves, "from-elsewhere", of_guild(&other, &home)).await.unwrap();
    let stalled = condition(sandbox, Kind::Moves, "from-elsewhere", "Stalled").await;
    assert!(stalled["message"].as_str().unwrap().contains("spec.from"), "{stalled}");
    for (kind, name, spec, word) in [
        (Kind::Cells, "lost", json!({"storageCellRef": "nowhere"}), "spec.storageCellRef"),
        (Kind::Guilds, "g-7", json!({"guildId": "7", "voiceRegion": "x"}), "spec.voiceRegion"),
        (Kind::Guilds, "g-8", json!({"guildId": "8", "limits": {"members": 5}}), "spec.limits"),
    ] {
        sandbox.apply(kind, name, spec).await.unwrap();
        let stalled = condition(sandbox, kind, name, "Stalled").await;
        assert!(stalled["message"].as_str().unwrap().contains(word), "{name}: {stalled}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_resources_are_refused_by_field_and_nothing_is_lost() {
    let sandbox = Sandbox::up("input").await;
    let guild = Guild::make(&sandbox, "input").await;
    let ledger = Ledger::default();
    let listener = guild.listen(&sandbox, sandbox.entry).await;
    let traffic = Traffic::begin(&sandbox, &guild, &ledger);
    let home = guild.cell(&sandbox).await;
    let other = guild.other_cell(&sandbox).await;
    refused_at_the_door(&sandbox).await;
    fields::each_out_of_range_is_refused_by_name(&sandbox).await;
    fields::names_are_taken_up_to_their_limit(&sandbox).await;
    stalled_with_a_reason(&sandbox, &guild).await;
    command_lines_end_with_their_code(&sandbox, &guild).await;
    assert_eq!(guild.cell(&sandbox).await, home, "nothing that was refused moved the guild");

    // The longest name works, and of two Moves of one unit one waits or is refused, never both run.
    let longest = "m".repeat(63);
    let spec = json!({"guild": guild.id, "from": home, "to": other, "rollbackWindowSeconds": 1});
    sandbox.apply(Kind::Moves, &longest, spec.clone()).await.unwrap();
    sandbox.apply(Kind::Moves, "second", spec).await.unwrap();
    let results = [sandbox.follow(&longest).await, sandbox.follow("second").await];
    let mut sorted = results.clone();
    sorted.sort();
    assert_eq!(sorted, ["Completed", "Refused"], "{results:?}");
    assert_eq!(guild.cell(&sandbox).await, other);

    traffic.stop().await;
    ledger.check_history(&sandbox, &guild).await;
    ledger.check_listener(&listener, 0).await;
    sandbox.end();
}

async fn command_lines_end_with_their_code(sandbox: &Sandbox, guild: &Guild) {
    let (id, home, other) = (guild.id.as_str(), guild.cell(sandbox).await, guild.other_cell(sandbox).await);
    let lines: [(&[&str], i32, &str); 12] = [
        (&["nonsense"], 2, "nonsense"),
        (&["get", "nothings"], 2, "nothings"),
        (&["locate", "0"], 2, "0"),
        (&["guild", "move", "start", id], 2, "--to"),
        (&["guild", "move", "start", id, "--to", "a", "--deadline-seconds", "0"], 2, "deadline-seconds"),
        (&["guild", "move", "start", id, "--to", &home, "--yes"], 3, &home),
        (&["guild", "move", "start", id, "--to", "nowhere", "--yes"], 3, "nowhere"),
        (&["guild", "move", "start", id, "--to", &other, "--yes", "--plan-hash", "stale"], 3, "plan"),
        (&["guild", "move", "abort", "nothing", "--yes"], 1, "nothing"),
        (&["locate", "123456789"], 1, "GuildNotFound"),
        (&["guild", "move", "plan", "123456789", "--to", &other], 1, "GuildNotFound"),
        (&["guild", "pin", id, "--cell", "nope"], 3, "nope"),
    ];
    for (words, code, word) in lines {
        let ended = sandbox.cellctl(words).await;
        assert_eq!(ended.code, code, "{words:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{words:?}");
        assert!(ended.stderr.contains(word), "{words:?}: {}", ended.stderr);
    }
    let readable: [&[&str]; 4] =
        [&["get", "cells"], &["get", "moves"], &["locate", id], &["guild", "move", "plan", id, "--to", &other]];
    for words in readable {
        let mut words = words.to_vec();
        words.extend(["-o", "json"]);
        assert!(!sandbox.cellctl(&words).await.done().json().is_null(), "{words:?}");
    }
    // Something is Stalled by now, so these exit 3, and their data is readable all the same.
    for (words, field) in [(&["status", "-o", "json"][..], "cells"), (&["sandbox", "status", "-o", "json"], "pods")] {
        let ended = sandbox.cellctl(words).await;
        assert_eq!(ended.code, 3, "{words:?}: {}", ended.stderr);
        assert!(ended.json()[field].is_array(), "{words:?}: {}", ended.stdout);
    }
}
