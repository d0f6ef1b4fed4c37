//! Guilds, channels, roles, members and invites as JSON.

use cell_proto::v1::{Channel, Guild, Invite, Member, Overwrite, Role};
use serde_json::{Map, Value, json};

use super::{id_or_null, ids, iso8601, text_or_null, user};

/// Guilds with more members are told to be large: the protocol's default threshold.
const LARGE_ABOVE: i32 = 50;

/// What a whole guild object is made of.
#[derive(Debug)]
pub struct GuildParts<'a> {
    /// The guild.
    pub guild: &'a Guild,
    /// All roles.
    pub roles: Vec<&'a Role>,
    /// The channels the reader may see.
    pub channels: Vec<&'a Channel>,
    /// Members to tell of: the reader's own.
    pub members: Vec<&'a Member>,
    /// How many members there are.
    pub member_count: i32,
}

/// A whole guild, as in GUILD_CREATE and REST: what all its readers see and what is the reader's own.
pub fn guild(parts: &GuildParts<'_>) -> Value {
    let mut fields = shared_guild(parts);
    fields.extend(own_guild(&parts.members));
    Value::Object(fields)
}

/// The fields of a guild that are the reader's own.
pub fn own_guild(members: &[&Member]) -> Map<String, Value> {
    let joined_at = members.first().map_or(Value::Null, |member| iso8601(member.joined_at_ms).into());
    let members = members.iter().map(|one| member(one)).collect();
    Map::from_iter([("members".to_owned(), members), ("joined_at".to_owned(), joined_at)])
}

/// The fields of a guild that are the same for all who may see the same channels.
pub fn shared_guild(parts: &GuildParts<'_>) -> Map<String, Value> {
    let mut value = bare_guild(parts.guild);
    for (key, field) in [
        ("roles", parts.roles.iter().map(|one| role(one)).collect()),
        ("channels", parts.channels.iter().map(|one| channel(one)).collect()),
        ("member_count", parts.member_count.into()),
        ("approximate_member_count", parts.member_count.into()),
        ("large", (parts.member_count > LARGE_ABOVE).into()),
        ("unavailable", false.into()),
    ] {
        value[key] = field;
    }
    for empty in
        ["threads", "presences", "voice_states", "stage_instances", "guild_scheduled_events", "soundboard_sounds"]
    {
        value[empty] = json!([]);
    }
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn bare_guild(guild: &Guild) -> Value {
    json!({
        "id": guild.id.to_string(),
        "name": guild.name,
        "owner_id": guild.owner_id.to_string(),
        "description": text_or_null(&guild.description),
        "icon": null, "splash": null, "discovery_splash": null, "banner": null, "home_header": null,
        "afk_channel_id": null, "afk_timeout": 300,
        "application_id": null, "system_channel_id": null, "system_channel_flags": 0,
        "rules_channel_id": null, "public_updates_channel_id": null, "safety_alerts_channel_id": null,
        "verification_level": 0, "default_message_notifications": 0, "explicit_content_filter": 0,
        "mfa_level": 0, "nsfw_level": 0, "nsfw": false,
        "premium_tier": 0, "premium_subscription_count": 0, "premium_progress_bar_enabled": false,
        "preferred_locale": "en-US", "region": "deprecated",
        "features": [], "emojis": [], "stickers": [],
        "vanity_url_code": null, "widget_enabled": false, "widget_channel_id": null,
        "max_members": 500_000, "max_presences": null, "max_video_channel_users": 25,
        "max_stage_video_channel_users": 50, "incidents_data": null,
    })
}

/// A guild as in GUILD_UPDATE: without channels and members.
pub fn partial_guild(of: &Guild, roles: impl IntoIterator<Item = Value>) -> Value {
    let mut value = bare_guild(of);
    value["roles"] = roles.into_iter().collect();
    value
}

/// A role.
pub fn role(role: &Role) -> Value {
    json!({
        "id": role.id.to_string(),
        "name": role.name,
        "color": role.color,
        "colors": { "primary_color": role.color, "secondary_color": null, "tertiary_color": null },
        "hoist": role.hoist,
        "icon": null, "unicode_emoji": null,
        "position": role.position,
        "permissions": role.permissions.to_string(),
        "managed": false,
        "mentionable": role.mentionable,
        "flags": 0,
    })
}

/// Permission overwrites.
pub fn overwrite_list(overwrites: &[Overwrite]) -> Value {
    let one = |overwrite: &Overwrite| {
        json!({
            "id": overwrite.id.to_string(),
            "type": overwrite.r#type,
            "allow": overwrite.allow.to_string(),
            "deny": overwrite.deny.to_string(),
        })
    };
    overwrites.iter().map(one).collect()
}

/// A channel.
pub fn channel(channel: &Channel) -> Value {
    let mut value = json!({
        "id": channel.id.to_string(),
        "guild_id": channel.guild_id.to_string(),
        "type": channel.r#type,
        "name": channel.name,
        "position": channel.position,
        "topic": text_or_null(&channel.topic),
        "parent_id": id_or_null(channel.parent_id),
        "nsfw": channel.nsfw,
        "permission_overwrites": overwrite_list(&channel.overwrites),
        "rate_limit_per_user": channel.rate_limit_per_user_seconds,
        "last_message_id": null,
        "flags": 0,
    });
    if channel.r#type == 2 {
        value["bitrate"] = 64_000.into();
        value["user_limit"] = 0.into();
        value["rtc_region"] = Value::Null;
    }
    value
}

