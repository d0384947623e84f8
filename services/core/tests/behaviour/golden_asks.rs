//! The bytes of requests to release and of locks that are kept at least so long: all of them are of rules 2.

use holdfast_core::{
    Acquire, AskRelease, AskedHold, AskedHolds, AskedView, AuditAction, Claim, Command, Effect, EventKind, HolderView,
    Kind, LocksCommand, LostHold, MessageSeq, Metadata, Mode, Path, Phase, ReleaseRequest, Response, Rules,
    SessionAcquire, SessionCommand, SessionRequest, SessionTerms, Wait, codec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::asks::polite;
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

fn asked_holds() -> AskedHolds {
    let hold = AskedHold { path: Path::flat("l"), fencing_token: 300, request_id: Some("r".into()) };
    AskedHolds { kind: Kind::Pool, request: request(), holds: vec![hold] }
}

#[test]
fn commands_have_the_bytes_they_always_had() {
    let acquire = Acquire { attempt: 7, ..lock_request("p1", Mode::Write) };
    let at_least = LocksCommand::acquire(acquire, vec![3, 300], 600);
    assert_bytes(
        &Command::Locks(at_least),
        "01021207066f726465727301000270310101016c0101e8070000000000000007000203ac02d804",
    );
    let ask = AskRelease { within_ms: Some(300), force: true, member: Some("m".into()), ..polite("l", 5) };
    assert_bytes(
        &Command::Locks(LocksCommand::AskRelease(ask)),
        "01021307066f7264657273010001016c01016d00000000000000000000000000000005036b65790377687901ac0201",
    );
    let acquire = SessionAcquire {
        holder: Some("h".into()),
        claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
        transition_ms: 5,
        wait: Wait::Unlimited,
        allow_upgrade: true,
        request_id: "r".into(),
    };
    let terms = SessionTerms { at_least_ms: 600, metadata: Metadata::from([("k".into(), "v".into())]) };
    let (message, request) = (MessageSeq { epoch: 300, seq: 2 }, SessionRequest::AcquireWith { acquire, terms });
    let command = SessionCommand { account: ACCOUNT, session: 300, message, request };
    assert_bytes(
        &Command::Locks(LocksCommand::Session(command)),
        "01020e0700000000000000ac02ac0202020101680101016c010502010172d80401016b0176",
    );
}

#[test]
fn replies_and_effects_have_the_bytes_they_always_had() {
    let view = AskedView::Lock(free_lock());
    assert_bytes(&Response::ReleaseAsked { asked: 300, truncated: true, view }, "0132ac02010001016c000000000000af02");
    let lost = vec![LostHold { path: Path::flat("l"), fencing_token: 300, current_owner: None }];
    let reconciled = |asked| Response::reconciled(lost.clone(), (300, 2), asked);
    assert_bytes(&reconciled(vec![]), "01110101016cac0200ac0202");
    assert_bytes(
        &reconciled(vec![asked_holds()]),
        "01330101016cac0200ac02020103026b310377687901ac02ad0201ae02010101016cac02010172",
    );
    let (namespace, session_id) = (orders(), "se_1".to_owned());
    assert_bytes(
        &Effect::ReleaseRequested { namespace, session_id, asked: asked_holds() },
        "010407066f7264657273010473655f3103026b310377687901ac02ad0201ae02010101016cac02010172",
    );
    assert_bytes(&EventKind::ReleaseRequested { of: Kind::Pool }, "011303");
    assert_bytes(&AuditAction::ReleaseForced, "010e");
}

#[test]
fn a_holder_that_nobody_asked_has_the_bytes_of_rules_1() {
    let asked = |phase, request| HolderView { phase, release_requested: request, ..holder() };
    assert_bytes(&asked(Phase::Held, None), "01010473655f3101016802703101ac02ad0201ae0201010001016b0176");
    assert_bytes(&asked(Phase::Transition, None), "01010473655f3101016802703101ac02ad0201ae0201010101016b0176");
    assert_bytes(
        &asked(Phase::Held, Some(Box::new(request()))),
        "01010473655f3101016802703101ac02ad0201ae02010102026b310377687901ac02ad0201ae020101016b0176",
    );
    assert_bytes(
        &asked(Phase::Transition, Some(Box::new(request()))),
        "01010473655f3101016802703101ac02ad0201ae02010103026b310377687901ac02ad0201ae020101016b0176",
    );
}

#[test]
fn a_snapshot_has_the_bytes_it_always_had() {
    let mut shard = Shard::new();
    shard.rules = Rules::TWO;
    let at_least = |acquire| LocksCommand::acquire(acquire, vec![], 600);
    assert!(shard.run(at_least(lock_request("p1", Mode::Write))).is_ok());
    assert!(
        shard.run(LocksCommand::AskRelease(AskRelease { force: true, within_ms: Some(50), ..polite("l", 5) })).is_ok()
    );
    let waits = Acquire { wait: Wait::For(10), ..lock_request("p2", Mode::Write) };
    assert!(shard.run(at_least(waits)).is_ok());
    let chunks = shard.core.snapshot();
    assert_eq!(
        chunks.iter().map(hex::encode).collect::<Vec<_>>(),
        [
            "010d000002086c6f636b735f3030e8070300000480088080018080018060904e808001808001800280018020e807a08d0664\
         904e8002a09c01e807904e8080041010800140904ee8070000010d6e616d657370616365735f3030010107066f7264657273\
         018008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e000301016c010400027031\
         010001000001e8d795ffbc3101d00f0000001901e807c00c000100000000000000000000000000000005036b657903776879\
         0132e8d795ffbc31019a0801019a08060300000270320101016c0101e807000000000001f207e8d795ffbc311ad804120000\
         00010701170101e8d795ffbc31000002703102703101010101016c010702130102e8d795ffbc311300000000000101016c01\
         0803010100010100",
            "0100"
        ]
    );
}
