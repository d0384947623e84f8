//! Proposes the report of a resumed session's client, on locks and on semaphores, in parts, so that the commands of
//! others come in between.

use bytes::Bytes;
use holdfast_core::{
    AskedHolds, Command, LockInfo, LocksCommand, MAX_ASKED, PermitsReport, Reply, Response, Rules, codec,
};
use holdfast_proto::internal::answer::Outcome;
use tokio::time::Instant;

use crate::call_handler::propose_command;
use crate::replica::ShardReplica;

/// Maximum units of a part. A listed hold is one unit.
const MAX_PART_UNITS: usize = 512;
/// Units of a pending request, because it may claim many holds.
const PENDING_UNITS: usize = 8;

/// A report, or one of the parts that a client sent.
pub(crate) struct Report {
    pub(crate) info: LockInfo,
    /// Whether it ends what no part lists.
    pub(crate) is_last: bool,
}

impl Report {
    /// Proposes one part after the other. Returns the reply to the last part, with the lost holds of all parts and the
    /// holds that have requests to release.
    pub(crate) async fn propose(self, shard: &ShardReplica, term: u64, deadline: Instant) -> Outcome {
        let splits = Rules(shard.group.rules()) >= Rules::TWO;
        let mut parts = if splits { split(self.info) } else { vec![self.info] };
        let Some(last) = parts.pop() else { return Outcome::NotProposed("a report has no parts".into()) };
        let (mut lost, mut asked) = (Vec::new(), Vec::new());
        for part in parts {
            let outcome = propose_command(shard, term, encode(LocksCommand::LockInfoPart(part)), deadline).await;
            match response(&outcome) {
                Some(Response::Reconciled { lost: more, .. }) => lost.extend(more),
                Some(Response::ReconciledAsked { lost: more, asked: more_asked, .. }) => {
                    lost.extend(more);
                    add_asked(&mut asked, more_asked);
                }
                // The report came before: the reply to the last part waits for what it began.
                Some(Response::Ignored) => break,
                _ => return outcome,
            }
        }
        let last = if self.is_last { LocksCommand::LockInfo(last) } else { LocksCommand::LockInfoPart(last) };
        let outcome = propose_command(shard, term, encode(last), deadline).await;
        if lost.is_empty() && asked.is_empty() {
            return outcome;
        }
        changed(outcome, |response| {
            let (later, ended) = match response {
                Response::Reconciled { lost, ended_holds, ended_waits } => (lost, (*ended_holds, *ended_waits)),
                Response::ReconciledAsked { lost, ended_holds, ended_waits, asked: later_asked } => {
                    add_asked(&mut asked, std::mem::take(later_asked));
                    (lost, (*ended_holds, *ended_waits))
                }
                _ => return,
            };
            lost.append(later);
            *response = Response::reconciled(lost, ended, asked);
        })
    }
}

/// Adds the asked holds of a part, as many as a response may have.
fn add_asked(asked: &mut Vec<AskedHolds>, more: Vec<AskedHolds>) {
    for mut more in more {
        let before: usize = asked.iter().map(|asked| asked.holds.len()).sum();
        more.holds.truncate(MAX_ASKED.saturating_sub(before));
        if !more.holds.is_empty() {
            asked.push(more);
        }
    }
}

/// Proposes the holds of semaphores in a report, one part after the other. Returns the reply to the last part, with the
/// lost holds of all parts and the holds that have requests to release.
pub(crate) async fn propose_permits(
    report: PermitsReport,
    shard: &ShardReplica,
    term: u64,
    deadline: Instant,
) -> Outcome {
    let mut parts = split_permits(report);
    let Some(last) = parts.pop() else { return Outcome::NotProposed("a report has no parts".into()) };
    let (mut lost, mut asked) = (Vec::new(), Vec::new());
    for part in parts {
        let outcome = propose_command(shard, term, encode(LocksCommand::ReportPermits(part)), deadline).await;
        match response(&outcome) {
            Some(Response::PermitsReconciled { lost: more, asked: more_asked }) => {
                lost.extend(more);
                add_asked(&mut asked, more_asked);
            }
            _ => return outcome,
        }
    }
    let outcome = propose_command(shard, term, encode(LocksCommand::ReportPermits(last)), deadline).await;
    if lost.is_empty() && asked.is_empty() {
        return outcome;
    }
    changed(outcome, |response| {
        if let Response::PermitsReconciled { lost: later, asked: later_asked } = response {
            later.splice(0..0, lost);
            add_asked(&mut asked, std::mem::take(later_asked));
            *later_asked = asked;
        }
    })
}

/// Splits the holds of semaphores in a report into parts. There is at least one.
fn split_permits(report: PermitsReport) -> Vec<PermitsReport> {
    let parts = report.held.chunks(MAX_PART_UNITS).map(<[_]>::to_vec);
    let parts: Vec<PermitsReport> = parts.map(|held| PermitsReport { held, ..empty_of(&report) }).collect();
    if parts.is_empty() { vec![report] } else { parts }
}

/// Returns a report of the same message without holds.
fn empty_of(report: &PermitsReport) -> PermitsReport {
    let PermitsReport { namespace, session_id, message, held: _ } = report;
    let (namespace, session_id) = (namespace.clone(), session_id.clone());
    PermitsReport { namespace, session_id, message: *message, held: Vec::new() }
}

