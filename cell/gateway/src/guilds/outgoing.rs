//! What one log entry tells sessions: events, serialised once, with who may get them. Pure.

use std::sync::Arc;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Channel, Entry, Guild, Member, Message, MessageEdited, Role, Typing, User};
use serde_json::{Value, json};

use crate::wire::event::Event;
use crate::wire::intents;
use crate::wire::objects::{self, Names};

/// What applying an entry asks of the fan-out, in order.
#[derive(Debug)]
pub enum Effect {
    /// Tell sessions.
    Send(Outgoing),
    /// Who sees which channel may have changed.
    Visibility(Visibility),
    /// A user became a member: its sessions here get the guild.
    Joined(i64),
    /// A user is no member any more: its sessions here lose the guild.
    Left(i64),
    /// The guild was deleted.
    GuildGone,
}

/// Whose view of the channels changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// Anyone's.
    Everyone,
    /// One user's.
    Of(i64),
}

/// Who gets an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Every session in the guild.
    Guild,
    /// Sessions that see this channel.
    Channel(i64),
}

/// One event on its way.
#[derive(Debug)]
pub struct Outgoing {
    /// Who gets it.
    pub audience: Audience,
    /// Intent bits of which one is needed.
    pub intents: u32,
    /// This user's sessions need no intent; 0 for none.
    pub always: i64,
    /// The event.
    pub event: Arc<Event>,
    /// What sessions without the content intent get.
    pub bare: Option<Bare>,
}

/// The form without content.
#[derive(Debug)]
pub struct Bare {
    /// The event without content.
    pub event: Arc<Event>,
    /// Users who get the content all the same: the author and the mentioned.
    pub readers: Vec<i64>,
}

fn to_guild(bits: u32, event: Arc<Event>) -> Effect {
    Effect::Send(Outgoing { audience: Audience::Guild, intents: bits, always: 0, event, bare: None })
}

fn to_channel(channel_id: i64, bits: u32, event: Arc<Event>) -> Effect {
    Effect::Send(Outgoing { audience: Audience::Channel(channel_id), intents: bits, always: 0, event, bare: None })
}

/// GUILD_UPDATE.
pub fn guild_update<'a>(guild: &Guild, roles: impl Iterator<Item = &'a Role>) -> Effect {
    to_guild(intents::GUILDS, Event::new("GUILD_UPDATE", &objects::partial_guild(guild, roles.map(objects::role))))
}

/// CHANNEL_CREATE.
pub fn channel_create(channel: &Channel) -> Effect {
    to_channel(channel.id, intents::GUILDS, channel_event("CHANNEL_CREATE", channel))
}

/// CHANNEL_UPDATE.
pub fn channel_update(channel: &Channel) -> Effect {
    to_channel(channel.id, intents::GUILDS, channel_event("CHANNEL_UPDATE", channel))
}

/// CHANNEL_DELETE.
pub fn channel_delete(channel: &Channel) -> Effect {
    to_channel(channel.id, intents::GUILDS, channel_event("CHANNEL_DELETE", channel))
}

/// An event whose body is a channel.
pub fn channel_event(name: &'static str, channel: &Channel) -> Arc<Event> {
    Event::new(name, &objects::channel(channel))
}

/// GUILD_ROLE_CREATE or GUILD_ROLE_UPDATE.
pub fn role_put(guild_id: i64, role: &Role, known: bool) -> Effect {
    let name = if known { "GUILD_ROLE_UPDATE" } else { "GUILD_ROLE_CREATE" };
    let body = json!({ "guild_id": guild_id.to_string(), "role": objects::role(role) });
    to_guild(intents::GUILDS, Event::new(name, &body))
}

/// GUILD_ROLE_DELETE.
pub fn role_delete(guild_id: i64, role_id: i64) -> Effect {
    let body = json!({ "guild_id": guild_id.to_string(), "role_id": role_id.to_string() });
    to_guild(intents::GUILDS, Event::new("GUILD_ROLE_DELETE", &body))
}

fn member_event(name: &'static str, guild_id: i64, member: &Member) -> Outgoing {
    let mut body = objects::member(member);
    body["guild_id"] = guild_id.to_string().into();
    let event = Event::new(name, &body);
    Outgoing { audience: Audience::Guild, intents: intents::GUILD_MEMBERS, always: 0, event, bare: None }
}

/// GUILD_MEMBER_ADD.
pub fn member_add(guild_id: i64, member: &Member) -> Effect {
    Effect::Send(member_event("GUILD_MEMBER_ADD", guild_id, member))
}

/// GUILD_MEMBER_UPDATE; the member itself gets it whatever its intents.
pub fn member_update(guild_id: i64, member: &Member) -> Effect {
    let always = super::replica::user_id(member);
    Effect::Send(Outgoing { always, ..member_event("GUILD_MEMBER_UPDATE", guild_id, member) })
}

