//! Tokens on the wire.

use serde::{Deserialize, Serialize};

/// Who shall carry the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// An automated client.
    Bot,
    /// A person.
    User,
}

/// Asks for a token; the user is made when there is none of that kind and name. Idempotent by kind and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssueToken {
    /// Bot or user.
    pub kind: TokenKind,
    /// 2–32 characters.
    pub name: String,
}

/// A token. It is shown once and never logged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuedToken {
    /// The bearer's token.
    pub token: String,
    /// Decimal user id.
    pub user_id: String,
    /// Whether the user was made by this call.
    pub created: bool,
}

impl std::fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuedToken")
            .field("user_id", &self.user_id)
            .field("created", &self.created)
            .finish_non_exhaustive()
    }
}
