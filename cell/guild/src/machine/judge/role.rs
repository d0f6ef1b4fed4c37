//! Changes of roles.

use cell_proto::v1::{Reason, Refusal, Role, RoleDeleted, RolePut};
use cell_runtime::policy::bits;

use super::{Judgement, Judging, check_length, check_range, check_room, invalid, not_found};

const ROLE_LIMIT: usize = 250;

pub(super) fn put(judging: &Judging<'_>, put: &RolePut) -> Judgement<RolePut> {
    let wanted = put.role.as_ref().ok_or_else(|| invalid("role is missing"))?;
    let held = judging.require(bits::MANAGE_ROLES, "MANAGE_ROLES")?;
    check_length("role.name", &wanted.name, 1, 100)?;
    check_range("role.color", wanted.color, 0, 0x00ff_ffff)?;
    let current = if put.created {
        if wanted.id != 0 {
            return Err(invalid("role.id is assigned by the platform; leave it 0 for a new role"));
        }
        check_room("roles", judging.view.roles.len(), ROLE_LIMIT)?;
        None
    } else {
        Some(judging.view.roles.get(&wanted.id).ok_or_else(|| not_found("role.id names no role of this guild"))?)
    };
    let everyone = wanted.id == judging.view.guild.id;
    let rank = judging.rank(judging.actor()?);
    let beneath = |position: i32| position < rank;
    if everyone {
        if wanted.position != 0 {
            return Err(invalid("role.position of @everyone is always 0"));
        }
    } else if wanted.position < 0 {
        return Err(invalid("role.position is negative; give 0 or more"));
    }
    if !(everyone || beneath(wanted.position) && current.is_none_or(|role| beneath(role.position))) {
        return Err(Refusal::new(Reason::Forbidden, "role.position is not below your highest role"));
    }
    let granted = wanted.permissions ^ current.map_or(0, |role| role.permissions);
    if granted & !held != 0 {
        return Err(Refusal::new(Reason::Forbidden, "role.permissions changes permissions you do not have"));
    }
    if wanted.permissions & !bits::ALL != 0 {
        return Err(invalid("role.permissions has bits above 52"));
    }
    Ok(RolePut { guild_id: judging.view.guild.id, role: Some(Role::clone(wanted)), created: put.created })
}

pub(super) fn delete(judging: &Judging<'_>, deleted: &RoleDeleted) -> Judgement<RoleDeleted> {
    judging.require(bits::MANAGE_ROLES, "MANAGE_ROLES")?;
    let role =
        judging.view.roles.get(&deleted.role_id).ok_or_else(|| not_found("role_id names no role of this guild"))?;
    if role.id == judging.view.guild.id {
        return Err(invalid("role_id is @everyone, which cannot be deleted"));
    }
    if role.position >= judging.rank(judging.actor()?) {
        return Err(Refusal::new(Reason::Forbidden, "the role is not below your highest role"));
    }
    Ok(RoleDeleted { guild_id: judging.view.guild.id, role_id: deleted.role_id })
}
