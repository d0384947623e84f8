//! Every violation is found, and what only looks like one is not.

use std::sync::Arc;
use std::time::Duration;

use holdfast_types::Mode;

use super::{Rule, check};
use crate::history::{Answer, Call, Hold, LockId, Outcome, Record, View};

const TTL_MS: u64 = 1_000;

/// A history of one lock, a call after the other: each takes 10 ms and begins 10 ms after the one before ended.
#[derive(Default)]
struct HistoryBuilder {
    records: Vec<Record>,
    now_ms: u64,
}

fn write(token: u64, owner: &str) -> Hold {
    Hold { token, owner: Arc::from(owner), mode: Mode::Write }
}

fn read(token: u64, owner: &str) -> Hold {
    Hold { token, owner: Arc::from(owner), mode: Mode::Read }
}

fn view(revision: u64, holds: &[Hold]) -> View {
    View { revision, holds: holds.to_vec(), is_whole: true }
}

fn acquire(mode: Mode) -> Call {
    Call::Acquire { mode, ttl_ms: TTL_MS, token: None }
}

impl HistoryBuilder {
    fn call(mut self, owner: &str, call: Call, outcome: Outcome) -> Self {
        let start = Duration::from_millis(self.now_ms + 10);
        self.now_ms += 20;
        let lock = LockId { shard: "s".into(), namespace: "n".into(), name: "l".into() };
        let end = Duration::from_millis(self.now_ms);
        self.records.push(Record { owner: owner.into(), lock, call, start, end, outcome });
        self
    }

    fn granted(self, hold: &Hold, revision: u64, holds: &[Hold]) -> Self {
        let answer = Answer { success: true, token: Some(hold.token), reason: None, lock: view(revision, holds) };
        self.call(&hold.owner, acquire(hold.mode), Outcome::Answered(answer))
    }

    /// Granted to an owner who is alone then.
    fn acquired(self, hold: &Hold) -> Self {
        self.granted(hold, hold.token, std::slice::from_ref(hold))
    }

    fn refused(self, owner: &str, mode: Mode, reason: &str, lock: View) -> Self {
        let answer = Answer { success: false, token: None, reason: Some(reason.into()), lock };
        self.call(owner, acquire(mode), Outcome::Answered(answer))
    }

    fn released(self, owner: &str, released: bool, lock: View) -> Self {
        let answer = Answer { success: released, token: None, reason: None, lock };
        self.call(owner, Call::Release { token: None }, Outcome::Answered(answer))
    }

    fn observed(self, revision: u64, holds: &[Hold]) -> Self {
        let answer = Answer { success: true, token: None, reason: None, lock: view(revision, holds) };
        self.call("watcher", Call::Get, Outcome::Answered(answer))
    }

    fn advance(mut self, ms: u64) -> Self {
        self.now_ms += ms;
        self
    }

    /// Moves the beginning of the last call to the beginning of the history.
    fn started_first(mut self) -> Self {
        if let Some(last) = self.records.last_mut() {
            last.start = Duration::ZERO;
        }
        self
    }

    fn assert_violates(self, rule: Rule) {
        let violations = check(&self.records);
        assert!(violations.iter().any(|violation| violation.rule == rule), "{rule:?} is not among {violations:?}");
    }

    fn assert_valid(self) {
        assert_eq!(check(&self.records), []);
    }
}

#[test]
fn a_life_with_all_kinds_of_calls_is_fine() {
    let (a, b, c) = (read(1, "a"), read(2, "b"), write(5, "c"));
    HistoryBuilder::default()
        .acquired(&a)
        .granted(&b, 2, &[a.clone(), b.clone()])
        .refused("c", Mode::Write, "HELD", view(2, &[a.clone(), b.clone()]))
        .refused("a", Mode::Write, "UPGRADE", view(2, &[a.clone(), b.clone()]))
        .granted(&a, 2, &[a.clone(), b.clone()])
        .released("x", false, view(2, &[a.clone(), b.clone()]))
        .released("a", true, view(3, std::slice::from_ref(&b)))
        .released("b", true, view(4, &[]))
        .acquired(&c)
        .observed(5, std::slice::from_ref(&c))
        .assert_valid();
}

#[test]
fn a_writer_beside_anybody_is_found_in_one_answer_and_over_several() {
    let (a, b) = (write(1, "a"), read(2, "b"));
    HistoryBuilder::default().acquired(&a).granted(&b, 2, &[a.clone(), b.clone()]).assert_violates(Rule::Exclusion);
    HistoryBuilder::default()
        .acquired(&a)
        .acquired(&b)
        .observed(3, std::slice::from_ref(&a))
        .assert_violates(Rule::Exclusion);
    let c = write(2, "c");
    HistoryBuilder::default()
        .acquired(&a)
        .acquired(&c)
        .observed(3, std::slice::from_ref(&a))
        .assert_violates(Rule::Exclusion);
}

