//! Reading a guild whole, in chunks: `as_of` is taken first, so whoever replays the entries after it on top has everything, whatever
//! was written while it was read.

use std::sync::Arc;

use cell_proto::v1::{Channel, GuildChunk, Member, ReadGuildRequest, ReadRowsRequest, Reason, Refusal, Role, Row};
use cell_store::Store;
use prost::Message;
use tokio::sync::mpsc;
use tonic::Status as RpcStatus;

use super::handle::LogHandle;
use super::logs::{Logs, unavailable};
use super::query::location;
use crate::domain::tables::{self, BODY, GUILD_OBJECTS, id_key, kind};
use crate::domain::{Cells, guild_row_of, invite_of, number};

/// Members of one chunk: well under a megabyte.
const PAGE: i32 = 1000;
/// Chunks on their way.
const AHEAD: usize = 4;

pub(super) type ChunkSender = mpsc::Sender<Result<GuildChunk, RpcStatus>>;

pub(super) fn channel() -> (ChunkSender, mpsc::Receiver<Result<GuildChunk, RpcStatus>>) {
    mpsc::channel(AHEAD)
}

pub(super) async fn run(logs: Arc<Logs>, handle: LogHandle, request: ReadGuildRequest, out: ChunkSender) {
    if let Err(refusal) = read(&handle, request.guild_id, &out).await {
        let refusal = logs.redirect(&handle.log, refusal).await;
        drop(out.send(Ok(GuildChunk { refusal: Some(refusal), ..GuildChunk::default() })).await);
    }
}

pub(super) fn cells_of(row: &Row) -> Cells {
    row.cells.iter().map(|cell| (cell.column.clone(), cell.value.clone())).collect()
}

/// Pages through the objects of one kind.
struct Pages<'a> {
    store: &'a Arc<dyn Store>,
    guild_id: i64,
    next: Option<Vec<u8>>,
    kind: u8,
}

impl Pages<'_> {
    async fn next(&mut self) -> Result<Option<Vec<Row>>, Refusal> {
        let Some(start) = self.next.take() else { return Ok(None) };
        let request = ReadRowsRequest {
            table: GUILD_OBJECTS.to_owned(),
            partition: id_key(self.guild_id),
            start,
            end: vec![self.kind + 1],
            limit: PAGE,
            reverse: false,
        };
        let reply = self.store.read_rows(request).await.map_err(|error| unavailable(&error))?;
        if reply.more {
            self.next = reply.rows.last().map(|row| [row.clustering.as_slice(), &[0]].concat());
        }
        Ok(Some(reply.rows))
    }
}

fn decode<M: Message + Default>(row: &Row) -> Option<M> {
    let body = row.cells.iter().find(|cell| cell.column == BODY)?;
    M::decode(body.value.as_slice()).ok()
}

async fn read(handle: &LogHandle, guild_id: i64, out: &ChunkSender) -> Result<(), Refusal> {
    let head = handle.owned().await?;
    let store = &handle.store()?;
    location(store, handle, guild_id).await?;
    let as_of = *handle.shared.applied.borrow();
    let pages = |kind: u8| Pages { store, guild_id, next: Some(vec![kind]), kind };
    let term_row = pages(kind::TERM).next().await?.unwrap_or_default();
    let guild_term = term_row.first().and_then(|row| number(&cells_of(row), tables::TERM)).unwrap_or(0);
    let guild_rows = pages(kind::GUILD).next().await?.unwrap_or_default();
    let guild = guild_rows.first().and_then(|row| guild_row_of(&cells_of(row)));
    let guild = guild.ok_or_else(|| Refusal::new(Reason::NotFound, "no such guild"))?;
    let blank = GuildChunk { as_of, guild_term, term: head.term, ..GuildChunk::default() };
    let send = |chunk: GuildChunk| async move {
        out.send(Ok(chunk)).await.map_err(|_| Refusal::new(Reason::UnknownOutcome, "the reader went away"))
    };
    send(GuildChunk { guild: Some(guild), ..blank.clone() }).await?;
    for kind in [kind::ROLE, kind::CHANNEL, kind::INVITE, kind::MEMBER] {
        let mut pages = pages(kind);
        while let Some(rows) = pages.next().await? {
            let mut chunk = blank.clone();
            match kind {
                kind::ROLE => chunk.roles = rows.iter().filter_map(decode::<Role>).collect(),
                kind::CHANNEL => chunk.channels = rows.iter().filter_map(decode::<Channel>).collect(),
                kind::INVITE => chunk.invites = rows.iter().filter_map(|row| invite_of(&cells_of(row))).collect(),
                _ => chunk.members = rows.iter().filter_map(decode::<Member>).collect(),
            }
            send(chunk).await?;
        }
    }
    // An owner that lost the log meanwhile must not pass for one.
    handle.owned().await?;
    send(GuildChunk { done: true, ..blank }).await
}
