//! How the model compares a session with what its client reports.

use std::collections::BTreeSet;

use holdfast_core::{
    AskedHolds, CommandError, JobState, LockInfo, LostHold, MessageSeq, Path, Reason, ReportedHold, Response,
    RevokedReason,
};

use crate::acquire::CommandResult;
use crate::state::{Hold, Model, OwnerKey, Wait as Waiting};
use crate::sweeps::Target;

/// What stays of a session: holds by path and token, and requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    listed: BTreeSet<(Path, u64)>,
    claimed: BTreeSet<(Path, u64)>,
    pending: BTreeSet<String>,
}

impl Report {
    pub(crate) fn has_hold(&self, hold: &Hold) -> bool {
        let key = (hold.path.clone(), hold.token);
        self.listed.contains(&key) || self.claimed.contains(&key)
    }

    pub(crate) fn is_pending(&self, request_id: Option<&String>) -> bool {
        request_id.is_some_and(|id| self.pending.contains(id))
    }
}

impl Model {
    fn is_next(&self, id: &str, message: Option<MessageSeq>) -> Result<bool, CommandError> {
        self.clone().check_sequence(id, message)
    }

    pub(crate) fn lock_info_part(&mut self, info: &LockInfo) -> CommandResult {
        if !self.is_next(&info.session_id, info.message)? {
            return Ok(Response::Ignored);
        }
        let (report, lost) = self.extended_report(info);
        self.session_mut(&info.session_id).expect("it is open").report = Some(report);
        let asked = self.asked_of_session(info);
        Ok(Response::reconciled(self.lost_views(lost), (0, 0), asked))
    }

    fn asked_of_session(&self, info: &LockInfo) -> Vec<AskedHolds> {
        let number = self.session(&info.session_id).expect("it is open").number;
        self.asked_of(number, &info.held)
    }

    pub(crate) fn lock_info(&mut self, info: &LockInfo) -> CommandResult {
        let is_next = self.check_sequence(&info.session_id, info.message)?;
        let number = self.session(&info.session_id).expect("it is open").number;
        let is_going_on = self.await_sweep(&Target::Unlisted(number));
        if !is_next {
            return Ok(Response::Ignored);
        }
        let (report, lost) = self.extended_report(info);
        let session = self.session_mut(&info.session_id).expect("it is open");
        session.report = Some(report);
        let target = Target::Unlisted(number);
        let (holds, waits, _) = self.covered(&target);
        let left = self.ends_left.checked_sub(holds + waits).filter(|_| !is_going_on);
        let Some(left) = left else {
            if let Err(error) = self.begin_sweep(target) {
                self.session_mut(&info.session_id).expect("it is open").report = None;
                return Err(error);
            }
            let asked = self.asked_of_session(info);
            return Ok(Response::reconciled(self.lost_views(lost), (0, 0), asked));
        };
        self.ends_left = left;
        while let Some(index) = self.waits.iter().position(|wait| self.covers_wait(&target, wait)) {
            self.end_wait(index, Reason::Ended);
        }
        let unlisted = self.holds.iter().filter(|hold| self.covers_hold(&target, hold));
        let mut unlisted: Vec<(Path, u64, OwnerKey)> =
            unlisted.map(|hold| (hold.path.clone(), hold.token, hold.who.clone())).collect();
        unlisted.sort();
        self.session_mut(&info.session_id).expect("it is open").report = None;
        unlisted.iter().for_each(|(path, _, who)| self.release_hold(who, path));
        self.run_grant_loop();
        let (ended_holds, ended_waits) = (holds as u64, waits as u64);
        let asked = self.asked_of_session(info);
        Ok(Response::reconciled(self.lost_views(lost), (ended_holds, ended_waits), asked))
    }

    /// Nothing more ends because of what an earlier connection reported.
    pub(crate) fn discard_report(&mut self, id: &str) {
        let session = self.session_mut(id).expect("it is open");
        if session.report.take().is_none() {
            return;
        }
        let target = Target::Unlisted(session.number);
        if let Some(index) = self.sweeps.iter().position(|sweep| sweep.target.is_same(&target)) {
            let sweep = self.sweeps.remove(index);
            let (ended_holds, ended_waits) = (sweep.ended_holds, sweep.ended_waits);
            self.finished.push((sweep.began, JobState::Done { ended_holds, ended_waits }));
        }
    }

