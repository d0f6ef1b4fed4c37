//! Runs one benchmark and prints rows: what was measured, the figure, its peer or ablation from the same run, and the ratio. Times alone
//! say little on a shared machine, so `RESULTS.md` keeps ratios.
//!
//! Run with `cargo run --release -p cell-bench -- NAME`; `--help` lists the names. Each benchmark takes about a minute at most, uses only
//! loopback and a temporary folder, and leaves nothing behind. `fanout`, `guild` and `route` time pure machines in interleaved pairs.
//! `sockets`, `idle` and `switch` start real roles on the sandbox's etcd and a gateway in a process of its own, whose memory and
//! processor time are read from `/proc`: Linux only, and `ulimit -n` must exceed the number of sessions. `operator` runs the real operator
//! over the sandbox's Kubernetes API.

mod centrifugo;
mod crowd;
mod edits;
mod engine;
mod fanout;
mod fleet;
mod guild;
mod idle;
mod kubelet;
mod measure;
mod process;
mod reads;
mod route;
mod shipping;
mod sockets;
mod switch;

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
    /// Events a guild's actor takes in a second: one shared frame against encoding for each link.
    Guild,
    /// Deliveries of the session machines in a second: serialised once against serialised for each session.
    Fanout,
    /// Deliveries over real sockets for a second of the gateway's processor time: text against zlib-stream.
    Sockets {
        /// Websocket sessions.
        #[arg(long, default_value_t = 2_000)]
        sessions: usize,
        /// The program of Centrifugo 6, measured too.
        #[arg(long, value_name = "FILE")]
        centrifugo: Option<std::path::PathBuf>,
    },
    /// Memory and processor time of an idle session in a real gateway: text against zlib-stream.
    Idle {
        /// Websocket sessions.
        #[arg(long, default_value_t = 2_000)]
        sessions: usize,
    },
    /// How long commands are held while a guild switches cells, by the number of its live sessions.
    Switch {
        /// Websocket sessions, one crowd after the other.
        #[arg(long, value_delimiter = ',', default_values_t = [10, 500, 2_000])]
        sessions: Vec<usize>,
        /// Switches with each crowd.
        #[arg(long, default_value_t = 20)]
        moves: usize,
    },
    /// The operator over so many Guild objects: writes when idle, and the time to act on one edit.
    Operator {
        /// Guild objects.
        #[arg(long, default_value_t = 1_000)]
        guilds: usize,
    },
    /// Message pages: many alike at once, other channels beside a hot one, pages over several buckets.
    Reads {
        /// Reads at once.
        #[arg(long, default_value_t = 20_000)]
        at_once: u64,
        /// Reads of each kind that are timed one by one.
        #[arg(long, default_value_t = 300)]
        timed: usize,
    },
    /// What a migration costs sends: shipped to a target that is well, fails, or answers late, beside none.
    Shipping,
    /// The embedded engine: rows a second by writers, and opening after kill -9.
    Engine {
        /// How long each number of writers writes.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// What `engine` kills.
    #[command(hide = true)]
    EngineWriter(engine::Flags),
    /// The gateway that the other benchmarks measure.
    #[command(hide = true)]
    Gateway(process::Flags),
}

fn main() -> anyhow::Result<()> {
    cell_runtime::telemetry::install_tls_provider();
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.benchmark {
        Benchmark::Route => route::run(),
        Benchmark::Guild => guild::run(),
        Benchmark::Fanout => fanout::run(),
        Benchmark::Sockets { sessions, centrifugo } => runtime.block_on(sockets::run(sessions, centrifugo.as_deref())),
        Benchmark::Idle { sessions } => runtime.block_on(idle::run(sessions)),
        Benchmark::Switch { sessions, moves } => runtime.block_on(switch::run(&sessions, moves)),
        Benchmark::Operator { guilds } => runtime.block_on(edits::run(guilds)),
        Benchmark::Reads { at_once, timed } => runtime.block_on(reads::run(at_once, timed)),
        Benchmark::Engine { seconds } => runtime.block_on(engine::run(seconds)),
        Benchmark::Shipping => runtime.block_on(shipping::run()),
        Benchmark::EngineWriter(flags) => runtime.block_on(engine::write(flags)),
        Benchmark::Gateway(flags) => runtime.block_on(process::serve(flags)),
    }
}
