//! Conditions of locks that requests of connected sessions hold.

use holdfast_core::{
    AcquireOutcome, FencingToken, LocksCommand, MessageSeq, Response, SessionAcquire, SessionAwait, SessionCommand,
    SessionRequest, SessionSignal, Wait, Woken,
};

use crate::conditions::shard;
use crate::support::{Shard, orders};
use crate::wait_requests::{try_request, write};

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
