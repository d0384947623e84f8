//! A report of a session to the leader of a new epoch of its lock table, part by part.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{CommandError, Reply, Response, Revision, TableReport};
use tokio::time::{Instant, sleep};

use super::handle::SessionHandle;
use crate::shard_call::unexpected;

/// Delay before a part is sent again; it doubles each time, up to the maximum. Both are much shorter than the time to
/// live of any session.
const RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(400);
/// How long beyond the time to live of its session a report is repeated.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// A report that is under way. All its parts are of one moment.
pub(super) struct EpochReport {
    session: Arc<SessionHandle>,
    parts: Vec<TableReport>,
    /// The part that is under way.
    at: usize,
    /// The delay before it is sent again.
    delay: Duration,
    until: Instant,
    reply: BoxFuture<'static, ApiResult<Reply>>,
}

/// What became of a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reported {
    /// Parts of it are still under way.
    Partly,
    /// The leader has it.
    Whole,
    /// The leader has begun another epoch.
    Elsewhere(Revision),
    /// No leader takes it.
    Rejected(CommandError),
    /// No leader took it in time.
    Failed(ApiError),
}

impl EpochReport {
    /// Begins to send a report: at once, unless the leader of its epoch has had one. A leader that asks for it again
    /// has not begun a new epoch, and gets repeated reports only with a pause in between.
    pub(super) fn start(session: &Arc<SessionHandle>, parts: Vec<TableReport>, is_repeat: bool) -> Self {
        let until = Instant::now() + MAX_WAIT + Duration::from_millis(session.ttl_ms);
        let (session, reply) = (Arc::clone(session), pending().boxed());
        let mut report = Self { session, parts, at: 0, delay: RETRY_DELAY, until, reply };
        report.send_part(if is_repeat { RETRY_DELAY } else { Duration::ZERO });
        report
    }

    /// Sends the part that is next, after a while.
    fn send_part(&mut self, after: Duration) {
        let Some(part) = self.parts.get(self.at) else { return };
        let (session, part) = (Arc::clone(&self.session), part.clone());
        self.reply = async move {
            if !after.is_zero() {
                sleep(after).await;
            }
            session.report(part).await
        }
        .boxed();
    }

    /// Handles the reply to a part.
    pub(super) fn on_reply(&mut self, reply: ApiResult<Reply>) -> Reported {
        let epoch = self.parts.first().map_or(0, |part| part.table_epoch);
        let error = match reply.map(|reply| reply.outcome) {
            Ok(Ok(Response::Done | Response::Ignored)) => {
                self.at += 1;
                if self.at == self.parts.len() {
                    return Reported::Whole;
                }
                self.delay = RETRY_DELAY;
                self.send_part(Duration::ZERO);
                return Reported::Partly;
            }
            Ok(Ok(other)) => return Reported::Failed(unexpected(&other)),
            Ok(Err(CommandError::Unreported { table_epoch })) if table_epoch > epoch => {
                return Reported::Elsewhere(table_epoch);
            }
            Ok(Err(
                refused @ (CommandError::SessionNotFound(_)
                | CommandError::Superseded { .. }
                | CommandError::NamespaceNotFound),
            )) => return Reported::Rejected(refused),
            Ok(Err(refused)) => {
                if matches!(refused, CommandError::InvalidArgument(_)) {
                    self.at = 0;
                }
                ApiError::from(refused)
            }
            Err(error) => error,
        };
        // The leader may not have begun its epoch, or be one of before, or wait for the outcome of an expiry.
        if Instant::now() >= self.until {
            return Reported::Failed(error);
        }
        self.send_part(self.delay);
        self.delay = MAX_RETRY_DELAY.min(2 * self.delay);
        Reported::Partly
    }
}

/// Waits for the reply to a part; returns each once. Cancel-safe.
pub(super) async fn await_report(report: &mut Option<EpochReport>) -> ApiResult<Reply> {
    match report {
        Some(report) => (&mut report.reply).await,
        None => pending().await,
    }
}
