//! Receipts: the client of a session whose lock table is in the leader's memory gets one for each grant and each place.
//! With them, a resumed client reports its session itself where no gateway has.
//!
//! A list is taken as a whole. If a hold of it has no good receipt, nothing of it is reported: the leader would give
//! that hold to another session while the client still counts on it. The client is told that the hold is lost, and
//! resumes again with the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::session_message::{GrantedLock, LockInfo, Pending, QueueTicket, ServerMessage};
use holdfast_api::{ApiError, Code, Timestamp, validate};
use holdfast_auth::{InvalidReceipt, Receipted};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_types::{FencingToken, MAX_TABLE_REQUESTS, Mode, Receipt, Revision, RevokedReason, WaitId};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::channel::CloseReason;
use super::connection::SessionConnection;
use super::message_bytes::{granted_bytes, hold_bytes, lock_bytes};
use super::protocol;
use super::receipted::{ReceiptedRequest, requested_claims};

/// Bytes of all holds and granted requests of a list.
const MAX_LIST_BYTES: usize = 32 * 1_024 * 1_024;
/// Entries of a list that are taken before other tasks run.
const MAX_TAKEN_AT_ONCE: usize = 256;
/// How long beyond the time to live of its session a list may take to come. The session has ended then.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The claims that a receipt is about, in order of path, with their tokens.
type Claims<'a> = Vec<(&'a [String], Mode, FencingToken)>;

/// What a resumed client has shown so far.
#[derive(Debug, Default)]
pub(super) struct ReceiptedList {
    /// The number of the last part that was taken.
    part: u32,
    /// Granted requests whose receipts are good.
    granted: Vec<ReceiptedRequest>,
    /// Places whose receipts are good, by request id, until a leader answers the request.
    places: HashMap<String, WaitId>,
    /// Bytes of holds and granted requests.
    bytes: usize,
    /// Why the first receipt that was refused proves nothing, with the id of its request.
    refused: Option<(String, InvalidReceipt)>,
    /// Until when the list has to be there, while a report is owed.
    pub(super) deadline: Option<Instant>,
}

impl ReceiptedList {
    /// Returns whether the client has shown a place of a request that no leader has answered since.
    pub(super) fn has_position(&self, request_id: &str) -> bool {
        self.places.contains_key(request_id)
    }

    /// Takes that place: from now on it is known with the request, or does not count any more.
    pub(super) fn take_position(&mut self, request_id: &str) -> Option<WaitId> {
        self.places.remove(request_id)
    }

    /// The client has given up all requests.
    pub(super) fn clear_positions(&mut self) {
        self.places.clear();
    }
}

