//! The latest request to release a hold, as the hold keeps it. All holds that a request concerns share one record.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use serde::{Deserialize, Serialize};

use crate::codec;
use crate::reply_size::MAX_REPLY_BYTES;
use crate::{AskRelease, AskedHold, AskedHolds, Kind, ReleaseRequest, RequestId};

/// What a hold is charged for a request to release it, without its texts.
pub const ASKED: u64 = 512;

/// A request to release, without what differs from hold to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskRecord {
    request_id: RequestId,
    by: String,
    reason: String,
    within_ms: Option<u64>,
    asked_at_ms: u64,
    /// Shard clock at which its time is over.
    until_ms: Option<u64>,
    force: bool,
}

/// What a hold keeps of requests to release it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// The latest one.
    pub latest: Option<Arc<AskRecord>>,
    /// Shard clock at which the hold ends by force: the earliest of all that were asked for.
    pub forced_at_ms: Option<u64>,
}

/// The item of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsksItem {
    latest: Option<AskRecord>,
    forced_at_ms: Option<u64>,
}

impl AskRecord {
    /// Returns the record of a request at an instant of both clocks.
    pub fn of(ask: &AskRelease, clock_ms: u64, wall_ms: u64) -> Self {
        let within_ms = if ask.force { Some(ask.within_ms.unwrap_or(0)) } else { ask.within_ms };
        Self {
            request_id: ask.request_id,
            by: ask.by.clone(),
            reason: ask.reason.clone(),
            within_ms,
            asked_at_ms: wall_ms,
            until_ms: within_ms.map(|within_ms| clock_ms.saturating_add(within_ms)),
            force: ask.force,
        }
    }

    /// Returns the record without its texts, for a hold that there is no room for more of.
    pub fn without_texts(&self) -> Self {
        Self { by: String::new(), reason: String::new(), ..self.clone() }
    }

    /// Returns the length of its texts in bytes.
    pub fn text_bytes(&self) -> usize {
        self.by.len() + self.reason.len()
    }

    /// Returns what those are told who are asked now.
    pub fn view(&self) -> ReleaseRequest {
        ReleaseRequest {
            by: self.by.clone(),
            reason: self.reason.clone(),
            within_ms: self.within_ms,
            asked_at_ms: self.asked_at_ms,
            until_ms: self.until_ms,
            force: self.force,
        }
    }

    fn forced_at_ms(&self) -> Option<u64> {
        let until_ms = self.until_ms.filter(|_| self.force)?;
        if is_enabled(Mutation::AskForceEarly) {
            return Some(until_ms.saturating_sub(self.within_ms.unwrap_or(0)));
        }
        Some(until_ms)
    }

    fn delay(&mut self, by_ms: u64) {
        self.until_ms = self.until_ms.map(|at_ms| at_ms.saturating_add(by_ms));
    }
}

impl Asks {
    /// Returns whether nothing was asked.
    pub fn is_empty(&self) -> bool {
        self.latest.is_none() && self.forced_at_ms.is_none()
    }

    /// Returns whether that request is the latest one: then a repeat of it changes nothing.
    pub fn has(&self, request_id: RequestId) -> bool {
        self.latest.as_ref().is_some_and(|latest| latest.request_id == request_id)
    }

    /// Keeps a request. One without force does not put off what an earlier one forces, and one with force only brings
    /// it forward.
    pub fn add(&mut self, record: &Arc<AskRecord>) {
        self.bring_forward(record);
        self.latest = Some(Arc::clone(record));
    }

    /// Keeps when a request forces the hold to end, for a hold whose owner is not asked.
    pub fn bring_forward(&mut self, record: &AskRecord) {
        if is_enabled(Mutation::AskForcePutOff) {
            self.forced_at_ms = record.forced_at_ms();
            return;
        }
        self.forced_at_ms = self.forced_at_ms.into_iter().chain(record.forced_at_ms()).min();
    }

    /// Returns the view of the latest request, with what is due of all.
    pub fn view(&self) -> Option<ReleaseRequest> {
        let view = self.latest.as_ref()?.view();
        Some(ReleaseRequest {
            until_ms: self.forced_at_ms.or(view.until_ms),
            force: self.forced_at_ms.is_some(),
            ..view
        })
    }

    /// Returns the item of a snapshot.
    pub fn item(&self) -> AsksItem {
        AsksItem { latest: self.latest.as_deref().cloned(), forced_at_ms: self.forced_at_ms }
    }

    /// Returns what an item of a snapshot says. Shares the record of `last`, that of the item before, if it is the
    /// same.
    pub fn restored(item: AsksItem, last: &mut Option<Arc<AskRecord>>) -> Self {
        if item.latest.is_some() && item.latest.as_ref() != last.as_deref() {
            *last = item.latest.clone().map(Arc::new);
        }
        let latest = last.clone().filter(|_| item.latest.is_some());
        Self { latest, forced_at_ms: item.forced_at_ms }
    }
}

impl AsksItem {
    /// Makes the instants of the shard clock later by a time.
    pub fn delay(&mut self, by_ms: u64) {
        self.latest.iter_mut().for_each(|latest| latest.delay(by_ms));
        self.forced_at_ms = self.forced_at_ms.map(|at_ms| at_ms.saturating_add(by_ms));
    }
}

/// The asked holds in a response to a report, as many as fit. Those of one request follow one another.
#[derive(Debug, Default)]
pub struct AskedList {
    asked: Vec<AskedHolds>,
    bytes: usize,
    is_full: bool,
}

impl AskedList {
    /// Adds a hold that a request, if any, asks for, as long as the response has room.
    pub fn push(&mut self, kind: Kind, request: Option<ReleaseRequest>, hold: impl FnOnce() -> AskedHold) {
        let Some(request) = request.filter(|_| !self.is_full) else { return };
        let hold = hold();
        let last = self.asked.last_mut().filter(|last| last.kind == kind && last.request == request);
        let more = codec::size(&hold) + if last.is_some() { 0 } else { codec::size(&request) + 8 };
        if self.bytes + more > MAX_REPLY_BYTES {
            self.is_full = true;
            return;
        }
        self.bytes += more;
        match last {
            Some(last) => last.holds.push(hold),
            None => self.asked.push(AskedHolds { kind, request, holds: vec![hold] }),
        }
    }

    /// Returns the holds, by request.
    pub fn into_asked(self) -> Vec<AskedHolds> {
        self.asked
    }
}

/// Returns what a hold is charged more for requests to release it.
pub fn asked_charge(asks: Option<&Asks>) -> u64 {
    asks.map_or(0, |asks| ASKED + asks.latest.as_ref().map_or(0, |latest| latest.text_bytes() as u64))
}
