//! Results on standard output, progress and errors on standard error.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;

/// Form of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON value a line.
    Json,
}

/// Prints a result, with a newline.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(result: impl Display) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{result}")?;
    stdout.flush()?;
    Ok(())
}

/// Prints progress or a remark.
pub fn info(text: impl Display) {
    // A closed standard error leaves nowhere to report that to.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Converts a program's result to its exit status, and prints the error.
pub fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output stopped early, as in `dev seed-accounts | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            info(format_args!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
