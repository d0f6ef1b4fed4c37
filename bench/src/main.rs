//! Runs one benchmark and prints a table: the figure, its peer or ablation from the same run, and the ratio. Times alone say little
//! on a shared machine, so `RESULTS.md` keeps ratios.

mod measure;
mod route;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cell-bench", about = "Benchmarks of Cellplane; build with --release")]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Resolving a log to the process that serves it: the published view against a locked map.
    Route,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().benchmark {
        Benchmark::Route => route::run(),
    }
}
