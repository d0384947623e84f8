//! What clients of connected sessions hold, by their own clocks, and the checks of it: no two sessions ever hold
//! conflicting claims, tokens of a lock rise, and nobody loses what was not opened by force. Most of these sessions have
//! their locks in the memory of a leader; others have locks in the log that somebody asks them to release.
//!
//! A hold counts from when its client takes the grant until the client gives it up, is told that it is lost, or until
//! its own count of the session's life and the transition after it are over. It also counts when the client is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::{Claim, FencingToken, Mode, Path};
use parking_lot::Mutex;

/// Clocks run within 0.1 % of one another, and clients stop that much earlier.
const CLOCK_TOLERANCE: f64 = 0.998;
/// A step of the simulation, and the rounding of clocks to whole milliseconds.
const STEP_TOLERANCE: Duration = Duration::from_millis(3);

/// The life of a session as its client counts it.
#[derive(Debug, Clone, Copy, Default)]
struct Life {
    /// Until when the client counts on it.
    until: Duration,
    transition: Duration,
    /// Its client has closed it.
    is_closed: bool,
}

impl Life {
    /// Whether its holds count at a time.
    fn holds_count_at(&self, at: Duration) -> bool {
        !self.is_closed && at + STEP_TOLERANCE < self.until + self.transition.mul_f64(CLOCK_TOLERANCE)
    }
}

/// A claim that a client took.
#[derive(Debug, Clone)]
struct Taken {
    session: String,
    request_id: String,
    claim: Claim,
    token: FencingToken,
    /// When it was asked for.
    asked_at: Duration,
}

/// A lock that is opened by force: from that time on, and only for those who asked for it before the answer.
#[derive(Debug, Clone)]
struct ForcedOpening {
    path: Path,
    from: Duration,
    /// Absent while it may still be done.
    to: Option<Duration>,
}

/// The grant of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant<'a> {
    pub(crate) session: &'a str,
    pub(crate) request_id: &'a str,
    pub(crate) claims: &'a [Claim],
    pub(crate) token: FencingToken,
    /// When its client asked for it.
    pub(crate) asked_at: Duration,
}

#[derive(Default)]
struct State {
    lives: BTreeMap<String, Life>,
    holds: Vec<Taken>,
    /// The claims of each lock with the highest tokens that anyone took, in any mode and to write.
    highest: BTreeMap<(Path, bool), Taken>,
    openings: Vec<ForcedOpening>,
    grants: u64,
}

impl State {
    /// Whether a lock may have been opened by force at some time.
    fn is_opened(&self, path: &Path, from: Duration, to: Duration) -> bool {
        let meets = |it: &ForcedOpening| it.path == *path && it.from <= to && it.to.is_none_or(|end| end >= from);
        self.openings.iter().any(meets)
    }

    /// Checks a claim against all that others hold.
    fn find_conflicts(&self, taken: &Taken, at: Duration, findings: &mut Vec<String>) {
        for held in self.holds.iter().filter(|held| held.session != taken.session) {
            let counts = self.lives.get(&held.session).is_some_and(|life| life.holds_count_at(at));
            // Either may have lost it: the news of a grant can come after the end of it.
            let is_opened = |it: &Taken| self.is_opened(&it.claim.path, it.asked_at, at);
            let is_forced = || is_opened(held) || is_opened(taken);
            if counts && conflict(&held.claim, &taken.claim) && !is_forced() {
                findings.push(format!("[conflicting claims] {held:?} is held, and {taken:?} is granted at {at:?}"));
            }
        }
    }

    /// Checks that the token of a claim lies above those before it with which it conflicts.
    fn find_fallen_token(&mut self, taken: &Taken, at: Duration, findings: &mut Vec<String>) {
        let is_write = taken.claim.mode == Mode::Write;
        // A writer comes after all others, a reader after all writers, also above and below.
        let is_before = |(path, only_writers): &(Path, bool)| {
            *only_writers != is_write
                && (path.0.starts_with(&taken.claim.path.0) || taken.claim.path.0.starts_with(&path.0))
        };
        for (_, before) in self.highest.iter().filter(|(key, _)| is_before(key)) {
            let is_same = before.token == taken.token && before.session == taken.session;
            let is_forced = || self.is_opened(&taken.claim.path, taken.asked_at, at);
            if before.token >= taken.token && !is_same && !is_forced() {
                findings.push(format!("[tokens rise] {before:?} came before {taken:?}"));
            }
        }
        for only_writers in [false, true] {
            if only_writers && !is_write {
                continue;
            }
            let key = (taken.claim.path.clone(), only_writers);
            if self.highest.get(&key).is_none_or(|highest| highest.token <= taken.token) {
                self.highest.insert(key, taken.clone());
            }
        }
    }
}

/// All claims of a run.
#[derive(Default)]
pub(crate) struct ClaimLog(Mutex<State>);

impl ClaimLog {
    /// A client has a session, or more life of it: for that time from when it asked.
    pub(crate) fn lives(&self, session: &str, asked_at: Duration, ttl: Duration, transition: Duration) {
        let mut state = self.0.lock();
        let life = state.lives.entry(session.to_owned()).or_default();
        life.until = life.until.max(asked_at + ttl.mul_f64(CLOCK_TOLERANCE));
        life.transition = transition;
    }

