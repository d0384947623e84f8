use holdfast_api::Code;
use holdfast_api::session_message::{EndReason, QueueTicket};
use holdfast_types::{Durability, Kind, Mode, Path, Receipt, ReportedHold, RevokedReason, SessionEnd, WaitId, Wanted};
use serde_json::{Value, json};

use super::*;

fn decoded(message: Value) -> ClientMessage {
    decode(&message.to_string(), "ns").unwrap()
}

fn encoded(message: ServerMessage) -> Value {
    serde_json::from_str(&encode(message)).unwrap()
}

#[test]
fn a_client_says_all_that_the_protocol_knows() {
    let open = json!({"type": "open", "seq": 1, "process_id": "p", "ttl_ms": 5_000, "metadata": {"a": "b"}});
    let ClientPayload::Open(open) = decoded(open).payload else { panic!("not an open") };
    assert_eq!((open.namespace.as_str(), open.ttl_ms, open.session_id), ("ns", 5_000, None));
    assert_eq!(open.metadata["a"], "b");
    let lock = json!({"type": "lock", "seq": 3, "request_id": "a", "resources": [{"path": ["x"], "mode": "READ"}, {"path": []}],
        "holder": "h", "transition_ms": 7, "allow_upgrade": false, "try": true});
    let ClientMessage { seq: 3, payload: ClientPayload::Lock(lock) } = decoded(lock) else { panic!("not a lock") };
    assert_eq!((lock.request_id.as_str(), lock.holder.as_deref(), lock.transition_ms), ("a", Some("h"), 7));
    assert!(lock.only_try && !lock.allow_upgrade);
    let modes: Vec<Mode> = lock.resources.iter().map(|resource| resource.mode).collect();
    assert_eq!(modes, [Mode::Read, Mode::Write]);
    let unheard = decoded(json!({"type": "release", "seq": 4, "request_id": "a", "unheard": true})).payload;
    assert_eq!(unheard, ClientPayload::Release(session_message::Release { request_id: "a".into(), unheard: true }));
    let release = session_message::Release { request_id: "a".into(), unheard: false };
    let bare = |name: &str| decoded(json!({"type": name, "seq": 4})).payload;
    assert_eq!(
        decoded(json!({"type": "release", "seq": 4, "request_id": "a"})).payload,
        ClientPayload::Release(release)
    );
    let count = json!({"type": "count_down", "seq": 4, "request_id": "a", "path": ["x"], "id": 7, "ranges": [[0, 3]]});
    let ClientPayload::CountDown(count) = decoded(count).payload else { panic!("not a count-down") };
    assert_eq!((count.request_id.as_str(), &count.path[..], count.id), ("a", &["x".to_owned()][..], Some(7)));
    assert_eq!((count.ids, count.ranges), (None, Some(vec![(0, 3)])));
    assert_eq!(bare("release_all"), ClientPayload::ReleaseAll);
    assert_eq!(bare("keepalive"), ClientPayload::KeepAlive);
    assert_eq!(bare("close"), ClientPayload::Close);
}

#[test]
fn pending_messages_come_with_or_without_their_old_numbers() {
    let info = decoded(json!({"type": "lock_info", "seq": 2,
        "held": [{"path": ["x"], "mode": "WRITE", "fencing_token": 57}],
        "pending": [{"type": "lock", "seq": 900, "request_id": "a", "resources": [{"path": ["y"]}]},
                    {"type": "release", "request_id": "b"}]}));
    let ClientMessage { seq: 2, payload: ClientPayload::LockInfo(info) } = info else { panic!("not a lock info") };
    assert_eq!(info.held, [ReportedHold { path: Path::flat("x"), mode: Mode::Write, fencing_token: 57 }]);
    assert_eq!(info.pending.len(), 2);
    assert_eq!(info.permits, []);
}

