//! Conditions of locks that requests of connected sessions hold.

use holdfast_core::{
    Acquire, AcquireOutcome, Bounds, Effect, FencingToken, LockInfo, LocksCommand, MessageSeq, Reason, Response, Rules,
    SessionAcquire, SessionAwait, SessionCommand, SessionRequest, SessionSignal, Wait, Woken,
};

use crate::conditions::{shard, signal_command};
use crate::support::{Shard, orders};
use crate::wait_requests::{session_wait_request, try_request, wait_request, write};

/// A connection of a session with the request `r` for the lock `l`.
struct Connection {
    session: u64,
    epoch: u64,
    seq: u64,
}

impl Connection {
    fn open(shard: &mut Shard, session_id: &str) -> Self {
        let session = shard.open_session(session_id);
        Self { session: session.number, epoch: session.epoch, seq: 0 }
    }

    fn send(&mut self, shard: &mut Shard, request: SessionRequest) -> Response {
        self.seq += 1;
        self.send_again(shard, request)
    }

    /// A copy of the message that was sent last.
    fn send_again(&self, shard: &mut Shard, request: SessionRequest) -> Response {
        let message = MessageSeq { epoch: self.epoch, seq: self.seq };
        let account = orders().account;
        let command = SessionCommand { account, session: self.session, message, request };
        shard.run(LocksCommand::Session(command)).unwrap()
    }

    fn lock(&mut self, shard: &mut Shard) -> FencingToken {
        let acquire = SessionAcquire {
            holder: None,
            claims: vec![write("l")],
            transition_ms: 0,
            wait: Wait::Unlimited,
            allow_upgrade: true,
            request_id: "r".into(),
        };
        match self.send(shard, SessionRequest::Acquire(acquire)) {
            Response::Granted { fencing_token } => fencing_token,
            other => panic!("it should have the lock: {other:?}"),
        }
    }

    /// Locks `l` and gives it up. Returns the token that was given up.
    fn lock_and_await(&mut self, shard: &mut Shard) -> FencingToken {
        let token = self.lock(shard);
        let answer = self.send(shard, awaits(None, false));
        assert!(matches!(answer, Response::Awaited { outcome: AcquireOutcome::Enqueued(_), woken: None, .. }));
        token
    }
}

/// An await of the condition `c`, without a limit of time.
fn awaits(fencing_token: Option<FencingToken>, is_repeat: bool) -> SessionRequest {
    let (request_id, condition) = ("r".to_owned(), "c".to_owned());
    SessionRequest::Await(SessionAwait { request_id, condition, fencing_token, wait: Wait::Unlimited, is_repeat })
}

fn signal(signal_id: Option<&str>) -> SessionRequest {
    let (request_id, condition, signal_id) = ("r".to_owned(), "c".to_owned(), signal_id.map(str::to_owned));
    SessionRequest::Signal(SessionSignal { request_id, condition, all: false, signal_id })
}

/// How many a signal woke, and how many await the condition still.
fn counted(answer: Response) -> (u64, u64) {
    match answer {
        Response::Signalled { success: true, signalled, awaiting, .. } => (signalled, awaiting),
        other => panic!("it should signal: {other:?}"),
    }
}

#[test]
fn a_signal_of_a_session_with_an_id_may_be_sent_again() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.lock_and_await("b", "c");
    let mut one = Connection::open(&mut shard, "se_1");
    one.lock(&mut shard);
    assert_eq!(counted(one.send(&mut shard, signal(Some("1")))), (1, 1));
    assert_eq!(one.send_again(&mut shard, signal(Some("1"))), Response::Ignored, "a copy of the message");
    assert_eq!(counted(one.send(&mut shard, signal(Some("1")))), (1, 1), "sent under another number");
    assert_eq!(shard.awaiting_owners(), ["b"]);
    assert_eq!(counted(one.send(&mut shard, signal(None))), (1, 0));
    shard.core.verify();
}

/// How many precede a woken request, and who blocks it.
type WokenStatus = Option<(Option<u64>, Vec<String>)>;

/// The places that the effects tell which were not taken yet.
fn woken_statuses(shard: &mut Shard) -> Vec<WokenStatus> {
    let place = |effect: Effect| -> Option<WokenStatus> {
        let Effect::AwaitWoken { not_granted, .. } = effect else { return None };
        Some(not_granted.map(|place| {
            let blockers = place.blockers.iter().map(|blocker| blocker.holder.process_id.clone());
            (place.queue_position, blockers.collect())
        }))
    };
    shard.core.take_effects().into_iter().filter_map(place).collect()
}

#[test]
fn a_session_that_is_woken_hears_its_place_and_who_has_the_lock() {
    let mut shard = shard();
    let mut one = Connection::open(&mut shard, "se_1");
    let mut two = Connection::open(&mut shard, "se_2");
    one.lock_and_await(&mut shard);
    two.lock_and_await(&mut shard);
    shard.lock_and_await("p", "c");
    shard.granted(try_request("s", &[write("l")]));
    shard.queued(wait_request("w", &[write("l")]), Reason::Held);
    assert_eq!(shard.try_signal(signal_command("s", "c", true)), Some((3, 0)));
    let behind = |number: u64| Some((Some(number), vec!["s".to_owned()]));
    assert_eq!(woken_statuses(&mut shard), [behind(1), behind(2), None], "`p` asks for it when its call ends");
}

