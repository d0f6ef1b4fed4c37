//! Heads in bulk: listed per StorageCell, created once, read one by one. Creation never touches a head that exists.

use std::time::Duration;

use cell_proto::MAX_MESSAGE_BYTES;
use cell_proto::directory::{Member, Role};
use cell_proto::v1::data_service_client::DataServiceClient;
use cell_proto::v1::{
    CreateHeadsRequest, Head, InspectReply, InspectRequest, ListHeadsRequest, ReadGuildRequest, Reason,
};
use cell_runtime::View;
use tonic::transport::Channel;

use super::call::data_in_cell;
use crate::directory::Link;
use crate::error::ReconcileError;

const DEADLINE: Duration = Duration::from_secs(10);
/// How long the owner of a guild's log may take to say whether it knows the guild.
const GUILD_DEADLINE: Duration = Duration::from_secs(3);
/// How often a redirect is followed.
const MOST_REDIRECTS: usize = 3;
const PAGE: i32 = 2048;
/// Most pages read of one StorageCell: far above any fleet's number of logs.
const MOST_PAGES: usize = 512;
/// Heads created in one request.
const BATCH: usize = 512;

/// The live data services of a cell, by id.
pub fn data_members_of(view: &View, cell: &str) -> Vec<Member> {
    let mut members: Vec<Member> =
        view.members_of(Role::Data, cell).filter(|member| !member.draining).cloned().collect();
    members.sort_by(|a, b| a.id.cmp(&b.id));
    members
}

fn client(link: &Link, address: &str, verb: &'static str) -> Result<DataServiceClient<Channel>, ReconcileError> {
    let channel = link.channels.get(address).map_err(|error| failed(verb, address, error))?;
    Ok(DataServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

fn failed(verb: &'static str, address: &str, message: impl std::fmt::Display) -> ReconcileError {
    ReconcileError::Rpc { verb, address: address.to_owned(), message: message.to_string() }
}

async fn bounded<T>(
    verb: &'static str,
    address: &str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, ReconcileError> {
    let answer = tokio::time::timeout(DEADLINE, call)
        .await
        .map_err(|_| failed(verb, address, format!("no answer within {} s", DEADLINE.as_secs())))?;
    answer.map(tonic::Response::into_inner).map_err(|status| failed(verb, address, status.message()))
}

/// All heads of the StorageCell that the data service at `address` is on; only those of `cell`, if it is not empty.
///
/// # Errors
/// [`ReconcileError::Rpc`].
pub async fn all_heads(link: &Link, address: &str, cell: &str) -> Result<Vec<Head>, ReconcileError> {
    const VERB: &str = "list heads";
    let mut client = client(link, address, VERB)?;
    let mut heads: Vec<Head> = Vec::new();
    for _ in 0..MOST_PAGES {
        let after = heads.last().map(|head| head.log.clone()).unwrap_or_default();
        let request = ListHeadsRequest { after, limit: PAGE, cell: cell.to_owned() };
        let reply = bounded(VERB, address, client.list_heads(request)).await?;
        if let Some(refusal) = reply.refusal {
            return Err(failed(VERB, address, refusal.message));
        }
        let empty = reply.heads.is_empty();
        heads.extend(reply.heads);
        if !reply.more || empty {
            return Ok(heads);
        }
    }
    Err(failed(VERB, address, "more heads than one look can take"))
}

/// Whether a log's owner in `cell` knows a guild. Follows redirects a few times.
///
/// # Errors
/// [`ReconcileError::Rpc`] when nobody there can say.
pub async fn guild_exists(link: &Link, cell: &str, log: &str, guild_id: i64) -> Result<bool, ReconcileError> {
    const VERB: &str = "read guild";
    let mut last = failed(VERB, cell, "no live data service");
    for _ in 0..MOST_REDIRECTS {
        let member = data_in_cell(&link.directory.view(), cell, log).map(|member| member.grpc_address.clone());
        let Some(address) = member else { break };
        let mut client = client(link, &address, VERB)?;
        let first = async {
            let request = ReadGuildRequest { log: log.to_owned(), guild_id };
            client.read_guild(request).await?.into_inner().message().await
        };
        // Only the first chunk is looked at: it has the guild, or the refusal.
        let chunk = match tokio::time::timeout(GUILD_DEADLINE, first).await {
            Ok(Ok(chunk)) => chunk.unwrap_or_default(),
            Ok(Err(status)) => return Err(failed(VERB, &address, status.message())),
            Err(_) => return Err(failed(VERB, &address, format!("no answer within {} s", GUILD_DEADLINE.as_secs()))),
        };
        match chunk.refusal {
            None => return Ok(chunk.guild.is_some()),
            Some(refusal) if refusal.why() == Reason::NotFound => return Ok(false),
            Some(refusal) => {
                let Some(route) = &refusal.route else { return Err(failed(VERB, &address, refusal.message)) };
                link.directory.correct(route);
                last = failed(VERB, &address, refusal.message);
            }
        }
    }
    Err(last)
}

/// Creates heads at a cell's data service, each only if absent. Answers how many were new.
///
/// # Errors
/// [`ReconcileError::Rpc`].
pub async fn create_heads(link: &Link, address: &str, heads: Vec<Head>) -> Result<i32, ReconcileError> {
    const VERB: &str = "create heads";
    let mut client = client(link, address, VERB)?;
    let mut created = 0;
    for batch in heads.chunks(BATCH) {
        let request = CreateHeadsRequest { heads: batch.to_vec() };
        let reply = bounded(VERB, address, client.create_heads(request)).await?;
        if let Some(refusal) = reply.refusal {
            return Err(failed(VERB, address, refusal.message));
        }
        created += reply.created;
    }
    Ok(created)
}

/// Reads one head, serially, at a data service of `cell`.
///
/// # Errors
/// [`ReconcileError::Rpc`].
pub async fn inspect(link: &Link, cell: &str, log: &str) -> Result<InspectReply, ReconcileError> {
    const VERB: &str = "read head";
    let address = data_in_cell(&link.directory.view(), cell, log).map(|member| member.grpc_address.clone());
    let address = address.ok_or_else(|| failed(VERB, cell, "the cell has no live data service"))?;
    let mut client = client(link, &address, VERB)?;
    bounded(VERB, &address, client.inspect(InspectRequest { log: log.to_owned() })).await
}
