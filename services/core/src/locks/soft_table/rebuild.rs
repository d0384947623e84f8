//! What gateways report of the sessions of before the epoch, in one namespace, until it is entered into its lock table.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use holdfast_mutations::{Mutation, is_enabled};

use super::reported::{ClaimPosition, Report, ReportedClaim, WaitOrder};
use crate::locks::namespace::Namespace;
use crate::{CommandError, FencingToken, MAX_REPORT_PARTS, ReportedWait, SessionNumber, TableReport};

/// The progress of rebuilding the lock table of a namespace.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    /// The earlier sessions that have neither reported nor ended; an expired session counts until its transition is
    /// over. The log says which of them have ended since.
    missing: BTreeSet<SessionNumber>,
    /// Reports that miss further parts.
    parts: BTreeMap<SessionNumber, Parts>,
    /// Complete reports, until everything is entered.
    reports: BTreeMap<SessionNumber, Report>,
    /// The next claim of each part of the reports, in the order of entering. Withdrawn claims are skipped.
    claims: BTreeSet<(Reverse<FencingToken>, SessionNumber, ClaimPosition)>,
    /// The next waiting request of each part, in the order of the queue.
    waits: BTreeSet<(WaitOrder, SessionNumber)>,
    /// The number of complete reports so far.
    taken: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Collecting,
    /// All reports have arrived: their claims are being entered.
    Entering,
    /// All claims are entered; waiting requests are being queued.
    Queueing,
    Complete,
}

/// The parts of a report so far.
#[derive(Debug)]
struct Parts {
    connection_epoch: u64,
    taken: u32,
    of: u32,
    report: Report,
}

/// A request that is to be queued.
#[derive(Debug)]
pub(super) struct RequestToQueue {
    pub(super) session: SessionNumber,
    pub(super) wait: ReportedWait,
}

impl Rebuild {
    /// Returns the table of a namespace with these sessions of before.
    pub(super) fn of(missing: BTreeSet<SessionNumber>) -> Self {
        let stage = if missing.is_empty() { Stage::Complete } else { Stage::Collecting };
        Self { missing, stage, ..Self::default() }
    }

    /// Returns a table where everything is entered.
    pub(super) fn complete() -> Self {
        Self::of(BTreeSet::new())
    }

    /// Returns whether everything is entered, or there is nothing to enter.
    pub(super) fn is_complete(&self, namespace: &Namespace) -> bool {
        match self.stage {
            Stage::Collecting => self.reports.is_empty() && self.has_all(namespace),
            Stage::Entering | Stage::Queueing => false,
            Stage::Complete => true,
        }
    }

    /// Returns whether everything is there, and nothing of it is to be entered.
    pub(super) fn can_be_complete(&self, namespace: &Namespace) -> bool {
        match self.stage {
            Stage::Collecting => !self.has_claims() && !self.has_waits() && self.has_all(namespace),
            Stage::Entering | Stage::Queueing => false,
            Stage::Complete => true,
        }
    }

    /// Returns whether a step can go on with it. While claims are entered, a session that expires is waited for, as if
    /// it had reported nothing.
    pub(super) fn can_go_on(&self, namespace: &Namespace) -> bool {
        match self.stage {
            Stage::Collecting => self.has_all(namespace),
            Stage::Entering => self.has_claims() || self.has_all(namespace),
            Stage::Queueing => true,
            Stage::Complete => false,
        }
    }

    /// Returns the number of sessions that have reported and are not entered completely, once all have.
    pub(super) fn unentered(&self) -> u64 {
        match self.stage {
            Stage::Collecting | Stage::Complete => 0,
            Stage::Entering | Stage::Queueing => self.reports.values().filter(|it| it.has_more()).count() as u64,
        }
    }

    /// Returns whether it was completed.
    pub(super) fn has_completed(&self) -> bool {
        self.stage == Stage::Complete
    }

    fn has_all(&self, namespace: &Namespace) -> bool {
        self.missing(namespace).next().is_none()
    }

    /// Returns the sessions that are waited for, in order of opening.
    pub(super) fn missing<'a>(&'a self, namespace: &'a Namespace) -> impl Iterator<Item = SessionNumber> + 'a {
        self.missing.iter().copied().filter(|number| namespace.table_log.may_hold(*number))
    }

    /// Adds a part of a report. Returns whether it was new, and whether the report is whole with it.
    pub(super) fn add(&mut self, report: &TableReport) -> Result<(bool, bool), CommandError> {
        let out_of_order = || Err(CommandError::InvalidArgument("part: another one comes first".to_owned()));
        if report.part == 0 || report.part > report.parts || report.parts > MAX_REPORT_PARTS {
            return Err(CommandError::InvalidArgument(format!("part: must be 1 to parts, at most {MAX_REPORT_PARTS}")));
        }
        let is_awaited = self.missing.contains(&report.session) || is_enabled(Mutation::SoftUnordered);
        if self.stage != Stage::Collecting || !is_awaited {
            return Err(CommandError::SessionNotFound(report.session.to_string()));
        }
        let number = report.session;
        let is_of = |parts: &Parts| parts.connection_epoch == report.connection_epoch && parts.of == report.parts;
        // What an earlier connection began to report is not continued by another one.
        let known = self.parts.remove(&number).filter(is_of);
        let mut parts = match known {
            Some(parts) => parts,
            None if report.part == 1 => {
                let (connection_epoch, of) = (report.connection_epoch, report.parts);
                Parts { connection_epoch, taken: 0, of, report: Report::default() }
            }
            None => return out_of_order(),
        };
        let (is_copy, is_next) = (report.part <= parts.taken, report.part == parts.taken + 1);
        if is_next {
            parts.taken += 1;
            parts.report.add(report);
        }
        if parts.taken == parts.of {
            self.add_whole(number, parts.report);
            return Ok((true, true));
        }
        self.parts.insert(number, parts);
        if is_next || is_copy { Ok((is_next, false)) } else { out_of_order() }
    }

