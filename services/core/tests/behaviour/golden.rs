//! The bytes of commands and snapshots, so that a change of format is noticed: logs and snapshots on disks have them.

use holdfast_core::shard::{Application, ShardCore};
use holdfast_core::{
    AccountsCommand, Acquire, Claim, Command, Incarnation, Limits, LocksCommand, Mode, NamespacesCommand, Path,
    Release, codec,
};

use crate::support::{ACCOUNT, Shard, at, metadata, open, orders, process, purge, want};
use crate::{accounts, namespaces};

fn assert_bytes(command: &Command, hex: &str) {
    let bytes = codec::encode(command);
    assert_eq!(hex::encode(&bytes), hex, "{command:?}");
    assert_eq!(&codec::decode::<Command>(&bytes).unwrap(), command);
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
        asked_expires_at_ns: Some(-1),
        ..want("p1", Mode::Write)
    };
    assert_bytes(
        &Command::Locks(LocksCommand::Acquire(acquire)),
        "01020107066f726465727301000270310201016c0102016101620001e8070501016b017601090101",
    );
    let paths = vec![Path::flat("l")];
    let release = Release { namespace: orders(), owner: process("p1"), paths, fencing_token: None };
    assert_bytes(&Command::Locks(LocksCommand::Release(release)), "01020207066f726465727301000270310101016c00");
    let delete = LocksCommand::Delete { namespace: orders(), path: Path::flat("l") };
    assert_bytes(&Command::Locks(delete), "01020307066f72646572730101016c");
    assert_bytes(&Command::OutboxConfirm { numbers: vec![1, 300] }, "01030201ac02");
}

fn assert_snapshot(core: &ShardCore, hex: &[&str]) {
    let chunks = core.snapshot();
    assert_eq!(chunks.iter().map(hex::encode).collect::<Vec<_>>(), hex);
}

#[test]
fn a_snapshot_of_accounts_has_the_bytes_it_always_had() {
    let mut core = ShardCore::new(Application::Accounts, "accounts_00");
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
    shard.granted(Acquire { metadata: metadata(&[("k", "v")]), ..want("p1", Mode::Read) });
    shard.granted(Acquire { transition_ms: 5, ..want("p2", Mode::Read) });
    assert_snapshot(
        &shard.core,
        &[
            "0106000002086c6f636b735f3030e807020000010d6e616d657370616365735f3030010107066f7264657273018008800840\
             e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e0201016c020300027031000001e8d795ff\
             bc31d00f000101016b0176000300027032000002e8d795ffbc31d00f0500",
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
    assert!(matches!(codec::decode::<Command>(&bytes), Err(codec::DecodeError::LeftOver(1))));
    bytes[0] = 2;
    assert!(matches!(codec::decode::<Command>(&bytes), Err(codec::DecodeError::Version(2))));
}
