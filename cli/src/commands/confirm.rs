//! Asks before what cannot be taken back. Without a terminal it never guesses: `--yes` is needed.

use std::io::{BufRead, IsTerminal, Write};

use crate::args::Global;
use crate::exit::CommandError;

/// Goes on only with `--yes` or a typed `yes`.
///
/// # Errors
/// [`CommandError::Refused`] when the answer is no, or nobody can be asked.
pub fn confirm(global: &Global, what: &str) -> Result<(), CommandError> {
    if global.yes {
        return Ok(());
    }
    let refused = |reason: &str| CommandError::refused("--yes", reason, "run it again with --yes");
    if !std::io::stdin().is_terminal() {
        return Err(refused(&format!("{what}: this needs a confirmation and there is no terminal to ask on")));
    }
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{what}. Type yes to go on: ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    match read {
        Ok(_) if answer.trim() == "yes" => Ok(()),
        _ => Err(refused("not confirmed")),
    }
}
