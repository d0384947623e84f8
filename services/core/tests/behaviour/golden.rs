//! The bytes of commands and snapshots, so that a change of format is noticed: logs and snapshots on disks have them.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountsCommand, Acquire, Actor, Audited, Bounds, Cancel, CancelAttempts, Claim, Command, Incarnation, Limits,
    LockInfo, LocksCommand, MessageSeq, Mode, NamespaceMessage, NamespacesCommand, OpenSession, Owner, Path, Reattach,
    Release, ReleaseTarget, ReportedHold, Reset, Rules, SessionAcquire, SessionCommand, SessionRequest, Wait, codec,
};

use crate::support::{ACCOUNT, Shard, at, lock_request, metadata, open, orders, process, purge, request_id};
use crate::{accounts, namespaces};

fn assert_bytes(command: &Command, hex: &str) {
    let bytes = codec::encode(command);
    assert_eq!(hex::encode(&bytes), hex, "{command:?}");
    assert_eq!(&codec::decode::<Command>(&bytes).unwrap(), command);
}

pub(crate) fn resumed_session() -> OpenSession {
    OpenSession {
        namespace: orders(),
        session_id: "se_1".into(),
        resume: true,
        request_id: request_id(1),
        process_id: "p1".into(),
        ttl_ms: 10_000,
        metadata: metadata(&[("k", "v")]),
    }
}

#[test]
fn commands_of_accounts_have_the_bytes_they_always_had() {
    assert_bytes(
        &accounts::create(1, 5, "a@b.c"),
        "0100000000000000000000000000000000000105056140622e630b416e6e204578616d706c65198008800840e807106480b8\
         9929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e",
    );
    let update = AccountsCommand::Update {
        id: ACCOUNT,
        full_name: Some("Ann".into()),
        status: Some(holdfast_core::AccountStatus::Suspended),
        max_number_of_namespaces: Some(300),
        limits: Some(Limits::default()),
    };
    assert_bytes(
        &Command::Accounts(update),
        "010001070103416e6e010101ac02018008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e",
    );
    assert_bytes(&accounts::delete(5), "01000205");
    assert_bytes(
        &accounts::create_key("k1", 5),
        "010003026b310507070707070707070707070707070707070707070707070707070707070707070d666f7220746865207465\
         7374731f000000",
    );
    let delete = AccountsCommand::DeleteApiKey { account: ACCOUNT, key_id: "k1".into() };
    assert_bytes(&Command::Accounts(delete), "01000407026b31");
    let used = vec![("k1".to_owned(), 300), ("k2".to_owned(), 1)];
    assert_bytes(&Command::Accounts(AccountsCommand::RecordKeyUse { used }), "01000502026b31ac02026b3201");
}

#[test]
fn an_audited_command_has_the_bytes_it_always_had() {
    let (actor, command) = (Actor::ApiKey { account: ACCOUNT, key_id: "k1".into() }, Box::new(accounts::delete(5)));
    let audited = Audited { actor, request_id: "r1".into(), command };
    assert_bytes(&Command::Audited(audited), "01040107026b31027231000205");
}

#[test]
fn commands_of_namespaces_have_the_bytes_they_always_had() {
    assert_bytes(
        &namespaces::open_account(1, 3, Limits::default()),
        "0101000b6163636f756e74735f3030010007038008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a0\
         8d06a08d06904e",
    );
    assert_bytes(&namespaces::purge_account(2), "0101000b6163636f756e74735f3030020107");
    assert_bytes(
        &namespaces::create(3, "orders"),
        "0101010000000000000000000000000000000307066f72646572730c6f6620746865207465737473",
    );
    let (account, name, description) = (ACCOUNT, "orders".to_owned(), Some("new".to_owned()));
    assert_bytes(
        &Command::Namespaces(NamespacesCommand::Update { account, name, description }),
        "01010207066f726465727301036e6577",
    );
    assert_bytes(&namespaces::delete("orders", Some(Incarnation(4))), "01010307066f72646572730104");
}

