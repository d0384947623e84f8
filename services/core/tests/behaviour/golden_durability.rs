//! The bytes of what is about the durability of a namespace: all of it is of rules 2.

use holdfast_core::{
    Bounds, Claim, Command, CommandError, Durability, Forfeit, ForfeitedHold, Limits, LockInfo, LocksCommand,
    MessageSeq, Metadata, Mode, Namespace, NamespaceMessage, NamespacesCommand, OpenTableSession, Owner, Path, Release,
    ReleaseTarget, ReportedHold, ReportedRequest, ReportedWait, Response, RevisionBlock, Rules, SessionCommand,
    SessionRequest, SessionView, TableCommand, TableEpoch, TableReport, WaitId, codec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::asks::polite;
use crate::durability::soft;
use crate::golden::resumed_session;
use crate::golden_replies::namespace;
use crate::soft_tables::{self, table_session};
use crate::support::{ACCOUNT, Shard, lock_request, orders, request_id};

fn assert_bytes<T>(value: &T, hex: &str)
where
    T: Serialize + DeserializeOwned + std::fmt::Debug,
{
    let bytes = codec::encode(value);
    assert_eq!(hex::encode(&bytes), hex, "{value:?}");
    assert_eq!(codec::encode(&codec::decode::<T>(&bytes).unwrap()), bytes);
}

#[test]
fn commands_have_the_bytes_they_always_had() {
    let (name, description, durability) = ("orders".to_owned(), "of the tests".to_owned(), Durability::Session);
    assert_bytes(
        &Command::Namespaces(NamespacesCommand::create(request_id(3), ACCOUNT, name, description, durability)),
        "0101040000000000000000000000000000000307066f72646572730c6f662074686520746573747301",
    );
    let message = NamespaceMessage::open_durable(orders(), Limits::default(), durability);
    let open = Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
    let limits = hex::encode(&codec::encode(&Limits::default())[1..]);
    assert_bytes(&open, &format!("0102000d6e616d657370616365735f3030010407066f726465727301{limits}01"));
}

#[test]
fn replies_have_the_bytes_they_always_had() {
    let namespace = namespace(Durability::Session);
    assert_bytes(&Response::of_namespace(namespace.clone()), "013d0107066f72646572730164ac02ad0201");
    let full = Namespace { durability: Durability::Full, ..namespace.clone() };
    assert_bytes(
        &Response::of_namespaces(vec![namespace, full], true),
        "013e020107066f72646572730164ac02ad02010107066f72646572730164ac02ad020001",
    );
}

#[test]
fn commands_for_soft_tables_have_the_bytes_they_always_had() {
    let bytes = |command: TableCommand, hex: &str| {
        let command = Command::Locks(LocksCommand::Table(command));
        assert_eq!(command.min_rules(), Rules::TWO);
        assert_bytes(&command, hex);
    };
    bytes(TableCommand::BeginEpoch { attempt: 300 }, "01021600ac02");
    bytes(TableCommand::ReserveBlock { epoch: 300, after: 301 }, "01021601ac02ad02");
    let open = resumed_session();
    bytes(
        TableCommand::OpenSession(OpenTableSession { open, transition_ms: 500 }),
        "0102160207066f7264657273010473655f310100000000000000000000000000000001027031904e01016b0176f403",
    );
    let holds = vec![ForfeitedHold { session: 300, fencing_token: 301 }];
    bytes(
        TableCommand::Forfeit(Forfeit { namespace: orders(), path: Path::flat("l"), holds }),
        "0102160307066f72646572730101016c01ac02ad02",
    );
    let granted = ReportedRequest {
        request_id: "r".into(),
        holder: Some("h".into()),
        metadata: Metadata::new(),
        claimed: 1,
        claims: vec![ReportedHold { path: Path::flat("l"), mode: Mode::Write, fencing_token: 303 }],
    };
    let pending = ReportedWait {
        request_id: "w".into(),
        holder: None,
        metadata: Metadata::new(),
        claims: vec![Claim { path: Path::flat("l"), mode: Mode::Read }],
        ticket: Some(WaitId(304)),
    };
    let report = TableReport {
        namespace: orders(),
        session: 300,
        connection_epoch: 301,
        seq: 303,
        table_epoch: 302,
        part: 1,
        parts: 2,
        granted: vec![granted],
        pending: vec![pending],
    };
    bytes(
        TableCommand::Report(report),
        "0102160407066f726465727301ac02ad02af02ae020102010172010168000101\
         01016c01af0201017700000101016c0001b002",
    );
}

#[test]
fn replies_about_soft_tables_have_the_bytes_they_always_had() {
    let block = RevisionBlock { first: 302, last: 303 };
    assert_bytes(&Response::TableEpoch(TableEpoch { epoch: 300, attempt: 301, block }), "013fac02ad02ae02af02");
    let session = SessionView {
        session_id: "se_1".into(),
        number: 300,
        epoch: 301,
        process_id: "p1".into(),
        ttl_ms: 10_000,
        remaining_ms: 10_000,
        metadata: Metadata::new(),
        opened_at_ms: 302,
        holds: 0,
        waiting: 0,
    };
    assert_bytes(
        &Response::TableSessionOpened { session, resumed: true, table_epoch: 303 },
        "01400473655f31ac02ad02027031904e904e00ae02000001af02",
    );
    assert_bytes(&CommandError::Unreported { table_epoch: 300 }, "0116ac02");
}

#[test]
fn a_snapshot_of_a_soft_table_has_the_bytes_it_always_had() {
    // The bounds of rules 2 are no part of this.
    let mut shard = Shard::with_bounds(Bounds::of(Rules::ONE));
    shard.rules = Rules::TWO;
    let message = NamespaceMessage::open_durable(soft(), Limits::default(), Durability::Session);
    let deliver = LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message };
    shard.apply(&Command::Locks(deliver)).outcome.unwrap();
    soft_tables::begin(&mut shard, 300);
    let (expires, _) = soft_tables::open(&mut shard, table_session("se_1", 1, 500));
    let (session, _) = soft_tables::open(&mut shard, table_session("se_2", 2, 0));
    let holds = vec![ForfeitedHold { session: session.number, fencing_token: 300 }];
    let forfeit = Forfeit { namespace: soft(), path: Path::flat("l"), holds };
    soft_tables::table(&mut shard, TableCommand::Forfeit(forfeit)).unwrap();
    soft_tables::expire(&mut shard, expires.number);
    let chunks: Vec<String> = shard.core.snapshot().iter().map(hex::encode).collect();
    let hex = "010e000002086c6f636b735f3030e8078480400000010d6e616d657370616365735f3030022001ac02018080400107066f726465\
         7273018008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e00010704736f6674028008800840\
         e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e001e011f01020473655f328280408280400000000000\
         0000000000000000000000020c686f7374206f662073655f32904e00e8d795ffbc3121818040f40301dc0b0021828040000001ac020101\
         6c078180402101818040e8d795ffbc3105010473655f31000c686f7374206f662073655f310000078280402101828040e8d795ffbc3105\
         010473655f32000c686f7374206f662073655f320000078480402101848040e8d795ffbc3106010473655f31000c686f7374206f662073\
         655f3100000803000002000002";
    assert_eq!(chunks, [hex, "0100"]);
    assert_eq!(shard.restored().core.snapshot(), shard.core.snapshot());
}