#[test]
fn permits_are_requested_and_listed() {
    let acquire = json!({"type": "acquire_permits", "seq": 3, "request_id": "a", "path": ["s"], "weight": 2, "permits": 5,
        "holder": "h", "priority": 9, "transition_ms": 7, "try": true});
    let ClientPayload::AcquirePermits(acquire) = decoded(acquire).payload else { panic!("not for permits") };
    assert_eq!((acquire.priority, acquire.only_try), (9, true));
    assert_eq!(acquire.wanted, Wanted::Permits { weight: 2, permits: Some(5) });
    let plain = json!({"type": "acquire_permits", "request_id": "b", "path": ["s"]});
    let thing =
        json!({"kind": "semaphore", "path": ["s"], "request_id": "a", "holder": "h", "weight": 2, "fencing_token": 7});
    let mut info = json!({"type": "lock_info", "seq": 2, "held": [], "things": [thing], "pending": [plain]});
    let ClientPayload::LockInfo(listed) = decoded(info.clone()).payload else { panic!("not a lock info") };
    assert_eq!((listed.permits[0].reported.fencing_token, listed.permits[0].holder.as_deref()), (7, Some("h")));
    let session_message::Pending::AcquirePermits(pending) = &listed.pending[0] else { panic!("not for permits") };
    assert_eq!((&pending.wanted, pending.priority), (&Wanted::Permits { weight: 1, permits: None }, 0));
    info["things"][0]["kind"] = json!("latch");
    assert_eq!(decode(&info.to_string(), "ns").unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn a_count_down_with_a_range_that_is_no_pair_is_refused_and_names_it() {
    for (ranges, field) in [(json!([[0, 1, 2]]), "ranges[0]"), (json!([[0, 1], [2]]), "ranges[1]")] {
        let count = json!({"type": "count_down", "seq": 4, "request_id": "a", "path": ["x"], "ranges": ranges});
        let ClientPayload::Invalid(refused) = decoded(count).payload else { panic!("not invalid") };
        assert_eq!((refused.request_id.as_str(), refused.error.ids[0].1.as_str()), ("a", field));
        assert!(refused.error.detail.starts_with(field), "{}", refused.error.detail);
    }
}

#[test]
fn members_are_taken_and_listed() {
    let take = json!({"type": "take", "seq": 3, "request_id": "a", "path": ["p"], "count": 2, "prefer": "m1"});
    let ClientPayload::AcquirePermits(take) = decoded(take).payload else { panic!("not for members") };
    assert_eq!(take.wanted, Wanted::Members { count: 2, prefer: Some("m1".into()) });
    let both = json!({"type": "take", "seq": 3, "request_id": "a", "path": ["p"], "count": 2, "member": "m1"});
    let ClientPayload::Invalid(refused) = decoded(both.clone()).payload else { panic!("not invalid") };
    assert_eq!((refused.request_id.as_str(), refused.error.ids[0].1.as_str()), ("a", "member"));
    let listed = decoded(json!({"type": "lock_info", "seq": 2, "held": [], "pending": [both]})).payload;
    let ClientPayload::LockInfo(listed) = listed else { panic!("not a lock info") };
    assert_eq!(listed.pending, [session_message::Pending::Invalid(refused)]);
    let one = json!({"type": "take", "request_id": "b", "path": ["p"], "member": "m1"});
    let thing = json!({"kind": "pool", "path": ["p"], "request_id": "a", "members": ["m2"], "fencing_token": 7});
    let info = json!({"type": "lock_info", "seq": 2, "held": [], "things": [thing], "pending": [one]});
    let ClientPayload::LockInfo(listed) = decoded(info).payload else { panic!("not a lock info") };
    assert_eq!(listed.permits[0].reported.kind, Kind::Pool);
    let session_message::Pending::AcquirePermits(pending) = &listed.pending[0] else { panic!("not for members") };
    assert_eq!(pending.wanted, Wanted::Member("m1".into()));
    let (members, woken, receipt) = (vec!["m1".into()], None, None);
    let acquired = ServerMessage::Acquired { request_id: "a".into(), fencing_token: 57, members, woken, receipt };
    let expected =
        json!({"type": "state", "request_id": "a", "state": "ACQUIRED", "fencing_token": 57, "members": ["m1"]});
    assert_eq!(encoded(acquired), expected);
}

#[test]
fn a_client_arrives_and_is_told_what_became_of_the_generation() {
    let arrive = json!({"type": "arrive", "seq": 3, "request_id": "a", "path": ["b"], "generation": 7, "parties": 4,
        "double": true, "holder": "h"});
    let ClientPayload::Arrive(arrive) = decoded(arrive).payload else { panic!("not an arrival") };
    assert_eq!((arrive.generation, arrive.parties, arrive.double), (Some(7), Some(4), Some(true)));
    let leave = session_message::Release { request_id: "a".into(), unheard: false };
    assert_eq!(decoded(json!({"type": "leave", "seq": 4, "request_id": "a"})).payload, ClientPayload::Leave(leave));
    let plain = json!({"type": "arrive", "request_id": "b", "path": ["b"]});
    let thing = json!({"kind": "barrier", "path": ["b"], "request_id": "a", "generation": 7});
    let mut info = json!({"type": "lock_info", "seq": 2, "held": [], "things": [thing], "pending": [plain]});
    let ClientPayload::LockInfo(listed) = decoded(info.clone()).payload else { panic!("not a lock info") };
    assert_eq!((listed.permits[0].reported.kind, listed.permits[0].reported.fencing_token), (Kind::Barrier, 7));
    assert!(matches!(&listed.pending[0], session_message::Pending::Arrive(arrive) if arrive.generation.is_none()));
    info["things"][0].as_object_mut().unwrap().remove("generation");
    assert_eq!(decode(&info.to_string(), "ns").unwrap_err().code, Code::InvalidArgument);

    let expected = json!({"type": "state", "request_id": "a", "state": "ENQUEUED", "generation": 7});
    assert_eq!(encoded(ServerMessage::Arrived { request_id: "a".into(), generation: 7 }), expected);
    let tripped = |outcome, index, lost, ended| {
        let answer = BarrierAnswer { outcome, generation: 7, next_generation: 9, index, lost, ended };
        encoded(ServerMessage::Tripped { request_id: "a".into(), answer })
    };
    let mut expected = json!({"type": "tripped", "request_id": "a", "outcome": "TRIPPED", "generation": 7,
        "next_generation": 9, "index": 0});
    assert_eq!(tripped(BarrierOutcome::Tripped, Some(0), None, None), expected);
    expected.as_object_mut().unwrap().remove("index");
    (expected["outcome"], expected["ended"]) = (json!("PAST"), json!("BROKEN"));
    assert_eq!(tripped(BarrierOutcome::Past, None, None, Some(GenerationEnd::Broken)), expected);
    expected["ended"] = json!(null);
    assert_eq!(tripped(BarrierOutcome::Past, None, None, None), expected, "it is not known any more");
}

#[test]
fn what_is_no_message_is_refused() {
    for text in [
        "",
        "no json",
        "[]",
        "{}",
        r#"["close", 1]"#,
        r#"{"type": "unlock", "seq": 1}"#,
        r#"{"type": "close"}"#,
        r#"{"type": "close", "seq": -1}"#,
        r#"{"type": "close", "seq": "1"}"#,
        r#"{"type": "close", "seq": 1, "why": "x"}"#,
        r#"{"type": "close", "seq": 1} {}"#,
        r#"{"type": "release", "request_id": "a"}"#,
        r#"{"type": "release", "seq": 1, "seq": 2, "request_id": "a"}"#,
        r#"{"type": "open", "seq": 1, "process_id": "p"}"#,
        r#"{"type": "count_down", "seq": 1, "request_id": "a", "path": ["x"], "ranges": [1]}"#,
        r#"{"type": "lock", "seq": 1, "request_id": "a", "resources": [{"path": ["x"], "mode": "write"}]}"#,
        r#"{"type": "lock", "seq": 1, "request_id": "a", "resources": [{"path": "x"}]}"#,
        r#"{"type": "lock", "seq": 1, "request_id": "a", "resources": [{"path": ["x"], "ttl_ms": 1}]}"#,
    ] {
        let error = decode(text, "ns").expect_err(text);
        assert_eq!(error.code, Code::InvalidArgument, "{text}");
    }
}

#[test]
fn each_message_of_the_service_has_the_fields_of_the_contract_and_no_others() {
    let opened = |leader: Option<&str>, durability, table_epoch| {
        let (session_id, leader) = ("se_1".to_owned(), leader.map(str::to_owned));
        let (epoch, ttl_ms, resumed) = (4, 5_000, false);
        encoded(ServerMessage::Opened { session_id, epoch, ttl_ms, resumed, leader, durability, table_epoch })
    };
    let mut expected = json!({"type": "opened", "session_id": "se_1", "epoch": 4, "ttl_ms": 5_000, "resumed": false,
        "durability": "FULL"});
    assert_eq!(opened(None, Durability::Full, None), expected);
    expected["leader"] = json!("node-1:8080");
    assert_eq!(opened(Some("node-1:8080"), Durability::Full, None), expected);
    (expected["durability"], expected["table_epoch"]) = (json!("SESSION"), json!(3));
    assert_eq!(opened(Some("node-1:8080"), Durability::Session, Some(3)), expected);
    let acquired = |receipt| {
        let (request_id, members, woken) = ("a".into(), Vec::new(), None);
        ServerMessage::Acquired { request_id, fencing_token: 57, members, woken, receipt }
    };
    assert_eq!(
        encoded(acquired(None)),
        json!({"type": "state", "request_id": "a", "state": "ACQUIRED", "fencing_token": 57})
    );
    let (blockers, holders) = (Vec::new(), Vec::new());
    let (request_id, queue_position, woken) = ("a".into(), Some(0), None);
    let receipt = Receipt::new(1, [10; 16]);
    let proven = encoded(acquired(Some(receipt)));
    assert_eq!(proven["receipt"], json!(format!("00000001{}", "0a".repeat(16))));
    let place = None;
    let enqueued = ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, place };
    let mut expected =
        json!({"type": "state", "request_id": "a", "state": "ENQUEUED", "queue_position": 0, "blockers": []});
    assert_eq!(encoded(enqueued.clone()), expected);
    let ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, .. } = enqueued else { return };
    let place = Some(QueueTicket { ticket: WaitId(4), receipt });
    (expected["ticket"], expected["receipt"]) = (json!(4), json!(receipt.to_string()));
    let enqueued = ServerMessage::Enqueued { request_id, queue_position, blockers, holders, woken, place };
    assert_eq!(encoded(enqueued), expected);
    let ready = ServerMessage::Ready { request_id: Some("a".into()) };
    assert_eq!(encoded(ready), json!({"type": "state", "request_id": "a", "state": "READY"}));
    let why = RefusalCause::Fault(ApiError::new(Code::QuotaExceeded, "too many"));
    let refused = ServerMessage::Refused { request_id: "a".into(), why };
    assert_eq!(
        encoded(refused),
        json!({"type": "refused", "request_id": "a", "reason": {"code": "QUOTA_EXCEEDED", "detail": "too many"}})
    );
    let revoked = |holder| {
        let (path, reason) = (vec!["x".into()], RevokedReason::Duplicate);
        encoded(ServerMessage::Revoked { path, reason, current_owner: None, holder, fencing_token: 7 })
    };
    let mut expected =
        json!({"type": "revoked", "path": ["x"], "reason": "DUPLICATE", "current_owner": null, "fencing_token": 7});
    assert_eq!(revoked(None), expected);
    expected["holder"] = json!("t1");
    assert_eq!(revoked(Some("t1".to_owned())), expected, "of a thread of the session");
    let counted = ServerMessage::Counted { request_id: "a".into(), counted: 1, total: 3, done: 2 };
    assert_eq!(encoded(counted), json!({"type": "counted", "request_id": "a", "counted": 1, "total": 3, "done": 2}));
    let kept = ServerMessage::KeptAlive { remaining_ms: 9 };
    assert_eq!(encoded(kept), json!({"type": "kept_alive", "remaining_ms": 9}));
    for (reason, name) in [(EndReason::Superseded, "SUPERSEDED"), (EndReason::Ended(SessionEnd::Expired), "EXPIRED")] {
        let ended = ServerMessage::SessionEnded { reason };
        assert_eq!(encoded(ended), json!({"type": "session_ended", "reason": name}));
    }
    let error = ServerMessage::Error { error: ApiError::invalid("seq", "seq: missing"), request_id: None };
    assert_eq!(encoded(error), json!({"type": "error", "code": "INVALID_ARGUMENT", "detail": "seq: missing"}));
}