    /// Returns whether a client counts on its session.
    pub(crate) fn counts(&self, session: &str, at: Duration) -> bool {
        self.0.lock().lives.get(session).is_some_and(|life| !life.is_closed && at < life.until)
    }

    /// A client takes a grant. Returns what must not be.
    pub(crate) fn take(&self, grant: &Grant<'_>, at: Duration) -> Vec<String> {
        let (mut state, mut findings) = (self.0.lock(), Vec::new());
        state.grants += 1;
        for claim in grant.claims {
            let taken = Taken {
                session: grant.session.to_owned(),
                request_id: grant.request_id.to_owned(),
                claim: claim.clone(),
                token: grant.token,
                asked_at: grant.asked_at,
            };
            state.find_conflicts(&taken, at, &mut findings);
            state.find_fallen_token(&taken, at, &mut findings);
            state.holds.push(taken);
        }
        findings
    }

    /// A client gives up what a request has.
    pub(crate) fn release(&self, session: &str, request_id: &str) {
        self.0.lock().holds.retain(|held| held.session != session || held.request_id != request_id);
    }

    /// A client gives up all that its session has.
    pub(crate) fn give_all_up(&self, session: &str) {
        self.0.lock().holds.retain(|held| held.session != session);
    }

    /// A client closes its session.
    pub(crate) fn close(&self, session: &str) {
        self.0.lock().lives.entry(session.to_owned()).or_default().is_closed = true;
        self.give_all_up(session);
    }

    /// A client is told that it has lost a hold. Returns what must not be.
    pub(crate) fn lose(&self, session: &str, path: &Path, token: FencingToken, at: Duration) -> Vec<String> {
        let mut state = self.0.lock();
        let is_meant = |held: &Taken| held.session == session && held.claim.path == *path && held.token == token;
        let lost: Vec<Taken> = state.holds.iter().filter(|held| is_meant(held)).cloned().collect();
        state.holds.retain(|held| !is_meant(held));
        let counts = state.lives.get(session).is_some_and(|life| life.holds_count_at(at));
        let wronged = lost.into_iter().filter(|held| counts && !state.is_opened(path, held.asked_at, at));
        wronged.map(|held| format!("[conflicting claims] {held:?} is lost at {at:?}, and nobody opened it")).collect()
    }

    /// A lock is about to be opened by force. Returns the number of the call.
    pub(crate) fn opens(&self, path: &Path, at: Duration) -> usize {
        let mut state = self.0.lock();
        state.openings.push(ForcedOpening { path: path.clone(), from: at, to: None });
        state.openings.len() - 1
    }

    /// Somebody asks for a lock by force: what was asked for before the call is answered may end, but not within that
    /// time. Returns the number of the call.
    pub(crate) fn may_end(&self, path: &Path, asked_at: Duration, within: Duration) -> usize {
        let from = asked_at + within.mul_f64(CLOCK_TOLERANCE).saturating_sub(STEP_TOLERANCE);
        self.opens(path, from)
    }

    /// The call is answered: it opens nothing that is asked for from now on.
    pub(crate) fn opened(&self, number: usize, at: Duration) {
        self.0.lock().openings[number].to = Some(at);
    }

    /// Returns a hold that a session has, the one with that number of all.
    pub(crate) fn hold_of(&self, session: &str, number: usize) -> Option<(Path, FencingToken)> {
        let state = self.0.lock();
        let own: Vec<&Taken> = state.holds.iter().filter(|held| held.session == session).collect();
        let held = own.get(number % own.len().max(1))?;
        Some((held.claim.path.clone(), held.token))
    }

    /// The shard does not know a hold that a client had since before it asked. Returns what must not be: the client
    /// still has it, counts on it, and nobody opened it.
    pub(crate) fn is_unknown(&self, session: &str, path: &Path, token: FencingToken, at: Duration) -> Option<String> {
        let state = self.0.lock();
        let is_meant = |held: &&Taken| held.session == session && held.claim.path == *path && held.token == token;
        let held = state.holds.iter().find(is_meant)?;
        let counts = state.lives.get(session).is_some_and(|life| !life.is_closed && at < life.until);
        let is_lost = counts && !state.is_opened(path, held.asked_at, at);
        is_lost.then(|| format!("[conflicting claims] {held:?} is held, and the shard does not know it at {at:?}"))
    }

    /// Returns how many grants were taken.
    pub(crate) fn grants(&self) -> u64 {
        self.0.lock().grants
    }
}

