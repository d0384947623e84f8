//! The checks of requests to release, against states that break them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use holdfast_core::{
    AccountId, AskRelease, AskedHold, AskedHolds, AskedView, Claim, Effect, Event, EventKind, HolderView, Incarnation,
    Kind, LockState, LockView, LocksCommand, Metadata, Mode, NamespaceRef, Owner, Path, Phase, ReleaseRequest, Reply,
    RequestId, Response,
};

use super::asks::Asks;
use super::invariants::Step;
use super::permits::StepContext;
use super::shard_view::{NamespaceView, ShardView};
use crate::ask_calls::reason_of;
use crate::history::{AT_LEAST_KEY, CALL_KEY};

const ASKED_MS: u64 = 1_000;
const WITHIN_MS: u64 = 500;
const TOKEN: u64 = 5;
const CALL: usize = 7;

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) }
}

fn holder(fencing_token: u64, request: Option<ReleaseRequest>) -> HolderView {
    let metadata =
        Metadata::from([(CALL_KEY.to_owned(), CALL.to_string()), (AT_LEAST_KEY.to_owned(), WITHIN_MS.to_string())]);
    HolderView {
        owner: Owner::Process("p".to_owned()),
        process_id: "p".to_owned(),
        mode: Mode::Write,
        fencing_token,
        locked_at_ms: 0,
        deadline_ms: None,
        requested_expires_at_ns: None,
        phase: Phase::Held,
        metadata,
        release_requested: request.map(Box::new),
    }
}

fn lock(holder: Option<HolderView>) -> LockView {
    let path = Path::flat("l");
    LockView {
        holders_total: 1,
        state: LockState::WriteLocked,
        write_lock_holder: holder,
        ..LockView::unlocked(&path, 1)
    }
}

fn held(holder: HolderView) -> ShardView {
    let locks = BTreeMap::from([(Path::flat("l"), lock(Some(holder)))]);
    let scene = NamespaceView { locks, ..NamespaceView::default() };
    ShardView { namespaces: BTreeMap::from([(namespace(), Rc::new(scene))]) }
}

fn free() -> ShardView {
    ShardView { namespaces: BTreeMap::from([(namespace(), Rc::default())]) }
}

fn request(number: u8, force: bool) -> AskRelease {
    AskRelease {
        namespace: namespace(),
        kind: Kind::Lock,
        path: Path::flat("l"),
        member: None,
        request_id: RequestId([number; 16]),
        by: "key".to_owned(),
        reason: reason_of(CALL),
        within_ms: Some(WITHIN_MS),
        force,
    }
}

/// What a hold shows of a request with that time.
fn shown(until_ms: u64, force: bool) -> Option<ReleaseRequest> {
    let (by, reason) = ("key".to_owned(), reason_of(CALL));
    let (within_ms, until_ms) = (Some(WITHIN_MS), Some(until_ms));
    Some(ReleaseRequest { by, reason, within_ms, asked_at_ms: 0, until_ms, force })
}

fn event(kind: EventKind) -> (NamespaceRef, Event) {
    let is_request = kind.of() == Kind::Request;
    let event = Event {
        revision: TOKEN + 1,
        at_ms: 0,
        kind,
        owner: Owner::Process("p".to_owned()),
        process_id: "p".to_owned(),
        fencing_token: (!is_request).then_some(TOKEN),
        claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
    };
    (namespace(), event)
}

fn of_session(holder: HolderView) -> HolderView {
    HolderView { owner: Owner::Session { session_id: "s".to_owned(), holder: None }, ..holder }
}

/// The session is asked for its hold with that token.
fn told_to_session(fencing_token: u64) -> Effect {
    let holds = vec![AskedHold { path: Path::flat("l"), fencing_token, request_id: None }];
    let request = shown(ASKED_MS + WITHIN_MS, false).expect("there is one");
    let asked = AskedHolds { kind: Kind::Lock, request, holds };
    Effect::ReleaseRequested { namespace: namespace(), session_id: "s".to_owned(), asked }
}

/// The checks of a history, which has this view now.
struct Run {
    asks: Asks,
    view: ShardView,
    /// Of the next step.
    effects: Vec<Effect>,
    /// Whether nothing is left for later entries after the next step.
    is_settled: bool,
    found: Vec<String>,
}

impl Run {
    /// A hold was granted.
    fn new() -> Self {
        Self::of(holder(TOKEN, None))
    }

    fn of(holder: HolderView) -> Self {
        let (effects, found) = (Vec::new(), Vec::new());
        let mut run = Self { asks: Asks::default(), view: free(), effects, is_settled: true, found };
        run.step(ASKED_MS, held(holder), None, &[]);
        run
    }

