//! Messages: what only the log's owner can check — that the channel and the message exist, and who wrote it.

use cell_proto::snowflake::message_bucket;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{Message, MessageCreated, MessageDeleted, MessageEdited, Reason, Refusal};
use prost::Message as _;

use super::judge::Asked;
use super::limits::{self, invalid};
use super::state::{Cells, Need, State};
use super::tables::{self, BODY, CONTENT, EDITED, EMBEDS, MESSAGES, id_key, kind, message_partition, object_key};
use super::{Ids, guilds};

pub(super) fn row(channel_id: i64, message_id: i64) -> Need {
    Need::Row {
        table: MESSAGES,
        partition: message_partition(channel_id, message_bucket(message_id)),
        clustering: id_key(message_id),
    }
}

/// A message from its row; none when the row holds no message (any more).
pub fn message_of(cells: &Cells) -> Option<Message> {
    let mut message = Message::decode(cells.get(BODY)?.as_slice()).ok()?;
    if let Some(content) = cells.get(CONTENT) {
        message.content = String::from_utf8(content.clone()).ok()?;
    }
    if let Some(embeds) = cells.get(EMBEDS) {
        message.embeds_json = String::from_utf8(embeds.clone()).ok()?;
    }
    if let Some(edited) = cells.get(EDITED) {
        message.edited_timestamp_ms = i64::from_be_bytes(edited.as_slice().try_into().ok()?);
    }
    Some(message)
}

pub(super) fn judge(state: &State, asked: &Asked<'_>, kind: &Kind, ids: &mut Ids) -> Result<Kind, Refusal> {
    match kind {
        Kind::MessageCreated(created) => created_message(state, asked, created, ids),
        Kind::MessageEdited(edited) => edited_message(state, asked, edited, *ids),
        Kind::MessageDeleted(deleted) => deleted_message(state, asked, deleted),
        _ => Err(invalid("not a change of a message")),
    }
}

fn channel(state: &State, guild_id: i64, channel_id: i64) -> Result<(), Refusal> {
    match state.object(guild_id, &object_key(kind::CHANNEL, channel_id)) {
        Some(_) => Ok(()),
        None => Err(Refusal::new(Reason::NotFound, "no such channel in this guild")),
    }
}

fn created_message(state: &State, asked: &Asked<'_>, created: &MessageCreated, ids: &mut Ids) -> Result<Kind, Refusal> {
    let message = created.message.as_ref().ok_or_else(|| invalid("message is missing"))?;
    limits::message(message)?;
    guilds::check_policy(state, asked, message.guild_id)?;
    channel(state, message.guild_id, message.channel_id)?;
    let mut message = message.clone();
    message.id = ids.draw();
    if message.timestamp_ms == 0 {
        message.timestamp_ms = ids.unix_ms;
    }
    Ok(Kind::MessageCreated(MessageCreated { message: Some(message) }))
}

fn existing(state: &State, channel_id: i64, message_id: i64) -> Result<Message, Refusal> {
    let cells = state.row(&row(channel_id, message_id));
    cells.and_then(message_of).ok_or_else(|| Refusal::new(Reason::NotFound, "no such message in this channel"))
}

fn edited_message(state: &State, asked: &Asked<'_>, edited: &MessageEdited, ids: Ids) -> Result<Kind, Refusal> {
    limits::edit(edited)?;
    guilds::check_policy(state, asked, edited.guild_id)?;
    channel(state, edited.guild_id, edited.channel_id)?;
    let message = existing(state, edited.channel_id, edited.message_id)?;
    if message.author.as_ref().map(|author| author.id) != Some(asked.actor_id) {
        return Err(Refusal::new(Reason::Forbidden, "only its author may edit a message"));
    }
    let mut edited = edited.clone();
    if edited.edited_timestamp_ms == 0 {
        edited.edited_timestamp_ms = ids.unix_ms;
    }
    Ok(Kind::MessageEdited(edited))
}

fn deleted_message(state: &State, asked: &Asked<'_>, deleted: &MessageDeleted) -> Result<Kind, Refusal> {
    guilds::check_policy(state, asked, deleted.guild_id)?;
    channel(state, deleted.guild_id, deleted.channel_id)?;
    existing(state, deleted.channel_id, deleted.message_id)?;
    Ok(Kind::MessageDeleted(*deleted))
}

/// The uses of an invite, from its row.
pub(super) fn uses(cells: &Cells) -> i32 {
    let bytes = cells.get(tables::USES).and_then(|bytes| <[u8; 4]>::try_from(bytes.as_slice()).ok());
    bytes.map_or(0, i32::from_be_bytes)
}
