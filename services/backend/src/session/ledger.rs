//! Builds the report of a session for the leader of a new table epoch.

use std::collections::BTreeSet;

use holdfast_api::session_message::Lock;
use holdfast_types::{
    Claim, CommandError, MAX_REPORT_PARTS, MAX_SESSION_TABLE_BYTES, Path, ReportedHold, ReportedRequest, ReportedWait,
    TableReport,
};

use super::path_holds::PathHolds;
use super::request_table::{Request, RequestState, RequestTable};

/// Rough bytes of the requests in one part of a report; one larger request is a part by itself.
pub(super) const MAX_PART_BYTES: usize = 512 * 1_024;
/// Bytes that the requests which are under way may add: one list of commands, or one request. 32 requests with 64 KiB
/// of metadata in 64 pairs take 2.1 MiB, and a request for 256 paths of 32 segments of up to 255 bytes takes 2.4 MiB.
pub(super) const MAX_IN_FLIGHT_BYTES: usize = 4 * 1_024 * 1_024;
/// Two parts that follow each other are together larger than one may be, or they would be one. So a report of more
/// parts than there may be is larger than half as many full ones.
const MAX_REPORT_BYTES: usize = MAX_REPORT_PARTS as usize / 2 * MAX_PART_BYTES;
const _: () = assert!(MAX_SESSION_TABLE_BYTES as usize + MAX_IN_FLIGHT_BYTES <= MAX_REPORT_BYTES);
/// Bytes that a request, a claim or a segment of a path counts as, without its texts.
const OVERHEAD: usize = 32;

impl RequestTable {
    /// Records that the client gives up a request: it is reported no more, whatever becomes of its release.
    pub(super) fn mark_released(&mut self, request_id: &str) {
        if let Some(request) = self.requests.get_mut(request_id) {
            request.is_released = true;
        }
    }

    /// Records that the client gives up all requests.
    pub(super) fn mark_all_released(&mut self) {
        self.requests.values_mut().for_each(|request| request.is_released = true);
    }

    /// Returns whether the client gave the request up.
    pub(super) fn is_released(&self, request_id: &str) -> bool {
        self.requests.get(request_id).is_some_and(|request| request.is_released)
    }

    /// Returns true if the requests of all holds are known. The requests of holds that a resumed client listed are not.
    pub(super) fn knows_requests(&self) -> bool {
        self.holds.values().flat_map(PathHolds::iter).all(|(_, hold)| !hold.is_listed && hold.holder.is_some())
    }

    /// Lets all requests wait without a place, in their order: the leader that gave them one has ended. Returns whether
    /// there are any.
    pub(super) fn displace(&mut self) -> bool {
        let place = |(request_id, request): (&String, &Request)| match (request.state, request.ticket) {
            (RequestState::Granted, _) => None,
            (_, Some(wait)) | (RequestState::Waiting(wait), None) => Some((false, wait.0, request_id.clone())),
            (RequestState::Unqueued(number), None) => Some((true, number, request_id.clone())),
        };
        let mut waits: Vec<(bool, u64, String)> = self.requests.iter().filter_map(place).collect();
        waits.sort_unstable();
        self.unqueued = 0;
        self.places.clear();
        for (_, _, request_id) in &waits {
            let Some(request) = self.requests.get_mut(request_id) else { continue };
            self.unqueued += 1;
            self.places.insert(self.unqueued, request_id.clone());
            if let RequestState::Waiting(wait) = request.state {
                request.ticket.get_or_insert(wait);
            }
            request.state = RequestState::Unqueued(self.unqueued);
        }
        !waits.is_empty()
    }

