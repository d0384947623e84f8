//! Setup of `metrics` with a Prometheus recorder.

use std::sync::Arc;
use std::time::Duration;

use holdfast_supervise::TaskSet;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use tokio::time::MissedTickBehavior;

/// Time between drains of histograms, so that they do not grow while no client reads `/metrics`.
pub const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Upper bounds for names that end in `_seconds`: from a cached lookup to the longest deadline, dense in the range of
/// responses of a healthy cluster (0.1 to 50 ms).
const SECONDS_BUCKETS: [f64; 21] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_35, 0.000_5, 0.000_75, 0.001, 0.001_5, 0.002, 0.002_5, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
/// Upper bounds for names that end in `_bytes`: 64 B to 64 MiB.
const BYTES_BUCKETS: [f64; 11] = [
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];
/// Upper bounds for all other names, which count items, like commands in a batch.
const COUNT_BUCKETS: [f64; 13] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0, 2_048.0, 4_096.0];

/// The labels of a process in `holdfast_build_info`.
#[derive(Clone, Copy, Debug)]
pub struct BuildInfo {
    /// Like `holdfast-node`.
    pub program: &'static str,
    /// `env!("CARGO_PKG_VERSION")` of the program.
    pub version: &'static str,
}

/// Why metrics cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The recorder was set up before in this process.
    #[error("metrics are already set up: {0}")]
    AlreadySet(String),
    /// The recorder rejects the bounds above.
    #[error("the metrics recorder cannot be built: {0}")]
    Recorder(#[from] BuildError),
}

/// The metrics of this process. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Metrics {
    handle: PrometheusHandle,
    process: Collector,
    tasks: Arc<TaskSet>,
}

/// Installs the recorder of the `metrics` macros in this process.
///
/// # Errors
/// When it was installed before.
pub fn install_metrics(build: BuildInfo) -> Result<Metrics, MetricsError> {
    let recorder = builder()?.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|error| MetricsError::AlreadySet(error.to_string()))?;
    Ok(Metrics::new(handle, build))
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new()
        .set_buckets(&COUNT_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), &BYTES_BUCKETS)
}

impl Metrics {
    /// Describes this process to the recorder of the handle, which must be the current one.
    fn new(handle: PrometheusHandle, build: BuildInfo) -> Self {
        let process = Collector::default();
        process.describe();
        metrics::describe_gauge!("holdfast_build_info", "Always 1; the labels name the program and its version.");
        metrics::gauge!("holdfast_build_info", "program" => build.program, "version" => build.version).set(1.0);
        Self { handle, process, tasks: Arc::new(TaskSet::in_background()) }
    }

    /// Renders the response of `/metrics`, in the exposition format of Prometheus, with fresh metrics of the process:
    /// CPU time, memory, open files, threads, start time.
    pub fn render(&self) -> String {
        self.process.collect();
        self.handle.render()
    }

    /// Drains histograms every [`UPKEEP_INTERVAL`] until the last clone is dropped. Call it once, inside a tokio
    /// runtime.
    pub fn spawn_upkeep(&self) {
        let handle = self.handle.clone();
        self.tasks.spawn_restarting("metrics", move || {
            let handle = handle.clone();
            async move {
                let mut interval = tokio::time::interval(UPKEEP_INTERVAL);
                interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    interval.tick().await;
                    handle.run_upkeep();
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the response of `/metrics` after a program recorded metrics.
    fn render_after(program: impl FnOnce()) -> String {
        let recorder = builder().unwrap().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            let metrics = Metrics::new(handle, BuildInfo { program: "holdfast-test", version: "1.2.3" });
            program();
            metrics.render()
        })
    }

    #[test]
    fn the_answer_tells_build_and_process() {
        let text = render_after(|| {});
        assert!(text.contains("holdfast_build_info{program=\"holdfast-test\",version=\"1.2.3\"} 1"), "{text}");
        for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"] {
            assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} in {text}");
        }
    }

    #[test]
    fn each_unit_has_its_own_buckets() {
        let text = render_after(|| {
            metrics::histogram!("holdfast_call_seconds").record(0.000_3);
            metrics::histogram!("holdfast_frame_bytes").record(5_000.0);
            metrics::histogram!("holdfast_batch_commands").record(3.0);
        });
        assert!(text.contains("holdfast_call_seconds_bucket{le=\"0.0002\"} 0"), "{text}");
        assert!(text.contains("holdfast_call_seconds_bucket{le=\"0.00035\"} 1"), "{text}");
        assert!(text.contains("holdfast_frame_bytes_bucket{le=\"4096\"} 0"), "{text}");
        assert!(text.contains("holdfast_frame_bytes_bucket{le=\"16384\"} 1"), "{text}");
        assert!(text.contains("holdfast_batch_commands_bucket{le=\"2\"} 0"), "{text}");
        assert!(text.contains("holdfast_batch_commands_bucket{le=\"4\"} 1"), "{text}");
    }

    #[test]
    fn bounds_rise() {
        for bounds in [SECONDS_BUCKETS.as_slice(), &BYTES_BUCKETS, &COUNT_BUCKETS] {
            assert!(bounds.is_sorted_by(|one, next| one < next));
        }
    }

    #[test]
    fn metrics_are_set_up_once_in_a_process() {
        let build = BuildInfo { program: "holdfast-test", version: "1.2.3" };
        install_metrics(build).unwrap();
        assert!(matches!(install_metrics(build), Err(MetricsError::AlreadySet(_))));
    }
}
