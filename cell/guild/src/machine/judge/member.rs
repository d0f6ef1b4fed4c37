//! Joining, leaving, and changes of members.

use std::collections::BTreeSet;

use cell_proto::v1::{Member, MemberPut, MemberRemoved, Reason, Refusal};
use cell_runtime::policy::bits;

use super::{Judgement, Judging, check_length, invalid, invite, not_found};
use crate::machine::members::user_id_of;

/// 28 days, as the client protocol has it.
const LONGEST_TIMEOUT_MS: i64 = 28 * 24 * 3600 * 1000;

pub(super) fn join(judging: &Judging<'_>, put: &MemberPut) -> Judgement<MemberPut> {
    let member = put.member.as_ref().ok_or_else(|| invalid("member is missing"))?;
    let user = member.user.as_ref().ok_or_else(|| invalid("member.user is missing"))?;
    if user.id != judging.actor_id || user.id == 0 {
        return Err(Refusal::new(Reason::Forbidden, "member.user is not the actor: users join for themselves"));
    }
    if judging.view.members.get(user.id).is_some() || judging.joining.iter().any(|(id, _)| *id == user.id) {
        return Err(Refusal::new(Reason::AlreadyExists, "you are a member of this guild already"));
    }
    invite::check_use(judging, &put.invite_code)?;
    let count = judging.view.members.len() + judging.joining.len();
    if count >= judging.member_limit {
        return Err(Refusal::new(Reason::TooLarge, format!("this guild has {count} members, the most it can have")));
    }
    Ok(MemberPut {
        guild_id: judging.view.guild.id,
        member: Some(Member { user: Some(user.clone()), ..Member::default() }),
        joined: true,
        invite_code: put.invite_code.clone(),
        invite_uses: 0,
    })
}

pub(super) fn change(judging: &Judging<'_>, put: &MemberPut) -> Judgement<MemberPut> {
    let wanted = put.member.as_ref().ok_or_else(|| invalid("member is missing"))?;
    let current = judging
        .view
        .members
        .get(user_id_of(wanted))
        .ok_or_else(|| not_found("member.user is not a member of this guild"))?;
    judging.actor()?;
    if wanted.role_ids != current.role_ids {
        check_roles(judging, current, wanted)?;
    }
    if wanted.nick != current.nick {
        check_nick(judging, current, wanted)?;
    }
    if wanted.timed_out_until_ms != current.timed_out_until_ms {
        check_timeout(judging, current, wanted)?;
    }
    if (wanted.deaf, wanted.mute) != (current.deaf, current.mute) {
        return Err(Refusal::new(Reason::Unsupported, "member.deaf and member.mute come with voice"));
    }
    // Of roles deleted since nothing is left but their ids, which the data owner would refuse.
    let role_ids = wanted.role_ids.iter().copied().filter(|id| judging.view.roles.contains_key(id)).collect();
    let member = Member { user: current.user.clone(), joined_at_ms: current.joined_at_ms, role_ids, ..wanted.clone() };
    Ok(MemberPut { guild_id: judging.view.guild.id, member: Some(member), ..MemberPut::default() })
}

fn check_roles(judging: &Judging<'_>, current: &Member, wanted: &Member) -> Judgement<()> {
    judging.require(bits::MANAGE_ROLES, "MANAGE_ROLES")?;
    let (old, new): (BTreeSet<i64>, BTreeSet<i64>) =
        (current.role_ids.iter().copied().collect(), wanted.role_ids.iter().copied().collect());
    if new.len() != wanted.role_ids.len() {
        return Err(invalid("member.role_ids names a role twice"));
    }
    let rank = judging.rank(judging.actor()?);
    for role_id in old.symmetric_difference(&new) {
        match judging.view.roles.get(role_id) {
            // A role deleted since is dropped freely.
            None if old.contains(role_id) => {}
            None => return Err(invalid("member.role_ids names no role of this guild")),
            Some(role) if role.id == judging.view.guild.id => {
                return Err(invalid("member.role_ids holds @everyone, which every member has"));
            }
            Some(role) if role.position >= rank => {
                return Err(Refusal::new(Reason::Forbidden, "member.role_ids changes a role not below your highest"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn check_nick(judging: &Judging<'_>, current: &Member, wanted: &Member) -> Judgement<()> {
    check_length("member.nick", &wanted.nick, 0, 32)?;
    if user_id_of(current) == judging.actor_id {
        judging.require(bits::CHANGE_NICKNAME, "CHANGE_NICKNAME")?;
        return Ok(());
    }
    judging.require(bits::MANAGE_NICKNAMES, "MANAGE_NICKNAMES")?;
    judging.require_above(current)
}

fn check_timeout(judging: &Judging<'_>, current: &Member, wanted: &Member) -> Judgement<()> {
    judging.require(bits::MODERATE_MEMBERS, "MODERATE_MEMBERS")?;
    judging.require_above(current)?;
    let until = wanted.timed_out_until_ms;
    if until != 0 && !(0..=judging.now_ms.saturating_add(LONGEST_TIMEOUT_MS)).contains(&until) {
        return Err(invalid("member.timed_out_until_ms is more than 28 days ahead"));
    }
    Ok(())
}

pub(super) fn remove(judging: &Judging<'_>, removed: &MemberRemoved) -> Judgement<MemberRemoved> {
    let target =
        judging.view.members.get(removed.user_id).ok_or_else(|| not_found("user_id is not a member of this guild"))?;
    if judging.is_owner(removed.user_id) {
        return Err(Refusal::new(Reason::Forbidden, "the owner cannot leave; give the guild away or delete it"));
    }
    if removed.user_id != judging.actor_id {
        judging.require(bits::KICK_MEMBERS, "KICK_MEMBERS")?;
        judging.require_above(target)?;
    }
    Ok(MemberRemoved { guild_id: judging.view.guild.id, user_id: removed.user_id })
}