/// `se_1` and `b` await the condition; `se_1` was signalled and has the lock again.
fn relocked(shard: &mut Shard) -> Connection {
    let mut one = Connection::open(shard, "se_1");
    one.lock_and_await(shard);
    shard.lock_and_await("b", "c");
    assert_eq!(shard.lock_and_signal("c", false), (1, 1));
    shard.release_paths("s", &["l"]);
    assert_eq!((shard.holders("l"), shard.awaiting_owners()), (vec!["se_1".to_owned()], vec!["b".to_owned()]));
    one
}

#[test]
fn the_signal_of_a_request_that_is_released_unheard_is_handed_on() {
    for (is_unheard, holders) in [(true, vec!["b".to_owned()]), (false, Vec::new())] {
        let mut shard = shard();
        let mut one = relocked(&mut shard);
        let request_id = "r".to_owned();
        let answer = one.send(
            &mut shard,
            match is_unheard {
                true => SessionRequest::ReleaseUnheard { request_id },
                false => SessionRequest::Release { request_id, is_known: false },
            },
        );
        assert!(matches!(answer, Response::Released { released: true, .. }), "{answer:?}");
        assert_eq!(shard.holders("l"), holders, "{is_unheard}");
        shard.core.verify();
    }
}

#[test]
fn a_request_that_awaits_or_waits_may_be_released_unheard() {
    let mut shard = shard();
    let mut one = Connection::open(&mut shard, "se_1");
    one.lock_and_await(&mut shard);
    let release = SessionRequest::ReleaseUnheard { request_id: "r".into() };
    one.send(&mut shard, release.clone());
    assert!(shard.awaiting_owners().is_empty());
    one.lock_and_await(&mut shard);
    shard.lock_and_signal("c", false);
    one.send(&mut shard, release.clone());
    assert!(shard.waiting_owners().is_empty());
    assert_eq!(one.send_again(&mut shard, release), Response::Ignored);
}

#[test]
fn the_signal_of_a_hold_that_a_resuming_client_does_not_list_is_handed_on() {
    let few = Bounds { ends_per_slice: 1, ..Bounds::of(Rules::TWO) };
    for mut shard in [Shard::new(), Shard::with_bounds(few)] {
        shard.rules = Rules::TWO;
        relocked(&mut shard);
        // Two of them are more than the small slice ends.
        shard.granted(Acquire { wait: Wait::No, ..session_wait_request("se_1", "r2", &[write("m")]) });
        let session = shard.open_session_as("se_1", true, 2).unwrap();
        let message = Some(MessageSeq { epoch: session.epoch, seq: 1 });
        let (namespace, session_id) = (orders(), "se_1".to_owned());
        let info = LockInfo { namespace, session_id, message, held: Vec::new(), pending: Vec::new() };
        shard.run(LocksCommand::LockInfo(info)).unwrap();
        while shard.core.has_backlog() {
            shard.advance_by(0);
        }
        assert_eq!((shard.holders("l"), shard.holders("m")), (vec!["b".to_owned()], vec![]));
        shard.core.verify();
    }
}

#[test]
fn a_repeat_without_a_token_finds_the_lock_that_it_has_again() {
    let mut shard = shard();
    let mut one = Connection::open(&mut shard, "se_1");
    let given_up = one.lock_and_await(&mut shard);
    assert_eq!(shard.lock_and_signal("c", false), (1, 0));
    let again = one.send(&mut shard, awaits(None, true));
    assert!(matches!(again, Response::Awaited { outcome: AcquireOutcome::Enqueued(_), woken: Some(_), .. }));
    shard.release_paths("s", &["l"]);
    for token in [None, Some(given_up)] {
        let again = one.send(&mut shard, awaits(token, true));
        let Response::Awaited { outcome: AcquireOutcome::Granted { .. }, woken, .. } = again else {
            panic!("it has the lock: {again:?}")
        };
        assert_eq!(woken, Some(Woken::Signalled));
    }
    assert_eq!(shard.holders("l"), ["se_1"]);
    let new = one.send(&mut shard, awaits(None, false));
    assert!(matches!(new, Response::Awaited { outcome: AcquireOutcome::Enqueued(_), woken: None, .. }), "{new:?}");
}

#[test]
fn a_repeat_of_an_await_that_did_not_arrive_gives_the_lock_up() {
    let mut shard = shard();
    let mut one = Connection::open(&mut shard, "se_1");
    one.lock(&mut shard);
    let first = one.send(&mut shard, awaits(None, true));
    assert!(matches!(first, Response::Awaited { outcome: AcquireOutcome::Enqueued(_), woken: None, .. }), "{first:?}");
    assert_eq!(shard.awaiting_owners().len(), 1);
}
