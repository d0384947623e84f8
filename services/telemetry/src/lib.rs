//! Logging, metrics and traces of a process.
//!
//! Purpose: set up `tracing` and `metrics` once per process, the same way in every program. Render the response of
//! `/metrics`, and export traces if a collector is configured.
//!
//! Invariant: logs go to standard error, so that standard output is free for a program's output to its user.
//!
//! Deliberately unknown here: the individual metrics, how `/metrics` is served and which callers may read it. Libraries
//! use the macros of `tracing` and `metrics`; only code that starts a process or serves `/metrics` needs this crate.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod logging;
mod metrics;
mod tracing_export;

pub use logging::{LogFormat, LoggingError, LoggingOptions, UnknownLogFormat, init_logging};
pub use metrics::{BuildInfo, Metrics, MetricsError, UPKEEP_INTERVAL, install_metrics};
pub use tracing_export::{continue_trace, flush_traces, is_exporting_traces, trace_parent, uses_call_spans};
