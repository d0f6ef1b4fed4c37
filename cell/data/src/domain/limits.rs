//! Bounds on what an entry may hold. A refusal names the field and the bound, never the text.

use std::collections::HashSet;

use cell_proto::snowflake::{message_bucket, timestamp_ms};
use cell_proto::v1::{
    Channel, Guild, Member, Message, MessageEdited, MessagesDeleted, ReadStatesAdvanced, Reason, Refusal, Role, User,
};

/// Channels of a guild.
pub(super) const MAX_CHANNELS: usize = 500;
/// Roles of a guild.
pub(super) const MAX_ROLES: usize = 250;
const MAX_OVERWRITES: usize = 500;
const MAX_CONTENT: usize = 2000;
const MAX_EMBEDS_BYTES: usize = 32 * 1024;
const MAX_MENTIONS: usize = 200;
const MAX_MEMBER_ROLES: usize = MAX_ROLES;
/// Messages deleted together.
pub(super) const MAX_BULK: usize = 100;
/// Ten-day buckets they may lie in: enough for fourteen days.
const MAX_BULK_BUCKETS: usize = 3;
/// Read states advanced together.
pub(super) const MAX_READ_STATES: usize = 100;
/// How far a message that was read may lie ahead of the owner's clock, in milliseconds.
const READ_AHEAD_MS: i64 = 300_000;

pub(super) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(Reason::Invalid, message)
}

fn characters(field: &str, text: &str, least: usize, most: usize) -> Result<(), Refusal> {
    // Counting stops early: a hostile megabyte is not walked.
    let count = text.chars().take(most + 1).count();
    if (least..=most).contains(&count) {
        Ok(())
    } else {
        Err(invalid(format!("{field} must have {least}–{most} characters")))
    }
}

fn at_most(field: &str, count: usize, most: usize) -> Result<(), Refusal> {
    if count <= most { Ok(()) } else { Err(invalid(format!("{field} may have at most {most} elements"))) }
}

fn embeds(json: &str) -> Result<(), Refusal> {
    if json.len() <= MAX_EMBEDS_BYTES {
        Ok(())
    } else {
        Err(invalid(format!("embeds may have at most {MAX_EMBEDS_BYTES} bytes")))
    }
}

pub(super) fn message(message: &Message) -> Result<(), Refusal> {
    let least = usize::from(message.embeds_json.is_empty());
    characters("content", &message.content, least, MAX_CONTENT)?;
    embeds(&message.embeds_json)?;
    characters("nonce", &message.nonce, 0, 25)?;
    at_most("mentions", message.mention_user_ids.len() + message.mention_role_ids.len(), MAX_MENTIONS)?;
    if message.id != 0 {
        return Err(invalid("message.id is assigned by the log's owner and must be 0"));
    }
    if message.author.as_ref().is_none_or(|author| author.id == 0) {
        return Err(invalid("message.author must name a user"));
    }
    Ok(())
}

pub(super) fn edit(edit: &MessageEdited) -> Result<(), Refusal> {
    characters("content", &edit.content, 0, MAX_CONTENT)?;
    embeds(&edit.embeds_json)?;
    if edit.content.is_empty() && !edit.embeds_set {
        Err(invalid("the edit changes nothing: set content or embeds"))
    } else {
        Ok(())
    }
}

pub(super) fn bulk(deleted: &MessagesDeleted) -> Result<(), Refusal> {
    let ids = &deleted.message_ids;
    let distinct = ids.iter().collect::<HashSet<_>>().len();
    if !(1..=MAX_BULK).contains(&ids.len()) || distinct != ids.len() || ids.iter().any(|id| *id <= 0) {
        return Err(invalid(format!("message_ids must hold 1–{MAX_BULK} different ids")));
    }
    let buckets = ids.iter().map(|id| message_bucket(*id)).collect::<HashSet<_>>().len();
    if buckets > MAX_BULK_BUCKETS {
        return Err(invalid("message_ids must lie within fourteen days"));
    }
    Ok(())
}

pub(super) fn read_states(read: &ReadStatesAdvanced, unix_ms: i64) -> Result<(), Refusal> {
    let states = &read.states;
    let channels = states.iter().map(|state| state.channel_id).collect::<HashSet<_>>().len();
    if !(1..=MAX_READ_STATES).contains(&states.len()) || channels != states.len() {
        return Err(invalid(format!("states must hold 1–{MAX_READ_STATES} states of different channels")));
    }
    if states.iter().any(|state| state.channel_id <= 0 || state.last_message_id <= 0) {
        return Err(invalid("states.channel_id and states.last_message_id must be above 0"));
    }
    // Nothing goes back, so that one too far ahead would stay.
    if states.iter().any(|state| timestamp_ms(state.last_message_id) > unix_ms + READ_AHEAD_MS) {
        return Err(invalid("states.last_message_id lies in the future"));
    }
    Ok(())
}

pub(super) fn guild(guild: &Guild) -> Result<(), Refusal> {
    characters("guild.name", &guild.name, 1, 100)?;
    characters("guild.description", &guild.description, 0, 300)?;
    if guild.id > 0 && guild.owner_id > 0 {
        Ok(())
    } else {
        Err(invalid("guild.id and guild.owner_id must be above 0"))
    }
}

pub(super) fn channel(channel: &Channel) -> Result<(), Refusal> {
    characters("channel.name", &channel.name, 1, 100)?;
    characters("channel.topic", &channel.topic, 0, 1024)?;
    at_most("channel.overwrites", channel.overwrites.len(), MAX_OVERWRITES)?;
    if !(0..=21_600).contains(&channel.rate_limit_per_user_seconds) {
        return Err(invalid("channel.rate_limit_per_user_seconds must be 0–21600"));
    }
    Ok(())
}

pub(super) fn role(role: &Role) -> Result<(), Refusal> {
    characters("role.name", &role.name, 1, 100)
}

pub(super) fn user(user: &User) -> Result<(), Refusal> {
    characters("user.name", &user.name, 1, 100)?;
    characters("user.global_name", &user.global_name, 0, 100)?;
    if user.id > 0 { Ok(()) } else { Err(invalid("user.id must be above 0")) }
}

pub(super) fn member(member: &Member) -> Result<(), Refusal> {
    let Some(of) = &member.user else { return Err(invalid("member.user must name a user")) };
    user(of)?;
    characters("member.nick", &member.nick, 0, 32)?;
    at_most("member.role_ids", member.role_ids.len(), MAX_MEMBER_ROLES)
}
