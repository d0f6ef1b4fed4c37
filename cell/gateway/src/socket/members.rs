//! Answers op 8: chunks of members, page by page, so that live events go between them.

use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::MembersRequest as Ask;
use serde_json::json;
use tokio::time::Instant;

use crate::calls::Deadline;
use crate::gateway::Gateway;
use crate::session::registry::Slot;
use crate::wire::event::Event;
use crate::wire::objects;
use crate::wire::request::{CHUNK_MEMBERS, Chunk, MembersRequest, Wanted};

const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes a session may be behind when the next page is asked for: pages must never push it off its buffer.
const MAX_BACKLOG_BYTES: usize = 256 * 1024;
/// How long a page waits for the session's socket, and how often it looks.
const CATCH_UP: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Answers a request in the background. A guild the session does not have is answered by nothing, as by the original.
pub fn answer(gateway: &Arc<Gateway>, slot: &Arc<Slot>, request: MembersRequest) {
    let (gateway, slot) = (gateway.clone(), slot.clone());
    {
        let mut machine = slot.machine.lock();
        if !machine.guilds.contains(&request.guild_id) {
            return;
        }
        if request.wanted == Wanted::All
            && let Err(wait_ms) = machine.admit_full_fetch(request.guild_id, gateway.now_ms())
        {
            drop(machine);
            slot.push(rate_limited(&request, wait_ms));
            return;
        }
    }
    tokio::spawn(async move {
        let done = match &request.wanted {
            Wanted::All => all(&gateway, &slot, &request).await,
            Wanted::Users(_) | Wanted::Prefix { .. } => some(&gateway, &slot, &request).await,
        };
        if done.is_none() {
            tracing::info!(
                guild_id = request.guild_id,
                "members were asked for and not all told: no owner answered, or the socket took nothing, in time"
            );
        }
    });
}

fn rate_limited(request: &MembersRequest, wait_ms: u64) -> Arc<Event> {
    let meta = json!({ "guild_id": request.guild_id.to_string(), "nonce": request.nonce });
    let body = json!({ "opcode": 8, "retry_after": wait_ms as f64 / 1000.0, "meta": meta });
    Event::new("RATE_LIMITED", &body)
}

fn push(slot: &Slot, chunk: &Chunk<'_>) {
    slot.push(Event::new("GUILD_MEMBERS_CHUNK", &chunk.body()));
}

async fn some(gateway: &Gateway, slot: &Slot, request: &MembersRequest) -> Option<()> {
    let guild_id = request.guild_id;
    let ask = match &request.wanted {
        Wanted::Prefix { prefix, limit } => {
            Ask { guild_id, name_prefix: prefix.clone(), by_prefix: true, limit: *limit, ..Ask::default() }
        }
        Wanted::Users(ids) => Ask { guild_id, user_ids: ids.clone(), limit: 100, ..Ask::default() },
        Wanted::All => return None,
    };
    let nobody = matches!(&request.wanted, Wanted::Users(ids) if ids.is_empty());
    let (members, not_found) = if nobody {
        (Vec::new(), Vec::new())
    } else {
        let reply = gateway.calls.members(ask, Deadline::after(PAGE_TIMEOUT)).await.ok()?;
        (reply.members.iter().map(objects::member).collect(), reply.not_found)
    };
    push(slot, &Chunk { guild_id, members, not_found, index: 0, count: 1, nonce: request.nonce.as_deref() });
    Some(())
}

/// The number of chunks is fixed by the first page; members that join meanwhile come as events.
async fn all(gateway: &Gateway, slot: &Slot, request: &MembersRequest) -> Option<()> {
    let (guild_id, nonce) = (request.guild_id, request.nonce.as_deref());
    let (mut after_user_id, mut index, mut count) = (0, 0, 1);
    while index < count {
        let ask = Ask { guild_id, after_user_id, limit: CHUNK_MEMBERS as i32, ..Ask::default() };
        let reply = gateway.calls.members(ask, Deadline::after(PAGE_TIMEOUT)).await.ok()?;
        if index == 0 {
            count = (reply.member_count.max(1) as usize).div_ceil(CHUNK_MEMBERS);
        }
        after_user_id = reply.members.last().map_or(i64::MAX, crate::guilds::replica::user_id);
        let members = reply.members.iter().map(objects::member).collect();
        push(slot, &Chunk { guild_id, members, not_found: Vec::new(), index, count, nonce });
        if slot.machine.lock().has_ended() {
            return Some(());
        }
        index += 1;
        if index < count {
            caught_up(slot).await?;
        }
    }
    Some(())
}

/// Waits until the session's socket has taken most of what was pushed; `None` when it does not in time.
async fn caught_up(slot: &Slot) -> Option<()> {
    let deadline = Instant::now() + CATCH_UP;
    while !slot.machine.lock().has_caught_up(MAX_BACKLOG_BYTES) {
        if slot.machine.lock().has_ended() || Instant::now() >= deadline {
            return None;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Some(())
}
