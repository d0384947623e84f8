//! The reported holds and requests of one earlier session, until they are entered into its lock table. Each part of a
//! report is sorted on arrival, so that the parts of all sessions can be merged a slice at a time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use holdfast_mutations::{Mutation, is_enabled};

use crate::{FencingToken, ReportedHold, ReportedRequest, ReportedWait, TableReport, WaitId};

/// Where a claim is in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClaimPosition {
    part: usize,
    request: usize,
    claim: usize,
}

/// The order of the claims of a report: the highest token first.
pub(super) type ClaimOrder = (Reverse<FencingToken>, ClaimPosition);

/// Where a request that waits is in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitPosition {
    part: usize,
    wait: usize,
}

/// The order of the requests that wait: those with a ticket first, in its order, the others as their reports came.
pub(super) type WaitOrder = (bool, Option<WaitId>, u64, WaitPosition);

/// Where a request is in a report.
#[derive(Clone, Copy, Debug)]
enum RequestPosition {
    Granted { part: usize, request: usize },
    Waiting(WaitPosition),
}

/// The reported holds and requests of a session.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Its place among the reports.
    order: u64,
    parts: Vec<ReportPart>,
    /// Where its requests are, by their ids. The claims of a request may be in several parts.
    places: BTreeMap<String, Vec<RequestPosition>>,
}

#[derive(Debug)]
struct ReportPart {
    granted: Vec<Granted>,
    pending: Vec<Option<ReportedWait>>,
    /// The claims that are still to be entered, the next one last.
    claims: Vec<ClaimOrder>,
    /// The requests that are still to be queued, the next one last.
    waits: Vec<(bool, Option<WaitId>, WaitPosition)>,
}

#[derive(Debug)]
struct Granted {
    /// Absent once it is given up.
    request: Option<ReportedRequest>,
    /// Whether a claim of it was entered.
    has_entered: bool,
}

/// A claim that is to be entered.
#[derive(Debug)]
pub(super) struct ReportedClaim<'a> {
    pub(super) request: &'a ReportedRequest,
    pub(super) claim: &'a ReportedHold,
    /// Whether another claim of the request was entered before.
    pub(super) is_known: bool,
}

impl Report {
    /// Adds the next part.
    pub(super) fn add(&mut self, report: &TableReport) {
        let part = self.parts.len();
        let mut claims: Vec<ClaimOrder> = Vec::new();
        for (request, granted) in report.granted.iter().enumerate() {
            self.places.entry(granted.request_id.clone()).or_default().push(RequestPosition::Granted { part, request });
            let places = granted.claims.iter().enumerate();
            claims.extend(places.map(|(claim, it)| (rank(it.fencing_token), ClaimPosition { part, request, claim })));
        }
        claims.sort_unstable();
        claims.reverse();
        for (wait, waiting) in report.pending.iter().enumerate() {
            let place = RequestPosition::Waiting(WaitPosition { part, wait });
            self.places.entry(waiting.request_id.clone()).or_default().push(place);
        }
        let places = report.pending.iter().enumerate();
        let in_queue = places.map(|(wait, it)| (it.ticket.is_none(), it.ticket.map(turn), WaitPosition { part, wait }));
        let mut waits: Vec<(bool, Option<WaitId>, WaitPosition)> = in_queue.collect();
        waits.sort_unstable();
        waits.reverse();
        let granted = report.granted.iter().map(|it| Granted { request: Some(it.clone()), has_entered: false });
        let pending = report.pending.iter().cloned().map(Some).collect();
        self.parts.push(ReportPart { granted: granted.collect(), pending, claims, waits });
    }

    /// Sets its place among the reports, once it is whole.
    pub(super) fn set_order(&mut self, order: u64) {
        self.order = order;
    }

    /// Returns the next claim of each part.
    pub(super) fn first_claims(&self) -> impl Iterator<Item = ClaimOrder> {
        self.parts.iter().filter_map(|part| part.claims.last().copied())
    }

    /// Returns the next request that waits of each part.
    pub(super) fn first_waits(&self) -> impl Iterator<Item = WaitOrder> {
        self.parts.iter().filter_map(|part| self.wait_order(part))
    }

    /// Takes the claim at a place, which is the next one of its part. Returns the one after it.
    pub(super) fn pass_claim(&mut self, place: ClaimPosition) -> Option<ClaimOrder> {
        let part = self.parts.get_mut(place.part)?;
        if part.claims.last().is_some_and(|(_, next)| *next == place) {
            part.claims.pop();
        }
        part.claims.last().copied()
    }

    /// Returns the claim at a place. `None` if its request is given up.
    pub(super) fn claim(&self, place: ClaimPosition) -> Option<ReportedClaim<'_>> {
        let granted = self.parts.get(place.part)?.granted.get(place.request)?;
        let request = granted.request.as_ref()?;
        Some(ReportedClaim { request, claim: request.claims.get(place.claim)?, is_known: granted.has_entered })
    }

    /// Records that the claim at a place was entered.
    pub(super) fn entered(&mut self, place: ClaimPosition) {
        let part = self.parts.get_mut(place.part);
        if let Some(granted) = part.and_then(|part| part.granted.get_mut(place.request)) {
            granted.has_entered = true;
        }
    }

    /// Takes the request that waits at a place, which is the next one of its part; `None` if it is given up. Returns
    /// the one after it, too.
    pub(super) fn take_wait(&mut self, place: WaitPosition) -> (Option<ReportedWait>, Option<WaitOrder>) {
        let Some(part) = self.parts.get_mut(place.part) else { return (None, None) };
        if part.waits.last().is_some_and(|(_, _, next)| *next == place) {
            part.waits.pop();
        }
        let taken = part.pending.get_mut(place.wait).and_then(Option::take);
        let next = self.parts.get(place.part).and_then(|part| self.wait_order(part));
        (taken, next)
    }

    fn wait_order(&self, part: &ReportPart) -> Option<WaitOrder> {
        part.waits.last().map(|(has_no_ticket, ticket, place)| (*has_no_ticket, *ticket, self.order, *place))
    }

    /// Returns whether there are claims to enter.
    pub(super) fn has_claims(&self) -> bool {
        self.parts.iter().any(|part| !part.claims.is_empty())
    }

    /// Returns whether there is something to enter.
    pub(super) fn has_more(&self) -> bool {
        self.parts.iter().any(|part| !part.claims.is_empty() || !part.waits.is_empty())
    }

    /// Withdraws the claims of a request, or of all requests, that are not entered yet.
    pub(super) fn withdraw(&mut self, request_id: Option<&str>) {
        let Some(request_id) = request_id else {
            self.places.clear();
            return self.parts.clear();
        };
        for place in self.places.remove(request_id).unwrap_or_default() {
            self.withdraw_request(place);
        }
    }

    fn withdraw_request(&mut self, place: RequestPosition) {
        match place {
            RequestPosition::Granted { part, request } => {
                if let Some(granted) = self.parts.get_mut(part).and_then(|part| part.granted.get_mut(request)) {
                    granted.request = None;
                }
            }
            RequestPosition::Waiting(WaitPosition { part, wait }) => {
                if let Some(waiting) = self.parts.get_mut(part).and_then(|part| part.pending.get_mut(wait)) {
                    *waiting = None;
                }
            }
        }
    }
}

fn rank(token: FencingToken) -> Reverse<FencingToken> {
    Reverse(if is_enabled(Mutation::SoftFirstClaim) { 0 } else { token })
}

fn turn(ticket: WaitId) -> WaitId {
    if is_enabled(Mutation::SoftQueueShuffled) { WaitId(u64::MAX - ticket.0) } else { ticket }
}
