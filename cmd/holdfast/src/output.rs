//! Results go to standard output, everything about how they come to be to standard error.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use clap::ValueEnum;
use holdfast_client::Error;
use serde_json::{Value, json};

/// What results look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// One JSON value a line.
    Json,
}

impl Format {
    /// Prints a result, with a newline: the one or the other.
    pub(crate) fn print(self, text: impl FnOnce() -> String, value: impl FnOnce() -> Value) -> Result<()> {
        let shown = match self {
            Self::Text => text(),
            Self::Json => value().to_string(),
        };
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{shown}")?;
        stdout.flush()?;
        Ok(())
    }

    /// Says something about the way to the result.
    pub(crate) fn info(self, text: impl Display) {
        let line = match self {
            Self::Text => format!("holdfast: {text}"),
            Self::Json => json!({"note": text.to_string()}).to_string(),
        };
        // Where nobody listens there is nobody to complain to.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    /// Says why there is no result, with the code of the reason where it has one.
    pub(crate) fn error(self, code: Option<&str>, detail: impl Display) {
        let line = match self {
            Self::Text => format!("holdfast: {detail}"),
            Self::Json => json!({"error": {"code": code, "detail": detail.to_string()}}).to_string(),
        };
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

/// Says why nothing came of it.
pub(crate) fn print_error(format: Format, error: &anyhow::Error) {
    format.error(error.downcast_ref::<Error>().and_then(Error::code), format_args!("{error:#}"));
}

/// Whether the reader of standard output went away.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