/// GUILD_MEMBER_REMOVE.
pub fn member_remove(guild_id: i64, user: &User) -> Effect {
    let body = json!({ "guild_id": guild_id.to_string(), "user": objects::user(user) });
    to_guild(intents::GUILD_MEMBERS, Event::new("GUILD_MEMBER_REMOVE", &body))
}

/// GUILD_DELETE: the user left, or (`unavailable`) the guild cannot be reached.
pub fn guild_delete(guild_id: i64) -> Arc<Event> {
    Event::new("GUILD_DELETE", &json!({ "id": guild_id.to_string() }))
}

/// TYPING_START.
pub fn typing(of: &Typing, member: Option<&Member>) -> Effect {
    let mut body = json!({
        "channel_id": of.channel_id.to_string(),
        "guild_id": of.guild_id.to_string(),
        "user_id": of.user_id.to_string(),
        "timestamp": of.at_ms / 1000,
    });
    if let Some(member) = member {
        body["member"] = objects::member(member);
    }
    to_channel(of.channel_id, intents::GUILD_MESSAGE_TYPING, Event::new("TYPING_START", &body))
}

/// What messages and invites tell; nothing for entries that concern no session.
pub fn of_message_or_invite(guild_id: i64, kind: &Kind, entry: &Entry, names: &dyn Names) -> Option<Effect> {
    match kind {
        Kind::MessageCreated(change) => message_create(guild_id, change.message.as_ref()?, names),
        Kind::MessageEdited(change) => Some(message_update(guild_id, change, entry, names)),
        Kind::MessageDeleted(change) => {
            let body = json!({
                "id": change.message_id.to_string(),
                "channel_id": change.channel_id.to_string(),
                "guild_id": guild_id.to_string(),
            });
            Some(to_channel(change.channel_id, intents::GUILD_MESSAGES, Event::new("MESSAGE_DELETE", &body)))
        }
        // Nothing was there: nobody is told.
        Kind::MessagesDeleted(change) if change.message_ids.is_empty() => None,
        Kind::MessagesDeleted(change) => {
            let body = json!({
                "ids": change.message_ids.iter().map(i64::to_string).collect::<Vec<_>>(),
                "channel_id": change.channel_id.to_string(),
                "guild_id": guild_id.to_string(),
            });
            Some(to_channel(change.channel_id, intents::GUILD_MESSAGES, Event::new("MESSAGE_DELETE_BULK", &body)))
        }
        Kind::InvitePut(change) => {
            let invite = change.invite.as_ref()?;
            let event = Event::new("INVITE_CREATE", &objects::invite(invite, None, None, 0));
            Some(to_channel(invite.channel_id, intents::GUILD_INVITES, event))
        }
        Kind::InviteDeleted(change) => {
            let body = json!({ "guild_id": guild_id.to_string(), "code": change.code });
            Some(to_guild(intents::GUILD_INVITES, Event::new("INVITE_DELETE", &body)))
        }
        _ => None,
    }
}

fn message_create(guild_id: i64, message: &Message, names: &dyn Names) -> Option<Effect> {
    let author_id = message.author.as_ref()?.id;
    let mut body = objects::message(message, names);
    body["guild_id"] = guild_id.to_string().into();
    if let Some(member) = names.member(author_id) {
        body["member"] = objects::partial_member(&member);
    }
    let readers = message.mention_user_ids.iter().copied().chain([author_id]).collect();
    Some(message_event("MESSAGE_CREATE", message.channel_id, &body, readers))
}

fn message_event(name: &'static str, channel_id: i64, body: &Value, readers: Vec<i64>) -> Effect {
    let bare = Bare { event: Event::new(name, &objects::without_content(body)), readers };
    Effect::Send(Outgoing {
        audience: Audience::Channel(channel_id),
        intents: intents::GUILD_MESSAGES,
        always: 0,
        event: Event::new(name, body),
        bare: Some(bare),
    })
}

/// The entry holds only what was edited, and so does the event, with the author, who is the actor: only authors edit.
fn message_update(guild_id: i64, change: &MessageEdited, entry: &Entry, names: &dyn Names) -> Effect {
    let author = names.user(entry.actor_id).unwrap_or_else(|| objects::unknown_user(entry.actor_id));
    let edited_ms =
        if change.edited_timestamp_ms == 0 { entry.timestamp_us / 1000 } else { change.edited_timestamp_ms };
    let message = Message {
        id: change.message_id,
        channel_id: change.channel_id,
        guild_id,
        author: Some(author),
        content: change.content.clone(),
        timestamp_ms: cell_proto::snowflake::timestamp_ms(change.message_id),
        edited_timestamp_ms: edited_ms,
        embeds_json: change.embeds_json.clone(),
        ..Message::default()
    };
    let mut body = objects::message(&message, names);
    body["guild_id"] = guild_id.to_string().into();
    if !change.embeds_set
        && let Some(object) = body.as_object_mut()
    {
        object.remove("embeds");
    }
    message_event("MESSAGE_UPDATE", change.channel_id, &body, vec![entry.actor_id])
}
