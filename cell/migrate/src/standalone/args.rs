//! The flags of `cell migrate run`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// How the result is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// One JSON object on stdout.
    Json,
}

/// Consistency of reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Consistency {
    /// One replica: what it lacks is missed.
    One,
    /// A majority of all replicas.
    Quorum,
    /// A majority in one datacenter.
    #[default]
    LocalQuorum,
    /// Every replica.
    All,
}

/// Copies CQL tables from one cluster to another, verifies the copy and mends it.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER)]
pub struct RunFlags {
    /// What is read: `cql://host:port[,host:port]/keyspace.table` (or /keyspace with --table)
    #[arg(long, value_name = "ADDRESS")]
    pub from: String,
    /// What is written
    #[arg(long, value_name = "ADDRESS")]
    pub to: String,
    /// A table of both keyspaces; may be given several times
    #[arg(long = "table", value_name = "NAME")]
    pub tables: Vec<String>,
    /// The file that remembers what is done; the same command with the same file goes on where it stopped
    #[arg(long, value_name = "FILE")]
    pub state: PathBuf,
    /// Ranges at work at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,
    /// Rows a second over all workers; 0: as fast as both sides bear
    #[arg(long, default_value_t = 0, value_name = "ROWS")]
    pub rate: u32,
    /// Go slower when either side answers slower than this (p99), in milliseconds
    #[arg(long, default_value_t = 400, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub latency_ceiling_ms: u32,
    /// Compare both sides when the copy is complete
    #[arg(long)]
    pub verify: bool,
    /// Mend what differs where write times allow, then compare again (implies --verify)
    #[arg(long)]
    pub repair: bool,
    /// Copy nothing, only verify (or repair)
    #[arg(long)]
    pub skip_copy: bool,
    /// Make the target's tables where they do not exist
    #[arg(long)]
    pub create_table: bool,
    /// Check both sides and say what would be done; change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Consistency of reads and writes
    #[arg(long, value_enum, default_value = "local-quorum")]
    pub consistency: Consistency,
    /// JSON file with username and password of the source
    #[arg(long, value_name = "FILE")]
    pub from_credentials: Option<PathBuf>,
    /// The same of the target
    #[arg(long, value_name = "FILE")]
    pub to_credentials: Option<PathBuf>,
    /// PEM file of the CA of the source; with it TLS is used
    #[arg(long, value_name = "FILE")]
    pub from_ca: Option<PathBuf>,
    /// The same of the target
    #[arg(long, value_name = "FILE")]
    pub to_ca: Option<PathBuf>,
    /// Preferred datacenter of the source
    #[arg(long, value_name = "NAME")]
    pub from_datacenter: Option<String>,
    /// The same of the target
    #[arg(long, value_name = "NAME")]
    pub to_datacenter: Option<String>,
    /// Give up when a side has not answered for this long, in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub give_up_seconds: u32,
    /// Ranges each table is cut into
    #[arg(long, default_value_t = 256, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ranges: u32,
    /// How the result is printed
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Output,
}

const AFTER: &str = "\
Credentials: the files, or CELL_MIGRATE_FROM_USERNAME and _PASSWORD, CELL_MIGRATE_TO_USERNAME and _PASSWORD.
Exit codes: 0 everything is copied (and, with --verify, equal), 1 something failed, 2 usage, 3 refused, 5 partly done: ranges are left
or rows differ; run it again with the same --state to go on.
Not copied: counters, collections that are not frozen, materialised views (refused by name); rows that are a key alone are copied
with the oldest write time there is, for theirs cannot be read.";
