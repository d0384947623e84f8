//! Requests to release, as clients made them and as holders were told, against the history of their shard.

use std::time::Duration;

use holdfast_api::Code;
use holdfast_core::Kind;

use super::asks::AskedSession;
use super::calls::find_write;
use super::early_expiry::{CLOCK_TOLERANCE, STEP_TOLERANCE};
use super::linearization::{CheckContext, Window};
use super::locks_replay::LocksReplay;
use super::outcomes::CommandOutcome;
use crate::ask_calls::AskOp;
use crate::history::{Answer, Call, Op};
use crate::things::{ThingAnswer, ThingOp};
use crate::told_log::{Connected, Told, What};

/// How long anything takes at most that nothing holds up, if nothing is wrong.
const MAX_LATENCY: Duration = Duration::from_secs(1);
/// The same of the news of a grant.
const GRANT_NEWS: Duration = Duration::from_millis(200);

impl CheckContext<'_> {
    /// A place at which the answer to a request to release is right.
    pub(super) fn check_ask(
        &self,
        call: &Call,
        op: &AskOp,
        answer: &Answer,
        window: &Window,
    ) -> Result<Option<usize>, String> {
        let meant = match answer {
            Answer::Thing(answer @ ThingAnswer::Asked(_)) => CommandOutcome::Thing(answer.clone()),
            Answer::Refused(Code::PrimitiveNotFound) if op.kind != Kind::Lock => CommandOutcome::PrimitiveNotFound,
            answer => return Err(format!("{answer:?} answers no request to release")),
        };
        let (_, replayed) = self.locks_shard(call);
        Ok(find_write(replayed.acquires.get(&call.id), window, &meant))
    }

    /// A call that is said to have done nothing has asked nobody.
    pub(super) fn check_not_asked(&self, call: &Call) -> Result<(), String> {
        let is_asked = |came: &CommandOutcome| matches!(came, CommandOutcome::Thing(ThingAnswer::Asked(_)));
        let mut done = self.locks.values().filter_map(|shard| shard.acquires.get(&call.id)).flatten();
        match done.find(|(_, came)| is_asked(came)) {
            Some((at, _)) => Err(format!("the answer says that nothing was done, but slice {at} asks")),
            None => Ok(()),
        }
    }
}

/// Nothing ends by force earlier after it was asked for than the call says, and nothing is given to others earlier, by
/// the clocks of those who asked. Without faults it ends soon after its time.
pub(crate) fn check_times(
    shard: &str,
    replayed: &LocksReplay,
    (calls, is_calm): (&[Call], bool),
    findings: &mut Vec<String>,
) {
    for end in &replayed.asks.ends {
        let Some(Call { id, invoked, op, .. }) = calls.get(end.call) else { continue };
        let (lasted, promised) = (end.at.saturating_sub(invoked.at), Duration::from_millis(end.promised_ms));
        if lasted + STEP_TOLERANCE < promised.mul_f64(CLOCK_TOLERANCE) {
            let is_ask = matches!(op, Op::Thing(ThingOp::Ask(_)));
            let name = if is_ask { "asks" } else { "at least so long" };
            let token = end.token;
            findings.push(format!(
                "{shard}: [{name}] the hold with token {token} ended {lasted:?} after call {id} was made: {op:?}"
            ));
        }
        if end.asked_at.is_some_and(|asked_at| is_calm && end.at > asked_at + promised + MAX_LATENCY) {
            findings.push(format!("{shard}: [asks] {end:?} is late, and nothing was wrong: {op:?}"));
        }
    }
}