impl SessionConnection<'_> {
    /// Adds the receipt to a message about a request of a lock table that is in the leader's memory.
    pub(super) fn add_receipt(&self, message: &mut ServerMessage) {
        if self.session.table_epoch.is_none() {
            return;
        }
        match message {
            ServerMessage::Acquired { request_id, receipt, .. } => {
                *receipt =
                    self.requests.granted_claims(request_id).map(|claims| self.receipt(request_id, claims, None));
            }
            ServerMessage::Enqueued { request_id, place, .. } => {
                let Some(ticket) = self.requests.first_position(request_id) else { return };
                let Some(claims) = self.requests.requested_claims(request_id) else { return };
                let receipt = self.receipt(request_id, claims, Some(ticket));
                *place = Some(QueueTicket { ticket, receipt });
            }
            _ => {}
        }
    }

    fn receipt(&self, request_id: &str, claims: Claims<'_>, ticket: Option<WaitId>) -> Receipt {
        let holder = self.requests.lock(request_id).and_then(|lock| lock.holder.as_deref());
        let of = self.receipted(request_id, holder, (claims, ticket));
        self.session.service.inner.tokens.keys.receipt(&of, Timestamp::now().0)
    }

    fn receipted<'a>(
        &self,
        request_id: &'a str,
        holder: Option<&'a str>,
        (claims, ticket): (Claims<'a>, Option<WaitId>),
    ) -> Receipted<'a> {
        let (account, incarnation) = (self.session.namespace.account, self.session.namespace.incarnation);
        Receipted { account, incarnation, session: self.session.number, request_id, holder, claims, ticket }
    }

    fn check_receipt(&self, receipt: &Receipt, of: &Receipted<'_>) -> Result<(), InvalidReceipt> {
        match self.session.service.inner.tokens.keys.check_receipt(receipt, of, Timestamp::now().0) {
            _ if is_enabled(Mutation::SoftNoReceipt) => Ok(()),
            checked => checked,
        }
    }

    /// Records that a leader waits for a report that only the list of the client can make.
    pub(super) fn owe_report(&mut self) {
        self.owes_report = Some(self.promised);
        let max_wait = MAX_WAIT + Duration::from_millis(self.session.ttl_ms);
        self.shown.deadline.get_or_insert_with(|| Instant::now() + max_wait);
    }

    /// Takes a part of the list of a resumed client, once. Returns whether the leader compares it with what it has; if
    /// not, the last part makes the report.
    pub(super) async fn take_list(&mut self, info: &LockInfo) -> Result<bool, CloseReason> {
        if self.session.table_epoch.is_none() {
            return Ok(true);
        }
        if info.part.number > self.shown.part {
            self.shown.part = info.part.number;
            self.take_part(info).await?;
            if info.part.is_last() {
                self.enter_receipted().await;
            }
        }
        let Some(table_epoch) = self.owes_report else { return Ok(true) };
        self.pending.extend_from_slice(&info.pending);
        if info.part.is_last() {
            self.report_list(table_epoch).await?;
        }
        Ok(false)
    }

    /// Returns whether a part of the list that a leader can't compare yet may be sent again. The last of several parts
    /// may not: a leader that has dropped the other parts would end the holds that they list.
    pub(super) fn may_compare_later(&self, info: &LockInfo) -> bool {
        let is_safe = info.part.count == 1 || !info.part.is_last();
        is_safe && self.session.table_epoch.is_some() && !self.is_client_gone()
    }

    async fn take_part(&mut self, info: &LockInfo) -> Result<(), CloseReason> {
        let held: usize = info.held.iter().map(hold_bytes).sum();
        self.shown.bytes += held + info.granted.iter().map(granted_bytes).sum::<usize>();
        let requests = (self.shown.granted.len() + info.granted.len()) as u64;
        check_list(requests, self.shown.bytes).map_err(CloseReason::Malformed)?;
        for held in info.held.chunks(MAX_TAKEN_AT_ONCE) {
            held.iter().for_each(|held| self.requests.add_reported(held.clone()));
            yield_now().await;
        }
        for granted in info.granted.chunks(MAX_TAKEN_AT_ONCE) {
            granted.iter().for_each(|granted| self.take_granted(granted));
            yield_now().await;
        }
        self.take_positions(info);
        Ok(())
    }

    fn take_granted(&mut self, granted: &GrantedLock) {
        let shown = ReceiptedRequest::of(granted);
        let of = self.receipted(&granted.request_id, granted.holder.as_deref(), (shown.claims(), None));
        match self.check_receipt(&granted.receipt, &of) {
            Ok(()) => self.shown.granted.push(shown),
            Err(invalid) => _ = self.shown.refused.get_or_insert_with(|| (granted.request_id.clone(), invalid)),
        }
    }

    /// A place without a good receipt does not count: its request comes after the requests that have one.
    fn take_positions(&mut self, info: &LockInfo) {
        let shown: HashMap<&str, QueueTicket> = info.places.iter().map(|(id, place)| (id.as_str(), *place)).collect();
        for message in &info.pending {
            let Pending::Lock(lock) = message else { continue };
            let Some(place) = shown.get(lock.request_id.as_str()) else { continue };
            let asked = (requested_claims(&lock.resources), Some(place.ticket));
            let of = self.receipted(&lock.request_id, lock.holder.as_deref(), asked);
            if self.check_receipt(&place.receipt, &of).is_ok() {
                self.shown.places.insert(lock.request_id.clone(), place.ticket);
            }
        }
    }

    /// Enters the requests whose receipts are good, for as much of them as the client lists as held.
    async fn enter_receipted(&mut self) {
        for (at, shown) in std::mem::take(&mut self.shown.granted).into_iter().enumerate() {
            self.requests.enter_receipted(&shown);
            if at % MAX_TAKEN_AT_ONCE == MAX_TAKEN_AT_ONCE - 1 {
                yield_now().await;
            }
        }
    }

    /// Reports what the client has shown, unless it holds what it can't prove.
    async fn report_list(&mut self, table_epoch: Revision) -> Result<(), CloseReason> {
        (self.owes_report, self.shown.deadline) = (None, None);
        if !self.requests.knows_requests() {
            return Err(self.refuse_list().await?);
        }
        self.is_complete = true;
        self.unqueue_pending();
        self.on_unreported(table_epoch).await?;
        self.queue_pending();
        Ok(())
    }

    /// Tells the client which holds it can't prove, before anybody else can get them. Returns how the connection ends.
    async fn refuse_list(&mut self) -> Result<CloseReason, CloseReason> {
        for (path, fencing_token) in self.requests.unproven() {
            let (reason, current_owner, holder) = (RevokedReason::Duplicate, None, None);
            self.send(ServerMessage::Revoked { path, reason, current_owner, holder, fencing_token }).await?;
        }
        let why = match &self.shown.refused {
            Some((request_id, invalid)) => format!("the receipt of {request_id} proves nothing: {invalid}"),
            None => "a hold has no receipt".to_owned(),
        };
        let detail = format!("lock_info: {why}; its holds are lost, resume again with the others");
        Ok(CloseReason::Failed(ApiError::new(Code::Unavailable, detail)))
    }

    /// Lets the pending requests for locks wait without a place, so that they are reported: each once, if it may be
    /// asked for. The others are sent after the report.
    fn unqueue_pending(&mut self) {
        let limits = match self.tenant() {
            Ok(tenant) => validate::limits_for_existing(tenant.limits()),
            Err(_) => return,
        };
        let mut others = Vec::new();
        for message in std::mem::take(&mut self.pending) {
            match message {
                Pending::Lock(lock)
                    if self.may_be_unqueued(&lock, 0) && protocol::validate_claims(&lock, &limits).is_ok() =>
                {
                    let Ok(counted) = self.count_unqueued(&lock) else {
                        others.push(Pending::Lock(lock));
                        continue;
                    };
                    let ticket = self.shown.take_position(&lock.request_id);
                    self.count_pending(lock_bytes(&lock));
                    self.requests.unqueued(&Arc::new(lock), ticket, counted);
                    self.has_unqueued = true;
                }
                message => others.push(message),
            }
        }
        self.pending = others;
    }

    fn count_pending(&self, bytes: usize) {
        if let Ok(tenant) = self.tenant() {
            self.session.service.inner.rates.count(tenant.account, bytes as u64);
        }
    }
}

/// Checks the size of a list so far.
fn check_list(requests: u64, bytes: usize) -> Result<(), ApiError> {
    if requests <= MAX_TABLE_REQUESTS && bytes <= MAX_LIST_BYTES {
        return Ok(());
    }
    let detail = format!(
        "lock_info: it shows {requests} granted requests in {bytes} bytes, of at most {MAX_TABLE_REQUESTS} in \
         {MAX_LIST_BYTES}"
    );
    Err(ApiError::new(Code::PayloadTooLarge, detail))
}

/// The error for a resumed client that does not say what it has.
pub(super) fn unlisted_error() -> ApiError {
    ApiError::new(Code::DeadlineExceeded, "no lock_info came in time after the resume; open another session")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_at_most_so_many_requests_and_bytes() {
        assert_eq!(check_list(MAX_TABLE_REQUESTS, MAX_LIST_BYTES), Ok(()));
        for (requests, bytes) in [(MAX_TABLE_REQUESTS + 1, 0), (0, MAX_LIST_BYTES + 1)] {
            assert_eq!(check_list(requests, bytes).unwrap_err().code, Code::PayloadTooLarge);
        }
    }
}
