//! `cellctl logs KIND [NAME]`: the logs of the Pods behind a resource, each line with its Pod's name where there are several.

use clap::Args;
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use serde_json::Value;

use super::{list, name_of, one};
use crate::args::Global;
use crate::connect::{Connection, from_kube};
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::write_out;
use crate::progress::Progress;

/// Logs followed at once.
const STREAMS: usize = 64;

/// Flags of `logs`.
#[derive(Args, Debug)]
pub struct LogsArgs {
    /// pods, cells, storagecells or fleets; of moves and guilds, the operator's log
    #[arg(value_name = "KIND")]
    pub kind: Kind,
    /// One resource
    pub name: Option<String>,
    /// Follow
    #[arg(short, long)]
    pub follow: bool,
    /// Lines from the end
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..=1_000_000))]
    pub tail: Option<i64>,
    /// Of the container's previous run
    #[arg(long)]
    pub previous: bool,
}

/// Shows logs.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: LogsArgs, global: &Global) -> Result<Exit, CommandError> {
    let connection = Connection::open(global).await?;
    if let (Some(name), true) = (&args.name, args.kind != Kind::Pods) {
        one(&connection, args.kind, name).await?;
    }
    let pods: Vec<String> = list(&connection, Kind::Pods)
        .await?
        .iter()
        .filter(|pod| concerns(pod, args.kind, args.name.as_deref()))
        .map(|pod| name_of(pod).to_owned())
        .collect();
    if pods.is_empty() {
        return Err(CommandError::Failed(anyhow::anyhow!("no Pods behind that; see cellctl get pods")));
    }
    show(&connection, &pods, &args).await
}

/// Whether a Pod's log is asked for: moves and guilds are the operator's work.
fn concerns(pod: &Value, kind: Kind, name: Option<&str>) -> bool {
    let label = |key: &str| pod["metadata"]["labels"][key].as_str().unwrap_or_default();
    let operator = label("app.kubernetes.io/component") == "operator";
    match (kind, name) {
        (Kind::Pods, name) => name.is_none_or(|name| name == name_of(pod)),
        (Kind::Cells, Some(name)) => label("cellplane.dev/cell") == name,
        (Kind::Cells, None) => !label("cellplane.dev/cell").is_empty(),
        (Kind::StorageCells, name) => {
            label("app.kubernetes.io/component") == "store"
                && name.is_none_or(|name| {
                    label("app.kubernetes.io/instance") == name || name_of(pod).starts_with(&format!("{name}-store-"))
                })
        }
        (Kind::StorageMigrations, Some(name)) => operator || label("cellplane.dev/storage-migration") == name,
        (Kind::StorageMigrations, None) => operator || !label("cellplane.dev/storage-migration").is_empty(),
        (Kind::Moves | Kind::Guilds | Kind::Fleets, _) => operator,
    }
}

async fn show(connection: &Connection, pods: &[String], args: &LogsArgs) -> Result<Exit, CommandError> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let parameters =
        LogParams { follow: args.follow, tail_lines: args.tail, previous: args.previous, ..LogParams::default() };
    let several = pods.len() > 1;
    let at_once = if args.follow { pods.len().min(STREAMS) } else { 1 };
    if args.follow && pods.len() > STREAMS {
        Progress::to_stderr().say(&format!("following {STREAMS} of {} Pods", pods.len()));
    }
    let failed = futures::stream::iter(pods.iter().take(if args.follow { STREAMS } else { usize::MAX }))
        .map(|pod| {
            let (api, parameters) = (&api, &parameters);
            async move {
                let lines = api.log_stream(pod, parameters).await.map_err(from_kube)?;
                let mut lines = lines.lines();
                while let Some(line) =
                    lines.try_next().await.map_err(|error| anyhow::Error::from(error).context("read log"))?
                {
                    write_out(&if several { format!("{pod} {line}\n") } else { format!("{line}\n") })?;
                }
                Ok::<(), CommandError>(())
            }
        })
        .buffer_unordered(at_once)
        .filter_map(|outcome| async move { outcome.err() })
        .collect::<Vec<CommandError>>()
        .await;
    match (failed.len(), failed.into_iter().next()) {
        (0, _) | (_, None) => Ok(Exit::Done),
        (count, Some(error)) if count == pods.len() => Err(error),
        (count, Some(error)) => Err(CommandError::Partly {
            done: format!("the logs of {} of {} Pods", pods.len() - count, pods.len()),
            left: error.to_string(),
            next: "cellctl get pods".to_owned(),
        }),
    }
}
