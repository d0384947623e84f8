//! Keeps the ledgers of sessions whose connections ended: the gateway reports a ledger to leaders of new epochs until
//! its session has ended or was resumed.

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_routing::{Subscription, SubscriptionError};
use holdfast_supervise::spawn_temporary;
use holdfast_types::{AcquireOutcome, CommandError, Effect, Revision, SessionUpdate};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::epoch_report::{EpochReport, Reported, await_report};
use super::handle::SessionHandle;
use super::request_table::RequestTable;

/// Maximum bytes of kept ledgers in this process; the oldest is dropped first.
const MAX_BYTES: usize = 64 * 1_024 * 1_024;
/// Bytes that a session counts as, without its requests.
const OVERHEAD: usize = 4 * 1_024;

/// Counts the kept ledgers.
#[derive(Debug, Default)]
pub(crate) struct RetainedLedgers(Arc<Mutex<Retained>>);

#[derive(Debug, Default)]
struct Retained {
    /// By number, the oldest first.
    ledgers: VecDeque<(u64, usize, CancellationToken)>,
    bytes: usize,
    last: u64,
}

/// Counts one of them for as long as it is kept.
struct LedgerGauge(Arc<Mutex<Retained>>, u64);

impl RetainedLedgers {
    /// Counts one more, and drops the oldest ones that it leaves no room for. `None` if it is too large. The token is
    /// cancelled when it is dropped itself.
    fn add(&self, bytes: usize) -> Option<(LedgerGauge, CancellationToken)> {
        let bytes = bytes.saturating_add(OVERHEAD);
        if bytes > MAX_BYTES {
            return None;
        }
        let mut kept = self.0.lock();
        while kept.bytes + bytes > MAX_BYTES {
            let (_, oldest, dropped) = kept.ledgers.pop_front()?;
            dropped.cancel();
            kept.bytes -= oldest;
        }
        let dropped = CancellationToken::new();
        kept.last += 1;
        kept.bytes += bytes;
        let number = kept.last;
        kept.ledgers.push_back((number, bytes, dropped.clone()));
        Some((LedgerGauge(Arc::clone(&self.0), number), dropped))
    }
}

impl Drop for LedgerGauge {
    fn drop(&mut self) {
        let mut kept = self.0.lock();
        // They are in order of number.
        if let Ok(at) = kept.ledgers.binary_search_by_key(&self.1, |(number, ..)| *number)
            && let Some((_, bytes, _)) = kept.ledgers.remove(at)
        {
            kept.bytes -= bytes;
        }
    }
}

/// The ledger of a session that has no connection here.
pub(super) struct RetainedLedger {
    pub(super) session: Arc<SessionHandle>,
    pub(super) requests: RequestTable,
    pub(super) promised: Revision,
    /// The last epoch whose leader has the report.
    pub(super) reported: Revision,
    pub(super) report: Option<EpochReport>,
}

impl RetainedLedger {
    /// Keeps it in a task of its own.
    pub(super) fn spawn(mut self) {
        let ledgers = &self.session.service.inner.retained_ledgers;
        let Some((counted, dropped)) = ledgers.add(self.requests.bytes()) else { return };
        spawn_temporary("session_ledger", async move {
            dropped.run_until_cancelled(self.run()).await;
            drop(counted);
        });
    }

    /// Returns when the session has ended or was resumed, or when no leader is reached for too long.
    async fn run(&mut self) {
        let mut subscription = self.session.subscribe();
        loop {
            tokio::select! {
                update = subscription.next(), if self.report.is_none() => match update {
                    Ok(update) => {
                        for update in update.items {
                            if self.on_update(update).is_none() {
                                return;
                            }
                        }
                    }
                    Err(SubscriptionError::Rejected(CommandError::Unreported { table_epoch })) => {
                        if self.report_to(table_epoch, &mut subscription).is_none() {
                            return;
                        }
                    }
                    Err(_) => return,
                },
                reply = await_report(&mut self.report) => {
                    let reported = self.report.as_mut().map(|report| report.on_reply(reply));
                    match reported {
                        None | Some(Reported::Partly) => {}
                        Some(Reported::Whole) => (self.report, self.reported) = (None, self.promised),
                        Some(Reported::Elsewhere(table_epoch)) => {
                            if self.report_to(table_epoch, &mut subscription).is_none() {
                                return;
                            }
                        }
                        Some(Reported::Rejected(_) | Reported::Failed(_)) => return,
                    }
                }
            }
        }
    }

    /// Begins a report, from which on nothing of earlier epochs counts. `None` if there is too much to report.
    fn report_to(&mut self, table_epoch: Revision, subscription: &mut Subscription<SessionUpdate>) -> Option<()> {
        self.promised = self.promised.max(table_epoch);
        *subscription = self.session.subscribe();
        self.requests.displace();
        let parts = self.requests.report(self.session.empty_report(self.promised, u64::MAX))?;
        self.report = Some(EpochReport::start(&self.session, parts, self.promised <= self.reported));
        Some(())
    }

    /// Follows what becomes of the session. A grant that nobody can be told of is not its client's: the request still
    /// waits. `None` if there is nothing to keep any more.
    fn on_update(&mut self, update: SessionUpdate) -> Option<()> {
        match update.effect {
            Effect::SessionOpened { epoch, .. } if epoch > self.session.epoch => None,
            Effect::SessionEnded { .. } | Effect::NamespaceClosed { .. } => None,
            Effect::Revoked { path, fencing_token, .. } => {
                self.requests.remove_hold(&path, fencing_token);
                Some(())
            }
            Effect::WaitResolved { request_id: Some(request_id), outcome: AcquireOutcome::Refused(_), .. } => {
                if self.requests.waiting(&request_id).is_some() {
                    self.requests.remove(&request_id);
                }
                Some(())
            }
            _ => Some(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_dropped_for_want_of_room_and_one_that_ends_makes_room() {
        let ledgers = RetainedLedgers::default();
        let half = MAX_BYTES / 2 - OVERHEAD;
        assert!(ledgers.add(MAX_BYTES).is_none());
        let (first, first_dropped) = ledgers.add(half).expect("there is room");
        let (second, second_dropped) = ledgers.add(half).expect("there is room");
        assert!(!first_dropped.is_cancelled());
        let (_third, third_dropped) = ledgers.add(half).expect("the oldest makes room");
        assert!(first_dropped.is_cancelled() && !second_dropped.is_cancelled());
        drop(first);
        drop(second);
        let (_fourth, _) = ledgers.add(half).expect("there is room");
        assert!(!third_dropped.is_cancelled());
        assert_eq!(ledgers.0.lock().ledgers.len(), 2);
    }
}
