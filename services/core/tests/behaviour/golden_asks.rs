//! The bytes of requests to release and of locks that are kept at least so long: all of them are of rules 2.

use holdfast_core::{
    Acquire, AskRelease, AskedHold, AskedHolds, AskedView, AuditAction, Claim, Command, Effect, EventKind, HolderView,
    Kind, LocksCommand, LostHold, MessageSeq, Mode, Path, Phase, ReleaseRequest, Response, Rules, SessionAcquire,
    SessionCommand, SessionRequest, Wait, codec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::asks::ask;
use crate::golden_replies::{free_lock, holder};
use crate::support::{ACCOUNT, Shard, lock_request, orders};

fn assert_bytes<T>(value: &T, hex: &str)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = codec::encode(value);
    assert_eq!(hex::encode(&bytes), hex, "{value:?}");
    assert_eq!(&codec::decode::<T>(&bytes).unwrap(), value);
}

fn request() -> ReleaseRequest {
    ReleaseRequest {
        by: "k1".into(),
        reason: "why".into(),
        within_ms: Some(300),
        asked_at_ms: 301,
        until_ms: Some(302),
        force: true,
    }
}

fn asked() -> AskedHolds {
    let hold = AskedHold { path: Path::flat("l"), fencing_token: 300, request_id: Some("r".into()) };
    AskedHolds { kind: Kind::Pool, request: request(), holds: vec![hold] }
}

#[test]
fn commands_have_the_bytes_they_always_had() {
    let acquire = Acquire { attempt: 7, ..lock_request("p1", Mode::Write) };
    let at_least = LocksCommand::acquire(acquire, vec![3, 300], 600);
    assert_bytes(&Command::Locks(at_least), "AT_LEAST");
    let ask = AskRelease { within_ms: Some(300), force: true, member: Some("m".into()), ..ask("l", 5) };
    assert_bytes(&Command::Locks(LocksCommand::AskRelease(ask)), "ASK");
    let acquire = SessionAcquire {
        holder: Some("h".into()),
        claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
        transition_ms: 5,
        wait: Wait::Unlimited,
        allow_upgrade: true,
        request_id: "r".into(),
    };
    let (message, request) =
        (MessageSeq { epoch: 300, seq: 2 }, SessionRequest::AcquireAtLeast { acquire, at_least_ms: 600 });
    let command = SessionCommand { account: ACCOUNT, session: 300, message, request };
    assert_bytes(&Command::Locks(LocksCommand::Session(command)), "SESSION");
}

#[test]
fn replies_and_effects_have_the_bytes_they_always_had() {
    let view = AskedView::Lock(free_lock());
    assert_bytes(&Response::ReleaseAsked { asked: 300, truncated: true, view }, "REPLY");
    let lost = vec![LostHold { path: Path::flat("l"), fencing_token: 300, current_owner: None }];
    let reconciled = |asked| Response::reconciled(lost.clone(), (300, 2), asked);
    assert_bytes(&reconciled(vec![]), "RECONCILED_0");
    assert_bytes(&reconciled(vec![asked()]), "RECONCILED_1");
    let (namespace, session_id) = (orders(), "se_1".to_owned());
    assert_bytes(&Effect::ReleaseRequested { namespace, session_id, asked: asked() }, "EFFECT");
    assert_bytes(&EventKind::ReleaseRequested { of: Kind::Pool }, "EVENT");
    assert_bytes(&AuditAction::ReleaseForced, "AUDIT");
}

#[test]
fn a_holder_that_nobody_asked_has_the_bytes_of_rules_1() {
    let asked = |phase, request| HolderView { phase, release_requested: request, ..holder() };
    assert_bytes(&asked(Phase::Held, None), "HELD_0");
    assert_bytes(&asked(Phase::Transition, None), "TRANSITION_0");
    assert_bytes(&asked(Phase::Held, Some(Box::new(request()))), "HELD_1");
    assert_bytes(&asked(Phase::Transition, Some(Box::new(request()))), "TRANSITION_1");
}

#[test]
fn a_snapshot_has_the_bytes_it_always_had() {
    let mut shard = Shard::new();
    shard.rules = Rules::TWO;
    let at_least = |acquire| LocksCommand::acquire(acquire, vec![], 600);
    assert!(shard.run(at_least(lock_request("p1", Mode::Write))).is_ok());
    assert!(
        shard.run(LocksCommand::AskRelease(AskRelease { force: true, within_ms: Some(50), ..ask("l", 5) })).is_ok()
    );
    let waits = Acquire { wait: Wait::For(10), ..lock_request("p2", Mode::Write) };
    assert!(shard.run(at_least(waits)).is_ok());
    let chunks = shard.core.snapshot();
    assert_eq!(chunks.iter().map(hex::encode).collect::<Vec<_>>(), ["SNAPSHOT", "0100"]);
}
