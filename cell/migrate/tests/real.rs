//! The standalone migration between two real Cassandras: every shape of table, kill -9 anywhere, mismatches found and mended. Without
//! `CELL_MIGRATE_CQL` (host:port of the source, comma, host:port of the target) and `CELL_PROGRAM` nothing is run, and a line says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures::StreamExt;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::value::Row;

struct World {
    source: Session,
    target: Session,
    addresses: (String, String),
    program: PathBuf,
    keyspace: String,
    folder: tempfile::TempDir,
}

impl World {
    async fn new(keyspace: &str) -> Option<Self> {
        let both = std::env::var("CELL_MIGRATE_CQL").ok();
        let both = both.as_deref().and_then(|both| both.split_once(','));
        let (Some((source, target)), Some(program)) = (both, std::env::var_os("CELL_PROGRAM")) else {
            println!("skipped: CELL_MIGRATE_CQL and CELL_PROGRAM are not set; the suites on real components set them");
            return None;
        };
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let connect = async |address: &str| SessionBuilder::new().known_node(address).build().await.unwrap();
        let world = Self {
            source: connect(source).await,
            target: connect(target).await,
            addresses: (source.to_owned(), target.to_owned()),
            program: program.into(),
            keyspace: keyspace.to_owned(),
            folder: tempfile::tempdir().unwrap(),
        };
        for side in [&world.source, &world.target] {
            run(side, &format!("DROP KEYSPACE IF EXISTS {keyspace}")).await;
            let replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
            run(side, &format!("CREATE KEYSPACE {keyspace} WITH replication = {replication}")).await;
        }
        Some(world)
    }

    fn command(&self, table: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let address = |host: &str| format!("cql://{host}/{}.{table}", self.keyspace);
        command.args([
            "migrate",
            "run",
            "-o",
            "json",
            "--from",
            &address(&self.addresses.0),
            "--to",
            &address(&self.addresses.1),
        ]);
        command.arg("--state").arg(self.folder.path().join(table)).args(flags);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn migrate(&self, table: &str, flags: &[&str]) -> (i32, serde_json::Value) {
        outcome(self.command(table, flags).output().unwrap())
    }

    async fn both(&self, text: &str) {
        run(&self.source, text).await;
        run(&self.target, text).await;
    }

    fn q(&self, text: &str) -> String {
        text.replace("KS", &self.keyspace)
    }

    async fn same(&self, query: &str) {
        let (ours, theirs) = (rows(&self.source, query).await, rows(&self.target, query).await);
        assert!(!ours.is_empty());
        assert_eq!(ours, theirs, "{query}");
    }
}

fn outcome(output: Output) -> (i32, serde_json::Value) {
    let text = String::from_utf8_lossy(&output.stdout);
    let json =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap_or(-1), json)
}

async fn run(session: &Session, text: &str) {
    session.query_unpaged(text, ()).await.unwrap_or_else(|error| panic!("{text}: {error}"));
}

async fn rows(session: &Session, query: &str) -> Vec<String> {
    let result = session.query_unpaged(query, ()).await.unwrap().into_rows_result().unwrap();
    let mut rows: Vec<String> = result.rows::<Row>().unwrap().map(|row| format!("{:?}", row.unwrap())).collect();
    rows.sort();
    rows
}