    fn add_whole(&mut self, number: SessionNumber, mut report: Report) {
        self.taken += 1;
        report.set_order(self.taken);
        self.missing.remove(&number);
        self.claims.extend(report.first_claims().map(|(token, place)| (token, number, place)));
        self.waits.extend(report.first_waits().map(|next| (next, number)));
        self.reports.insert(number, report);
    }

    /// Records that a session has ended in the log. An expired session may be in transition: the rebuild waits for
    /// that, as for a session without a report. Returns the report to free.
    pub(super) fn session_ended(&mut self, number: SessionNumber) -> Option<Report> {
        let unfinished = self.parts.remove(&number).map(|parts| parts.report);
        let Some(report) = self.reports.remove(&number) else { return unfinished };
        self.remove_next(number, &report);
        // What is entered of it ends there.
        if self.stage == Stage::Collecting || (self.stage == Stage::Entering && report.has_claims()) {
            self.missing.insert(number);
        }
        Some(report)
    }

    /// A session gives up a request, or all of them, as far as they are not entered.
    pub(super) fn withdraw(&mut self, number: SessionNumber, request_id: Option<&str>) {
        let Some(mut report) = self.reports.remove(&number) else { return };
        if request_id.is_none() {
            self.remove_next(number, &report);
        }
        report.withdraw(request_id);
        self.reports.insert(number, report);
    }

    fn remove_next(&mut self, number: SessionNumber, report: &Report) {
        for (token, place) in report.first_claims() {
            self.claims.remove(&(token, number, place));
        }
        for next in report.first_waits() {
            self.waits.remove(&(next, number));
        }
    }

    /// Returns whether a session has a whole report, until everything is entered.
    pub(super) fn has_report(&self, number: SessionNumber) -> bool {
        self.reports.contains_key(&number)
    }

    /// Returns whether nothing is entered yet.
    pub(super) fn is_collecting(&self) -> bool {
        self.stage == Stage::Collecting
    }

    /// Begins to enter claims if all reports are there.
    pub(super) fn begin_to_enter(&mut self, namespace: &Namespace) {
        if self.stage == Stage::Collecting && self.has_all(namespace) {
            self.stage = Stage::Entering;
            (self.missing, self.parts) = (BTreeSet::new(), BTreeMap::new());
        }
    }

    /// Returns whether there may be claims to enter.
    pub(super) fn has_claims(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Gives up all claims that are still to be entered.
    pub(super) fn clear_claims(&mut self) {
        self.claims.clear();
    }

    /// Takes the next claim, which has the highest token: its session, and where it is.
    pub(super) fn next_claim(&mut self) -> Option<(SessionNumber, ClaimPosition)> {
        let (_, number, place) = self.claims.pop_first()?;
        let next = self.reports.get_mut(&number)?.pass_claim(place);
        self.claims.extend(next.map(|(token, place)| (token, number, place)));
        Some((number, place))
    }

    /// Returns a claim that was taken. `None` if it is given up.
    pub(super) fn claim(&self, (number, place): (SessionNumber, ClaimPosition)) -> Option<ReportedClaim<'_>> {
        self.reports.get(&number)?.claim(place)
    }

    /// Records that a claim was entered.
    pub(super) fn entered(&mut self, (number, place): (SessionNumber, ClaimPosition)) {
        if let Some(report) = self.reports.get_mut(&number) {
            report.entered(place);
        }
    }

    /// Begins to queue requests that wait, once all claims are entered. Returns whether it goes on with that.
    pub(super) fn begin_to_queue(&mut self, namespace: &Namespace) -> bool {
        if self.stage == Stage::Entering && !self.has_claims() && self.has_all(namespace) {
            self.stage = Stage::Queueing;
        }
        self.is_queueing()
    }

    /// Returns whether requests are being queued.
    pub(super) fn is_queueing(&self) -> bool {
        self.stage == Stage::Queueing
    }

    /// Returns whether there may be requests to queue.
    pub(super) fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Takes the next request that is to be queued. `None` if it is given up.
    pub(super) fn next_waiting(&mut self) -> Option<RequestToQueue> {
        let ((_, _, _, place), session) = self.waits.pop_first()?;
        let (wait, next) = self.reports.get_mut(&session)?.take_wait(place);
        self.waits.extend(next.map(|next| (next, session)));
        Some(RequestToQueue { session, wait: wait? })
    }
}