#[test]
fn awaits_and_signals_are_written_as_the_contract_says() {
    let awaits = json!({
        "type": "await", "seq": 4, "request_id": "a", "condition": "full", "wait_ms": 5, "fencing_token": 7,
    });
    let ClientPayload::Await(awaits) = decoded(awaits).payload else { panic!("not an await") };
    let (condition, wait_ms, fencing_token) = ("full".to_owned(), Some(5), Some(7));
    let known = session_message::Await { request_id: "a".to_owned(), condition, wait_ms, fencing_token };
    assert_eq!(awaits, known);
    let signal = json!({"type": "signal", "seq": 4, "request_id": "a"});
    let ClientPayload::Signal(signal) = decoded(signal).payload else { panic!("not a signal") };
    assert_eq!((signal.condition.as_str(), signal.all, signal.signal_id), ("", false, None));
    let signal = json!({"type": "signal", "seq": 5, "request_id": "a", "all": true, "signal_id": "1"});
    let ClientPayload::Signal(signal) = decoded(signal).payload else { panic!("not a signal") };
    assert_eq!((signal.all, signal.signal_id.as_deref()), (true, Some("1")));
    let pending = json!([{"type": "await", "request_id": "a"}]);
    let info = json!({"type": "lock_info", "seq": 2, "held": [], "pending": pending});
    let ClientPayload::LockInfo(info) = decoded(info).payload else { panic!("not a list") };
    assert!(matches!(&info.pending[..], [session_message::Pending::Await(awaits)] if awaits.wait_ms.is_none()));
    let awaiting = encoded(ServerMessage::Awaiting { request_id: "a".into() });
    assert_eq!(awaiting, json!({"type": "state", "request_id": "a", "state": "AWAITING"}));
    let (members, woken, receipt) = (Vec::new(), Some(Woken::Elapsed), None);
    let acquired = ServerMessage::Acquired { request_id: "a".into(), fencing_token: 57, members, woken, receipt };
    let acquired = encoded(acquired);
    let expected =
        json!({"type": "state", "request_id": "a", "state": "ACQUIRED", "fencing_token": 57, "woken": "ELAPSED"});
    assert_eq!(acquired, expected);
    let signalled = encoded(ServerMessage::Signalled { request_id: "a".into(), count: 2 });
    assert_eq!(signalled, json!({"type": "signalled", "request_id": "a", "count": 2}));
}

