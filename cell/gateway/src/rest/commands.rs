//! Commands: stamped once with an operation id and a deadline; retries, here and at the client under `enforce_nonce`, keep both.

use std::time::Duration;

use cell_proto::v1::change::Kind;
use cell_proto::v1::{Change, Committed, Entry, Reason};
use sha2::{Digest, Sha256};

use super::access::ChannelAccess;
use super::error::{ApiError, Missing};
use crate::calls::{CallError, Command, Deadline};
use crate::gateway::Gateway;
use crate::guilds::hosted::Hosted;

/// How long an answer waits for the own replica.
const CATCH_UP: Duration = Duration::from_secs(2);

/// A fresh operation id.
pub fn operation_id() -> Vec<u8> {
    rand::random::<[u8; 16]>().to_vec()
}

/// The operation id of a message under `enforce_nonce`: the same author, channel and nonce give the same one.
pub fn operation_id_of_nonce(author_id: i64, channel_id: i64, nonce: &str) -> Vec<u8> {
    let digest = Sha256::digest(format!("nonce:{author_id}:{channel_id}:{nonce}"));
    digest[..16].to_vec()
}

/// Stamps a change.
pub fn stamp(actor_id: i64, kind: Kind, deadline: Deadline) -> Command {
    Command { operation_id: operation_id(), actor_id, policy_version: 0, change: Change { kind: Some(kind) }, deadline }
}

/// The change of a committed entry.
pub fn kind_of(committed: Committed) -> Option<(Kind, Entry)> {
    let entry = committed.entry?;
    let kind = entry.change.as_ref()?.kind.clone()?;
    Some((kind, entry))
}

impl Gateway {
    /// Makes a structural change at the guild's owner and waits a moment for the own replica to have it.
    ///
    /// # Errors
    /// What the owner refused, or 503.
    pub async fn mutate(&self, hosted: &Hosted, command: &Command, missing: Missing) -> Result<Committed, ApiError> {
        let committed =
            self.calls.mutate(hosted.id, command).await.map_err(|error| ApiError::of_call(error, missing))?;
        if let Some(position) = &committed.position {
            hosted.wait_position(position, CATCH_UP).await;
        }
        Ok(committed)
    }

    /// Commits a message command, judged anew for as long as the owner knows a newer policy than it was judged by.
    ///
    /// # Errors
    /// What `judge` or the owner refused, or 503.
    pub async fn commit_judged(
        &self,
        mut access: ChannelAccess,
        user_id: i64,
        mut command: Command,
        judge: impl Fn(&ChannelAccess) -> Result<(), ApiError>,
    ) -> Result<Committed, ApiError> {
        loop {
            judge(&access)?;
            command.policy_version = access.policy_version;
            match self.calls.submit(self.log_of(&access.hosted), &command).await {
                Err(CallError::Refused(refusal)) if refusal.why() == Reason::StalePolicy => {
                    let judged_by = access.policy_version;
                    let newer =
                        access.hosted.wait_for(command.deadline.at, |replica| replica.policy_version > judged_by);
                    if !newer.await {
                        return Err(ApiError::unavailable("the guild's permissions are changing; retry later"));
                    }
                    access = self.channel_access(user_id, access.channel.id, command.deadline).await?;
                }
                result => return result.map_err(|error| ApiError::of_call(error, Missing::Message)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_nonce_of_the_same_author_in_the_same_channel_is_the_same_operation() {
        let id = operation_id_of_nonce(1, 2, "n");
        assert_eq!((id.len(), &id), (16, &operation_id_of_nonce(1, 2, "n")));
        for other in
            [operation_id_of_nonce(2, 1, "n"), operation_id_of_nonce(1, 3, "n"), operation_id_of_nonce(1, 2, "m")]
        {
            assert_ne!(id, other);
        }
        assert_ne!(operation_id(), operation_id());
    }
}
