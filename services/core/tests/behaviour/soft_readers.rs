//! A lock with several readers, rebuilt by the next leader of a table in memory: claims are entered from the highest
//! token down, readers are kept from the lowest up.

use holdfast_core::{
    Claim, FencingToken, LockInfo, LocksCommand, MessageSeq, Mode, Path, Query, ReportedHold, ReportedRequest,
    Response, SessionAcquire, SessionRequest, SessionView, Wait,
};

use crate::durability::soft;
use crate::soft_grants::{Leader, acquire, owner, release};
use crate::soft_reports::{granted, lost, report, take};

/// More than are found by scanning them.
const READERS: u64 = 40;

fn read(lock: &str) -> SessionRequest {
    SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: vec![Claim { path: Path::flat(lock), mode: Mode::Read }],
        transition_ms: 0,
        wait: Wait::Unlimited,
        allow_upgrade: false,
        request_id: format!("request for {lock}"),
    })
}

fn read_hold(fencing_token: FencingToken) -> ReportedHold {
    ReportedHold { path: Path::flat("l"), mode: Mode::Read, fencing_token }
}

/// A leader to which all sessions have reported that they read the lock, with their tokens.
fn rebuilt(readers: u64) -> (Leader, Vec<(SessionView, FencingToken)>) {
    let mut leader = Leader::new();
    let mut sessions = Vec::new();
    for number in 0..readers {
        let session = leader.open(&format!("se_{number}"), 0);
        match leader.send(&session, read("l")) {
            Ok(Response::Granted { fencing_token }) => sessions.push((session, fencing_token)),
            other => panic!("not granted: {other:?}"),
        }
    }
    let mut leader = leader.next();
    for (session, token) in &sessions {
        let of_session = ReportedRequest { claims: vec![read_hold(*token)], ..granted("l", *token) };
        let whole = report(&leader, session, vec![of_session]);
        assert_eq!(take(&mut leader, whole), Ok(Response::Done));
    }
    (leader, sessions)
}

#[test]
fn each_of_many_readers_has_its_hold_after_a_rebuild() {
    for readers in [2, READERS] {
        let (mut leader, sessions) = rebuilt(readers);
        for (session, token) in &sessions {
            let (session_id, message) = (session.session_id.clone(), Some(MessageSeq { epoch: session.epoch, seq: 2 }));
            let (held, pending) = (vec![read_hold(*token)], Vec::new());
            let info = LockInfo { namespace: soft(), session_id, message, held, pending };
            let compared = leader.apply(&LocksCommand::LockInfo(info));
            let expected = Response::Reconciled { lost: Vec::new(), ended_holds: 0, ended_waits: 0 };
            assert_eq!(compared, Ok(expected), "of {readers} readers the one with {token}");
        }
        assert!(lost(&mut leader).is_empty());
    }
}

#[test]
fn a_writer_comes_after_all_rebuilt_readers_have_released() {
    let (mut leader, sessions) = rebuilt(READERS);
    let writer = leader.open("se_writer", 0);
    leader.send(&writer, acquire("l")).unwrap();
    for (at, (session, _)) in sessions.iter().enumerate() {
        assert_eq!(leader.holder("l"), None, "{at} of {READERS} have released");
        assert!(leader.send(session, release("l")).is_ok());
    }
    assert_eq!(leader.holder("l"), owner(&writer));
}

#[test]
fn a_rebuilt_lock_shows_the_revision_of_its_last_grant() {
    let (leader, sessions) = rebuilt(3);
    let query = Query::Lock { namespace: soft(), path: Path::flat("l") };
    match leader.table.query(&leader.log.core, 0, &query).expect("it is about the table").outcome {
        Ok(Response::Lock(lock)) => {
            let tokens: Vec<_> = lock.read_lock_holders.iter().map(|holder| holder.fencing_token).collect();
            let granted: Vec<_> = sessions.iter().map(|(_, token)| *token).collect();
            assert_eq!((Some(lock.revision), tokens), (granted.last().copied(), granted));
        }
        other => panic!("no lock: {other:?}"),
    }
}
