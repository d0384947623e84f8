//! Setup of `tracing`.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::{BuildInfo, tracing_export};

/// The format of log lines.
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
        /// The fault.
        problem: String,
    },
    /// Traces cannot be exported to this address.
    #[error("traces cannot be exported to {endpoint}: {problem}")]
    Otlp {
        /// As given.
        endpoint: String,
        /// The fault.
        problem: String,
    },
    /// It was set up before in this process.
    #[error("logging is already set up: {0}")]
    AlreadySet(String),
}

/// Options of logging.
#[derive(Clone, Copy, Debug)]
pub struct LoggingOptions<'a> {
    /// The format of lines.
    pub format: LogFormat,
    /// In the form of `RUST_LOG`, which overrides it when set.
    pub filter: &'a str,
    /// The base address of a collector of traces (OTLP over HTTP), if they are to be exported. The filter applies to
    /// the export too.
    pub otlp_endpoint: Option<&'a str>,
    /// The process.
    pub build: BuildInfo,
}

/// Writes logs to standard error and, if one is configured, exports traces to a collector.
///
/// # Errors
/// When the filter or the collector's address is malformed, or logging was set up before.
pub fn init_logging(logging: LoggingOptions<'_>) -> Result<(), LoggingError> {
    let chosen = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|filter| !filter.is_empty());
    let filter = parse_filter(chosen.as_deref().unwrap_or(logging.filter))?;
    let tracer =
        logging.otlp_endpoint.map(|endpoint| tracing_export::init_tracer(endpoint, logging.build)).transpose()?;
    let traces = tracer.map(|tracer| tracing_opentelemetry::layer().with_tracer(tracer).boxed());
    subscriber(logging.format, filter, io::stderr, io::stderr().is_terminal(), traces)
        .try_init()
        .map_err(|error| LoggingError::AlreadySet(error.to_string()))
}

fn parse_filter(filter: &str) -> Result<EnvFilter, LoggingError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|error| LoggingError::BadFilter { filter: filter.to_owned(), problem: error.to_string() })
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    writer: W,
    colours: bool,
    traces: Option<AnyLayer>,
) -> impl tracing::Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines: AnyLayer = match format {
        LogFormat::Text => layer.with_ansi(colours).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_current_span(true).boxed(),
    };
    let layers: Vec<AnyLayer> = std::iter::once(lines).chain(traces).collect();
    tracing_subscriber::registry().with(layers).with(filter)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log output of a program with this format and filter.
    fn capture_logs(format: LogFormat, filter: &str, program: impl FnOnce()) -> String {
        let lines = LogBuffer::default();
        let writer = lines.clone();
        let subscriber = subscriber(format, parse_filter(filter).unwrap(), move || writer.clone(), false, None);
        tracing::subscriber::with_default(subscriber, program);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_lines_show_level_message_and_fields() {
        let text = capture_logs(LogFormat::Text, "info", || tracing::info!(shard = "locks_03", "became leader"));
        assert!(text.contains("INFO") && text.contains("became leader shard=\"locks_03\""), "{text}");
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn json_lines_are_objects_with_the_fields_at_the_top() {
        let text = capture_logs(LogFormat::Json, "info", || tracing::warn!(shard = "locks_03", "became leader"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["message"], "became leader");
        assert_eq!(line["shard"], "locks_03");
    }

    #[test]
    fn what_the_filter_excludes_is_not_written() {
        let text = capture_logs(LogFormat::Text, "warn", || tracing::info!("quiet"));
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