fn count(outcome: &serde_json::Value, phase: usize, pointer: &str) -> u64 {
    outcome["phases"][phase].pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

#[tokio::test]
async fn every_supported_shape_arrives_with_its_write_times_and_times_to_live() {
    let Some(world) = World::new("mig_shapes").await else { return };
    world.both(&world.q("CREATE TYPE KS.address (street text, number int)")).await;
    let shape = "(a bigint, b text, c timeuuid, d int, s text static, v text, l frozen<list<int>>, u frozen<address>, \"Odd\" int, \
                 PRIMARY KEY ((a, b), c, d)) WITH CLUSTERING ORDER BY (c DESC, d ASC)";
    run(&world.source, &world.q(&format!("CREATE TABLE KS.t {shape}"))).await;
    for row in 0..300 {
        let key = format!("{}, 'p{}'", row % 30, row % 7);
        let insert = "INSERT INTO KS.t (a, b, c, d, v, l, u, \"Odd\") VALUES";
        let value = format!("({key}, now(), {row}, 'v{row}', [1, {row}], {{street: 'x', number: {row}}}, 5)");
        run(&world.source, &world.q(&format!("{insert} {value} USING TIMESTAMP {}", 1_600_000_000_000_000_i64 + row)))
            .await;
        if row % 5 == 0 {
            run(
                &world.source,
                &world.q(&format!("UPDATE KS.t SET s = 'static {row}' WHERE a = {} AND b = 'p{}'", row % 30, row % 7)),
            )
            .await;
            run(&world.source, &world.q(&format!("INSERT INTO KS.t (a, b, c, d) VALUES ({key}, now(), -1)"))).await;
            run(&world.source, &world.q(&format!("INSERT INTO KS.t (a, b, s) VALUES (900{row}, 'only static', 'x')")))
                .await;
        }
    }
    // Cells of one row with different write times and times to live.
    let odd = rows(&world.source, &world.q("SELECT a, b, c, d FROM KS.t LIMIT 1")).await;
    assert_eq!(odd.len(), 1);
    run(&world.source, &world.q("UPDATE KS.t USING TTL 5000 SET v = 'later' WHERE a = 7777 AND b = 'x' AND c = 50554d6e-29bb-11e5-b345-feff819cdc9f AND d = 1")).await;
    run(&world.source, &world.q("UPDATE KS.t USING TIMESTAMP 12 SET \"Odd\" = 3 WHERE a = 7777 AND b = 'x' AND c = 50554d6e-29bb-11e5-b345-feff819cdc9f AND d = 1")).await;
    let (code, refused) = world.migrate("t", &["--verify"]);
    assert_eq!(code, 3, "{refused}");
    let (code, outcome) = world.migrate("t", &["--verify", "--create-table"]);
    assert_eq!((code, outcome["receipt"]["clean"].as_bool()), (0, Some(true)), "{outcome}");
    assert_eq!(count(&outcome, 0, "/counts/withoutCells"), 60);
    world.same(&world.q("SELECT a, b, c, d, s, v, l, u, \"Odd\", writetime(v), writetime(s), writetime(\"Odd\"), writetime(u) FROM KS.t")).await;
    let left = rows(&world.target, &world.q("SELECT ttl(v) FROM KS.t WHERE a = 7777 AND b = 'x'")).await;
    assert!(left[0].contains("Some(Int(4") || left[0].contains("Int(5000)"), "{left:?}");
    // The same state file against another table of the same name is refused: the target was made anew.
    run(&world.target, &world.q("DROP TABLE KS.t")).await;
    let (code, outcome) = world.migrate("t", &["--create-table"]);
    assert_eq!(code, 3, "{outcome}");
}

#[tokio::test]
async fn what_cannot_be_copied_truly_is_refused_by_name() {
    let Some(world) = World::new("mig_refused").await else { return };
    for (table, columns, word) in [
        ("counters", "(k int PRIMARY KEY, n counter)", "counter"),
        ("lists", "(k int PRIMARY KEY, l list<int>)", "not frozen"),
        ("plain", "(k int PRIMARY KEY, v int)", ""),
    ] {
        world.both(&world.q(&format!("CREATE TABLE KS.{table} {columns}"))).await;
        let (code, outcome) = world.migrate(table, &["--dry-run"]);
        assert_eq!(code, if word.is_empty() { 0 } else { 3 }, "{outcome}");
        assert!(outcome["message"].as_str().unwrap().contains(word), "{outcome}");
    }
    run(&world.target, &world.q("ALTER TABLE KS.plain ADD w text")).await;
    let (code, outcome) = world.migrate("plain", &[]);
    assert!(code == 3 && outcome["message"].as_str().unwrap().contains("w text"), "{outcome}");
}

/// Batches and single writes at the source in flight while a table is filled.
const FILLERS: usize = 32;

/// Rows by the thousand, in unlogged batches of one partition.
async fn fill(session: &Session, table: &str, first: i64, partitions: i64, rows: i64) {
    let insert = session.prepare(format!("INSERT INTO {table} (p, c, v) VALUES (?, ?, ?)")).await.unwrap();
    let chunks =
        (first..first + partitions).flat_map(|partition| (0..rows).step_by(100).map(move |chunk| (partition, chunk)));
    let write = |(partition, chunk): (i64, i64)| {
        let insert = insert.clone();
        async move {
            let rows = chunk..rows.min(chunk + 100);
            let statements = vec![insert.into(); usize::try_from(rows.end - rows.start).unwrap()];
            let batch = scylla::statement::batch::Batch::new_with_statements(
                scylla::statement::batch::BatchType::Unlogged,
                statements,
            );
            let values: Vec<(i64, i64, String)> = rows.map(|row| (partition, row, "x".repeat(100))).collect();
            session.batch(&batch, values).await.unwrap();
        }
    };
    futures::stream::iter(chunks).map(write).buffer_unordered(FILLERS).collect::<Vec<()>>().await;
}

#[tokio::test]
async fn killed_again_and_again_it_skips_nothing_and_counts_what_it_redid() {
    let Some(world) = World::new("mig_killed").await else { return };
    let shape = "(p bigint, c bigint, v text, PRIMARY KEY (p, c))";
    world.both(&world.q(&format!("CREATE TABLE KS.t {shape}"))).await;
    fill(&world.source, &world.q("KS.t"), 0, 400, 100).await;
    let log = world.folder.path().join("t-wal");
    let written = || std::fs::metadata(&log).and_then(|found| found.modified()).ok();
    for kill in 0..20_u64 {
        let before = written();
        let mut child = world.command("t", &["--rate", "15000"]).spawn().unwrap();
        // From its first lease on it is killed anywhere, however long the start took.
        let begun = async {
            while written() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), begun).await.expect("it writes down what it leased");
        tokio::time::sleep(Duration::from_millis(kill * 37 % 300)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (code, outcome) = world.migrate("t", &["--verify"]);
    assert_eq!(code, 0, "{outcome}");
    world.same(&world.q("SELECT count(*) FROM KS.t")).await;
    let ledger = std::fs::read(world.folder.path().join("t")).unwrap();
    assert!(!ledger.is_empty());
    let redone = count(&outcome, 0, "/counts/redone");
    assert!(
        redone > 0 || outcome["phases"].as_array().unwrap().len() == 1,
        "what was in flight at a kill is counted: {outcome}"
    );
}

#[tokio::test]
async fn mismatches_are_classed_and_mended_where_write_times_allow() {
    let Some(world) = World::new("mig_mended").await else { return };
    world.both(&world.q("CREATE TABLE KS.t (p bigint, c bigint, v text, PRIMARY KEY (p, c))")).await;
    fill(&world.source, &world.q("KS.t"), 0, 20, 10).await;
    assert_eq!(world.migrate("t", &[]).0, 0);
    run(&world.source, &world.q("INSERT INTO KS.t (p, c, v) VALUES (1, 1000, 'only source')")).await;
    run(&world.target, &world.q("INSERT INTO KS.t (p, c, v) VALUES (2, 1000, 'only target')")).await;
    run(&world.source, &world.q("UPDATE KS.t SET v = 'newer' WHERE p = 3 AND c = 3")).await;
    run(&world.target, &world.q("DELETE FROM KS.t WHERE p = 4 AND c = 4")).await;
    let (code, outcome) = world.migrate("t", &["--verify"]);
    let found = |class: &str| outcome["receipt"]["mismatches"][class].as_u64().unwrap_or(0);
    assert_eq!((code, found("missing"), found("extra"), found("differing")), (5, 2, 1, 1), "{outcome}");
    let (code, outcome) = world.migrate("t", &["--repair"]);
    assert_eq!(
        (code, count(&outcome, 0, "/counts/repaired")),
        (5, 3),
        "a row that a newer deletion hides is not mended: {outcome}"
    );
    assert_eq!(count(&outcome, 0, "/counts/mismatches/tombstone"), 1);
    run(&world.source, &world.q("DELETE FROM KS.t WHERE p = 4 AND c = 4")).await;
    let (code, outcome) = world.migrate("t", &["--verify"]);
    assert_eq!(code, 0, "{outcome}");
    world.same(&world.q("SELECT p, c, v, writetime(v) FROM KS.t")).await;
}

#[tokio::test]
async fn a_target_that_is_away_ends_unfinished_and_a_range_that_fails_is_in_the_exit_code() {
    let Some(world) = World::new("mig_away").await else { return };
    run(&world.source, &world.q("CREATE TABLE KS.t (p bigint, c bigint, v text, PRIMARY KEY (p, c))")).await;
    let mut command = Command::new(&world.program);
    let from = format!("cql://{}/{}.t", world.addresses.0, world.keyspace);
    command.args(["migrate", "run", "-o", "json", "--from", &from, "--to", "cql://127.89.0.99:1/x.t", "--state"]);
    let (code, outcome) = outcome(command.arg(Path::new("never-made")).output().unwrap());
    assert_eq!(code, 1, "{outcome}");
    assert!(!Path::new("never-made").exists(), "nothing is begun");
}

/// Most rows in few partitions; 100 partitions of 1 MB, one of 200 MB, and a wall of 60,000 rows deleted before anything was compacted.
/// With fewer than two million rows all of that is smaller, but still what it is.
#[tokio::test]
#[ignore = "is given its size by tests/real/migrate.py"]
async fn skewed_tables_with_a_tombstone_wall_and_huge_partitions_are_copied_and_the_slow_ranges_named() {
    let Some(world) = World::new("mig_skewed").await else { return };
    let rows: i64 = std::env::var("CELL_MIGRATE_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(2_000_000);
    world.both(&world.q("CREATE TABLE KS.t (p bigint, c bigint, v text, PRIMARY KEY (p, c))")).await;
    let table = world.q("KS.t");
    // Half of the rows in 20 partitions, the rest spread.
    fill(&world.source, &table, 0, 20, rows / 40).await;
    fill(&world.source, &table, 1_000, rows / 2 / 50, 50).await;
    let insert = world.source.prepare(format!("INSERT INTO {table} (p, c, v) VALUES (?, ?, ?)")).await.unwrap();
    let share = |least: i64, most: i64| least + (most - least) * rows.min(2_000_000) / 2_000_000;
    let (large, largest, wall) = (share(20, 100), share(3_600, 10_000), share(20_000, 60_000));
    let heavy = (0..large).map(|number| (-1_000 - number, 50_i64)).chain([(-1, largest)]);
    let heavy = heavy.flat_map(|(partition, count)| (0..count).map(move |row| (partition, row)));
    let write = async |(partition, row): (i64, i64)| {
        world.source.execute_unpaged(&insert, (partition, row, "y".repeat(20_000))).await.unwrap();
    };
    futures::stream::iter(heavy).map(write).buffer_unordered(4).collect::<Vec<()>>().await;
    // A wall: deleted rows before one that lives.
    let delete = world.source.prepare(format!("DELETE FROM {table} WHERE p = ? AND c = ?")).await.unwrap();
    let remove = async |row: i64| {
        world.source.execute_unpaged(&delete, (-2_i64, row)).await.unwrap();
    };
    futures::stream::iter(0..wall).map(remove).buffer_unordered(FILLERS).collect::<Vec<()>>().await;
    world.source.execute_unpaged(&insert, (-2_i64, wall, "alive")).await.unwrap();
    let (code, outcome) = world.migrate("t", &["--verify"]);
    assert_eq!((code, outcome["receipt"]["clean"].as_bool()), (0, Some(true)), "{outcome}");
    let findings = outcome["findings"].as_array().unwrap().clone();
    let named = |kind: &str, partition: &str| {
        findings.iter().any(|finding| finding["kind"] == kind && finding["partition"] == partition)
    };
    let text = |finding: &serde_json::Value, field: &str| finding[field].as_str().unwrap().to_owned();
    for finding in &findings {
        println!("{} {}: {}", text(finding, "kind"), text(finding, "partition"), text(finding, "message"));
    }
    assert!(named("large-partition", "(-1)"), "{findings:?}");
    assert!(named("tombstones", "(-2)"), "the wall is traced to its partition: {findings:?}");
    let wall =
        findings.iter().find(|finding| finding["kind"] == "tombstones" && finding["partition"] == "(-2)").unwrap();
    assert!(text(wall, "message").contains("nodetool compact -st"), "{wall}");
    let took: f64 = outcome["phases"].as_array().unwrap().iter().map(|phase| phase["seconds"].as_f64().unwrap()).sum();
    let slow = findings.iter().filter(|finding| finding["kind"] == "slow").count();
    println!("{rows} rows and what is heavy: {took:.1} s, {slow} slow ranges and partitions named");
}

const BENCH: &str = "CREATE TABLE bench.rows (p bigint, c bigint, v text, PRIMARY KEY (p, c))";

/// Not a test: what bench/migrate.py calls.
#[tokio::test]
#[ignore = "fills the table of bench/migrate.py"]
async fn the_table_of_the_benchmark_is_filled() {
    let Some(world) = World::new("bench").await else { return };
    let rows: i64 = std::env::var("CELL_MIGRATE_ROWS").unwrap().parse().unwrap();
    world.both(BENCH).await;
    fill(&world.source, "bench.rows", 0, rows / 50, 50).await;
}

/// Not a test either: the target's table as new.
#[tokio::test]
#[ignore = "empties the table of bench/migrate.py"]
async fn the_table_of_the_benchmark_is_emptied() {
    let target = std::env::var("CELL_MIGRATE_CQL").unwrap();
    let (_, target) = target.split_once(',').unwrap();
    let session = SessionBuilder::new().known_node(target).build().await.unwrap();
    run(&session, "DROP TABLE bench.rows").await;
    run(&session, BENCH).await;
}