/// Splits a report into parts, those with its pending requests first. There is at least one.
fn split(info: LockInfo) -> Vec<LockInfo> {
    let LockInfo { namespace, session_id, message, held, pending } = info;
    let empty = || LockInfo {
        namespace: namespace.clone(),
        session_id: session_id.clone(),
        message,
        held: Vec::new(),
        pending: Vec::new(),
    };
    let (mut parts, mut part, mut units) = (Vec::new(), empty(), 0);
    let mut reserve = |part: &mut LockInfo, more: usize| {
        if units + more > MAX_PART_UNITS {
            parts.push(std::mem::replace(part, empty()));
            units = 0;
        }
        units += more;
    };
    for request_id in pending {
        reserve(&mut part, PENDING_UNITS);
        part.pending.push(request_id);
    }
    for hold in held {
        reserve(&mut part, 1);
        part.held.push(hold);
    }
    parts.push(part);
    parts
}

fn encode(command: LocksCommand) -> Bytes {
    codec::encode(&Command::Locks(command)).into()
}

/// Returns the response of a successful command.
fn response(outcome: &Outcome) -> Option<Response> {
    let Outcome::Reply(bytes) = outcome else { return None };
    codec::decode::<Reply>(bytes).ok()?.outcome.ok()
}

/// Changes the response of a successful command.
fn changed(outcome: Outcome, change: impl FnOnce(&mut Response)) -> Outcome {
    let Outcome::Reply(bytes) = &outcome else { return outcome };
    let Ok(mut reply) = codec::decode::<Reply>(bytes) else { return outcome };
    if let Ok(response) = &mut reply.outcome {
        change(response);
    }
    Outcome::Reply(codec::encode(&reply).into())
}

#[cfg(test)]
mod tests {
    use holdfast_core::{AskedHold, Kind, Mode, Path, ReleaseRequest, ReportedHold, ReportedPermits};

    use super::*;
    use crate::testing::namespace;

    fn report(pending: usize, held: u64) -> LockInfo {
        let hold = |token| ReportedHold { path: Path::flat("l"), mode: Mode::Read, fencing_token: token };
        LockInfo {
            namespace: namespace(),
            session_id: "se_1".into(),
            message: None,
            held: (0..held).map(hold).collect(),
            pending: (0..pending).map(|number| format!("r{number}")).collect(),
        }
    }

    #[test]
    fn a_report_is_split_into_parts_of_a_slice_and_keeps_its_order() {
        let whole = report(100, 2_000);
        let parts = split(whole.clone());
        assert_eq!(parts.len(), 6);
        let units = |part: &LockInfo| part.held.len() + part.pending.len() * PENDING_UNITS;
        assert!(parts.iter().all(|part| units(part) <= MAX_PART_UNITS));
        assert_eq!(parts.iter().flat_map(|part| part.held.clone()).collect::<Vec<_>>(), whole.held);
        assert_eq!(parts.iter().flat_map(|part| part.pending.clone()).collect::<Vec<_>>(), whole.pending);
        let first_held = parts.iter().position(|part| !part.held.is_empty());
        assert!(parts.iter().rposition(|part| !part.pending.is_empty()) <= first_held, "pending requests come first");
    }

    #[test]
    fn the_holds_of_semaphores_in_a_report_are_split_into_parts_of_a_slice() {
        let hold = |token| ReportedPermits {
            kind: Kind::Semaphore,
            path: Path::flat("s"),
            request_id: "r".into(),
            fencing_token: token,
        };
        let of = |held: u64| PermitsReport {
            namespace: namespace(),
            session_id: "se_1".into(),
            message: None,
            held: (0..held).map(hold).collect(),
        };
        let parts = split_permits(of(1_025));
        assert_eq!(parts.iter().map(|part| part.held.len()).collect::<Vec<_>>(), [512, 512, 1]);
        assert_eq!(parts.into_iter().flat_map(|part| part.held).collect::<Vec<_>>(), of(1_025).held);
        assert!([of(0), of(512)].into_iter().all(|whole| split_permits(whole.clone()) == [whole]));
    }

    #[test]
    fn the_parts_of_a_report_have_a_bounded_number_of_asked_holds_together() {
        let asked = |holds: u64| {
            let request = ReleaseRequest {
                by: "k".into(),
                reason: String::new(),
                within_ms: None,
                asked_at_ms: 0,
                until_ms: None,
                force: false,
            };
            let hold = |fencing_token| AskedHold { path: Path::flat("l"), fencing_token, request_id: None };
            AskedHolds { kind: Kind::Lock, request, holds: (0..holds).map(hold).collect() }
        };
        let mut all = Vec::new();
        (0..3).for_each(|_| add_asked(&mut all, vec![asked(600)]));
        assert_eq!(all, [asked(600), asked(400)]);
    }

    #[test]
    fn a_small_report_stays_whole() {
        for whole in [report(0, 0), report(0, 512), report(64, 0), report(1, 504)] {
            assert_eq!(split(whole.clone()), [whole]);
        }
    }
}