    fn step(
        &mut self,
        clock_ms: u64,
        after: ShardView,
        asked: Option<(AskRelease, u64)>,
        events: &[(NamespaceRef, Event)],
    ) {
        let of_requests = |(_, event): &(NamespaceRef, Event)| event.kind.of() == Kind::Request;
        let (things, events): (Vec<_>, Vec<_>) = events.iter().cloned().partition(of_requests);
        let (before, effects) = (&self.view, std::mem::take(&mut self.effects));
        let (after_step, effects, events) = (&after, effects.as_slice(), events.as_slice());
        let step = Step { before, after: after_step, effects, granted: &[], events, highest_token: TOKEN };
        let reply = asked.as_ref().map(|(_, asked)| Reply {
            outcome: Ok(Response::ReleaseAsked { asked: *asked, truncated: false, view: AskedView::Lock(lock(None)) }),
            clock_ms,
            awaits: None,
        });
        let command = asked.map(|(ask, _)| LocksCommand::AskRelease(ask));
        let (is_settled, has_session) = (self.is_settled, |_: &str| true);
        let context = StepContext { clock_ms, is_settled, command: command.as_ref(), has_session: &has_session };
        let at = Duration::from_millis(clock_ms);
        let found = &mut self.found;
        self.asks.check(&step, (&context, reply.as_ref()), &things, at, &mut |what| {
            let name = what.split(']').next().unwrap_or_default();
            found.push(name.trim_start_matches('[').to_owned());
        });
        self.view = after;
    }

    /// Somebody asks, and the hold shows that.
    fn ask_and_show(&mut self, clock_ms: u64, ask: AskRelease, until_ms: u64, is_forced: bool) {
        let after = held(holder(TOKEN, shown(until_ms, is_forced)));
        self.step(clock_ms, after, Some((ask, 1)), &[event(EventKind::ReleaseRequested { of: Kind::Lock })]);
    }

    fn found(self) -> Vec<String> {
        self.found
    }
}

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn what_ends_by_force_too_early_or_by_nobody_is_found() {
    for (force, at_ms, is_found) in [
        (true, ASKED_MS + WITHIN_MS, false),
        (true, ASKED_MS + WITHIN_MS - 1, true),
        (false, ASKED_MS + WITHIN_MS, true),
    ] {
        let mut run = Run::new();
        run.ask_and_show(ASKED_MS, request(1, force), ASKED_MS + WITHIN_MS, force);
        run.step(at_ms, free(), None, &[event(EventKind::Deleted)]);
        let is_timed = run.asks.ends.len();
        assert_eq!(is_timed, usize::from(force && !is_found));
        assert!(run.asks.is_deleted(&Path::flat("l"), TOKEN) && run.asks.has_asked(&Path::flat("l"), TOKEN, CALL));
        assert_eq!(run.asks.is_forced(&Path::flat("l"), TOKEN), force);
        assert_eq!(run.found() == ["asks"], is_found, "forced: {force}, at {at_ms}");
    }
}

#[test]
fn what_stays_after_its_time_or_ends_twice_is_found() {
    let until_ms = ASKED_MS + WITHIN_MS;
    let mut run = Run::new();
    run.ask_and_show(ASKED_MS, request(1, true), until_ms, true);
    run.step(until_ms, held(holder(TOKEN, shown(until_ms, true))), None, &[]);
    assert_eq!(run.found, ["holds end"]);
    run.found.clear();
    run.step(until_ms, free(), None, &[event(EventKind::Deleted)]);
    run.step(until_ms, held(holder(TOKEN, None)), None, &[]);
    run.ask_and_show(until_ms, request(2, true), until_ms + WITHIN_MS, true);
    assert_eq!(run.found, none());
    run.step(until_ms + WITHIN_MS, free(), None, &[event(EventKind::Deleted)]);
    assert_eq!(run.found(), ["asks"], "that token ended before");
}

#[test]
fn a_request_that_ends_a_hold_itself_or_is_not_shown_is_found() {
    let told = [event(EventKind::ReleaseRequested { of: Kind::Lock })];
    let mut run = Run::new();
    run.step(ASKED_MS, free(), Some((request(1, false), 1)), &told);
    assert_eq!(run.found(), ["asks"], "it ends the hold");
    for view in [held(holder(TOKEN, None)), held(holder(TOKEN, shown(ASKED_MS, false)))] {
        let mut run = Run::new();
        run.step(ASKED_MS, view, Some((request(1, false), 1)), &told);
        assert_eq!(run.found(), ["asks"], "it shows something else");
    }
    let mut run = Run::new();
    run.step(ASKED_MS, held(holder(TOKEN, shown(ASKED_MS + WITHIN_MS, false))), Some((request(1, false), 0)), &told);
    assert_eq!(run.found(), ["asks"], "nobody is said to be asked");
}

