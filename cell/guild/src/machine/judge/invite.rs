//! Making, using and deleting invites.

use cell_proto::v1::{Invite, InviteDeleted, InvitePut, Reason, Refusal};
use cell_runtime::policy::bits;

use super::{Judgement, Judging, check_range, check_room, invalid, not_found};

const INVITE_LIMIT: usize = 1000;

pub(super) fn put(judging: &Judging<'_>, put: &InvitePut) -> Judgement<InvitePut> {
    let wanted = put.invite.as_ref().ok_or_else(|| invalid("invite is missing"))?;
    judging.require_in(wanted.channel_id, bits::CREATE_INSTANT_INVITE, "CREATE_INSTANT_INVITE")?;
    check_range("invite.max_age_seconds", wanted.max_age_seconds, 0, 604_800)?;
    check_range("invite.max_uses", wanted.max_uses, 0, 100)?;
    if !wanted.code.is_empty() {
        return Err(invalid("invite.code is made by the platform; leave it empty"));
    }
    let live = judging.view.invites.values().filter(|invite| !is_expired(invite, judging.now_ms)).count();
    check_room("invites", live, INVITE_LIMIT)?;
    Ok(InvitePut {
        invite: Some(Invite {
            code: String::new(),
            guild_id: judging.view.guild.id,
            channel_id: wanted.channel_id,
            inviter_id: judging.actor_id,
            created_at_ms: 0,
            max_age_seconds: wanted.max_age_seconds,
            max_uses: wanted.max_uses,
            uses: 0,
        }),
    })
}

pub(super) fn delete(judging: &Judging<'_>, deleted: &InviteDeleted) -> Judgement<InviteDeleted> {
    let invite =
        judging.view.invites.get(&deleted.code).ok_or_else(|| not_found("code names no invite of this guild"))?;
    let manages_channel = judging.permissions_in(invite.channel_id).unwrap_or(0) & bits::MANAGE_CHANNELS != 0;
    if !manages_channel && invite.inviter_id != judging.actor_id {
        judging.require(bits::MANAGE_GUILD, "MANAGE_GUILD")?;
    }
    judging.actor()?;
    Ok(InviteDeleted { guild_id: judging.view.guild.id, code: deleted.code.clone() })
}

/// Refuses a join through an invite that does not exist, has expired or is used up.
pub(super) fn check_use(judging: &Judging<'_>, code: &str) -> Judgement<()> {
    let unknown = || not_found("invite is unknown, expired or used up");
    let invite = judging.view.invites.get(code).ok_or_else(unknown)?;
    let on_their_way = judging.joining.iter().filter(|(_, used)| used == code).count();
    let uses = usize::try_from(invite.uses).unwrap_or(0) + on_their_way;
    let used_up = invite.max_uses > 0 && uses >= usize::try_from(invite.max_uses).unwrap_or(0);
    if used_up || is_expired(invite, judging.now_ms) {
        return Err(unknown());
    }
    if invite.guild_id != judging.view.guild.id {
        return Err(Refusal::new(Reason::Invalid, "invite belongs to another guild"));
    }
    Ok(())
}

fn is_expired(invite: &Invite, now_ms: i64) -> bool {
    let lifetime_ms = i64::from(invite.max_age_seconds) * 1000;
    invite.max_age_seconds > 0 && now_ms >= invite.created_at_ms.saturating_add(lifetime_ms)
}
