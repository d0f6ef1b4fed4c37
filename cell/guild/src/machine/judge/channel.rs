//! Changes of channels.

use cell_proto::v1::{Channel, ChannelDeleted, ChannelPut, Overwrite, Reason, Refusal};
use cell_runtime::policy::bits;

use super::{Judgement, Judging, check_length, check_range, check_room, invalid, not_found};

const CHANNEL_LIMIT: usize = 500;
const OVERWRITE_LIMIT: usize = 100;
const TEXT: i32 = 0;
const VOICE: i32 = 2;
const CATEGORY: i32 = 4;

pub(super) fn put(judging: &Judging<'_>, put: &ChannelPut) -> Judgement<ChannelPut> {
    let wanted = put.channel.as_ref().ok_or_else(|| invalid("channel is missing"))?;
    let (held, current) = if put.created {
        if wanted.id != 0 {
            return Err(invalid("channel.id is assigned by the platform; leave it 0 for a new channel"));
        }
        let held = judging.require(bits::MANAGE_CHANNELS, "MANAGE_CHANNELS")?;
        check_room("channels", judging.view.channels.len(), CHANNEL_LIMIT)?;
        (held, None)
    } else {
        let held = judging.require_in(wanted.id, bits::MANAGE_CHANNELS, "MANAGE_CHANNELS")?;
        (held, judging.view.channels.get(&wanted.id))
    };
    check_fields(judging, wanted)?;
    if current.is_some_and(|current| current.r#type != wanted.r#type) {
        return Err(invalid("channel.type cannot be changed; create another channel"));
    }
    let before = current.map_or(&[][..], |current| current.overwrites.as_slice());
    check_overwrites(wanted, before, held)?;
    Ok(ChannelPut {
        channel: Some(Channel { guild_id: judging.view.guild.id, ..wanted.clone() }),
        created: put.created,
    })
}

fn check_fields(judging: &Judging<'_>, wanted: &Channel) -> Judgement<()> {
    check_length("channel.name", &wanted.name, 1, 100)?;
    check_length("channel.topic", &wanted.topic, 0, 1024)?;
    check_range("channel.rate_limit_per_user_seconds", wanted.rate_limit_per_user_seconds, 0, 21_600)?;
    if wanted.position < 0 {
        return Err(invalid("channel.position is negative; give 0 or more"));
    }
    if ![TEXT, VOICE, CATEGORY].contains(&wanted.r#type) {
        return Err(Refusal::new(Reason::Unsupported, "channel.type is not 0 (text), 2 (voice) or 4 (category)"));
    }
    if wanted.parent_id == 0 {
        return Ok(());
    }
    if wanted.r#type == CATEGORY {
        return Err(invalid("channel.parent_id must be 0: a category has no parent"));
    }
    match judging.view.channels.get(&wanted.parent_id) {
        Some(parent) if parent.r#type == CATEGORY => Ok(()),
        _ => Err(invalid("channel.parent_id names no category of this guild")),
    }
}

/// Nobody grants or denies through an overwrite what they do not hold themselves.
fn check_overwrites(wanted: &Channel, before: &[Overwrite], held: i64) -> Judgement<()> {
    if wanted.overwrites.len() > OVERWRITE_LIMIT {
        return Err(Refusal::new(
            Reason::TooLarge,
            format!("channel.overwrites has more than {OVERWRITE_LIMIT} entries"),
        ));
    }
    if wanted.overwrites.iter().any(|overwrite| !(0..=1).contains(&overwrite.r#type)) {
        return Err(invalid("channel.overwrites.type is neither 0 (role) nor 1 (member)"));
    }
    if wanted.overwrites.as_slice() == before {
        return Ok(());
    }
    super::granted(held, bits::MANAGE_ROLES, "MANAGE_ROLES")?;
    let known = |id: i64| before.iter().find(|old| old.id == id).map_or((0, 0), |old| (old.allow, old.deny));
    let beyond = wanted.overwrites.iter().any(|overwrite| {
        let (allow, deny) = known(overwrite.id);
        ((overwrite.allow ^ allow) | (overwrite.deny ^ deny)) & !held != 0
    });
    if beyond && held & bits::ADMINISTRATOR == 0 {
        return Err(Refusal::new(Reason::Forbidden, "channel.overwrites changes permissions you do not have"));
    }
    Ok(())
}

pub(super) fn delete(judging: &Judging<'_>, deleted: &ChannelDeleted) -> Judgement<ChannelDeleted> {
    if !judging.view.channels.contains_key(&deleted.channel_id) {
        return Err(not_found("channel_id names no channel of this guild"));
    }
    judging.require_in(deleted.channel_id, bits::MANAGE_CHANNELS, "MANAGE_CHANNELS")?;
    Ok(ChannelDeleted { guild_id: judging.view.guild.id, channel_id: deleted.channel_id })
}