#[test]
fn what_is_left_no_time_is_over_at_once_and_ends_with_the_next_entry() {
    let shown_now = |phase| {
        let request = shown(ASKED_MS, true).map(|request| ReleaseRequest { within_ms: Some(0), ..request });
        held(HolderView { phase, ..holder(TOKEN, request) })
    };
    let told = [event(EventKind::ReleaseRequested { of: Kind::Lock })];
    for (after, expected) in [
        (shown_now(Phase::Transition), none()),
        (shown_now(Phase::Held), vec!["asks".to_owned()]),
        (free(), vec!["asks".to_owned()]),
    ] {
        let mut run = Run::new();
        run.is_settled = false;
        run.step(ASKED_MS, after, Some((AskRelease { within_ms: Some(0), ..request(1, true) }, 1)), &told);
        assert_eq!(run.found, expected);
    }
    let mut run = Run::new();
    run.is_settled = false;
    let ask = AskRelease { within_ms: Some(0), ..request(1, true) };
    run.step(ASKED_MS, shown_now(Phase::Transition), Some((ask, 1)), &told);
    run.is_settled = true;
    run.step(ASKED_MS, free(), None, &[event(EventKind::Deleted)]);
    assert_eq!((run.asks.ends.len(), run.found()), (1, none()));
}

#[test]
fn a_session_that_is_not_told_once_is_found() {
    let asks = |times| vec!["asks".to_owned(); times];
    for (effects, expected) in [
        (vec![told_to_session(TOKEN)], none()),
        (vec![], asks(1)),
        (vec![told_to_session(TOKEN), told_to_session(TOKEN)], asks(1)),
        (vec![told_to_session(TOKEN + 1)], asks(2)),
    ] {
        let mut run = Run::of(of_session(holder(TOKEN, None)));
        run.effects = effects;
        let after = held(of_session(holder(TOKEN, shown(ASKED_MS + WITHIN_MS, false))));
        let told = [event(EventKind::ReleaseRequested { of: Kind::Lock })];
        run.step(ASKED_MS, after, Some((request(1, false), 1)), &told);
        assert_eq!(run.found, expected);
        run.step(ASKED_MS + 1, free(), None, &[event(EventKind::Released)]);
        let [asked] = &run.asks.of_sessions[..] else { panic!("it was asked once: {:?}", run.asks.of_sessions) };
        assert_eq!((asked.call, asked.ended), (CALL, Some(Duration::from_millis(ASKED_MS + 1))));
    }
    let mut run = Run::new();
    run.effects = vec![told_to_session(TOKEN)];
    run.step(ASKED_MS, held(holder(TOKEN, None)), None, &[]);
    assert_eq!(run.found(), asks(2), "nobody asked, and it is no session's");
}

#[test]
fn a_polite_request_that_puts_a_forced_one_off_is_found() {
    let (first_ms, then_ms) = (ASKED_MS + WITHIN_MS, ASKED_MS + 100 + WITHIN_MS);
    for (until_ms, force, expected) in [(first_ms, true, none()), (then_ms, false, vec!["asks".to_owned()])] {
        let mut run = Run::new();
        run.ask_and_show(ASKED_MS, request(1, true), first_ms, true);
        run.ask_and_show(ASKED_MS + 100, request(2, false), until_ms, force);
        assert_eq!(run.found(), expected);
    }
}

#[test]
fn a_forced_request_that_is_done_twice_or_told_twice_is_found() {
    let until_ms = ASKED_MS + WITHIN_MS;
    let view = || held(holder(TOKEN, shown(until_ms, true)));
    let mut run = Run::new();
    run.ask_and_show(ASKED_MS, request(1, true), until_ms, true);
    run.step(ASKED_MS, view(), Some((request(1, true), 1)), &[]);
    assert_eq!(run.found(), ["asks"]);
    let told = || event(EventKind::ReleaseRequested { of: Kind::Lock });
    let mut run = Run::new();
    run.step(ASKED_MS, view(), Some((request(1, true), 1)), &[told(), told()]);
    assert_eq!(run.found(), ["asks"]);
    let mut run = Run::new();
    run.step(ASKED_MS, held(holder(TOKEN, None)), None, &[told()]);
    assert_eq!(run.found(), ["asks"], "nobody asked");
}

#[test]
fn what_others_may_have_before_its_time_is_found() {
    for (lasted_ms, expected) in [(WITHIN_MS, none()), (WITHIN_MS - 1, vec!["at least so long".to_owned()])] {
        let mut run = Run::new();
        run.step(ASKED_MS + lasted_ms, free(), None, &[event(EventKind::Released)]);
        assert_eq!(run.asks.ends.len(), 1);
        assert_eq!(run.found(), expected, "after {lasted_ms}");
    }
    // Its owner took it again: that is kept from others no shorter.
    let mut run = Run::new();
    let again = HolderView { metadata: Metadata::new(), ..holder(TOKEN + 2, None) };
    run.step(ASKED_MS + 1, held(again), None, &[event(EventKind::Released)]);
    assert_eq!(run.found(), none());
}
