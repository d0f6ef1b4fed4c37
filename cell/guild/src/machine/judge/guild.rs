//! Changes of the guild itself.

use cell_proto::v1::{Guild, GuildDeleted, GuildUpdated, Reason, Refusal};
use cell_runtime::policy::bits;

use super::{Judgement, Judging, check_length, invalid};

pub(super) fn update(judging: &Judging<'_>, updated: &GuildUpdated) -> Judgement<GuildUpdated> {
    let current = &judging.view.guild;
    let wanted = updated.guild.as_ref().ok_or_else(|| invalid("guild is missing"))?;
    judging.require(bits::MANAGE_GUILD, "MANAGE_GUILD")?;
    check_length("name", &wanted.name, 2, 100)?;
    check_length("description", &wanted.description, 0, 300)?;
    let owner_id = if wanted.owner_id == 0 { current.owner_id } else { wanted.owner_id };
    if owner_id != current.owner_id {
        if !judging.is_owner(judging.actor_id) {
            return Err(Refusal::new(Reason::Forbidden, "only the owner can give the guild away"));
        }
        if judging.view.members.get(owner_id).is_none() {
            return Err(invalid("owner_id is not a member of this guild"));
        }
    }
    Ok(GuildUpdated {
        guild: Some(Guild { id: current.id, owner_id, policy_version: current.policy_version, ..wanted.clone() }),
    })
}

pub(super) fn delete(judging: &Judging<'_>, deleted: &GuildDeleted) -> Judgement<GuildDeleted> {
    if deleted.guild_id != judging.view.guild.id {
        return Err(invalid("guild_id of the change is another guild's"));
    }
    judging.actor()?;
    if !judging.is_owner(judging.actor_id) {
        return Err(Refusal::new(Reason::Forbidden, "only the owner can delete the guild"));
    }
    Ok(*deleted)
}