#[test]
fn a_hold_that_vanished_is_found() {
    let (a, b) = (write(1, "a"), write(3, "b"));
    HistoryBuilder::default().acquired(&a).observed(2, &[]).assert_violates(Rule::EndCause);
    HistoryBuilder::default().acquired(&a).acquired(&b).assert_violates(Rule::EndCause);
    HistoryBuilder::default().acquired(&a).released("b", true, view(2, &[])).assert_violates(Rule::EndCause);
    let not_done = |story: HistoryBuilder| story.call("a", Call::Release { token: None }, Outcome::NotDone);
    not_done(HistoryBuilder::default().acquired(&a)).observed(2, &[]).assert_violates(Rule::EndCause);
}

#[test]
fn a_hold_may_vanish_by_a_release_of_unknown_outcome_once() {
    let (a, again) = (write(1, "a"), write(3, "a"));
    let release = |token| (Call::Release { token }, Outcome::Unknown);
    let (call, unknown) = release(None);
    let once = HistoryBuilder::default().acquired(&a).call("a", call, unknown).observed(2, &[]);
    once.acquired(&again).observed(4, &[]).assert_violates(Rule::EndCause);
    let (call, unknown) = release(Some(1));
    HistoryBuilder::default().acquired(&a).call("a", call, unknown).observed(2, &[]).assert_valid();
    let (call, unknown) = release(Some(7));
    HistoryBuilder::default().acquired(&a).call("a", call, unknown).observed(2, &[]).assert_violates(Rule::EndCause);
}

#[test]
fn a_hold_may_vanish_by_a_release_that_was_sent_twice_but_not_after_it() {
    let a = write(1, "a");
    HistoryBuilder::default().acquired(&a).released("a", false, view(2, &[])).assert_valid();
    let not_ended = HistoryBuilder::default().acquired(&a).released("b", false, view(1, std::slice::from_ref(&a)));
    not_ended.observed(2, &[]).assert_violates(Rule::EndCause);
}

#[test]
fn a_hold_vanishes_by_a_deletion_and_by_its_time_but_not_before() {
    let a = write(1, "a");
    let deleted = Outcome::Answered(Answer {
        success: true,
        token: None,
        reason: None,
        lock: View { revision: 0, holds: Vec::new(), is_whole: false },
    });
    HistoryBuilder::default().acquired(&a).call("x", Call::Delete, deleted).observed(2, &[]).assert_valid();
    HistoryBuilder::default().acquired(&a).advance(TTL_MS).observed(2, &[]).assert_valid();
    HistoryBuilder::default().acquired(&a).advance(TTL_MS - 100).observed(2, &[]).assert_violates(Rule::EndCause);
    // The extension counts.
    let extended = HistoryBuilder::default().acquired(&a).advance(TTL_MS / 2).acquired(&a);
    extended.advance(TTL_MS / 2 + 100).observed(2, &[]).assert_violates(Rule::EndCause);
}

#[test]
fn a_hold_from_nowhere_is_found() {
    let a = write(1, "a");
    HistoryBuilder::default().observed(1, std::slice::from_ref(&a)).assert_violates(Rule::GrantCause);
    let not_done = HistoryBuilder::default().call("a", acquire(Mode::Write), Outcome::NotDone);
    not_done.observed(1, std::slice::from_ref(&a)).assert_violates(Rule::GrantCause);
    let other_mode = HistoryBuilder::default().call("a", acquire(Mode::Read), Outcome::Unknown);
    other_mode.observed(1, std::slice::from_ref(&a)).assert_violates(Rule::GrantCause);
    let too_late = HistoryBuilder::default().observed(1, std::slice::from_ref(&a));
    too_late.call("a", acquire(Mode::Write), Outcome::Unknown).assert_violates(Rule::GrantCause);
}

#[test]
fn an_acquire_of_unknown_outcome_may_have_granted_one_hold() {
    let (a, again) = (write(1, "a"), write(3, "a"));
    let unknown = || HistoryBuilder::default().call("a", acquire(Mode::Write), Outcome::Unknown);
    unknown().assert_valid();
    unknown().observed(1, std::slice::from_ref(&a)).assert_valid();
    unknown().released("a", true, view(2, &[])).assert_valid();
    let twice = unknown().observed(1, std::slice::from_ref(&a)).released("a", true, view(2, &[]));
    twice.observed(3, std::slice::from_ref(&again)).assert_violates(Rule::GrantCause);
}

