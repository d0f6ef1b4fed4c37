//! `cellctl migrate`: runs the sister program `cell migrate run` with the flags it was given. It links no driver and knows no flag of
//! it: what they mean, `cellctl migrate --help` asks `cell` itself.

use std::ffi::OsString;
use std::process::Stdio;

use clap::Args;

use crate::args::Global;
use crate::exit::{CommandError, Exit};
use crate::output::Format;
use crate::progress::Progress;
use crate::sandbox::programs;

/// Flags of `migrate`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct MigrateArgs {
    /// Flags of `cell migrate run`, such as --from, --to, --state; `cellctl migrate --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAG")]
    pub flags: Vec<OsString>,
}

/// Finds `cell`, runs it and ends as it does. Signals reach it as they reach cellctl: both are of one process group.
///
/// # Errors
/// [`CommandError::Failed`] when there is no `cell`, else what its exit code says.
pub async fn run(args: MigrateArgs, global: &Global) -> Result<Exit, CommandError> {
    let build = !args.flags.iter().any(|flag| flag == "--no-build");
    let program = programs::find_cell(build, &Progress::to_stderr()).map_err(anyhow::Error::from)?;
    let mut command = tokio::process::Command::new(&program);
    command.args(["--log-format", "text", "migrate", "run"]);
    command.args(passed_on(args.flags, global.output)).stdin(Stdio::null());
    let mut child = command.spawn().map_err(|error| {
        CommandError::Failed(anyhow::Error::from(error).context(format!("start {}", program.display())))
    })?;
    // The child ends by the same Ctrl-C, after it has written down what is done.
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.map_err(anyhow::Error::from)?,
            () = super::interrupted() => {}
        }
    };
    ending(status.code())
}

/// What `cell` is given: cellctl's own flag for output in its words, all else as it came.
fn passed_on(flags: Vec<OsString>, output: Format) -> Vec<OsString> {
    let mut flags: Vec<OsString> = flags.into_iter().filter(|flag| flag != "--no-build").collect();
    let given = flags.iter().any(|flag| {
        let flag = flag.to_string_lossy();
        flag == "-o" || flag == "--output" || flag.starts_with("--output=")
    });
    if matches!(output, Format::Json) && !given {
        flags.extend(["--output".into(), "json".into()]);
    }
    flags
}

fn ending(code: Option<i32>) -> Result<Exit, CommandError> {
    match code {
        Some(0) => Ok(Exit::Done),
        Some(2) => Ok(Exit::Usage),
        Some(3) => Ok(Exit::Blocked),
        Some(4) => Ok(Exit::TimedOut),
        Some(5) => Ok(Exit::Partly),
        // It has said what failed.
        Some(_) => Ok(Exit::Failed),
        None => Err(CommandError::Failed(anyhow::anyhow!(
            "cell was killed; the same command with the same --state goes on"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_of_cell_keeps_its_code() {
        for code in [0_u8, 1, 2, 3, 4, 5] {
            assert_eq!(ending(Some(i32::from(code))).unwrap().code(), code);
        }
        assert!(ending(None).unwrap_err().report().contains("--state"), "killed is not done");
    }

    #[test]
    fn flags_are_passed_on_as_they_came() {
        let flags = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(passed_on(flags("--from a --no-build --verify"), Format::Table), flags("--from a --verify"));
        assert_eq!(passed_on(flags("--from a"), Format::Json), flags("--from a --output json"));
        assert_eq!(passed_on(flags("--from a -o json"), Format::Json), flags("--from a -o json"));
    }
}
