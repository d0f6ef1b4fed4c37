//! The embedded engine in a process of its own: rows a second by the number of writers that wait for their write to be on disk, and how
//! long opening takes after that process was killed in the middle. One writer, a sync for each write, is the ablation of group commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cell_proto::v1::{CellWrite, ReadRowsRequest, RowMutation, WriteRequest};
use cell_store::{EmbeddedConfig, EmbeddedStore, Store};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::measure;

const BODY: usize = 500;
const WRITERS: [usize; 3] = [1, 32, 512];

/// What the child is told.
#[derive(clap::Args)]
pub struct Flags {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    writers: usize,
    #[arg(long)]
    seconds: u64,
}

fn open(folder: &Path) -> anyhow::Result<EmbeddedStore> {
    let config = EmbeddedConfig { data_dir: folder.to_owned(), storage_cell: "bench".into(), reserve_bytes: 0 };
    Ok(EmbeddedStore::open(config)?)
}

fn partition(writer: u64) -> Vec<u8> {
    [writer.to_be_bytes(), 0_u64.to_be_bytes()].concat()
}

/// Writes until it is killed; says how many rows were acknowledged after a while.
pub async fn write(flags: Flags) -> anyhow::Result<()> {
    let store = Arc::new(open(&flags.folder)?);
    let done = Arc::new(AtomicU64::new(0));
    for writer in 0..flags.writers as u64 {
        let (store, done) = (store.clone(), done.clone());
        tokio::spawn(async move {
            for number in 0_u64.. {
                let row = RowMutation {
                    table: "messages".into(),
                    partition: partition(writer),
                    clustering: number.to_be_bytes().to_vec(),
                    cells: vec![CellWrite { column: "body".into(), value: vec![7; BODY] }],
                    ..RowMutation::default()
                };
                let request = WriteRequest { timestamp_us: 1, mutations: vec![row], ttl_seconds: 0 };
                if let Err(error) = store.write(request).await {
                    eprintln!("a write failed: {error}");
                    return;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(flags.seconds)).await;
    println!("{}", done.load(Ordering::Relaxed));
    std::future::pending().await
}

struct Killed {
    acknowledged: u64,
    found: u64,
    recovery: Duration,
}

async fn killed(writers: usize, seconds: u64) -> anyhow::Result<Killed> {
    let folder = tempfile::tempdir()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["engine-writer", "--writers", &writers.to_string(), "--seconds", &seconds.to_string(), "--folder"])
        .arg(folder.path())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output of the writer")?).lines();
    let line = lines.next_line().await?.context("the writer ended early")?;
    child.kill().await?;
    let began = Instant::now();
    let store = open(folder.path())?;
    let first = ReadRowsRequest { table: "messages".into(), partition: partition(0), limit: 1, ..Default::default() };
    store.read_rows(first).await?;
    let recovery = began.elapsed();
    let mut found = 0;
    for writer in 0..writers as u64 {
        let mut start = Vec::new();
        loop {
            let request = ReadRowsRequest {
                table: "messages".into(),
                partition: partition(writer),
                start: start.clone(),
                limit: 1000,
                ..ReadRowsRequest::default()
            };
            let rows = store.read_rows(request).await?.rows;
            let Some(last) = rows.last() else { break };
            found += rows.len() as u64;
            start.clone_from(&last.clustering);
            start.push(0);
        }
    }
    store.close();
    Ok(Killed { acknowledged: line.trim().parse()?, found, recovery })
}

pub async fn run(seconds: u64) -> anyhow::Result<()> {
    let mut alone = 0.0;
    for writers in WRITERS {
        let Killed { acknowledged, found, recovery } = killed(writers, seconds).await?;
        if found < acknowledged {
            bail!("{acknowledged} rows were acknowledged and {found} found after kill -9");
        }
        let rate = acknowledged as f64 / seconds.max(1) as f64;
        if writers == 1 {
            alone = rate;
        }
        let peer = format!("{alone:.0} (a sync for each)");
        measure::row(
            &format!("engine, {writers} writers, {BODY} B, rows/s"),
            &format!("{rate:.0}"),
            &peer,
            rate / alone,
        );
        let name = format!("engine, opened after kill -9, {found} rows");
        measure::figure(&name, &format!("{:.0} ms", recovery.as_secs_f64() * 1e3));
    }
    Ok(())
}
