//! Setting up `tracing`.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people, with colours on a terminal.
    #[default]
    Text,
    /// A JSON object a line, for collectors.
    Json,
}

/// The text names no log format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no log format {0:?}; it is text or json")]
pub struct UnknownLogFormat(String);

impl FromStr for LogFormat {
    type Err = UnknownLogFormat;

    fn from_str(text: &str) -> Result<Self, UnknownLogFormat> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(UnknownLogFormat(text.to_owned())),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Why logging cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter is malformed.
    #[error(
        "log filter {filter:?}: {problem}; write a level like info, or target=level pairs with commas between them"
    )]
    BadFilter {
        /// As given.
        filter: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It was set up before in this process.
    #[error("logging is already set up: {0}")]
    AlreadySet(String),
}

/// Sends what is traced to standard error. `filter` is in the form of `RUST_LOG`, which takes its place when set.
///
/// # Errors
/// When the filter is malformed, or logging was set up before.
pub fn init_logging(format: LogFormat, filter: &str) -> Result<(), LoggingError> {
    let chosen = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|filter| !filter.is_empty());
    let filter = parse_filter(chosen.as_deref().unwrap_or(filter))?;
    subscriber(format, filter, io::stderr, io::stderr().is_terminal())
        .try_init()
        .map_err(|error| LoggingError::AlreadySet(error.to_string()))
}

fn parse_filter(filter: &str) -> Result<EnvFilter, LoggingError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|error| LoggingError::BadFilter { filter: filter.to_owned(), problem: error.to_string() })
}

type AnySubscriber = Box<dyn tracing::Subscriber + Send + Sync>;

fn subscriber<W>(format: LogFormat, filter: EnvFilter, writer: W, colours: bool) -> AnySubscriber
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => Box::new(builder.with_ansi(colours).finish()),
        LogFormat::Json => Box::new(builder.json().flatten_event(true).with_current_span(true).finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written when a program logs under a format and a filter.
    fn logged(format: LogFormat, filter: &str, program: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(format, parse_filter(filter).unwrap(), move || writer.clone(), false);
        tracing::subscriber::with_default(subscriber, program);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_lines_show_level_message_and_fields() {
        let text = logged(LogFormat::Text, "info", || tracing::info!(shard = "locks_03", "became leader"));
        assert!(text.contains("INFO") && text.contains("became leader shard=\"locks_03\""), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn json_lines_are_objects_with_the_fields_at_the_top() {
        let text = logged(LogFormat::Json, "info", || tracing::warn!(shard = "locks_03", "became leader"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["message"], "became leader");
        assert_eq!(line["shard"], "locks_03");
    }

    #[test]
    fn what_the_filter_excludes_is_not_written() {
        let text = logged(LogFormat::Text, "warn", || tracing::info!("quiet"));
        assert_eq!(text, "");
    }

    #[test]
    fn a_malformed_filter_is_refused_by_name() {
        let message = parse_filter("holdfast=loud").unwrap_err().to_string();
        assert!(message.starts_with("log filter \"holdfast=loud\": "), "{message}");
    }

    #[test]
    fn formats_read_back_what_they_show() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert_eq!(
            "xml".parse::<LogFormat>().unwrap_err().to_string(),
            "there is no log format \"xml\"; it is text or json"
        );
    }
}
