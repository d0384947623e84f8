//! Results go to standard output, all other messages to standard error.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use clap::ValueEnum;
use holdfast_client::Error;
use serde_json::{Value, json};

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For humans.
    Text,
    /// One JSON value per line.
    Json,
}

impl Format {
    /// Prints a result and a newline, in the chosen format.
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

    /// Prints a progress message.
    pub(crate) fn info(self, text: impl Display) {
        let line = match self {
            Self::Text => format!("holdfast: {text}"),
            Self::Json => json!({"note": text.to_string()}).to_string(),
        };
        // If standard error is closed, nothing can be reported.
        let _ = writeln!(io::stderr().lock(), "{line}");
    }

    /// Prints an error, with the code of the reason if it has one.
    pub(crate) fn error(self, code: Option<&str>, detail: impl Display) {
        let line = match self {
            Self::Text => format!("holdfast: {detail}"),
            Self::Json => json!({"error": {"code": code, "detail": detail.to_string()}}).to_string(),
        };
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
}

/// Prints an error of the program.
pub(crate) fn print_error(format: Format, error: &anyhow::Error) {
    format.error(error.downcast_ref::<Error>().and_then(Error::code), format_args!("{error:#}"));
}

/// Returns true if the reader of standard output has closed it.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