    /// Returns roughly how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        // A path is also the key of its hold.
        2 * self.bytes
    }

    /// Checks that the session can still be reported with one more request. A repeat is none.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(super) fn check_bytes(&self, lock: &Lock) -> Result<(), CommandError> {
        let known = self.requests.get(&lock.request_id);
        let more = reported_bytes(lock).saturating_sub(known.map_or(0, |known| known.bytes));
        if known.is_some_and(Request::is_kept) || self.has_capacity(more) {
            return Ok(());
        }
        Err(CommandError::too_many_table_bytes())
    }

    /// Returns whether the session can still be reported with so many more bytes.
    pub(super) fn has_capacity(&self, more: usize) -> bool {
        more == 0 || self.bytes + more <= MAX_SESSION_TABLE_BYTES as usize
    }

    /// Returns the parts of a report of the session, given an empty one. `None` if there are too many.
    pub(super) fn report(&self, empty: TableReport) -> Option<Vec<TableReport>> {
        let mut parts = Parts { parts: vec![empty], bytes: 0 };
        let reported = || self.requests.iter().filter(|(_, request)| !request.is_released);
        let granted = reported().filter(|(_, request)| request.state == RequestState::Granted);
        for request in granted.filter_map(|(_, request)| self.reported_request(request)) {
            let claims = request.claims.iter().map(|claim| &claim.path.0);
            let bytes = bytes_of(&request.request_id, &request.holder, &request.metadata, claims);
            parts.report_with_capacity(bytes).granted.push(request);
        }
        let number = |request: &Request| match request.state {
            RequestState::Unqueued(number) => Some(number),
            RequestState::Waiting(_) | RequestState::Granted => None,
        };
        let mut waits: Vec<(u64, &Request)> = reported().filter_map(|(_, it)| Some((number(it)?, it))).collect();
        waits.sort_unstable_by_key(|(number, _)| *number);
        for wait in waits.into_iter().filter_map(|(_, request)| reported_wait(request)) {
            let claims = wait.claims.iter().map(|claim| &claim.path.0);
            let bytes = bytes_of(&wait.request_id, &wait.holder, &wait.metadata, claims);
            parts.report_with_capacity(bytes).pending.push(wait);
        }
        parts.finish()
    }

    /// Returns what a granted request holds; `None` if that is nothing.
    fn reported_request(&self, request: &Request) -> Option<ReportedRequest> {
        let lock = &request.lock;
        let paths: BTreeSet<&Vec<String>> = lock.resources.iter().map(|claim| &claim.path).collect();
        let hold_at = |path: &Vec<String>| {
            if request.lost.iter().any(|lost| lost.0 == *path) {
                return None;
            }
            let mut holds = self.holds.get(path)?.iter().rev();
            let (token, hold) = holds.find(|(_, hold)| hold.holder.as_ref() == Some(&lock.holder))?;
            Some(ReportedHold { path: Path(path.clone()), mode: hold.mode, fencing_token: token })
        };
        let claims: Vec<ReportedHold> = paths.iter().copied().filter_map(hold_at).collect();
        (!claims.is_empty()).then(|| ReportedRequest {
            request_id: lock.request_id.clone(),
            holder: lock.holder.clone(),
            metadata: lock.metadata.clone(),
            claimed: u32::try_from(paths.len()).unwrap_or(u32::MAX),
            claims,
        })
    }
}

/// Returns a request that waits; `None` for one with terms that its leader refuses.
fn reported_wait(request: &Request) -> Option<ReportedWait> {
    let lock = &request.lock;
    if lock.allow_upgrade || lock.transition_ms > 0 || lock.at_least_ms > 0 || lock.only_try {
        return None;
    }
    let claims = lock.resources.iter().map(|claim| Claim { path: Path(claim.path.clone()), mode: claim.mode });
    Some(ReportedWait {
        request_id: lock.request_id.clone(),
        holder: lock.holder.clone(),
        metadata: lock.metadata.clone(),
        claims: claims.collect(),
        ticket: request.ticket,
    })
}

/// Returns roughly how many bytes a request takes in a report.
pub(super) fn reported_bytes(lock: &Lock) -> usize {
    bytes_of(&lock.request_id, &lock.holder, &lock.metadata, lock.resources.iter().map(|claim| &claim.path))
}

fn bytes_of<'a>(
    request_id: &str,
    holder: &Option<String>,
    metadata: &holdfast_types::Metadata,
    paths: impl Iterator<Item = &'a Vec<String>>,
) -> usize {
    let metadata: usize = metadata.iter().map(|(key, value)| key.len() + value.len() + OVERHEAD).sum();
    let segments = |path: &Vec<String>| path.iter().map(|segment| segment.len() + OVERHEAD).sum::<usize>();
    let claims: usize = paths.map(|path| segments(path) + OVERHEAD).sum();
    request_id.len() + holder.as_ref().map_or(0, String::len) + metadata + claims + OVERHEAD
}

/// The parts of a report so far.
struct Parts {
    parts: Vec<TableReport>,
    /// Bytes in the last one.
    bytes: usize,
}

impl Parts {
    /// Returns the part that takes a request of so many bytes.
    fn report_with_capacity(&mut self, bytes: usize) -> &mut TableReport {
        let at = self.parts.len() - 1;
        if self.bytes > 0 && self.bytes + bytes > MAX_PART_BYTES {
            let last = &self.parts[at];
            let next = TableReport {
                namespace: last.namespace.clone(),
                part: last.part + 1,
                granted: Vec::new(),
                pending: Vec::new(),
                ..*last
            };
            self.parts.push(next);
            self.bytes = 0;
        }
        self.bytes += bytes;
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    fn finish(mut self) -> Option<Vec<TableReport>> {
        let count = u32::try_from(self.parts.len()).ok().filter(|count| *count <= MAX_REPORT_PARTS)?;
        self.parts.iter_mut().for_each(|part| part.parts = count);
        Some(self.parts)
    }
}
