//! A guild and the bot that owns it.

use std::net::SocketAddr;
use std::time::Duration;

use cellctl::demo::history;
use cellctl::demo::ledger::Seen;
use cellctl::demo::rest::{Call, RestError};
use http::Method;
use serde_json::{Value, json};

use super::{Listener, Sandbox, wait_for};

const WITHIN: Duration = Duration::from_secs(60);

/// A guild with a text channel.
#[derive(Clone, Debug)]
pub struct Guild {
    /// Its id.
    pub id: String,
    /// A text channel of it.
    pub channel: i64,
    /// `Authorization` of the bot that owns it.
    pub token: String,
}

impl Guild {
    /// Makes one.
    pub async fn make(sandbox: &Sandbox, name: &str) -> Self {
        let issued = sandbox.cellctl(&["token", "issue", "--bot", name, "-o", "json"]).await.done().json();
        assert!(issued["userId"].is_string(), "{issued}");
        let token = format!("Bot {}", issued["token"].as_str().unwrap());
        let made = call(sandbox, &token, Method::POST, "/guilds", Some(json!({"name": name}))).await.unwrap();
        let id = made["id"].as_str().unwrap().to_owned();
        let path = format!("/guilds/{id}/channels");
        let channels = call(sandbox, &token, Method::GET, &path, None).await.unwrap();
        let text = channels.as_array().unwrap().iter().find(|channel| channel["type"] == 0).unwrap();
        let channel = text["id"].as_str().unwrap().parse().unwrap();
        Self { id, channel, token }
    }

    /// Where its head says it is.
    pub async fn located(&self, sandbox: &Sandbox) -> Value {
        wait_for("the guild to be located", 60, async || {
            let ended = sandbox.cellctl(&["locate", &self.id, "-o", "json"]).await;
            if ended.code == 0 { Ok(ended.json()) } else { Err(ended.stderr) }
        })
        .await
    }

    /// The cell it is in.
    pub async fn cell(&self, sandbox: &Sandbox) -> String {
        self.located(sandbox).await["cell"].as_str().unwrap().to_owned()
    }

    /// The shared cell it is not in.
    pub async fn other_cell(&self, sandbox: &Sandbox) -> String {
        if self.cell(sandbox).await == "shared-1" { "shared-2" } else { "shared-1" }.to_owned()
    }

    /// Every numbered message of its channel, oldest first.
    pub async fn history(&self, sandbox: &Sandbox) -> Vec<Seen> {
        history::read_after(&sandbox.rest, &self.token, self.channel, 0, 0).await.unwrap().messages
    }

    /// A live session of its owner at one address, once it has the guild.
    pub async fn listen(&self, sandbox: &Sandbox, to: SocketAddr) -> Listener {
        Listener::open(to, sandbox.network.client_address(9), &self.token, &self.id).await
    }
}

async fn call(
    sandbox: &Sandbox,
    token: &str,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<Value, RestError> {
    let call = Call { method, path: path.to_owned(), authorization: token, body, within: WITHIN };
    sandbox.rest.call(&call).await
}
