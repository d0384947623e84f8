//! Logging and metrics of a program.

use clap::Args;
use holdfast_telemetry::{
    BuildInfo, LogFormat, LoggingError, LoggingOptions, Metrics, MetricsError, init_logging, install_metrics,
};

/// Flags about logging.
#[derive(Debug, Clone, Args)]
pub struct TelemetryArgs {
    /// The format of log lines: text or json.
    #[arg(long, env = "HOLDFAST_LOG_FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// The log level (error, warn, info, debug, trace), or directives such as holdfast_node=debug.
    #[arg(long, env = "HOLDFAST_LOG", default_value = "info,openraft=error")]
    pub log: String,
    /// Export traces to a collector that speaks OTLP over HTTP, like http://127.0.0.1:4318; not exported when absent.
    #[arg(long, env = "HOLDFAST_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
}

/// Logging or metrics can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Logging can't be set up.
    #[error(transparent)]
    LoggingOptions(#[from] LoggingError),
    /// Metrics can't be set up.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

impl TelemetryArgs {
    /// Sets up logging and metrics for the process. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the directives can't be parsed, or the process already has logging.
    pub fn init(&self, program: &'static str, version: &'static str) -> Result<Metrics, TelemetryError> {
        let build = BuildInfo { program, version };
        let otlp_endpoint = self.otlp_endpoint.as_deref();
        init_logging(LoggingOptions { format: self.log_format, filter: &self.log, otlp_endpoint, build })?;
        let metrics = install_metrics(build)?;
        metrics.spawn_upkeep();
        Ok(metrics)
    }
}
