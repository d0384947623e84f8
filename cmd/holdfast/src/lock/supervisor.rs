//! A command that dies with this program.
//!
//! Whoever is killed in a way that nobody can catch cannot stop its command. So the command is started by a second copy
//! of this program, which asks the system to do that, and then becomes the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::output::Format;

/// What shells say of a command that is not there, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// Of one that was killed.
const KILLED: u8 = 137;
/// This very program, also when its file was replaced since.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// The hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "run-on-leash";

/// How the copy is called.
#[derive(Debug, Args)]
pub(crate) struct SupervisorArgs {
    /// The process that the command dies with.
    #[arg(long)]
    parent: i32,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// What starts the command. Has to be spawned by a thread that lives as long as this process: the main one.
pub(super) fn supervised_command(program: &OsStr, arguments: &[OsString]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(THIS_PROGRAM);
    let parent = Pid::as_raw(Some(getpid())).to_string();
    command.arg0("holdfast").args([SUBCOMMAND, "--parent", &parent, "--"]).arg(program).args(arguments);
    command
}

/// Becomes the command. Returns only when that cannot be.
pub(crate) fn run(format: Format, args: &SupervisorArgs) -> ExitCode {
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::from(NOT_FOUND) };
    let error = match exec(args.parent, program, arguments) {
        Ok(()) => return ExitCode::from(KILLED),
        Err(error) => error,
    };
    format.info(format_args!("{}: {error}", program.display()));
    ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// Returns without an error when the parent is gone already.
fn exec(parent: i32, program: &OsStr, arguments: &[OsString]) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before that was said.
    if Pid::as_raw(getppid()) != parent {
        return Ok(());
    }
    Err(Command::new(program).args(arguments).exec())
}
