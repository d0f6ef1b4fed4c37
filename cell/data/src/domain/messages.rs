//! Messages: what only the log's owner can check — that the channel and the message exist, and who wrote it; and which messages that
//! are deleted together lie side by side.

use std::collections::{BTreeMap, BTreeSet};

use cell_proto::snowflake::message_bucket;
use cell_proto::v1::change::Kind;
use cell_proto::v1::{
    IdRange, Message, MessageCreated, MessageDeleted, MessageEdited, MessagesDeleted, Reason, Refusal,
};
use prost::Message as _;

use super::judge::Asked;
use super::limits::{self, invalid};
use super::state::{Cells, Need, State};
use super::tables::{self, BODY, CONTENT, EDITED, EMBEDS, MESSAGES, id_key, kind, message_partition, object_key};
use super::{Ids, guilds};

/// As many messages side by side are worth a range tombstone; fewer get one each, so that ranges stay few beside what they delete.
pub const LEAST_RUN: usize = 16;

pub(super) fn row(channel_id: i64, message_id: i64) -> Need {
    Need::Row {
        table: MESSAGES,
        partition: message_partition(channel_id, message_bucket(message_id)),
        clustering: id_key(message_id),
    }
}

/// The rows between the first and the last of the messages, bucket by bucket.
pub(super) fn spans(deleted: &MessagesDeleted) -> impl Iterator<Item = Need> {
    let mut buckets: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for id in deleted.message_ids.iter().take(limits::MAX_BULK) {
        let (first, last) = buckets.entry(message_bucket(*id)).or_insert((*id, *id));
        (*first, *last) = ((*first).min(*id), (*last).max(*id));
    }
    let channel_id = deleted.channel_id;
    buckets.into_iter().map(move |(bucket, (first, last))| Need::Span {
        table: MESSAGES,
        partition: message_partition(channel_id, bucket),
        start: id_key(first),
        end: [id_key(last), vec![0]].concat(),
    })
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
        Kind::MessagesDeleted(deleted) => deleted_messages(state, asked, deleted),
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

/// Ids of messages that are not there are left out; where that was not read, a tombstone too many does no harm.
fn deleted_messages(state: &State, asked: &Asked<'_>, deleted: &MessagesDeleted) -> Result<Kind, Refusal> {
    limits::bulk(deleted)?;
    guilds::check_policy(state, asked, deleted.guild_id)?;
    channel(state, deleted.guild_id, deleted.channel_id)?;
    let wanted: BTreeSet<i64> = deleted.message_ids.iter().copied().collect();
    let (mut message_ids, mut ranges) = (Vec::new(), Vec::new());
    let mut left = wanted.iter().copied().peekable();
    for need in spans(deleted) {
        let Some(span) = state.span(&need) else { continue };
        let Need::Span { end, .. } = &need else { continue };
        while let Some(id) = left.next_if(|id| id_key(*id) < *end) {
            if span.has(&id_key(id)) != Some(false) {
                message_ids.push(id);
            }
        }
        runs(span.keys().filter_map(id_of), &wanted, asked.least_run, &mut ranges);
    }
    let (guild_id, channel_id) = (deleted.guild_id, deleted.channel_id);
    Ok(Kind::MessagesDeleted(MessagesDeleted { guild_id, channel_id, message_ids, ranges }))
}

fn id_of(key: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(key.try_into().ok()?))
}

/// Messages of one bucket, rising, of which some in a row are wanted, at least so many.
fn runs(present: impl Iterator<Item = i64>, wanted: &BTreeSet<i64>, least: usize, ranges: &mut Vec<IdRange>) {
    let mut run: Option<(IdRange, usize)> = None;
    let long = |(range, count): (IdRange, usize)| (count >= least).then_some(range);
    for id in present {
        match &mut run {
            Some((range, count)) if wanted.contains(&id) => (range.last, *count) = (id, *count + 1),
            None if wanted.contains(&id) => run = Some((IdRange { first: id, last: id }, 1)),
            _ => ranges.extend(run.take().and_then(long)),
        }
    }
    ranges.extend(run.and_then(long));
}

/// The uses of an invite, from its row.
pub(super) fn uses(cells: &Cells) -> i32 {
    let bytes = cells.get(tables::USES).and_then(|bytes| <[u8; 4]>::try_from(bytes.as_slice()).ok());
    bytes.map_or(0, i32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_run_is_worth_a_range_and_a_message_between_ends_it() {
        let found = |present: std::ops::Range<i64>, unwanted: &[i64]| {
            let wanted = (0..100).filter(|id| !unwanted.contains(id)).collect();
            let mut ranges = Vec::new();
            runs(present, &wanted, 16, &mut ranges);
            ranges.into_iter().map(|range| (range.first, range.last)).collect::<Vec<_>>()
        };
        assert_eq!(found(3..18, &[]), [], "fifteen");
        assert_eq!(found(3..19, &[]), [(3, 18)]);
        assert_eq!(found(0..100, &[2, 20, 35, 60]), [(3, 19), (36, 59), (61, 99)]);
        assert_eq!(found(80..120, &[]), [(80, 99)], "as far as it is wanted");
        assert_eq!(found(0..0, &[]), []);
    }
}
