//! The rate of conditional appends by batch size, beside plain writes of as many rows, on the CQL server at `CELL_CQL_CONTACT`; without
//! one, a line says so. One line of JSON for each row of the table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a benchmark that cannot go on should end")]

use std::time::{Duration, Instant};

use cell_data::cql::{CqlStore, Settings, connect, migrations};
use cell_proto::v1::{AppendRequest, CellWrite, OpenSegmentRequest, RowMutation, Statics, StoredEntry, WriteRequest};
use cell_store::Store;
use cell_store::schema::Schema;

const FOR: Duration = Duration::from_secs(5);
const BODY: usize = 500;

async fn appends(store: &CqlStore, batch: u64, log: usize) -> u64 {
    let log = format!("b{batch}-{log}");
    let statics = Statics { term: 1, ..Statics::default() };
    store.open_segment(OpenSegmentRequest { log: log.clone(), segment: 1, statics: Some(statics) }).await.unwrap();
    let (until, mut last) = (Instant::now() + FOR, 0);
    while Instant::now() < until {
        let entry = |number| StoredEntry { number, timestamp_us: 1, operation_id: vec![1; 16], body: vec![7; BODY] };
        let request = AppendRequest {
            log: log.clone(),
            segment: 1,
            term: 1,
            last,
            entries: (last + 1..=last + batch).map(entry).collect(),
            last_timestamp_us: 1,
            last_snowflake: 1,
        };
        assert!(store.append(request).await.unwrap().applied);
        last += batch;
    }
    last
}

async fn writes(store: &CqlStore, batch: u64, channel: usize) -> u64 {
    let (until, mut done) = (Instant::now() + FOR, 0);
    while Instant::now() < until {
        let row = |number: u64| RowMutation {
            table: "messages".into(),
            partition: [(channel as u64 + batch * 1000).to_be_bytes(), 0_u64.to_be_bytes()].concat(),
            clustering: number.to_be_bytes().to_vec(),
            cells: vec![CellWrite { column: "body".into(), value: vec![7; BODY] }],
            ..RowMutation::default()
        };
        let mutations = (done + 1..=done + batch).map(row).collect();
        store.write(WriteRequest { timestamp_us: 1, mutations, ttl_seconds: 0 }).await.unwrap();
        done += batch;
    }
    done
}

fn main() {
    let Some(contact) = std::env::var("CELL_CQL_CONTACT").ok().filter(|contact| !contact.is_empty()) else {
        println!("skipped: CELL_CQL_CONTACT is not set");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let file = serde_json::json!({
            "name": "bench", "engine": "cassandra", "contactPoints": contact.split(',').collect::<Vec<_>>(),
            "keyspace": "cellplane_bench",
        });
        let settings = Settings::parse("bench", &file.to_string()).unwrap();
        let admin = connect(settings.clone()).await.unwrap();
        migrations::ensure(&admin, Schema::platform()).await.unwrap();
        let store = CqlStore::open(settings).await.unwrap();
        for parallel in [1_usize, 16] {
            for batch in [1, 20, 100] {
                for what in ["append", "plain writes"] {
                    let began = Instant::now();
                    let done: u64 = if what == "append" {
                        futures::future::join_all((0..parallel).map(|number| appends(&store, batch, number + parallel * 100)))
                            .await
                            .iter()
                            .sum()
                    } else {
                        futures::future::join_all((0..parallel).map(|number| writes(&store, batch, number))).await.iter().sum()
                    };
                    let rate = done as f64 / began.elapsed().as_secs_f64();
                    println!(
                        "{}",
                        serde_json::json!({"what": what, "batch": batch, "logs": parallel, "rows_per_second": rate.round()})
                    );
                }
            }
        }
        admin.session.query_unpaged("DROP KEYSPACE cellplane_bench", ()).await.unwrap();
    });
}
