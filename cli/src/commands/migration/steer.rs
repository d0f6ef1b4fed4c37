//! The verbs that tell a running migration something: each changes one field of its spec.

use cell_crds::TargetStage;
use clap::Args;
use serde_json::{Value, json};

use super::{next_step, view};
use crate::args::Global;
use crate::commands::confirm::confirm;
use crate::commands::edit::{Editing, edit};
use crate::commands::read::one;
use crate::connect::Connection;
use crate::exit::{CommandError, Exit};
use crate::kinds::Kind;
use crate::output::Format;
use crate::ownership::Edit;
use crate::progress::Progress;

const ORDER: [TargetStage; 7] = [
    TargetStage::Prepare,
    TargetStage::DualWrite,
    TargetStage::Backfill,
    TargetStage::Verify,
    TargetStage::ShadowRead,
    TargetStage::Cutover,
    TargetStage::Complete,
];

/// Which migration.
#[derive(Args, Debug)]
pub struct NameArgs {
    /// The StorageMigration
    #[arg(value_name = "MIGRATION")]
    pub name: String,
    /// Change the field although another manager owns it
    #[arg(long = "override")]
    pub take_over: bool,
}

/// Flags of `advance`.
#[derive(Args, Debug)]
pub struct AdvanceArgs {
    /// Which.
    #[command(flatten)]
    pub which: NameArgs,
    /// As far as this stage (default: one further than now)
    #[arg(long, value_name = "STAGE")]
    pub to: Option<String>,
}

/// Flags of `throttle`.
#[derive(Args, Debug)]
pub struct ThrottleArgs {
    /// Which.
    #[command(flatten)]
    pub which: NameArgs,
    /// Most rows a second over all workers; 0 for as fast as both sides bear
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(i32).range(0..=100_000_000))]
    pub rows_per_second: i32,
}

/// Flags of `complete`.
#[derive(Args, Debug)]
pub struct CompleteArgs {
    /// Which.
    #[command(flatten)]
    pub which: NameArgs,
    /// The source cannot be reached any more: end without releasing its copies there
    #[arg(long)]
    pub ignore_unreachable: bool,
}

/// Flags of `abort` and `rollback`.
#[derive(Args, Debug)]
pub struct UndoArgs {
    /// Which.
    #[command(flatten)]
    pub which: NameArgs,
    /// The side that serves is dead: lose what the other one lacks
    #[arg(long)]
    pub accept_loss: bool,
}

/// One migration and the connection to change it by.
struct Subject<'a> {
    connection: Connection,
    which: &'a NameArgs,
    global: &'a Global,
    object: Value,
}

impl<'a> Subject<'a> {
    async fn open(which: &'a NameArgs, global: &'a Global) -> Result<Self, CommandError> {
        let connection = Connection::open(global).await?;
        let object = one(&connection, Kind::StorageMigrations, &which.name).await?;
        if let Some(result) = object["status"]["result"].as_str() {
            let why = format!("the migration has ended: {result}");
            let next = format!("cellctl describe storagemigration {}", which.name);
            return Err(CommandError::refused("MIGRATION", why, next));
        }
        Ok(Self { connection, which, global, object })
    }

    async fn set(&self, field: &'static str, value: Value) -> Result<(), CommandError> {
        let change = Edit { kind: "StorageMigration", name: self.which.name.clone(), field, value };
        let how = Editing {
            kind: Kind::StorageMigrations,
            take_over: self.which.take_over,
            absent: None,
            global: self.global,
        };
        edit(&self.connection, &change, &how).await.map(|_| ())
    }

    async fn show(&self) -> Result<Exit, CommandError> {
        let object = one(&self.connection, Kind::StorageMigrations, &self.which.name).await?;
        view(&object)?.print(self.global.output)?;
        if self.global.output == Format::Table {
            Progress::to_stderr().say(&format!("next: cellctl migration watch {}", self.which.name));
        }
        Ok(Exit::Done)
    }

    async fn throttled(&self, change: impl FnOnce(&mut Value)) -> Result<Exit, CommandError> {
        let mut throttle = self.object["spec"]["throttle"].clone();
        if !throttle.is_object() {
            throttle = json!({});
        }
        change(&mut throttle);
        self.set("throttle", throttle).await?;
        self.show().await
    }
}

/// The stage to go on to.
pub(super) fn further(now: &Value, to: Option<&str>) -> Result<TargetStage, CommandError> {
    let wrong = |text: &str| {
        CommandError::Usage(format!(
            "--to {text}: there are Prepare, DualWrite, Backfill, Verify, ShadowRead, Cutover, Complete"
        ))
    };
    if let Some(text) = to {
        return serde_json::from_value(json!(text)).map_err(|_| wrong(text));
    }
    let now: TargetStage = serde_json::from_value(now.clone()).unwrap_or_default();
    Ok(ORDER.into_iter().find(|stage| *stage > now).unwrap_or(TargetStage::Complete))
}