    /// The report with another part, and what the client did not have before somebody else was let in.
    fn extended_report<'a>(&mut self, info: &'a LockInfo) -> (Report, Vec<&'a ReportedHold>) {
        let session = self.session_mut(&info.session_id).expect("it is open");
        let (number, mut report) = (session.number, session.report.take().unwrap_or_default());
        for id in &info.pending {
            let waits = self.waits.iter().any(|wait| wait.who.number == number && wait.request_id.as_ref() == Some(id));
            let granted = self.granted.iter().find(|granted| granted.who.number == number && granted.id == *id);
            if waits || granted.is_some() {
                report.pending.insert(id.clone());
            }
            if let Some(granted) = granted {
                report.claimed.extend(self.claims_of(&granted.who, &granted.id));
            }
        }
        let mut lost = vec![];
        for it in &info.held {
            let is_it = |hold: &&Hold| {
                hold.who.number == number
                    && !hold.is_kept
                    && (&hold.path, hold.mode, hold.token) == (&it.path, it.mode, it.fencing_token)
            };
            let is_claimed = |hold: &Hold| {
                hold.path == it.path && !hold.is_kept && report.claimed.contains(&(hold.path.clone(), hold.token))
            };
            if self.holds.iter().any(|hold| is_it(&hold)) {
                report.listed.insert((it.path.clone(), it.fencing_token));
            } else if !self.holds.iter().any(is_claimed) {
                lost.push(it);
            }
        }
        (report, lost)
    }

    fn claims_of(&self, who: &OwnerKey, id: &str) -> Vec<(Path, u64)> {
        let granted = self.granted.iter().find(|granted| granted.who == *who && granted.id == id);
        let live = granted.into_iter().flat_map(|granted| &granted.live);
        live.filter_map(|path| Some((path.clone(), self.hold_of(who, path)?.token))).collect()
    }

    /// What a request got that waited, and that a report names.
    pub(crate) fn claim_reported(&mut self, who: &OwnerKey, request_id: Option<&String>) {
        let claims = request_id.map(|id| self.claims_of(who, id)).unwrap_or_default();
        let mut sessions = self.sessions.iter_mut().filter(|session| session.is_open && session.number == who.number);
        let report = sessions.next().and_then(|session| session.report.as_mut());
        if let Some(report) = report.filter(|report| report.is_pending(request_id)) {
            report.claimed.extend(claims);
        }
    }

    /// That a hold which is listed is upgraded by a request that is not, and will end.
    pub(crate) fn revoke_listed(&mut self, wait: &Waiting) {
        let mut sessions = self.sessions.iter().filter(|session| session.is_open && session.number == wait.who.number);
        let Some(report) = sessions.next().and_then(|session| session.report.as_ref()) else { return };
        let Some(hold) = self.hold_of(&wait.who, &wait.claims[0].path).cloned().filter(|_| wait.upgrade) else {
            return;
        };
        let is_listed = report.listed.contains(&(hold.path.clone(), hold.token));
        if is_listed && !report.is_pending(wait.request_id.as_ref()) {
            self.revoked(&hold, RevokedReason::Duplicate);
        }
    }

    fn lost_views(&self, lost: Vec<&ReportedHold>) -> Vec<LostHold> {
        let views = lost.into_iter().map(|it| LostHold {
            path: it.path.clone(),
            fencing_token: it.fencing_token,
            current_owner: self.holds.iter().find(|hold| hold.path == it.path).map(|hold| self.holder_view(hold)),
        });
        views.collect()
    }

    /// What a session lost of what its client believes to hold.
    pub(crate) fn lost_holds(&self, number: u64, held: &[ReportedHold]) -> Vec<LostHold> {
        let has = |it: &&ReportedHold| {
            let is_it = |hold: &Hold| (&hold.path, hold.mode, hold.token) == (&it.path, it.mode, it.fencing_token);
            self.holds.iter().any(|hold| hold.who.number == number && !hold.is_kept && is_it(hold))
        };
        self.lost_views(held.iter().filter(|it| !has(it)).collect())
    }
}
