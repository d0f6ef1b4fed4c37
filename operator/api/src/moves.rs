//! Moves on the wire: what is asked, what was planned, how a run stands, where a guild is.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Where a guild shall go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Target {
    /// To an existing cell.
    Cell(String),
    /// To its dedicated cell, made when absent.
    Dedicated,
    /// Back to the cell of its bucket, and merged into it.
    Bucket,
}

/// Asks for a plan, or to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveRequest {
    /// Decimal guild id.
    pub guild_id: String,
    /// Where it shall go.
    pub target: Target,
    /// Longest time until the commit point, in seconds; the default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<i32>,
    /// How long the source stays warm, in seconds; the default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_window_seconds: Option<i32>,
    /// When starting: the hash of the plan that was reviewed. Another plan by now is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<String>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What, in a few words.
    pub name: String,
    /// Whether it allows the move.
    pub ok: bool,
    /// What was found; on failure also the remedy.
    pub message: String,
    /// The reason's label, on failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The command to run next, on failure, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What would be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MovePlan {
    /// Decimal guild id.
    pub guild_id: String,
    /// The unit that has the guild now.
    pub unit: String,
    /// The cell it is in.
    pub from: String,
    /// The cell it would be in.
    pub to: String,
    /// The head's term it was planned against.
    pub term: u64,
    /// The steps, in order.
    pub steps: Vec<String>,
    /// What was looked at. One that is not ok means that starting would be refused.
    pub checks: Vec<Check>,
    /// Seconds until the commit point at most.
    pub deadline_seconds: i32,
    /// Seconds the source stays warm.
    pub rollback_window_seconds: i32,
    /// Connected sessions of the guild, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<i64>,
    /// Hash of all the above: `start` with it runs exactly this plan or nothing.
    #[serde(default)]
    pub hash: String,
}

impl MovePlan {
    /// Sets `hash` from the content that decides what would run (not from sessions, which change all the time).
    #[must_use]
    pub fn sealed(mut self) -> Self {
        let mut digest = Sha256::new();
        let content = (
            (&self.guild_id, &self.unit, &self.from, &self.to, self.term),
            (&self.steps, self.deadline_seconds, self.rollback_window_seconds),
            self.checks.iter().map(|check| (&check.name, check.ok)).collect::<Vec<_>>(),
        );
        // Encoding tuples of strings and numbers cannot fail; an empty text would only make every hash differ.
        digest.update(serde_json::to_vec(&content).unwrap_or_default());
        self.hash = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self
    }

    /// The first check that refuses the move.
    pub fn refusal(&self) -> Option<&Check> {
        self.checks.iter().find(|check| !check.ok)
    }
}

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The Move's name.
    pub name: String,
    /// The run's id; empty until the operator has begun.
    #[serde(default)]
    pub run_id: String,
    /// Decimal guild id; empty when the Move names units.
    #[serde(default)]
    pub guild_id: String,
    /// Source cell.
    pub from: String,
    /// Target cell.
    pub to: String,
    /// The step under way.
    pub step: String,
    /// Finished: Completed, Aborted, RolledBack or Refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The reason's label.
    pub reason: String,
    /// What it says.
    pub message: String,
    /// What it waits for; never empty while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_by: Option<String>,
    /// How long commands were held at the switch, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_microseconds: Option<i64>,
    /// NotYet, Ready or Over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback_readiness: Option<String>,
    /// Who wanted it.
    #[serde(default)]
    pub cause: String,
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}

/// Where a guild is, read from the head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Location {
    /// Decimal guild id.
    pub guild_id: String,
    /// The unit that has it.
    pub unit: String,
    /// Its bucket.
    pub bucket: String,
    /// The cell that the head names.
    pub cell: String,
    /// The StorageCell that serves its log.
    #[serde(default)]
    pub storage_cell: String,
    /// The head's term.
    pub term: u64,
    /// Member id of the data owner; empty when nobody has claimed it.
    #[serde(default)]
    pub data_owner: String,
    /// Member id of the guild owner as the directory hints; empty when unknown.
    #[serde(default)]
    pub guild_owner: String,
    /// Last number of the log.
    pub last: u64,
    /// The run that holds the unit; empty when none.
    #[serde(default)]
    pub run_id: String,
}

/// Whether the operator starts moves, promotions and rebalances by itself.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Automation {
    /// Nothing new is started while set; runs under way go on.
    pub paused: bool,
    /// Who set it and why, for the next person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> MovePlan {
        MovePlan {
            guild_id: "5".into(),
            unit: "g5".into(),
            from: "a".into(),
            to: "b".into(),
            term: 3,
            steps: vec!["Warm".into()],
            checks: vec![],
            deadline_seconds: 600,
            rollback_window_seconds: 30,
            sessions: Some(10),
            hash: String::new(),
        }
    }

    #[test]
    fn the_hash_follows_what_would_run_and_nothing_else() {
        let hash = plan().sealed().hash;
        assert_eq!(hash.len(), 32);
        assert_eq!(MovePlan { sessions: Some(99), ..plan() }.sealed().hash, hash);
        assert_ne!(MovePlan { term: 4, ..plan() }.sealed().hash, hash);
        assert_ne!(MovePlan { to: "c".into(), ..plan() }.sealed().hash, hash);
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let error =
            serde_json::from_str::<MoveRequest>(r#"{"guildId":"5","target":{"cell":"b"},"sped":1}"#).unwrap_err();
        assert!(error.to_string().contains("sped"), "{error}");
    }
}