#[test]
fn an_acquire_that_took_longer_than_its_time_to_live_may_have_been_granted_twice() {
    let (first, second) = (write(1, "a"), write(3, "a"));
    let story = |took_ms: u64| {
        let seen = HistoryBuilder::default().observed(1, std::slice::from_ref(&first)).advance(TTL_MS);
        let mut story = seen.acquired(&second);
        let answered = story.records.last_mut().expect("there are two");
        answered.start = answered.end - Duration::from_millis(took_ms);
        story
    };
    story(TTL_MS + 40).assert_valid();
    story(TTL_MS - 40).assert_violates(Rule::GrantCause);
}

#[test]
fn a_hold_that_appears_after_its_token_was_passed_is_found() {
    let a = write(1, "a");
    let late = HistoryBuilder::default().observed(2, &[]);
    late.granted(&a, 3, std::slice::from_ref(&a)).assert_violates(Rule::GrantCause);
}

#[test]
fn answers_that_contradict_what_they_show_are_found() {
    let (a, b) = (write(1, "a"), read(1, "b"));
    HistoryBuilder::default().refused("a", Mode::Write, "HELD", view(0, &[])).assert_violates(Rule::Answer);
    HistoryBuilder::default()
        .acquired(&b)
        .refused("a", Mode::Read, "HELD", view(1, &[b]))
        .assert_violates(Rule::Answer);
    HistoryBuilder::default()
        .acquired(&a)
        .refused("a", Mode::Write, "UPGRADE", view(1, std::slice::from_ref(&a)))
        .assert_violates(Rule::Answer);
    HistoryBuilder::default()
        .acquired(&a)
        .released("a", true, view(1, std::slice::from_ref(&a)))
        .assert_violates(Rule::Answer);
    HistoryBuilder::default().granted(&a, 2, &[]).assert_violates(Rule::Answer);
    HistoryBuilder::default().released("a", true, view(2, &[])).assert_violates(Rule::Answer);
    let extend = Call::Acquire { mode: Mode::Write, ttl_ms: TTL_MS, token: Some(1) };
    let refused = Answer {
        success: false,
        token: None,
        reason: Some("NOT_HELD".into()),
        lock: view(1, std::slice::from_ref(&a)),
    };
    HistoryBuilder::default().acquired(&a).call("a", extend, Outcome::Answered(refused)).assert_violates(Rule::Answer);
}

#[test]
fn two_states_at_one_revision_and_two_holds_of_one_token_are_found() {
    let (a, b) = (write(1, "a"), write(1, "b"));
    HistoryBuilder::default().acquired(&a).observed(1, &[]).assert_violates(Rule::Consistency);
    HistoryBuilder::default().acquired(&a).acquired(&b).assert_violates(Rule::Consistency);
    let back = HistoryBuilder::default().acquired(&a).released("a", true, view(2, &[]));
    back.observed(3, std::slice::from_ref(&a)).assert_violates(Rule::Consistency);
}

#[test]
fn a_view_older_than_one_that_was_there_before_is_found() {
    let (a, b) = (write(2, "a"), write(4, "b"));
    let stale = HistoryBuilder::default().acquired(&a).released("a", true, view(3, &[]));
    stale.observed(2, std::slice::from_ref(&a)).assert_violates(Rule::RealTime);
    HistoryBuilder::default().acquired(&a).observed(1, &[]).assert_violates(Rule::RealTime);
    // Begun before, it may be older.
    let overlapping = HistoryBuilder::default().acquired(&a).released("a", true, view(3, &[]));
    overlapping.observed(2, std::slice::from_ref(&a)).started_first().assert_valid();
    let token_falls = HistoryBuilder::default().acquired(&b).released("b", true, view(5, &[]));
    token_falls.acquired(&a).assert_violates(Rule::RealTime);
}

#[test]
fn tokens_rise_over_all_locks_of_a_shard() {
    let (a, b) = (write(5, "a"), write(3, "b"));
    let mut story = HistoryBuilder::default().acquired(&a).acquired(&b);
    for record in story.records.iter_mut().skip(1) {
        record.lock.name = "other".into();
    }
    story.assert_violates(Rule::RealTime);
}

#[test]
fn an_answer_with_some_of_the_readers_says_nothing_of_the_others() {
    let (a, b) = (read(1, "a"), read(2, "b"));
    let some = View { revision: 2, holds: vec![a.clone()], is_whole: false };
    let answer = Answer { success: true, token: Some(2), reason: None, lock: some };
    let story = HistoryBuilder::default().acquired(&a).call("b", acquire(Mode::Read), Outcome::Answered(answer));
    story.observed(2, &[a, b]).assert_valid();
}