/// Lets it go on.
///
/// # Errors
/// [`CommandError::Refused`] when another manager owns the field, or a stage that lies behind is named.
pub async fn advance(args: AdvanceArgs, global: &Global) -> Result<Exit, CommandError> {
    let subject = Subject::open(&args.which, global).await?;
    let to = further(&subject.object["spec"]["targetStage"], args.to.as_deref())?;
    if to >= TargetStage::Cutover {
        confirm(global, &format!("Let migration {} go on to {to:?}", args.which.name))?;
    }
    subject.set("targetStage", json!(to)).await?;
    subject.show().await
}

/// Lets it release the source.
///
/// # Errors
/// See [`advance`].
pub async fn complete(args: CompleteArgs, global: &Global) -> Result<Exit, CommandError> {
    let name = &args.which.name;
    let subject = Subject::open(&args.which, global).await?;
    let stage = subject.object["status"]["stage"].as_str().unwrap_or_default();
    // Already being completed, it may be held up by a source that is gone.
    if stage != "Reverse" && !(stage == "Complete" && args.ignore_unreachable) {
        let why = format!("it is at stage {stage}; it can be completed once every log is cut over (stage Reverse)");
        return Err(CommandError::refused("MIGRATION", why, next_step(name, &subject.object["status"])));
    }
    confirm(global, &format!("Complete migration {name}: after it there is no rollback"))?;
    if args.ignore_unreachable {
        confirm(global, &format!("Leave the copies of migration {name} in its source unreleased"))?;
        subject.set("ignoreUnreachable", json!(true)).await?;
    }
    subject.set("targetStage", json!(TargetStage::Complete)).await?;
    subject.show().await
}

/// Begins nothing new.
///
/// # Errors
/// See [`advance`].
pub async fn pause(args: NameArgs, global: &Global) -> Result<Exit, CommandError> {
    Subject::open(&args, global).await?.throttled(|throttle| throttle["paused"] = json!(true)).await
}

/// Goes on.
///
/// # Errors
/// See [`advance`].
pub async fn resume(args: NameArgs, global: &Global) -> Result<Exit, CommandError> {
    let subject = Subject::open(&args, global).await?;
    subject
        .throttled(|throttle| {
            throttle.as_object_mut().map(|fields| fields.remove("paused"));
        })
        .await
}

/// Sets the pace.
///
/// # Errors
/// See [`advance`].
pub async fn throttle(args: ThrottleArgs, global: &Global) -> Result<Exit, CommandError> {
    let subject = Subject::open(&args.which, global).await?;
    let change = |throttle: &mut Value| match (args.rows_per_second, throttle.as_object_mut()) {
        (0, Some(fields)) => {
            fields.remove("rowsPerSecond");
        }
        (rows, _) => throttle["rowsPerSecond"] = json!(rows),
    };
    subject.throttled(change).await
}

/// Compares again.
///
/// # Errors
/// See [`advance`].
pub async fn verify(args: NameArgs, global: &Global) -> Result<Exit, CommandError> {
    let subject = Subject::open(&args, global).await?;
    let asked = subject.object["spec"]["verifyRequests"].as_i64().unwrap_or_default();
    subject.set("verifyRequests", json!(asked + 1)).await?;
    subject.show().await
}

/// Undoes everything.
///
/// # Errors
/// [`CommandError::Refused`] when it is too late.
pub async fn abort(args: UndoArgs, global: &Global) -> Result<Exit, CommandError> {
    let name = &args.which.name;
    let subject = Subject::open(&args.which, global).await?;
    let status = &subject.object["status"];
    if matches!(status["stage"].as_str(), Some("Reverse" | "Complete")) {
        let next = format!("cellctl migration rollback {name}");
        return Err(CommandError::refused("MIGRATION", "every log is cut over", next));
    }
    confirm(global, &format!("Abort migration {name}"))?;
    undo(&subject, "abort", args.accept_loss).await
}

/// Brings the logs back.
///
/// # Errors
/// [`CommandError::Refused`] when it is too early or too late.
pub async fn rollback(args: UndoArgs, global: &Global) -> Result<Exit, CommandError> {
    let name = &args.which.name;
    let subject = Subject::open(&args.which, global).await?;
    match subject.object["status"]["rollbackReadiness"].as_str() {
        Some("Ready") => {}
        Some("Over") => {
            let next = format!("cellctl describe storagemigration {name}");
            return Err(CommandError::refused("MIGRATION", "it is being completed or undone already", next));
        }
        _ => {
            let next = format!("cellctl migration abort {name}");
            return Err(CommandError::refused("MIGRATION", "no log is cut over", next));
        }
    }
    confirm(global, &format!("Roll migration {name} back"))?;
    undo(&subject, "rollback", args.accept_loss).await
}

async fn undo(subject: &Subject<'_>, field: &'static str, accept_loss: bool) -> Result<Exit, CommandError> {
    if accept_loss {
        let name = &subject.which.name;
        confirm(subject.global, &format!("Lose what the other side of migration {name} lacks"))?;
        subject.set("acceptLoss", json!(true)).await?;
    }
    subject.set(field, json!(true)).await?;
    subject.show().await
}