/// Whether two claims of different owners conflict; decided here, without the core.
fn conflict(one: &Claim, other: &Claim) -> bool {
    let related = one.path.0.starts_with(&other.path.0) || other.path.0.starts_with(&one.path.0);
    related && (one.mode == Mode::Write || other.mode == Mode::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);
    const TRANSITION: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn claim(path: &[&str], mode: Mode) -> Claim {
        Claim { path: Path(path.iter().map(|segment| (*segment).to_owned()).collect()), mode }
    }

    /// Two sessions that live from the beginning.
    fn log() -> ClaimLog {
        let log = ClaimLog::default();
        ["one", "two"].iter().for_each(|session| log.lives(session, at(0), TTL, TRANSITION));
        log
    }

    /// Takes a grant that was asked for at the same time.
    fn take(log: &ClaimLog, session: &str, claim: &Claim, token: u64, ms: u64) -> Vec<String> {
        let claims = std::slice::from_ref(claim);
        log.take(&Grant { session, request_id: "r", claims, token, asked_at: at(ms) }, at(ms))
    }

    fn finds(found: &[String], check: &str) -> bool {
        found.len() == 1 && found[0].starts_with(check)
    }

    #[test]
    fn what_two_sessions_hold_at_once_is_found_and_readers_are_not() {
        let (whole, part) = (claim(&["a"], Mode::Read), claim(&["a", "x"], Mode::Write));
        let log = log();
        assert!(take(&log, "one", &whole, 7, 10).is_empty());
        assert!(take(&log, "two", &claim(&["a", "x"], Mode::Read), 8, 20).is_empty());
        assert!(finds(&take(&log, "two", &part, 9, 30), "[conflicting claims]"));
        log.release("one", "r");
        assert!(take(&log, "two", &claim(&["a", "y"], Mode::Write), 10, 40).is_empty(), "it was given up");
    }

    #[test]
    fn a_hold_counts_until_the_transition_of_its_session_is_over() {
        let write = claim(&["a"], Mode::Write);
        for (ms, is_found) in [(2_900, true), (3_000, false)] {
            let log = log();
            log.lives("two", at(2_500), TTL, TRANSITION);
            take(&log, "one", &write, 7, 10);
            assert_eq!(finds(&take(&log, "two", &write, 8, ms), "[conflicting claims]"), is_found, "at {ms}");
        }
        let log = log();
        take(&log, "one", &write, 7, 10);
        log.close("one");
        assert!(take(&log, "two", &write, 8, 20).is_empty(), "its client closed it");
        assert!(!log.counts("one", at(20)) && log.counts("two", at(20)) && !log.counts("two", at(2_000)));
    }

    #[test]
    fn a_token_that_falls_is_found_and_one_among_readers_is_not() {
        let (read, write) = (claim(&["a"], Mode::Read), claim(&["a"], Mode::Write));
        let log = log();
        take(&log, "one", &read, 8, 10);
        assert!(take(&log, "two", &read, 7, 20).is_empty(), "the messages overtook each other");
        log.give_all_up("one");
        log.give_all_up("two");
        assert!(finds(&take(&log, "two", &write, 7, 30), "[tokens rise]"), "a reader had a higher one");
        log.give_all_up("two");
        assert!(take(&log, "two", &write, 9, 40).is_empty());
        assert!(take(&log, "two", &write, 9, 50).is_empty(), "it is the same hold");
        log.give_all_up("two");
        let part = claim(&["a", "x"], Mode::Read);
        assert!(finds(&take(&log, "one", &part, 8, 60), "[tokens rise]"), "a writer had the whole");
        log.give_all_up("one");
        assert!(take(&log, "one", &part, 10, 70).is_empty());
    }

    #[test]
    fn a_hold_that_the_shard_does_not_know_is_found_unless_its_client_has_none_any_more() {
        let write = claim(&["a"], Mode::Write);
        let log = log();
        take(&log, "one", &write, 7, 10);
        assert_eq!(log.hold_of("one", 5), Some((write.path.clone(), 7)));
        assert_eq!((log.hold_of("two", 0), log.is_unknown("one", &write.path, 6, at(20))), (None, None));
        assert!(log.is_unknown("one", &write.path, 7, at(20)).is_some());
        assert!(log.is_unknown("one", &write.path, 7, at(2_000)).is_none(), "it counts on it no more");
        log.may_end(&write.path, at(20), at(500));
        assert!(log.is_unknown("one", &write.path, 7, at(400)).is_some(), "it may end, and not yet");
        assert!(log.is_unknown("one", &write.path, 7, at(520)).is_none());
        log.release("one", "r");
        assert!(log.is_unknown("one", &write.path, 7, at(20)).is_none());
    }

    #[test]
    fn a_lock_that_is_opened_by_force_may_have_two_who_believe_in_it() {
        let write = claim(&["a"], Mode::Write);
        let log = log();
        take(&log, "one", &write, 7, 10);
        let call = log.opens(&write.path, at(20));
        assert!(take(&log, "two", &write, 8, 30).is_empty());
        log.opened(call, at(40));
        assert!(log.lose("one", &write.path, 7, at(50)).is_empty());
        assert!(log.lose("one", &write.path, 7, at(50)).is_empty(), "it is told again");
        log.give_all_up("two");
        take(&log, "two", &write, 9, 60);
        assert!(finds(&log.lose("two", &write.path, 9, at(70)), "[conflicting claims]"), "that was before");
        assert_eq!(log.grants(), 3);
    }
}
