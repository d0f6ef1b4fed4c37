//! What the operator asks for beside moves: heads, inspection, ordered claims.

use cell_proto::unit::Unit;
use cell_proto::v1::{
    ClaimReply, ClaimRequest, CreateHeadsReply, CreateHeadsRequest, Head, InspectReply, InspectRequest, ListHeadsReply,
    ListHeadsRequest, Reason, Refusal,
};
use futures::{StreamExt, TryStreamExt};

use super::logs::{Turn, parse, unavailable};
use super::service::DataServer;
use super::task::{Inspection, Message};

/// Heads created at once.
const PARALLEL: usize = 64;
impl DataServer {
    pub(super) async fn create(&self, request: CreateHeadsRequest) -> Result<CreateHeadsReply, Refusal> {
        for head in &request.heads {
            let unit = parse(&head.log)?;
            if !matches!(unit, Unit::Bucket(_)) || head.cell.is_empty() {
                return Err(Refusal::new(Reason::Invalid, "only heads of buckets are created, each with a cell"));
            }
        }
        let store = &self.logs.context.store;
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
        self.logs.context.store.list_heads(request).await.map_err(|error| unavailable(&error))
    }

    pub(super) async fn inspect_log(&self, request: InspectRequest) -> Result<InspectReply, Refusal> {
        let unit = parse(&request.log)?;
        let head = self.logs.context.store.read_head(&request.log).await.map_err(|error| unavailable(&error))?;
        let handle = self.logs.get(&request.log);
        let inspected = match &handle {
            Some(handle) => handle.ask(|answer| Message::Inspect { answer }).await.ok(),
            None => None,
        };
        let owned_here =
            inspected.is_some() && head.as_ref().is_some_and(|head| head.appender == self.logs.routes.member_id);
        let inspection = match inspected {
            Some(inspection) => inspection,
            None => self.read_position(&request.log).await?,
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
        })
    }

    /// Last and applied number of a log that is not owned here, as far as the store tells.
    async fn read_position(&self, log: &str) -> Result<Inspection, Refusal> {
        let store = &self.logs.context.store;
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
        Ok(Inspection { last, applied, closed_by_run: String::new() })
    }

    /// Guilds of a bucket whose own logs are open.
    async fn split_out_of(&self, bucket: Unit) -> Result<Vec<i64>, Refusal> {
        let mut after = "g".to_owned();
        let mut guilds = Vec::new();
        loop {
            let request = ListHeadsRequest { after: after.clone(), limit: 1000, cell: String::new() };
            let page = self.list(request).await?;
            let open = page.heads.iter().filter(|head| head.moved_to.is_empty());
            guilds.extend(open.filter_map(|head| match head.log.parse() {
                Ok(Unit::Guild(guild_id)) if Unit::bucket(guild_id) == bucket => Some(guild_id),
                _ => None,
            }));
            match page.heads.last() {
                Some(last) if page.more => after.clone_from(&last.log),
                _ => return Ok(guilds),
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
