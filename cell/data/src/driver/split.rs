//! Splitting a guild out of its bucket and merging it back (LOG.md rule 18). Both are idempotent by what the log says: a run that was
//! cut off is finished by asking again.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::unit::Unit;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Change, Head, Merge, MergeGuildRequest, Reason, Refusal, RunReply, Split, SplitGuildRequest};
use cell_runtime::unix_ms;
use cell_store::{CURSOR_RETAINED, CURSOR_SEGMENT, Reply, Store, StoreError};
use sha2::{Digest, Sha256};

use super::copies::migrating;
use super::handle::{LogHandle, Message};
use super::logs::{Turn, parse, unavailable};
use super::service::DataServer;
use crate::machine::{Command, Inheritance, OperationId, Step, Walk, Wanted};

/// How long the platform's own entries may take.
const OWN_DEADLINE_MS: i64 = 30_000;

/// How long sealing may take before admission opens again.
const SEAL: Duration = Duration::from_secs(15);

/// The operation of one step of a run: the same run proposes the same one again.
fn operation(run_id: &str, step: &str, guild_id: i64) -> OperationId {
    let digest = Sha256::digest(format!("{run_id}\u{0}{step}\u{0}{guild_id}"));
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    id
}

fn own_command(operation_id: OperationId, kind: Kind) -> Command {
    Command {
        operation_id,
        deadline_ms: unix_ms() + OWN_DEADLINE_MS,
        actor_id: 0,
        policy_version: 0,
        guild_term: 0,
        term: 0,
        change: Change { kind: Some(kind) },
        inheritance: None,
    }
}

impl DataServer {
    async fn bucket_owner(&self, bucket_log: &str, guild_id: i64, run_id: &str) -> Result<LogHandle, Refusal> {
        if run_id.is_empty() {
            return Err(Refusal::new(Reason::Invalid, "run_id is missing"));
        }
        if guild_id <= 0 || parse(bucket_log)? != Unit::bucket(guild_id) {
            return Err(Refusal::new(Reason::Invalid, format!("{bucket_log} is not the bucket of guild {guild_id}")));
        }
        if let Some(run) = migrating(&self.logs.context.directory.view(), bucket_log) {
            let message =
                format!("migration {run} moves the storage of {bucket_log}; split and merge when it has ended");
            return Err(Refusal::new(Reason::Migrating, message));
        }
        let handle = self.logs.owner(bucket_log, Turn::Ours).await?;
        handle.owned().await?;
        // A copy is kept although the directory does not say so (yet).
        if let Some(copy) = handle.copy() {
            let message =
                format!("run {} keeps a copy of {bucket_log}; split and merge when it has ended", copy.run_id);
            return Err(Refusal::new(Reason::Migrating, message));
        }
        Ok(handle)
    }

    pub(super) async fn split_guild_out(&self, request: SplitGuildRequest) -> Result<RunReply, Refusal> {
        let guild_id = request.guild_id;
        let bucket = self.bucket_owner(&request.bucket_log, guild_id, &request.run_id).await?;
        let log = Unit::Guild(guild_id).log();
        let (head, log_term) = self.logs.guild_head(guild_id).await?;
        let open = head.as_ref().is_some_and(|head| head.moved_to.is_empty());
        let mut unchanged = open;
        if !open {
            let split = Split { guild_id, log_term };
            let command = Box::new(own_command(operation(&request.run_id, "split", guild_id), Kind::Split(split)));
            match bucket.ask(|answer| Message::Submit { command, answer }).await? {
                Ok(committed) => unchanged = committed.duplicate,
                // The entry is there; only the opening is left.
                Err(refusal) if refusal.why() == Reason::AlreadyExists => unchanged = true,
                Err(refusal) => return Err(refusal),
            }
        }
        // Any member of the head's cell may own it; this one opens it so that it is open when the caller is told.
        if !open {
            self.logs.owner(&log, Turn::Ordered).await?.owned().await?;
        }
        Ok(RunReply { done: true, unchanged, refusal: None })
    }