#[test]
fn commands_of_locks_have_the_bytes_they_always_had() {
    assert_bytes(
        &open(1, orders(), Limits::default()),
        "0102000d6e616d657370616365735f3030010007066f7264657273018008800840e807106480b89929c0cf24c0cf24e807c0\
         cf24c0843da08d06a08d06a08d06904e",
    );
    assert_bytes(&purge(2, orders()), "0102000d6e616d657370616365735f3030020107066f726465727301");
    let acquire = Acquire {
        claims: vec![
            Claim { path: Path::flat("l"), mode: Mode::Write },
            Claim { path: Path(vec!["a".into(), "b".into()]), mode: Mode::Read },
        ],
        transition_ms: 5,
        metadata: metadata(&[("k", "v")]),
        fencing_token: Some(9),
        requested_expires_at_ns: Some(-1),
        ..lock_request("p1", Mode::Write)
    };
    assert_bytes(
        &Command::Locks(LocksCommand::Acquire(acquire)),
        "01020107066f726465727301000270310201016c0102016101620001e8070501016b0176010901010000000000",
    );
    let paths = vec![Path::flat("l")];
    let what = ReleaseTarget::Paths { paths, fencing_token: None };
    let release = Release { namespace: orders(), owner: process("p1"), what, message: None };
    assert_bytes(&Command::Locks(LocksCommand::Release(release)), "01020207066f72646572730100027031000101016c0000");
    let delete = LocksCommand::Delete { namespace: orders(), path: Path::flat("l") };
    assert_bytes(&Command::Locks(delete), "01020307066f72646572730101016c");
    assert_bytes(&Command::OutboxConfirm { numbers: vec![1, 300] }, "01030201ac02");
    assert_bytes(&Command::AdvanceNumbers, "0105");
}

#[test]
fn commands_of_waits_and_sessions_have_the_bytes_they_always_had() {
    let bytes = |command: LocksCommand, hex: &str| assert_bytes(&Command::Locks(command), hex);
    let message = Some(MessageSeq { epoch: 300, seq: 2 });
    let (session_id, l) = ("se_1".to_owned(), vec![Claim { path: Path::flat("l"), mode: Mode::Read }]);
    let acquire = Acquire {
        owner: Owner::Session { session_id: session_id.clone(), holder: Some("h".into()) },
        ttl_ms: None,
        wait: Wait::Unlimited,
        allow_upgrade: true,
        request_id: Some("r".into()),
        attempt: 1 << 32,
        message,
        ..lock_request("p1", Mode::Write)
    };
    bytes(
        LocksCommand::Acquire(Acquire { wait: Wait::For(300), ..acquire.clone() }),
        "01020107066f726465727301010473655f310101680101016c01000000000001ac0201010172808080801001ac0202",
    );
    bytes(
        LocksCommand::Acquire(acquire),
        "01020107066f726465727301010473655f310101680101016c0100000000000201010172808080801001ac0202",
    );
    let what = ReleaseTarget::Request { request_id: "r".into() };
    let release = Release { namespace: orders(), owner: process("p1"), what, message: None };
    bytes(
        LocksCommand::Release(Release { what: ReleaseTarget::All, message, ..release.clone() }),
        "01020207066f726465727301000270310201ac0202",
    );
    bytes(LocksCommand::Release(release), "01020207066f7264657273010002703101017200");
    let cancel = Cancel { namespace: orders(), owner: process("p1"), request_id: None, claims: l, attempt: 5 };
    bytes(LocksCommand::Cancel(cancel), "01020407066f72646572730100027031000101016c0005");
    let live_owners = vec!["p1".to_owned()];
    bytes(
        LocksCommand::Reset(Reset { namespace: orders(), live_owners, before_revision: Some(300) }),
        "01020507066f7264657273010102703101ac02",
    );
    bytes(
        LocksCommand::OpenSession(resumed_session()),
        "01020607066f7264657273010473655f310100000000000000000000000000000001027031904e01016b0176",
    );
    bytes(
        LocksCommand::CloseSession { namespace: orders(), session_id: session_id.clone(), message },
        "01020707066f7264657273010473655f3101ac0202",
    );
    bytes(LocksCommand::ExpireSessions { ids: vec![1, 300], known_revision: 301 }, "0102080201ac02ad02");
    let held = vec![ReportedHold { path: Path::flat("l"), mode: Mode::Write, fencing_token: 300 }];
    let pending = vec!["r".to_owned()];
    let info = LockInfo { namespace: orders(), session_id, message, held, pending };
    let hex = "07066f7264657273010473655f3101ac02020101016c01ac02010172";
    bytes(LocksCommand::LockInfo(info.clone()), &format!("010209{hex}"));
    bytes(LocksCommand::LockInfoPart(info.clone()), &format!("01020d{hex}"));
    for (command, is_report, is_batch) in [
        (LocksCommand::LockInfo(info.clone()), true, false),
        (LocksCommand::LockInfoPart(info.clone()), true, false),
        (LocksCommand::Batch(vec![LocksCommand::LockInfo(info)]), false, true),
        (LocksCommand::ExpireSessions { ids: vec![], known_revision: 9 }, false, false),
    ] {
        let encoded = codec::encode(&Command::Locks(command));
        assert_eq!((LocksCommand::is_report(&encoded), LocksCommand::is_batch(&encoded)), (is_report, is_batch));
    }
}

