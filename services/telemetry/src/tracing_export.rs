//! Exports traces to a collector (OTLP over HTTP), if one is configured.

use std::collections::HashMap;
use std::sync::OnceLock;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Span;
use tracing::level_filters::LevelFilter;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{BuildInfo, LoggingError};

/// The path of a collector for traces below its base address.
const TRACES_PATH: &str = "/v1/traces";
/// The header, and the field of internal calls, that carries the parent span of a call (W3C Trace Context).
const TRACE_PARENT: &str = "traceparent";

/// Set when traces are exported.
static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// Starts to export. `endpoint` is the collector's base address, like `http://127.0.0.1:4318`.
pub(crate) fn init_tracer(endpoint: &str, build: BuildInfo) -> Result<SdkTracer, LoggingError> {
    let refused = |problem: String| LoggingError::Otlp { endpoint: endpoint.to_owned(), problem };
    if !endpoint.starts_with("http://") {
        return Err(refused("only http:// is supported; run a collector on this machine".to_owned()));
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}{TRACES_PATH}", endpoint.trim_end_matches('/')))
        .build()
        .map_err(|error| refused(error.to_string()))?;
    let resource = Resource::builder()
        .with_service_name(build.program)
        .with_attribute(KeyValue::new("service.version", build.version))
        .build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let tracer = provider.tracer("holdfast");
    PROVIDER.set(provider).map_err(|_| LoggingError::AlreadySet("traces are exported already".to_owned()))?;
    Ok(tracer)
}

/// Returns whether traces are exported, so that passing on their context is useful.
pub fn is_exporting_traces() -> bool {
    PROVIDER.get().is_some()
}

/// Returns whether something may use the span of a call: its lines are logged in detail, or traces are exported.
/// Elsewhere a span for each call would cost more than what is logged about the few that fail.
pub fn uses_call_spans() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG || is_exporting_traces()
}

/// Returns the context with which another process continues the trace of the present span, as a `traceparent` header.
/// None when traces are not exported.
pub fn trace_parent() -> Option<String> {
    PROVIDER.get()?;
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
    carrier.remove(TRACE_PARENT)
}

/// Makes a span part of the trace that a caller names in a `traceparent` header. Ignores an invalid header, and every
/// header when traces are not exported.
pub fn continue_trace(span: &Span, trace_parent: &str) {
    if !is_exporting_traces() {
        return;
    }
    let carrier = HashMap::from([(TRACE_PARENT.to_owned(), trace_parent.to_owned())]);
    let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    // It fails for spans that are filtered out, which are not exported anyway.
    let _ = span.set_parent(parent);
}

/// Exports the remaining spans; at the end of a process.
pub fn flush_traces() {
    if let Some(provider) = PROVIDER.get()
        && let Err(error) = provider.force_flush()
    {
        tracing::debug!(%error, "final trace export failed");
    }
}