    pub(super) async fn merge_guild_back(&self, request: MergeGuildRequest) -> Result<RunReply, Refusal> {
        let guild_id = request.guild_id;
        let bucket = self.bucket_owner(&request.bucket_log, guild_id, &request.run_id).await?;
        let log = Unit::Guild(guild_id).log();
        let Some(head) = self.logs.guild_head(guild_id).await?.0 else {
            return Ok(RunReply { done: true, unchanged: true, refusal: None });
        };
        let (head, inheritance) = if head.moved_to.is_empty() {
            self.seal(&log, &request).await?
        } else {
            let inheritance = self.inheritance_of(&head).await?;
            (head, inheritance)
        };
        let merge = Merge { guild_id, sealed_term: head.term, sealed_at: head.moved_at };
        let mut command = own_command(operation(&request.run_id, "merge", guild_id), Kind::Merge(merge));
        command.inheritance = Some(Arc::new(inheritance));
        let command = Box::new(command);
        match bucket.ask(|answer| Message::Submit { command, answer }).await? {
            Ok(committed) => Ok(RunReply { done: true, unchanged: committed.duplicate, refusal: None }),
            Err(refusal) if refusal.why() == Reason::AlreadyExists => {
                Ok(RunReply { done: true, unchanged: true, refusal: None })
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Claims the guild's log here, whoever had it, and seals it.
    async fn seal(&self, log: &str, request: &MergeGuildRequest) -> Result<(Head, Inheritance), Refusal> {
        let handle = self.logs.owner(log, Turn::Ordered).await?;
        handle.owned().await?;
        let run_id = request.run_id.clone();
        let moved_to = format!("log:{}", request.bucket_log);
        let work = async {
            handle.ask(|answer| Message::Close { run_id, answer }).await?;
            handle.ask(|answer| Message::Seal { moved_to, answer }).await
        };
        if let Ok(sealed) = tokio::time::timeout(SEAL, work).await {
            return sealed;
        }
        // Waits for room in the mailbox: were it lost, admission would stay closed.
        let _gone = handle.messages.send(Message::Reopen { run_id: request.run_id.clone() }).await;
        Err(Refusal::new(Reason::UnknownOutcome, "the guild's log was not sealed in time; ask again"))
    }

    /// What a sealed log leaves: read again, because whoever sealed it may be gone.
    async fn inheritance_of(&self, head: &Head) -> Result<Inheritance, Refusal> {
        let located = self.logs.locate(&head.log).await?;
        let store = &located.store;
        let segment = store.read_cursor(&head.log, CURSOR_SEGMENT).await.map_err(|error| unavailable(&error))?;
        let retained = store.read_cursor(&head.log, CURSOR_RETAINED).await.map_err(|error| unavailable(&error))?;
        let since_us = unix_ms() * 1000 - self.window_us;
        let first = head.segment.max(segment).max(retained);
        let inheritance = read_inheritance(store.as_ref(), &head.log, (first, retained), since_us)
            .await
            .map_err(|error| unavailable(&error))?;
        Ok(Inheritance { store: located.place.store.clone(), ..inheritance })
    }
}

/// Reads what a log that nobody appends to leaves to the one that takes over. `first` and `retained` come from its head and cursors.
///
/// # Errors
/// What the store says; the caller retries.
async fn read_inheritance(
    store: &dyn Store,
    log: &str,
    (first, retained): (u64, u64),
    since_us: i64,
) -> Result<Inheritance, StoreError> {
    let wanted = Wanted { seal_term: None, check_term: false, own_term: false, above: u64::MAX, since_us, retained };
    let mut walk = Walk::new(log.to_owned(), first, wanted);
    loop {
        let mut result = Err(StoreError::Unavailable("nothing was asked".to_owned()));
        for request in walk.requests() {
            result = match store.call(request).await {
                Ok(Reply::Segment(reply)) => Ok(reply),
                Ok(_) => Err(StoreError::Damaged("the store answered something else".to_owned())),
                Err(error) => return Err(error),
            };
        }
        match walk.answered(result) {
            Step::Go => {}
            Step::Done => return Ok(walk.inheritance()),
            Step::Pause | Step::Outrun => return Err(StoreError::Damaged(format!("{log} cannot be read"))),
        }
    }
}