#[test]
fn a_list_has_receipts_of_what_was_granted_and_of_places() {
    let receipt = Receipt::new(1, [10; 16]);
    let resource = json!({"path": ["a"], "mode": "READ", "fencing_token": 7});
    let granted = json!([{"request_id": "r1", "holder": "t", "resources": [resource], "receipt": receipt.to_string()}]);
    let claim = json!({"path": ["b"]});
    let lock = |ticket: Option<u64>, receipt: Option<String>| {
        let mut lock = json!({"type": "lock", "request_id": "r2", "resources": [claim]});
        ticket.into_iter().for_each(|ticket| lock["ticket"] = json!(ticket));
        receipt.into_iter().for_each(|receipt| lock["receipt"] = json!(receipt));
        lock
    };
    let info = |granted: &serde_json::Value, lock| {
        let info = json!({"type": "lock_info", "seq": 2, "held": [], "granted": granted, "pending": [lock]});
        decode(&info.to_string(), "demo")
    };
    let listed = info(&granted, lock(Some(9), Some(receipt.to_string()))).unwrap();
    let ClientPayload::LockInfo(listed) = listed.payload else { panic!("not a list") };
    assert_eq!(listed.places, [("r2".to_owned(), QueueTicket { ticket: WaitId(9), receipt })]);
    let [shown] = listed.granted.as_slice() else { panic!("not one") };
    assert_eq!((shown.request_id.as_str(), shown.holder.as_deref(), shown.receipt), ("r1", Some("t"), receipt));
    assert_eq!((shown.resources[0].mode, shown.resources[0].fencing_token), (Mode::Read, 7));
    for (ticket, receipt) in [(Some(9), None), (None, Some(receipt.to_string())), (Some(9), Some("00".to_owned()))] {
        let error = info(&granted, lock(ticket, receipt)).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error:?}");
    }
    let mut short = granted.clone();
    short[0]["receipt"] = json!("00");
    assert!(info(&short, lock(None, None)).unwrap_err().detail.starts_with("receipt:"));
}
