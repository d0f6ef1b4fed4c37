//! Peoples the sandbox: tokens for a bot and many users, one guild with channels, everyone in it.

use std::time::Duration;

use cell_api::{ClientError, IssueToken, TokenKind};
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::crowd::Person;
use super::rest::{Call, Rest};
use crate::connect::from_api;
use crate::exit::CommandError;
use crate::progress::Progress;

/// Names of the guild's channels.
const CHANNELS: [&str; 4] = ["general", "random", "music", "help"];
const AT_ONCE: usize = 16;
const WITHIN: Duration = Duration::from_secs(60);

/// The guild.
#[derive(Clone, Debug)]
pub struct World {
    /// Its id.
    pub guild_id: i64,
    /// Its channels.
    pub channels: Vec<i64>,
    /// The bot that made it.
    pub bot: Person,
    /// Everyone else.
    pub people: Vec<Person>,
}

/// Makes everything.
///
/// # Errors
/// [`CommandError::Failed`].
pub async fn make(
    api: &cell_api::Client,
    rest: &Rest,
    people: usize,
    seed: u64,
    progress: &Progress,
) -> Result<World, CommandError> {
    let tag = seed & 0xffff_ffff;
    let bot = token(api, TokenKind::Bot, format!("demo-{tag:08x}-bot")).await?;
    let everyone = tokens(api, people, tag, progress).await?;
    let phase = progress.phase("guild", Some(people as u64));
    let (guild_id, channels, invite) = guild(rest, &bot).await?;
    let mut accepted =
        stream::iter(everyone.iter().map(|person| accept(rest, &invite, person))).buffer_unordered(AT_ONCE);
    let mut joined = 0;
    while accepted.try_next().await?.is_some() {
        joined += 1;
        phase.set(joined, "joined");
    }
    drop(accepted);
    phase.finish(&format!("guild {guild_id} has {} channels and {people} members", channels.len()));
    Ok(World { guild_id, channels, bot, people: everyone })
}

async fn tokens(
    api: &cell_api::Client,
    people: usize,
    tag: u64,
    progress: &Progress,
) -> Result<Vec<Person>, CommandError> {
    let phase = progress.phase("users", Some(people as u64));
    let mut issued =
        stream::iter((0..people).map(|place| token(api, TokenKind::User, format!("demo-{tag:08x}-{place}"))))
            .buffered(AT_ONCE);
    let mut everyone = Vec::with_capacity(people);
    while let Some(person) = issued.try_next().await? {
        everyone.push(person);
        phase.set(everyone.len() as u64, "have tokens");
    }
    phase.finish(&format!("{people} users and a bot have tokens"));
    Ok(everyone)
}

/// Issuing is idempotent by name, so it is repeated while the API is away.
async fn token(api: &cell_api::Client, kind: TokenKind, name: String) -> Result<Person, CommandError> {
    let began = Instant::now();
    loop {
        match api.issue_token(&IssueToken { kind, name: name.clone() }).await {
            Ok(issued) => {
                let prefix = if kind == TokenKind::Bot { "Bot " } else { "" };
                return Ok(Person { name, token: format!("{prefix}{}", issued.token) });
            }
            Err(error) if began.elapsed() > WITHIN || !may_pass(&error) => return Err(from_api(error)),
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Problem(problem) => problem.status >= 500 || problem.status == 429,
        ClientError::Unreachable { .. } | ClientError::Deadline { .. } => true,
        ClientError::Malformed { .. } | ClientError::InvalidAddress(_) => false,
    }
}

/// The guild, its channels and the code of an invite to it.
async fn guild(rest: &Rest, bot: &Person) -> Result<(i64, Vec<i64>, String), CommandError> {
    let made = post(rest, "/guilds".to_owned(), bot, json!({"name": "Cellplane demo"})).await?;
    let guild_id = id_of(&made, "guild")?;
    let mut channels = Vec::new();
    for name in CHANNELS {
        let channel = post(rest, format!("/guilds/{guild_id}/channels"), bot, json!({"name": name, "type": 0})).await?;
        channels.push(id_of(&channel, "channel")?);
    }
    let first = channels.first().copied().unwrap_or_default();
    let invite = post(rest, format!("/channels/{first}/invites"), bot, json!({"max_age": 0, "max_uses": 0})).await?;
    match invite["code"].as_str() {
        Some(code) => Ok((guild_id, channels, code.to_owned())),
        None => Err(CommandError::Failed(anyhow::anyhow!("the invite has no code"))),
    }
}

async fn accept(rest: &Rest, invite: &str, person: &Person) -> Result<(), CommandError> {
    post(rest, format!("/invites/{invite}"), person, json!({})).await.map(|_| ())
}

async fn post(rest: &Rest, path: String, who: &Person, body: Value) -> Result<Value, CommandError> {
    let call = Call { method: Method::POST, path, authorization: &who.token, body: Some(body), within: WITHIN };
    rest.call(&call).await.map_err(|error| CommandError::Failed(anyhow::Error::from(error)))
}

fn id_of(object: &Value, what: &str) -> Result<i64, CommandError> {
    let id = object["id"].as_str().and_then(|id| id.parse().ok());
    id.ok_or_else(|| CommandError::Failed(anyhow::anyhow!("the {what} that was made has no id")))
}
