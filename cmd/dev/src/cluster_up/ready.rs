//! Waits for a process to become ready.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::child::Child;
use super::log::Log;

const POLL_INTERVAL: Duration = Duration::from_millis(100);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often progress is reported while nothing changes.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The result of the wait.
#[derive(Debug)]
pub(super) enum Readiness {
    Ready,
    /// The process has ended; the log contains the reason.
    Ended,
    /// It is not ready at the deadline, for this reason.
    TimedOut(String),
}

/// Waits until a process is ready or has ended, or the deadline passes.
pub(super) async fn wait(http: &reqwest::Client, child: &Child, log: &Log, deadline: Instant) -> Readiness {
    let started = Instant::now();
    let readiness = tokio::select! {
        readiness = poll_until_ready(http, child, log, deadline) => readiness,
        () = child.ended() => Readiness::Ended,
    };
    let name = &child.name;
    match &readiness {
        Readiness::Ready => log.write_line(format!("{name} is ready after {:.1?}", started.elapsed())).await,
        Readiness::TimedOut(reason) => log.write_line(format!("{name} is NOT READY: {reason}")).await,
        Readiness::Ended => {}
    }
    readiness
}

async fn poll_until_ready(http: &reqwest::Client, child: &Child, log: &Log, deadline: Instant) -> Readiness {
    let url = format!("http://{}/readyz", child.address);
    let mut say_at = Instant::now() + REPORT_INTERVAL;
    loop {
        let Err(reason) = probe(http, &url).await else { return Readiness::Ready };
        if Instant::now() >= deadline {
            return Readiness::TimedOut(reason);
        }
        if Instant::now() >= say_at {
            log.write_line(format!("waiting for {} ({}): {reason}", child.name, child.address)).await;
            say_at = Instant::now() + REPORT_INTERVAL;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Checks whether the process is ready; the error is the reason, on one line.
async fn probe(http: &reqwest::Client, url: &str) -> Result<(), String> {
    let response = http.get(url).timeout(ANSWER_TIMEOUT).send().await.map_err(|error| {
        let reason = if error.is_connect() { "does not listen yet" } else { "does not answer" };
        reason.to_owned()
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let text = response.text().await.unwrap_or_default();
    // A gateway responds with a problem document, a node with a line of text.
    let detail = serde_json::from_str::<Value>(&text).ok().and_then(|body| Some(body["detail"].as_str()?.to_owned()));
    let reason = detail.unwrap_or_else(|| text.lines().next().unwrap_or_default().to_owned());
    Err(if reason.is_empty() { format!("answers with status {}", status.as_u16()) } else { reason })
}
