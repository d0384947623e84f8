//! What gateways report of the sessions of before the epoch, in one namespace, until it is entered into its lock table.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use holdfast_mutations::{Mutation, is_enabled};

use crate::locks::namespace::Namespace;
use crate::{CommandError, MAX_REPORT_PARTS, ReportedRequest, ReportedWait, SessionNumber, TableReport, WaitId};

/// Where a reported request waits: those with a ticket first, in its order, the others as their reports came.
type QueueOrder = (bool, Option<WaitId>, u64);

/// How far the lock table of a namespace is.
#[derive(Debug, Default)]
pub(super) struct Rebuild {
    /// The sessions of before that have neither reported nor ended; those that expired, until their transition is over.
    /// The log says which of them have ended since.
    missing: BTreeSet<SessionNumber>,
    /// Reports of which there are more parts.
    parts: BTreeMap<SessionNumber, Parts>,
    /// Whole reports that are not entered yet.
    reports: BTreeMap<SessionNumber, Report>,
    /// The number of whole reports so far.
    taken: u64,
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Collecting,
    /// All claims are entered, and these requests are still to be queued, in order.
    Queueing(VecDeque<RequestToQueue>),
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

/// What is known of a session.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Its place among the reports.
    order: u64,
    pub(super) granted: Vec<ReportedRequest>,
    pending: Vec<ReportedWait>,
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

    /// Returns whether everything is entered, or there is nothing to enter.
    pub(super) fn is_complete(&self, namespace: &Namespace) -> bool {
        match self.stage {
            Stage::Collecting => self.reports.is_empty() && self.is_all_there(namespace),
            Stage::Queueing(_) => false,
            Stage::Complete => true,
        }
    }

    /// Returns whether everything is there, entered or not.
    pub(super) fn can_be_complete(&self, namespace: &Namespace) -> bool {
        match self.stage {
            Stage::Collecting => self.is_all_there(namespace),
            Stage::Queueing(_) => false,
            Stage::Complete => true,
        }
    }

    /// Returns whether it was completed.
    pub(super) fn has_completed(&self) -> bool {
        matches!(self.stage, Stage::Complete)
    }

    fn is_all_there(&self, namespace: &Namespace) -> bool {
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
        if !matches!(self.stage, Stage::Collecting) || !is_awaited {
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
            parts.report.granted.extend_from_slice(&report.granted);
            parts.report.pending.extend_from_slice(&report.pending);
        }
        if parts.taken == parts.of {
            self.taken += 1;
            self.missing.remove(&number);
            self.reports.insert(number, Report { order: self.taken, ..parts.report });
            return Ok((true, true));
        }
        self.parts.insert(number, parts);
        if is_next || is_copy { Ok((is_next, false)) } else { out_of_order() }
    }

    /// A session has ended in the log. One that expired may be in transition: without its report it is waited for, as
    /// if it had none.
    pub(super) fn session_ended(&mut self, number: SessionNumber) {
        self.parts.remove(&number);
        if self.reports.remove(&number).is_some() {
            self.missing.insert(number);
        }
        if let Stage::Queueing(queue) = &mut self.stage {
            queue.retain(|waiting| waiting.session != number);
        }
    }

    /// A session gives up a request, or all of them, that are not entered yet.
    pub(super) fn withdraw(&mut self, number: SessionNumber, request_id: Option<&str>) {
        let is_it = |id: &str| request_id.is_none_or(|request_id| request_id == id);
        if let Some(report) = self.reports.get_mut(&number) {
            report.granted.retain(|request| !is_it(&request.request_id));
            report.pending.retain(|wait| !is_it(&wait.request_id));
        }
        if let Stage::Queueing(queue) = &mut self.stage {
            queue.retain(|waiting| waiting.session != number || !is_it(&waiting.wait.request_id));
        }
    }

    /// Returns whether a session has a whole report that is not entered yet.
    pub(super) fn has_report(&self, number: SessionNumber) -> bool {
        self.reports.contains_key(&number)
    }

    /// Takes all reports if they are all there. Their requests that wait are queued from now on.
    pub(super) fn take_reports(&mut self, namespace: &Namespace) -> Option<BTreeMap<SessionNumber, Report>> {
        if !matches!(self.stage, Stage::Collecting) || !self.is_all_there(namespace) {
            return None;
        }
        let mut reports = std::mem::take(&mut self.reports);
        let mut queue: Vec<(QueueOrder, RequestToQueue)> = Vec::new();
        for (session, report) in &mut reports {
            let pending = std::mem::take(&mut report.pending).into_iter();
            queue.extend(pending.map(|wait| {
                ((wait.ticket.is_none(), wait.ticket, report.order), RequestToQueue { session: *session, wait })
            }));
        }
        queue.sort_by_key(|(place, _)| *place);
        if is_enabled(Mutation::SoftQueueShuffled) {
            queue.reverse();
        }
        self.stage = Stage::Queueing(queue.into_iter().map(|(_, waiting)| waiting).collect());
        (self.missing, self.parts) = (BTreeSet::new(), BTreeMap::new());
        Some(reports)
    }

    /// Returns whether requests are to be queued.
    pub(super) fn is_queueing(&self) -> bool {
        matches!(self.stage, Stage::Queueing(_))
    }

    /// Takes the next request that is to be queued. The table is complete after the last one.
    pub(super) fn next_waiting(&mut self) -> Option<RequestToQueue> {
        let Stage::Queueing(queue) = &mut self.stage else { return None };
        let next = queue.pop_front();
        if next.is_none() {
            self.stage = Stage::Complete;
        }
        next
    }
}
