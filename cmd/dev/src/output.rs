//! Results go to standard output, everything about how they come to be to standard error.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use clap::ValueEnum;

/// What results look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON value a line.
    Json,
}

/// Prints a result, with a newline.
pub(crate) fn print(result: impl Display) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{result}")?;
    stdout.flush()?;
    Ok(())
}

/// Says something about the way to the result.
pub(crate) fn info(text: impl Display) {
    // Where nobody listens there is nobody to complain to.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether the reader of standard output went away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