#[test]
fn requests_of_connected_sessions_have_the_bytes_they_always_had() {
    let bytes = |command: LocksCommand, hex: &str| assert_bytes(&Command::Locks(command), hex);
    let session = |request| {
        let message = MessageSeq { epoch: 300, seq: 2 };
        LocksCommand::Session(SessionCommand { account: ACCOUNT, session: 300, message, request })
    };
    let acquire = SessionAcquire {
        holder: Some("h".into()),
        claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
        transition_ms: 5,
        wait: Wait::Unlimited,
        allow_upgrade: true,
        request_id: "r".into(),
    };
    let hex = "01020e0700000000000000ac02ac0202";
    bytes(session(SessionRequest::Acquire(acquire)), &format!("{hex}000101680101016c010502010172"));
    let release = SessionRequest::Release { request_id: "r".into(), is_known: true };
    bytes(session(release), &format!("{hex}01017201"));
}

fn assert_snapshot(core: &ShardState, hex: &[&str]) {
    let chunks = core.snapshot();
    assert_eq!(chunks.iter().map(hex::encode).collect::<Vec<_>>(), hex);
}

#[test]
fn a_snapshot_of_accounts_has_the_bytes_it_always_had() {
    let mut core = ShardState::new(Application::Accounts, "accounts_00");
    core.advance(&at(10));
    core.apply(&at(10), &accounts::create(1, 5, "a@b.c"));
    core.apply(&at(10), &accounts::create_key("k1", 5));
    assert_snapshot(
        &core,
        &[
            "01080000000b6163636f756e74735f30300a0202000201d69bb9ef050101000b6163636f756e74735f303001000519800880\
             0840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e05010105056140622e630b416e6e20\
             4578616d706c65198008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e008ad095\
             ffbc318ad095ffbc310102026b310507070707070707070707070707070707070707070707070707070707070707070d666f\
             72207468652074657374731f00008ad095ffbc3102030004010005040201026b310500000000000000000000000000000001\
             05056140622e630b416e6e204578616d706c65198008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06\
             a08d06a08d06904e008ad095ffbc318ad095ffbc3101",
            "0100",
        ],
    );
}

#[test]
fn a_snapshot_of_namespaces_has_the_bytes_it_always_had() {
    let mut core = namespaces::core();
    namespaces::run(&mut core, &namespaces::create(1, "orders"));
    assert_snapshot(
        &core,
        &[
            "01060000010d6e616d657370616365735f303002010200010b6163636f756e74735f303001000201f78aa3f6070202000d6e\
             616d657370616365735f3030010007066f7264657273018008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843d\
             a08d06a08d06a08d06904e07010107038008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a0\
             8d06904e020107066f72646572730c6f662074686520746573747382d095ffbc3182d095ffbc310300000000000000000000\
             0000000000010107066f72646572730c6f662074686520746573747382d095ffbc3182d095ffbc31",
            "0100",
        ],
    );
}

