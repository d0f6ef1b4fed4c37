//! `cellctl token issue --bot NAME | --user NAME`. The token goes to stdout and nowhere else.

use cell_api::{IssueToken, TokenKind};
use clap::Args;

use crate::args::Global;
use crate::connect::{Connection, from_api};
use crate::exit::{CommandError, Exit};
use crate::output::{Table, View};

/// Flags of `issue`.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct IssueArgs {
    /// For the bot of this name
    #[arg(long, value_name = "NAME")]
    pub bot: Option<String>,
    /// For the person of this name
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

impl IssueArgs {
    fn request(self) -> Result<IssueToken, CommandError> {
        match (self.bot, self.user) {
            (Some(name), None) => Ok(IssueToken { kind: TokenKind::Bot, name }),
            (None, Some(name)) => Ok(IssueToken { kind: TokenKind::User, name }),
            _ => Err(CommandError::Usage("give one of --bot NAME and --user NAME".to_owned())),
        }
    }
}

/// Issues the token.
///
/// # Errors
/// [`CommandError`].
pub async fn run(args: IssueArgs, global: &Global) -> Result<Exit, CommandError> {
    let request = args.request()?;
    let api = Connection::open(global).await?.control_plane().await?;
    let issued = api.issue_token(&request).await.map_err(from_api)?;
    let table = Table::fields([("User id", issued.user_id.clone()), ("Token", issued.token.clone())]);
    View::of(&issued, table, vec![issued.user_id.clone()])?.print(global.output)?;
    Ok(Exit::Done)
}
