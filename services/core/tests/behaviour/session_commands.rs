//! Requests of connected sessions, which name their session by its number.

use holdfast_core::{
    AcquireOutcome, Claim, Command, CommandError, LocksCommand, MessageSeq, NamespaceMessage, Path, Response,
    SessionAcquire, SessionCommand, SessionRequest, Wait, codec,
};

use crate::support::{Shard, assert_nothing_is_left, orders};
use crate::wait_requests::{at, read, session_wait_request, write};

fn acquire(request_id: &str, claims: &[Claim]) -> SessionRequest {
    SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: claims.to_vec(),
        transition_ms: 0,
        wait: Wait::No,
        allow_upgrade: claims.len() == 1,
        request_id: request_id.to_owned(),
    })
}

fn release(request_id: &str, is_known: bool) -> SessionRequest {
    SessionRequest::Release { request_id: request_id.to_owned(), is_known }
}

/// A connection of a session.
struct Connection {
    session: u64,
    seq: u64,
}

impl Connection {
    fn open(shard: &mut Shard, session_id: &str) -> Self {
        Self { session: shard.open_session(session_id).number, seq: 0 }
    }

    fn command(&self, request: SessionRequest) -> LocksCommand {
        let message = MessageSeq { epoch: self.session, seq: self.seq };
        LocksCommand::Session(SessionCommand { account: orders().account, session: self.session, message, request })
    }

    fn send(&mut self, shard: &mut Shard, request: SessionRequest) -> Result<Response, CommandError> {
        self.seq += 1;
        shard.run(self.command(request))
    }

    fn granted(&mut self, shard: &mut Shard, request_id: &str, claims: &[Claim]) -> u64 {
        match self.send(shard, acquire(request_id, claims)) {
            Ok(Response::Granted { fencing_token }) => fencing_token,
            other => panic!("not all is new: {other:?}"),
        }
    }
}

#[test]
fn a_session_of_a_namespace_that_is_set_aside_is_refused() {
    let mut shard = Shard::new();
    let mut one = Connection::open(&mut shard, "se_1");
    one.granted(&mut shard, "r1", &[write("a")]);
    shard.core.quarantine(&orders());
    assert_eq!(one.send(&mut shard, acquire("r2", &[write("b")])), Err(CommandError::Quarantined));
    assert_eq!(one.send(&mut shard, release("r1", true)), Err(CommandError::Quarantined));
    assert_eq!(shard.core.footprint().holds, 1);
}

#[test]
fn a_grant_tells_its_token_and_a_release_that_it_is_done() {
    let mut shard = Shard::new();
    let mut one = Connection::open(&mut shard, "se_1");
    let token = one.granted(&mut shard, "r1", &[write("a"), read("b")]);
    assert!(shard.holders("a") == ["se_1"] && shard.holders("b") == ["se_1"]);
    assert_eq!(shard.get("a").write_lock_holder.unwrap().fencing_token, token);
    assert_eq!(one.send(&mut shard, release("r1", true)), Ok(Response::Done));
    assert_eq!((shard.holders("a"), shard.holders("b")), (vec![], vec![]));
    // The same message again changes nothing.
    assert_eq!(shard.run(one.command(acquire("r2", &[write("a")]))), Ok(Response::Ignored));
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_1".into(), message: None };
    assert_eq!(shard.run(close), Ok(Response::Done));
    assert_eq!(one.send(&mut shard, release("r1", true)), Err(CommandError::SessionNotFound(one.session.to_string())));
    assert_nothing_is_left(&shard.core);
}

