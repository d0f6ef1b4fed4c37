//! What the operator asks for beside moves: heads, inspection, ordered claims.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cell_proto::unit::Unit;
use cell_proto::v1::{
    ClaimReply, ClaimRequest, CreateHeadsReply, CreateHeadsRequest, Head, InspectReply, InspectRequest, ListHeadsReply,
    ListHeadsRequest, Reason, Refusal,
};
use futures::{StreamExt, TryStreamExt};

use super::handle::{Inspection, Message};
use super::logs::{Located, Turn, parse, unavailable};
use super::service::DataServer;
use crate::machine::pointer_of;

/// Heads created at once.
const PARALLEL: usize = 64;
/// How long one look at all guilds' heads serves.
const SPLITS_KEPT: Duration = Duration::from_secs(2);

/// The guilds with logs of their own, by bucket's log.
pub(super) struct Splits {
    read_at: Instant,
    of_bucket: HashMap<String, Vec<i64>>,
}

impl DataServer {
    pub(super) async fn create(&self, request: CreateHeadsRequest) -> Result<CreateHeadsReply, Refusal> {
        for head in &request.heads {
            let unit = parse(&head.log)?;
            if !matches!(unit, Unit::Bucket(_)) || head.cell.is_empty() {
                return Err(Refusal::new(Reason::Invalid, "only heads of buckets are created, each with a cell"));
            }
        }
        let store = self.logs.context.stores.own();
        let create = |head: Head| async move {
            let fresh = Head { log: head.log, cell: head.cell, segment: 1, ..Head::default() };
            store.cas_head(None, fresh).await.map(|reply| reply.applied)
        };
        let applied: Vec<bool> = futures::stream::iter(request.heads)
            .map(create)
            .buffered(PARALLEL)
            .try_collect()
            .await
            .map_err(|error| unavailable(&error))?;
        let created = applied.iter().filter(|applied| **applied).count();
        let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        Ok(CreateHeadsReply { created: count(created), existing: count(applied.len() - created), refusal: None })
    }

    pub(super) async fn list(&self, request: ListHeadsRequest) -> Result<ListHeadsReply, Refusal> {
        let store = self.logs.context.stores.own();
        let mut reply = store.list_heads(request).await.map_err(|error| unavailable(&error))?;
        // Those that went on to another StorageCell are answered as they are there.
        let follow = |head: Head| async move {
            match pointer_of(&head) {
                None => Ok(head),
                Some(_) => Ok::<_, Refusal>(self.logs.locate(&head.log).await?.place.serving_head().unwrap_or(head)),
            }
        };
        let heads = std::mem::take(&mut reply.heads);
        reply.heads = futures::stream::iter(heads).map(follow).buffered(PARALLEL).try_collect().await?;
        Ok(reply)
    }

    pub(super) async fn inspect_log(&self, request: InspectRequest) -> Result<InspectReply, Refusal> {
        let unit = parse(&request.log)?;
        let located = self.logs.locate(&request.log).await?;
        let head = located.place.serving_head();
        let handle = self.logs.get(&request.log);
        let inspected = match &handle {
            Some(handle) => handle.ask(|answer| Message::Inspect { answer }).await.ok(),
            None => None,
        };
        let owned_here =
            inspected.is_some() && head.as_ref().is_some_and(|head| head.appender == self.logs.routes.member_id);
        let inspection = match inspected {
            Some(inspection) => inspection,
            None => self.read_position(&located).await?,
        };
        let split_guilds = match unit {
            Unit::Bucket(_) => self.split_out_of(unit).await?,
            Unit::Guild(_) => Vec::new(),
        };
        Ok(InspectReply {
            head,
            owned_here,
            last: inspection.last,
            applied: inspection.applied,
            split_guilds,
            closed_by_run: inspection.closed_by_run,
            refusal: None,
            storage_cell: located.place.store.clone(),
        })
    }

    /// Last and applied number of a log that is not owned here, as far as the store tells.
    async fn read_position(&self, located: &Located) -> Result<Inspection, Refusal> {
        let (log, store) = (located.log.as_str(), &located.store);
        let applied = store.read_cursor(log, cell_store::CURSOR_APPLIED).await.map_err(|error| unavailable(&error))?;
        let mut reader = super::reader::LogReader::new(store.clone(), log);
        let mut last = applied;
        loop {
            match reader.next(last + 1, 1000).await {
                Ok((entries, _)) if entries.is_empty() => break,
                Ok((entries, _)) => last = entries.last().map_or(last, |entry| entry.number),
                Err(refusal) if refusal.why() == Reason::BehindRetention => break,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(Inspection { last, applied, ..Inspection::default() })
    }

    /// Guilds of a bucket whose own logs are open: from one look at all heads, shared by the inspections of a pass. A split or merge by
    /// this service, the bucket's owner, ends its use at once.
    async fn split_out_of(&self, bucket: Unit) -> Result<Vec<i64>, Refusal> {
        let mut table = self.splits.lock().await;
        let fresh = table.as_ref().filter(|splits| splits.read_at.elapsed() < SPLITS_KEPT);
        let splits = match fresh {
            Some(_) => table.as_ref(),
            None => Some(&*table.insert(self.read_splits().await?)),
        };
        Ok(splits.and_then(|splits| splits.of_bucket.get(&bucket.log()).cloned()).unwrap_or_default())
    }

    async fn read_splits(&self) -> Result<Splits, Refusal> {
        let mut splits = Splits { read_at: Instant::now(), of_bucket: HashMap::new() };
        let mut after = "g".to_owned();
        loop {
            let request = ListHeadsRequest { after: after.clone(), limit: 1000, cell: String::new() };
            let page = self.list(request).await?;
            for head in page.heads.iter().filter(|head| head.moved_to.is_empty()) {
                if let Ok(Unit::Guild(guild_id)) = head.log.parse() {
                    splits.of_bucket.entry(Unit::bucket(guild_id).log()).or_default().push(guild_id);
                }
            }
            match page.heads.last() {
                Some(last) if page.more => after.clone_from(&last.log),
                _ => return Ok(splits),
            }
        }
    }

    pub(super) async fn claim_log(&self, request: ClaimRequest) -> Result<ClaimReply, Refusal> {
        parse(&request.log)?;
        let turn = if request.force { Turn::Ordered } else { Turn::Ours };
        let handle = self.logs.owner(&request.log, turn).await?;
        let head = handle.owned().await?;
        Ok(ClaimReply { head: Some(head), refusal: None })
    }
}
