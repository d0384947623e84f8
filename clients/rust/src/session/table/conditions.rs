//! Requests that give their locks up to await a condition, and signals.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_proto::v1::client_message as client;
use holdfast_proto::v1::server_message as server;

use super::entry::{AwaitTerms, Phase};
use super::{Effect, RequestNo, RequestTable, WaiterId, format_request_id, loss_channel, parse_request_id};
use crate::error::{Error, LossReason, Reason, Refusal, Result};
use crate::view::Mode;

/// A signal without an answer.
#[derive(Debug)]
pub(super) struct PendingSignal {
    no: RequestNo,
    condition: Arc<str>,
    all: bool,
    waiter: WaiterId,
    stage: SignalStage,
    /// How many signals the request had before.
    rank: u64,
}

/// Signals of a request that may be done and have no answer: as many as a hold knows, so that none is done twice.
const MAX_UNANSWERED: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalStage {
    /// To be sent.
    Queued,
    /// Sent on this connection.
    Sent,
    /// To be sent again after a delay.
    Delayed,
}

impl PendingSignal {
    pub(super) fn waiter(&self) -> WaiterId {
        self.waiter
    }
}

impl RequestTable {
    /// Gives up the lock of a request, of which the waiter is told once it has it again.
    pub(crate) fn await_condition(
        &mut self,
        no: RequestNo,
        terms: AwaitTerms,
        waiter: WaiterId,
    ) -> Result<Vec<Effect>> {
        self.check_lock(no)?;
        let path = self.entries.get(&no).and_then(|entry| entry.request.claims.first()).map(|claim| claim.path.clone());
        let is_nested = self.entries.get(&no).is_some_and(|entry| entry.count > 1);
        if let Some(path) = path.filter(|_| is_nested) {
            return Err(Error::Nested(path));
        }
        self.clear_holds(no);
        let Some(entry) = self.entries.get_mut(&no) else { return Err(Error::Lost(LossReason::Released)) };
        entry.loss.send_replace(Some(LossReason::Released));
        (entry.loss, entry.woken, entry.is_unheard) = (loss_channel(), None, false);
        // Whoever asked for the hold has been heard.
        entry.asked = tokio::sync::watch::Sender::new(None);
        (entry.phase, entry.count) = (Phase::Awaiting(terms), 0);
        entry.waiters = vec![waiter];
        self.awaited.add(&entry.request);
        self.to_say.push_back(no);
        Ok(Vec::new())
    }

    /// Sends a signal under the lock of a request.
    pub(crate) fn signal(&mut self, no: RequestNo, condition: Arc<str>, all: bool, waiter: WaiterId) -> Result<()> {
        self.check_lock(no)?;
        let Some(entry) = self.entries.get_mut(&no) else { return Err(Error::Lost(LossReason::Released)) };
        let (rank, stage) = (entry.signals, SignalStage::Queued);
        entry.signals += 1;
        self.signals.push_back(PendingSignal { no, condition, all, waiter, stage, rank });
        Ok(())
    }

    /// Checks that a request holds one lock, to write, which has conditions.
    fn check_lock(&self, no: RequestNo) -> Result<()> {
        if let Some(reason) = &self.ended {
            return Err(Error::SessionEnded(reason.clone()));
        }
        self.check_supported("condition")?;
        let Some(entry) = self.entries.get(&no) else { return Err(Error::Lost(LossReason::Released)) };
        let is_one = matches!(entry.request.claims.as_slice(), [claim] if claim.mode == Mode::Write);
        if !is_one || entry.request.permits.is_some() {
            return Err(Error::Invalid("only one lock that is held to write has conditions".to_owned()));
        }
        match (&entry.phase, entry.loss.borrow().clone()) {
            (_, Some(reason)) => Err(Error::Lost(reason)),
            (Phase::Held, None) => Ok(()),
            (_, None) => Err(Error::Lost(LossReason::Released)),
        }
    }

    pub(super) fn has_signals(&self) -> bool {
        self.next_signal_index().is_some()
    }