/// What holders were told on their connections is in the log.
pub(crate) fn check_told(replayed: &LocksReplay, told: &[Told], calls: &[Call], findings: &mut Vec<String>) {
    for told in told {
        let (path, token) = (&told.path, told.token);
        let is_right = match told.what {
            What::Deleted => replayed.asks.is_deleted(path, token),
            What::Asked { call, within_ms, force } => {
                let within = calls.get(call).and_then(|call| match &call.op {
                    Op::Thing(ThingOp::Ask(op)) => Some(op.shown_within_ms()),
                    _ => None,
                });
                let may_be_forced = !force || replayed.asks.is_forced(path, token);
                within == Some(within_ms) && may_be_forced && replayed.asks.has_asked(path, token, call)
            }
        };
        if !is_right {
            findings.push(format!("[asks] a session was told what the log does not say: {told:?}"));
        }
    }
}

/// Without faults, the client of a connected session hears of each request, and after a resume of the latest one, while
/// it has what is asked for.
pub(crate) fn check_heard(
    asked: &[AskedSession],
    told: &[Told],
    connections: &[Connected],
    findings: &mut Vec<String>,
) {
    for asked in asked {
        let is_it = |told: &Told| {
            let is_call = matches!(told.what, What::Asked { call, .. } if call == asked.call);
            is_call && told.token == asked.token && told.path == asked.path
        };
        let mut its = connections.iter().filter(|connected| connected.session == asked.session);
        if let Some(connected) = its.find(|connected| must_hear(asked, connected))
            && !told.iter().any(is_it)
        {
            findings.push(format!("[asks] the client was connected and not told: {asked:?}, {connected:?}"));
        }
    }
}

/// Whether a client knew of its hold on a connection, and had both for long enough.
fn must_hear(asked: &AskedSession, connected: &Connected) -> bool {
    let was_connected = connected.from <= asked.asked_at;
    let was_granted = connected.from <= asked.granted_at && asked.granted_at + GRANT_NEWS <= asked.asked_at;
    let superseded = asked.superseded.filter(|_| !was_connected);
    let until = asked.ended.into_iter().chain(superseded).chain([connected.until]).min();
    let since = asked.asked_at.max(connected.from);
    (connected.listed.contains(&asked.token) || was_granted) && until.is_some_and(|until| since + MAX_LATENCY <= until)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use holdfast_core::{AccountId, Path};

    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn asked_session() -> AskedSession {
        AskedSession {
            session: "s".to_owned(),
            path: Path::flat("l"),
            token: 5,
            call: 7,
            granted_at: at(1_000),
            asked_at: at(2_000),
            superseded: Some(at(2_500)),
            ended: None,
        }
    }

    fn connected(from_ms: u64, until_ms: u64, listed: &[u64]) -> Connected {
        let listed = listed.iter().copied().collect::<BTreeSet<u64>>();
        Connected { session: "s".to_owned(), from: at(from_ms), until: at(until_ms), listed }
    }

    #[test]
    fn who_has_a_hold_and_a_connection_for_long_enough_must_hear_of_a_request() {
        for (asked, connected, expected) in [
            (asked_session(), connected(500, 3_000, &[]), true),
            (asked_session(), connected(500, 2_900, &[]), false),
            (AskedSession { ended: Some(at(2_900)), ..asked_session() }, connected(500, 9_000, &[]), false),
            (asked_session(), connected(1_500, 9_000, &[]), false),
            (asked_session(), connected(1_500, 9_000, &[5]), true),
            (asked_session(), connected(2_100, 9_000, &[5]), false),
            (AskedSession { superseded: None, ..asked_session() }, connected(2_100, 9_000, &[5]), true),
        ] {
            assert_eq!(must_hear(&asked, &connected), expected, "{asked:?}, {connected:?}");
        }
    }

    #[test]
    fn a_client_that_is_not_told_is_found() {
        let told = |call| Told {
            account: AccountId(1),
            namespace: "alpha",
            path: Path::flat("l"),
            token: 5,
            what: What::Asked { call, within_ms: None, force: false },
        };
        for (told, is_found) in [(vec![told(7)], false), (vec![told(6)], true), (vec![], true)] {
            let mut findings = Vec::new();
            check_heard(&[asked_session()], &told, &[connected(500, 9_000, &[])], &mut findings);
            assert_eq!(findings.len(), usize::from(is_found));
        }
    }
}
