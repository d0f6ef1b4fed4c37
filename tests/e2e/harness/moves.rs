//! Moves as a person starts and follows them.

use cellctl::kinds::Kind;
use serde_json::Value;

use super::{Guild, Sandbox, wait_for};

impl Sandbox {
    /// Starts a move of a guild; its name.
    pub async fn start_move(&self, guild: &Guild, to: &str) -> String {
        let words =
            ["guild", "move", "start", &guild.id, "--to", to, "--rollback-window-seconds", "1", "--yes", "-o", "json"];
        // The API is the operator's: while one takes over from another, a person tries again.
        wait_for("the control-plane API", 60, async || {
            let ended = self.cellctl(&words).await;
            if ended.stderr.contains("failed to reach the control-plane API") {
                return Err(ended.stderr);
            }
            Ok(ended.done().json()["name"].as_str().unwrap().to_owned())
        })
        .await
    }

    /// Waits until a Move is at one of the steps, or over.
    pub async fn reach(&self, name: &str, steps: &[&str]) -> Value {
        wait_for(&format!("move {name} to reach {steps:?}"), 60, async || {
            let found = self.get(Kind::Moves, name).await?;
            let (step, result) = (&found["status"]["step"], &found["status"]["result"]);
            let there = steps.iter().any(|wanted| step == wanted) || result.is_string();
            if there { Ok(found) } else { Err(format!("it is at {step}")) }
        })
        .await
    }

    /// Waits until a Move is over; its result.
    pub async fn follow(&self, name: &str) -> String {
        wait_for(&format!("move {name} to end"), 120, async || {
            let found = self.get(Kind::Moves, name).await?;
            let status = &found["status"];
            status["result"].as_str().map(str::to_owned).ok_or_else(|| format!("{status}"))
        })
        .await
    }

    /// Moves a guild; the move must complete.
    pub async fn move_guild(&self, guild: &Guild, to: &str) {
        let name = self.start_move(guild, to).await;
        assert_eq!(self.follow(&name).await, "Completed", "{name}");
        assert_eq!(guild.cell(self).await, to);
    }
}
