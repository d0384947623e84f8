//! Logging, metrics and traces of a process.
//!
//! Purpose: set up `tracing` and `metrics` once per process, the same way in every program, render what `/metrics`
//! answers, and export traces when a collector is named.
//!
//! Invariant: logs go to standard error, so that standard output belongs to what a program prints for its user.
//!
//! Deliberately unknown here: which metrics there are, how `/metrics` is served and who may read it. Libraries trace and
//! count with the macros of `tracing` and `metrics`; only what starts a process or serves `/metrics` needs this crate.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod logging;
mod metrics;
mod tracing_export;

pub use logging::{LogFormat, LoggingError, LoggingOptions, UnknownLogFormat, init_logging};
pub use metrics::{BuildInfo, Metrics, MetricsError, UPKEEP_INTERVAL, install_metrics};
pub use tracing_export::{continue_trace, flush_traces, is_exporting_traces, trace_parent};