#[test]
fn what_a_token_does_not_tell_is_shown() {
    let mut shard = Shard::new();
    let mut one = Connection::open(&mut shard, "se_1");
    let mut other = Connection::open(&mut shard, "se_2");
    let first = one.granted(&mut shard, "r1", &[read("a")]);
    // A claim that was held before keeps its token.
    let Ok(Response::Acquired { outcome, locks }) = one.send(&mut shard, acquire("r2", &[read("a"), write("b")]))
    else {
        panic!("one claim is not new")
    };
    assert!(outcome.fencing_token() > Some(first));
    assert_eq!(locks[0].read_lock_holders[0].fencing_token, first);
    // A repeat, and a refusal.
    let repeat = one.send(&mut shard, acquire("r1", &[read("a")]));
    assert!(matches!(repeat, Ok(Response::Acquired { outcome: AcquireOutcome::Granted { .. }, .. })), "{repeat:?}");
    let refused = other.send(&mut shard, acquire("r1", &[write("b")]));
    assert!(matches!(refused, Ok(Response::Acquired { outcome: AcquireOutcome::Refused(_), .. })), "{refused:?}");
    // A release after which another request still claims, another session still holds, or the paths are not known.
    let is_shown = |answer: Result<Response, CommandError>, paths: &[&str]| match answer {
        Ok(Response::Released { released: true, locks }) => {
            let shown: Vec<Path> = locks.into_iter().map(|lock| lock.path).collect();
            assert_eq!(shown, paths.iter().map(|path| at(path)).collect::<Vec<_>>());
        }
        other => panic!("not shown: {other:?}"),
    };
    is_shown(one.send(&mut shard, release("r1", true)), &["a"]);
    other.granted(&mut shard, "r3", &[read("a")]);
    is_shown(one.send(&mut shard, release("r2", true)), &["a", "b"]);
    is_shown(other.send(&mut shard, release("r3", false)), &["a"]);
    let unknown = Ok(Response::Released { released: false, locks: vec![] });
    assert_eq!(other.send(&mut shard, release("r3", true)), unknown);
}

#[test]
fn an_upgrade_is_a_grant_of_a_new_token() {
    let mut shard = Shard::new();
    let mut one = Connection::open(&mut shard, "se_1");
    let first = one.granted(&mut shard, "r1", &[read("a")]);
    assert!(one.granted(&mut shard, "r2", &[write("a")]) > first);
    assert_eq!(shard.get("a").holders_total, 1);
}

#[test]
fn a_number_stands_for_one_session_of_one_account_only() {
    let mut shard = Shard::new();
    let mut one = Connection::open(&mut shard, "se_1");
    let unknown = |number: u64| Err(CommandError::SessionNotFound(number.to_string()));
    let LocksCommand::Session(mut command) = one.command(acquire("r1", &[write("a")])) else { unreachable!() };
    command.account.0 += 1;
    assert_eq!(shard.run(LocksCommand::Session(command)), unknown(one.session));
    let mut none = Connection { session: one.session + 100, seq: 0 };
    assert_eq!(none.send(&mut shard, acquire("r1", &[write("a")])), unknown(none.session));
    // The namespace goes, and another one comes in its place.
    let purge = NamespaceMessage::Purge { namespace: orders() };
    shard.run(LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message: purge }).unwrap();
    assert_eq!(one.send(&mut shard, acquire("r1", &[write("a")])), unknown(one.session));
}

#[test]
fn the_names_of_a_session_are_not_in_its_commands() {
    let mut shard = Shard::new();
    let mut one = Connection::open(&mut shard, "se_3m9qkz7dvx4hbn2w8rtyc6pfga");
    let bytes = |command| codec::encode(&holdfast_core::Command::Locks(command)).len();
    let [short, release] = [acquire("r1", &[write("lock-0001")]), release("r1", true)].map(|it| bytes(one.command(it)));
    let named = session_wait_request("se_3m9qkz7dvx4hbn2w8rtyc6pfga", "r1", &[write("lock-0001")]);
    assert!(short + release <= 64 && bytes(LocksCommand::Acquire(named)) > short + 20, "{short} and {release} bytes");
    assert!(one.send(&mut shard, acquire("r1", &[write("lock-0001")])).is_ok());
}

#[test]
fn a_number_of_a_history_that_an_operator_gave_up_stands_for_no_session() {
    let mut kept = Shard::new();
    let mut early = Connection::open(&mut kept, "se_1");
    let early_token = early.granted(&mut kept, "r1", &[write("a")]);
    // Others have applied and answered what the kept state lacks.
    let mut given_up = kept.restored();
    let mut late = Connection::open(&mut given_up, "se_2");
    let late_token = late.granted(&mut given_up, "r1", &[write("b")]);

    assert_eq!(Connection::open(&mut kept.restored(), "se_3").session, late.session, "the same number, otherwise");
    assert_eq!(kept.apply(&Command::AdvanceNumbers).outcome, Ok(Response::Done));
    let mut other = Connection::open(&mut kept, "se_3");
    let unknown = Err(CommandError::SessionNotFound(late.session.to_string()));
    assert_eq!(late.send(&mut kept, acquire("r2", &[write("c")])), unknown);
    assert!(other.granted(&mut kept, "r1", &[write("b")]) > late_token.max(early_token), "tokens rise");
    assert_eq!(early.send(&mut kept, release("r1", true)), Ok(Response::Done), "what is kept goes on");
    assert_eq!(kept.holders("b"), ["se_3"]);
}