#[test]
fn a_snapshot_of_locks_has_the_bytes_it_always_had() {
    let mut shard = Shard::new();
    shard.granted(Acquire { metadata: metadata(&[("k", "v")]), ..lock_request("p1", Mode::Read) });
    shard.granted(Acquire { transition_ms: 5, ..lock_request("p2", Mode::Read) });
    shard.open_session("se_1");
    let owner = Owner::Session { session_id: "se_1".into(), holder: Some("h".into()) };
    let named = Acquire { owner, ttl_ms: None, request_id: Some("r".into()), ..lock_request("p1", Mode::Read) };
    shard.granted(named.clone());
    shard.enqueued(Acquire { wait: Wait::For(10), attempt: 9, ..lock_request("p3", Mode::Write) });
    let owner = Owner::Session { session_id: "se_1".into(), holder: None };
    shard.enqueued(Acquire { owner, wait: Wait::Unlimited, request_id: Some("s".into()), ..named });
    assert_snapshot(
        &shard.core,
        &[
            "0110000002086c6f636b735f3030e807060000010d6e616d657370616365735f3030010107066f7264657273018008800840\
             e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e00020473655f3103030000000000000000\
             0000000000000000010c686f7374206f662073655f31904e00e8d795ffbc310301016c040400027031000001000001e8d795\
             ffbc3101d00f0001016b0176000400027032000001000502e8d795ffbc3101d00f0000000401030473655f310c686f737420\
             6f662073655f31010168000000000004e8d795ffbc3100000000050473655f3101720101680400010101016c000605000002\
             70330101016c0101e807000000000901f207e8d795ffbc3106060001030473655f310c686f7374206f662073655f31000101\
             016c00000000000101730000e8d795ffbc310701170101e8d795ffbc31000002703102703101010101016c000702170102e8\
             d795ffbc31000002703202703201020101016c0007031f0103e8d795ffbc3105010473655f31000c686f7374206f66207365\
             5f3100000704260104e8d795ffbc3100010473655f310101680c686f7374206f662073655f3101040101016c00\
             0806030201030201",
            "0100",
        ],
    );
}

#[test]
fn commands_of_rules_2_have_the_bytes_they_always_had() {
    let acquire = Acquire { wait: Wait::For(300), attempt: 7, ..lock_request("p1", Mode::Write) };
    let Acquire { namespace, owner, request_id, claims, .. } = acquire.clone();
    let cancel = Cancel { namespace, owner, request_id, claims, attempt: 7 };
    let abandoned = vec![3, 300];
    assert_bytes(
        &Command::Locks(LocksCommand::Reattach(Reattach { acquire, abandoned: abandoned.clone() })),
        "01020b07066f726465727301000270310101016c0101e8070000000001ac02000007000203ac02",
    );
    assert_bytes(
        &Command::Locks(LocksCommand::CancelAttempts(CancelAttempts { cancel, abandoned })),
        "01020c07066f72646572730100027031000101016c01070203ac02",
    );
    let message = NamespaceMessage::PurgeAccount { account: ACCOUNT };
    assert_bytes(
        &Command::Locks(LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message }),
        "0102000d6e616d657370616365735f3030020307",
    );
}

#[test]
fn a_snapshot_of_what_several_calls_count_on_has_the_bytes_it_always_had() {
    // The bounds of rules 2 are no part of this.
    let mut shard = Shard::with_bounds(Bounds::of(Rules::ONE));
    shard.rules = Rules::TWO;
    let reads = |attempt| Acquire { attempt, allow_upgrade: true, ..lock_request("p1", Mode::Read) };
    (1..=2).for_each(|attempt| assert!(shard.granted(reads(attempt)) > 0));
    (3..=4).for_each(|attempt| {
        assert!(shard.granted(Acquire { attempt, allow_upgrade: true, ..lock_request("p1", Mode::Write) }) > 0);
    });
    let waits = |attempt| Acquire { wait: Wait::For(10), attempt, ..lock_request("p2", Mode::Write) };
    (5..=9).for_each(|attempt| assert_eq!(shard.enqueued(waits(attempt)).attempt, attempt));
    assert_snapshot(
        &shard.core,
        &[
            "010b000002086c6f636b735f3030e807030000010d6e616d657370616365735f3030010107066f7264657273018008800840\
             e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e000301016c020400027031010001010002\
             e8d795ffbc3101d00f0400000a0103020102060300000270320101016c0101e807000000000901f207e8d795ffbc310a0100\
             000701170101e8d795ffbc31000002703102703101010101016c000702170102e8d795ffbc31000002703102703101020101\
             016c010809010100010100",
            "0100",
        ],
    );
}

#[test]
fn bytes_of_another_version_or_with_something_left_over_are_refused() {
    let mut bytes = codec::encode(&Command::OutboxConfirm { numbers: vec![1] });
    assert!(codec::decode::<Command>(&[]).is_err());
    assert!(codec::decode::<Command>(&bytes[..2]).is_err());
    bytes.push(0);
    assert!(matches!(codec::decode::<Command>(&bytes), Err(codec::DecodeError::TrailingBytes(1))));
    bytes[0] = 2;
    assert!(matches!(codec::decode::<Command>(&bytes), Err(codec::DecodeError::Version(2))));
}
