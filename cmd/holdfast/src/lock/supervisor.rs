//! A command that dies with this program.
//!
//! A process that is killed by an uncatchable signal can't stop its command. A second copy of this program therefore
//! starts the command: it asks the system to kill it with its parent, and then becomes the command.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::output::Format;

/// Exit status of shells for a command that does not exist, or can't be executed.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// Exit status of a killed command.
const KILLED: u8 = 137;
/// This very program, even if its file was replaced since.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// The hidden subcommand.
pub(crate) const SUBCOMMAND: &str = "run-on-leash";

/// Arguments of the copy.
#[derive(Debug, Args)]
pub(crate) struct SupervisorArgs {
    /// The process that the command dies with.
    #[arg(long)]
    parent: i32,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Creates the process that starts the command. A thread that lives as long as this process must spawn it: the main
/// thread.
pub(super) fn supervised_command(program: &OsStr, arguments: &[OsString]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(THIS_PROGRAM);
    let parent = Pid::as_raw(Some(getpid())).to_string();
    command.arg0("holdfast").args([SUBCOMMAND, "--parent", &parent, "--"]).arg(program).args(arguments);
    command
}

/// Becomes the command. Returns only on failure.
pub(crate) fn run(format: Format, args: &SupervisorArgs) -> ExitCode {
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::from(NOT_FOUND) };
    let error = match exec(args.parent, program, arguments) {
        Ok(()) => return ExitCode::from(KILLED),
        Err(error) => error,
    };
    format.info(format_args!("{}: {error}", program.display()));
    ExitCode::from(if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// Returns without an error if the parent has already ended.
fn exec(parent: i32, program: &OsStr, arguments: &[OsString]) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the system call.
    if Pid::as_raw(getppid()) != parent {
        return Ok(());
    }
    Err(Command::new(program).args(arguments).exec())
}