/// A member of a guild.
pub fn member(member: &Member) -> Value {
    json!({
        "user": member.user.as_ref().map(user),
        "nick": text_or_null(&member.nick),
        "avatar": null, "banner": null,
        "roles": ids(&member.role_ids),
        "joined_at": iso8601(member.joined_at_ms),
        "premium_since": null,
        "deaf": member.deaf,
        "mute": member.mute,
        "flags": 0,
        "pending": false,
        "communication_disabled_until":
            if member.timed_out_until_ms == 0 { Value::Null } else { iso8601(member.timed_out_until_ms).into() },
    })
}

/// An invite, with what is known of its guild, channel and inviter.
pub fn invite(invite: &Invite, of: Option<&Guild>, to: Option<&Channel>, member_count: i32) -> Value {
    let expires_at = match invite.max_age_seconds {
        0 => Value::Null,
        seconds => iso8601(invite.created_at_ms + i64::from(seconds) * 1000).into(),
    };
    let guild = of.map(|guild| {
        json!({
            "id": guild.id.to_string(), "name": guild.name, "description": text_or_null(&guild.description),
            "icon": null, "splash": null, "banner": null, "features": [], "verification_level": 0, "nsfw_level": 0,
            "vanity_url_code": null, "premium_subscription_count": 0, "nsfw": false,
        })
    });
    let channel =
        to.map(|channel| json!({ "id": channel.id.to_string(), "name": channel.name, "type": channel.r#type }));
    json!({
        "type": 0,
        "code": invite.code,
        "guild_id": invite.guild_id.to_string(),
        "channel_id": id_or_null(invite.channel_id),
        "guild": guild,
        "channel": channel,
        "inviter": if invite.inviter_id == 0 { Value::Null } else { user(&super::unknown_user(invite.inviter_id)) },
        "created_at": iso8601(invite.created_at_ms),
        "expires_at": expires_at,
        "max_age": invite.max_age_seconds,
        "max_uses": invite.max_uses,
        "uses": invite.uses,
        "temporary": false,
        "approximate_member_count": member_count,
        "approximate_presence_count": 0,
        "flags": 0,
    })
}

#[cfg(test)]
mod tests {
    use cell_proto::v1::User;

    use super::*;

    fn has(value: &Value, keys: &str) {
        for key in keys.split_whitespace() {
            assert!(value.get(key).is_some(), "{key} is missing");
        }
    }

    #[test]
    fn every_field_that_a_library_requires_is_there() {
        let base = Guild { id: 1, owner_id: 2, ..Guild::default() };
        let own = Member { user: Some(User { id: 2, ..User::default() }), ..Member::default() };
        let first = Role { id: 1, ..Role::default() };
        let parts =
            GuildParts { guild: &base, roles: vec![&first], channels: vec![], members: vec![&own], member_count: 1 };
        let value = guild(&parts);
        has(
            &value,
            "id name owner_id afk_timeout verification_level default_message_notifications explicit_content_filter mfa_level \
             nsfw_level premium_tier premium_progress_bar_enabled preferred_locale system_channel_flags features emojis stickers \
             roles channels threads members presences voice_states stage_instances guild_scheduled_events joined_at large \
             member_count",
        );
        has(&value["roles"][0], "id name color colors hoist position permissions managed mentionable flags");
        has(&value["roles"][0]["colors"], "primary_color");
        has(&value["members"][0], "user roles deaf mute flags");
        has(&super::super::own_user(&User::default()), "id username discriminator mfa_enabled");
    }
}
