//! The names one entry needs: users of the whole process, members of its guild.

use std::collections::HashMap;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, Member, User};

use super::replica::Replica;
use crate::names::KnownUsers;
use crate::wire::objects::Names;

/// Names for one entry: users of the whole process, members of the one guild.
pub(super) struct ReplicaNames<'a> {
    users: &'a KnownUsers,
    /// Those the entry names, copied: the replica itself is being changed.
    members: HashMap<i64, Member>,
}

fn named_members(replica: &Replica, entry: &Entry) -> HashMap<i64, Member> {
    let mut named = vec![entry.actor_id];
    if let Some(Kind::MessageCreated(change)) = entry.change.as_ref().and_then(|change| change.kind.as_ref())
        && let Some(message) = &change.message
    {
        named.extend(message.author.as_ref().map(|author| author.id));
        named.extend(&message.mention_user_ids);
    }
    named.into_iter().filter_map(|id| Some((id, replica.members.get(&id)?.clone()))).collect()
}

impl<'a> ReplicaNames<'a> {
    /// For one entry of a guild.
    pub(super) fn new(users: &'a KnownUsers, replica: &Replica, entry: &Entry) -> Self {
        Self { users, members: named_members(replica, entry) }
    }
}

impl Names for ReplicaNames<'_> {
    fn user(&self, user_id: i64) -> Option<User> {
        self.members.get(&user_id).and_then(|member| member.user.clone()).or_else(|| self.users.get(user_id))
    }

    fn member(&self, user_id: i64) -> Option<Member> {
        self.members.get(&user_id).cloned()
    }
}