    /// Returns which signal is sent next: the first that follows few others of its request without an answer.
    fn next_signal_index(&self) -> Option<usize> {
        let mut oldest: BTreeMap<RequestNo, u64> = BTreeMap::new();
        self.signals.iter().position(|signal| {
            let first = *oldest.entry(signal.no).or_insert(signal.rank);
            signal.stage == SignalStage::Queued && signal.rank - first < MAX_UNANSWERED
        })
    }

    pub(super) fn has_delayed_signals(&self) -> bool {
        self.signals.iter().any(|signal| signal.stage == SignalStage::Delayed)
    }

    /// Returns the next signal to send.
    pub(super) fn next_signal(&mut self) -> Option<client::Signal> {
        let index = self.next_signal_index()?;
        let signal = self.signals.get_mut(index)?;
        signal.stage = SignalStage::Sent;
        let (request_id, condition) = (format_request_id(signal.no), signal.condition.to_string());
        // Other requests may have the same hold.
        let signal_id = Some(format!("{request_id}.{}", signal.rank));
        Some(client::Signal { request_id, condition, all: signal.all, signal_id })
    }

    /// On a new connection, signals without an answer are sent again. The service knows them by their ids.
    pub(super) fn repeat_signals(&mut self) {
        self.signals.iter_mut().for_each(|signal| signal.stage = SignalStage::Queued);
    }

    /// Queues the signals whose delay is over.
    pub(super) fn retry_signals(&mut self) {
        let delayed = self.signals.iter_mut().filter(|signal| signal.stage == SignalStage::Delayed);
        delayed.for_each(|signal| signal.stage = SignalStage::Queued);
    }

    /// Handles the answer to the first signal of a request.
    pub(crate) fn on_signalled(&mut self, signalled: &server::Signalled) -> Vec<Effect> {
        let first = parse_request_id(&signalled.request_id).and_then(|no| self.take_signal(no));
        first.map(|signal| Effect::Signalled(signal.waiter, signalled.count)).into_iter().collect()
    }

    fn take_signal(&mut self, no: RequestNo) -> Option<PendingSignal> {
        let index = self.signals.iter().position(|signal| signal.no == no && signal.stage == SignalStage::Sent)?;
        self.signals.remove(index)
    }

