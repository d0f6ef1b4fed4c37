//! Users seen in entries and answers: a bounded memory of names, so that a mention need not be asked for. Never the truth about a user.

use std::collections::HashMap;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Entry, User};
use parking_lot::RwLock;

/// Most users remembered; when full, it starts anew.
const MAX_USERS: usize = 50_000;

/// Users by id.
#[derive(Debug, Default)]
pub struct KnownUsers(RwLock<HashMap<i64, User>>);

impl KnownUsers {
    /// Remembers a user.
    pub fn learn(&self, user: &User) {
        if user.id == 0 || user.name.is_empty() || self.0.read().get(&user.id) == Some(user) {
            return;
        }
        let mut users = self.0.write();
        if users.len() >= MAX_USERS {
            users.clear();
        }
        users.insert(user.id, user.clone());
    }

    /// Remembers the users in an entry.
    pub fn learn_from(&self, entry: &Entry) {
        match entry.change.as_ref().and_then(|change| change.kind.as_ref()) {
            Some(Kind::MessageCreated(change)) => {
                change
                    .message
                    .as_ref()
                    .and_then(|message| message.author.as_ref())
                    .into_iter()
                    .for_each(|u| self.learn(u));
            }
            Some(Kind::MemberPut(change)) => {
                change.member.as_ref().and_then(|member| member.user.as_ref()).into_iter().for_each(|u| self.learn(u));
            }
            _ => {}
        }
    }

    /// What is remembered.
    pub fn get(&self, user_id: i64) -> Option<User> {
        self.0.read().get(&user_id).cloned()
    }
}