/// A leader looks at these bytes before it decodes a command.
#[test]
fn commands_that_may_be_for_a_soft_table_are_known_by_their_first_bytes() {
    let namespace = soft();
    let release = Release {
        namespace: namespace.clone(),
        owner: Owner::Session { session_id: "se_1".into(), holder: None },
        what: ReleaseTarget::All,
        message: None,
    };
    let (session_id, message) = ("se_1".to_owned(), None);
    let info = LockInfo { namespace: namespace.clone(), session_id, message, held: Vec::new(), pending: Vec::new() };
    let request = SessionRequest::Release { request_id: "r".into(), is_known: true };
    let message = MessageSeq { epoch: 1, seq: 1 };
    let command = SessionCommand { account: ACCOUNT, session: 1, message, request };
    let open = TableCommand::OpenSession(table_session("se_1", 1, 0));
    for (command, may_be) in [
        (LocksCommand::Release(release.clone()), true),
        (LocksCommand::LockInfo(info.clone()), true),
        (LocksCommand::LockInfoPart(info), true),
        (LocksCommand::Session(command), true),
        (LocksCommand::Table(open), true),
        (LocksCommand::AskRelease(polite("l", 1)), true),
        (LocksCommand::Batch(vec![LocksCommand::Release(release)]), true),
        (LocksCommand::Acquire(lock_request("p", Mode::Write)), false),
        (LocksCommand::Delete { namespace, path: Path::flat("l") }, false),
    ] {
        let encoded = codec::encode(&Command::Locks(command.clone()));
        assert_eq!(LocksCommand::may_be_for_table(&encoded), may_be, "{command:?}");
        assert!(!LocksCommand::is_table_report(&encoded), "{command:?}");
    }
    let report = TableReport {
        namespace: soft(),
        session: 1,
        connection_epoch: 1,
        seq: 1,
        table_epoch: 1,
        part: 1,
        parts: 1,
        granted: Vec::new(),
        pending: Vec::new(),
    };
    let encoded = codec::encode(&Command::Locks(LocksCommand::Table(TableCommand::Report(report))));
    assert!(LocksCommand::is_table_report(&encoded) && LocksCommand::may_be_for_table(&encoded));
}