    /// Fails the signals of a request that is over.
    pub(super) fn fail_signals_of(&mut self, no: RequestNo) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.signals.retain(|signal| {
            if signal.no == no {
                effects.push(Effect::Failed(signal.waiter, Error::Lost(LossReason::Released)));
            }
            signal.no != no
        });
        effects
    }

    /// Handles an error about a request that awaits a condition, or about a signal of one that holds its lock. Returns
    /// `None` for any other.
    pub(super) fn on_condition_error(&mut self, no: RequestNo, code: &str, detail: &str) -> Option<Vec<Effect>> {
        let error = Error::service(code, detail);
        match self.entries.get(&no)?.phase {
            Phase::Awaiting(_) if error.is_transient() => None,
            Phase::Awaiting(_) => Some(self.end_await(no, &error)),
            Phase::Held if error.is_transient() => {
                let sent = self.signals.iter_mut().find(|it| it.no == no && it.stage == SignalStage::Sent)?;
                sent.stage = SignalStage::Delayed;
                Some(Vec::new())
            }
            Phase::Held => {
                let signal = self.take_signal(no)?;
                Some(vec![Effect::Failed(signal.waiter, error)])
            }
            _ => None,
        }
    }

    /// Ends an await that will not have its lock again.
    pub(super) fn end_await(&mut self, no: RequestNo, error: &Error) -> Vec<Effect> {
        let Some(entry) = self.entries.get_mut(&no) else { return Vec::new() };
        let error = match error {
            // It was lost before it was given up.
            Error::Refused(Refusal { reason: Reason::NotHeld, .. }) => Error::Lost(LossReason::Duplicate(None)),
            error => error.clone(),
        };
        let waiters = std::mem::take(&mut entry.waiters);
        let mut effects: Vec<Effect> =
            waiters.into_iter().map(|waiter| Effect::Failed(waiter, error.clone())).collect();
        effects.extend(self.start_release(no));
        effects
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::v1;

    use super::super::tests::{acquired, again, granted, refused, request, sent, state};
    use super::*;

    /// Returns a table whose owner `a` holds a lock, and the request.
    fn holding() -> (RequestTable, RequestNo) {
        let mut table = RequestTable::default();
        let (no, _) = table.request(request("a", "x", Mode::Write), 1).unwrap();
        sent(&mut table);
        table.on_state(acquired("r1", 5));
        (table, no)
    }

    fn terms() -> AwaitTerms {
        AwaitTerms { condition: "c".into(), wait_ms: None }
    }

    fn woken(token: u64, woken: v1::Woken) -> server::State {
        server::State { woken: woken.into(), ..acquired("r1", token) }
    }

    #[test]
    fn who_awaits_a_condition_has_no_lock_until_it_is_granted_again() {
        let (mut table, no) = holding();
        table.await_condition(no, terms(), 2).unwrap();
        assert_eq!(sent(&mut table), ["await r1 of Some(5)"]);
        assert!(table.request(request("a", "x", Mode::Write), 3).is_err(), "it awaits its lock");
        assert!(matches!(table.signal(no, "c".into(), false, 4), Err(Error::Lost(LossReason::Released))));
        table.on_state(state("r1", server::state::Value::Awaiting, None));
        assert!(table.on_state(acquired("r1", 5)).is_empty(), "that was before");
        table.on_state(state("r1", server::state::Value::Enqueued, None));
        let effects = table.on_state(woken(9, v1::Woken::Elapsed));
        assert_eq!(granted(&effects), [(2, 9)]);
        assert!(matches!(&effects[0], Effect::Granted(_, it) if it.woken == Some(crate::Woken::Elapsed)));
        table.release(no, None);
        assert_eq!(sent(&mut table), ["release r1"]);
        table.on_state(state("r1", server::state::Value::Ready, None));
        assert_eq!((table.len(), table.bytes), (0, 0));
    }

    #[test]
    fn a_guard_beside_others_of_its_owner_is_not_given_up() {
        let (mut table, no) = holding();
        table.request(again("a", "x", Mode::Write), 2).unwrap();
        assert_eq!(table.await_condition(no, terms(), 3).unwrap_err(), Error::Nested("x".into()));
        table.release(no, None);
        table.await_condition(no, terms(), 3).unwrap();
    }

    #[test]
    fn only_one_lock_that_is_held_to_write_has_conditions() {
        let mut table = RequestTable::default();
        let (no, _) = table.request(request("a", "x", Mode::Read), 1).unwrap();
        table.on_state(acquired("r1", 5));
        assert!(matches!(table.await_condition(no, terms(), 2), Err(Error::Invalid(_))));
        assert!(matches!(table.signal(no, "c".into(), false, 2), Err(Error::Invalid(_))));
    }

    #[test]
    fn an_await_without_an_answer_is_listed_on_a_new_connection() {
        let (mut table, no) = holding();
        table.await_condition(no, terms(), 2).unwrap();
        sent(&mut table);
        let info = table.lock_info().remove(0);
        assert!(info.held.is_empty());
        let pending = info.pending[0].message.clone().unwrap();
        let awaits =
            client::Await { request_id: "r1".into(), condition: "c".into(), wait_ms: None, fencing_token: Some(5) };
        assert_eq!(pending, client::pending::Message::Await(awaits));
        assert!(!table.has_outgoing());
    }

    #[test]
    fn an_await_that_nobody_wants_any_more_is_released() {
        let (mut table, no) = holding();
        table.await_condition(no, terms(), 2).unwrap();
        table.cancel(no, 2);
        assert_eq!(sent(&mut table), ["release r1"]);
        table.on_state(state("r1", server::state::Value::Ready, None));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn only_a_release_after_an_await_without_news_is_unheard() {
        let unheard = |table: &mut RequestTable| match table.next_message() {
            Some(super::super::Said::Release(release)) => release.unheard,
            other => panic!("not a release: {other:?}"),
        };
        let (mut table, no) = holding();
        table.await_condition(no, terms(), 2).unwrap();
        sent(&mut table);
        table.cancel(no, 2);
        table.on_state(woken(9, v1::Woken::Signalled));
        assert!(unheard(&mut table), "the grant came too late");
        let pending = table.lock_info().remove(0).pending.remove(0).message;
        assert!(matches!(pending, Some(client::pending::Message::Release(release)) if release.unheard));
        let (mut table, no) = holding();
        table.await_condition(no, terms(), 2).unwrap();
        sent(&mut table);
        table.on_state(woken(9, v1::Woken::Signalled));
        table.release(no, None);
        assert!(!unheard(&mut table), "it had the lock");
    }

    #[test]
    fn an_await_that_is_refused_tells_its_caller_and_holds_nothing() {
        for (code, wanted) in [
            (v1::refusal::Code::Deadlock, Error::Refused(Refusal::of(Reason::Deadlock))),
            (v1::refusal::Code::NotHeld, Error::Lost(LossReason::Duplicate(None))),
        ] {
            let (mut table, no) = holding();
            table.await_condition(no, terms(), 2).unwrap();
            sent(&mut table);
            let effects = table.on_refused(refused("r1", code));
            assert!(matches!(&effects[..], [Effect::Failed(2, error)] if *error == wanted), "{effects:?}");
            assert_eq!(sent(&mut table), ["release r1"]);
        }
    }

    #[test]
    fn signals_are_answered_in_order_and_repeated_after_a_delay_or_on_a_new_connection() {
        let (mut table, no) = holding();
        table.signal(no, "c".into(), false, 2).unwrap();
        table.signal(no, "c".into(), true, 3).unwrap();
        assert_eq!(sent(&mut table), ["signal r1", "signal r1"]);
        let signalled = |count| server::Signalled { request_id: "r1".into(), count };
        let effects = table.on_signalled(&signalled(1));
        assert!(matches!(effects[..], [Effect::Signalled(2, 1)]), "{effects:?}");
        table.on_error("r1", "UNAVAILABLE", "");
        assert!(table.has_retries() && !table.has_outgoing());
        table.retry_all();
        assert_eq!(sent(&mut table), ["signal r1"]);
        table.lock_info();
        assert_eq!(sent(&mut table), ["signal r1"]);
        let effects = table.on_signalled(&signalled(300));
        assert!(matches!(effects[..], [Effect::Signalled(3, 300)]), "{effects:?}");
        assert!(table.on_signalled(&signalled(1)).is_empty());
    }

    #[test]
    fn each_signal_has_an_id_that_it_keeps_and_few_are_without_an_answer() {
        let ids = |table: &mut RequestTable| {
            let mut ids = Vec::new();
            while let Some(super::super::Said::Signal(signal)) = table.next_message() {
                ids.extend(signal.signal_id);
            }
            ids
        };
        let (mut table, no) = holding();
        (2..8).for_each(|waiter| table.signal(no, "c".into(), false, waiter).unwrap());
        assert_eq!(ids(&mut table), ["r1.0", "r1.1", "r1.2", "r1.3"]);
        assert!(!table.has_outgoing(), "the hold would forget the first");
        table.on_error("r1", "DEADLINE_EXCEEDED", "");
        table.on_signalled(&server::Signalled { request_id: "r1".into(), count: 1 });
        assert!(!table.has_outgoing(), "the first may be done");
        table.retry_all();
        assert_eq!(ids(&mut table), ["r1.0"]);
        table.lock_info();
        assert_eq!(ids(&mut table), ["r1.0", "r1.2", "r1.3"], "sent again on a new connection");
        table.on_signalled(&server::Signalled { request_id: "r1".into(), count: 1 });
        assert_eq!(ids(&mut table), ["r1.4", "r1.5"]);
    }

    #[test]
    fn a_signal_fails_with_its_lock() {
        let (mut table, no) = holding();
        table.signal(no, "c".into(), false, 2).unwrap();
        table.signal(no, "c".into(), false, 3).unwrap();
        sent(&mut table);
        let effects = table.on_error("r1", "NOT_HELD", "");
        assert!(matches!(effects[..], [Effect::Failed(2, Error::Service { .. })]), "{effects:?}");
        table.release(no, None);
        let effects = table.on_state(state("r1", server::state::Value::Ready, None));
        assert!(matches!(effects[..], [Effect::Failed(3, Error::Lost(LossReason::Released))]), "{effects:?}");
    }
}
