//! The bytes of queries and replies, so that a change of format is noticed: gateways and nodes of adjacent releases
//! exchange them.

use holdfast_core::{
    Account, AccountChange, AccountId, AccountStatus, AcquireOutcome, Actor, ApiKey, AuditAction, AuditCursor,
    AuditRecord, Blocker, Claim, CommandError, CycleStep, Durability, Enqueued, Event, EventKind, HolderView,
    Incarnation, KeepAliveOutcome, Kinds, Limits, LockState, LockView, LostHold, Mode, Namespace, NamespaceUsage,
    Owner, Path, Phase, Query, QueuedRequestView, Reason, Refused, Reply, ReportedHold, Response, Scopes,
    SessionKeepAlive, SessionView, StateBytes, UsageTotals, WaitId, WaitView, codec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::support::{ACCOUNT, metadata, orders, process};

fn assert_bytes<T>(values: impl IntoIterator<Item = (T, &'static str)>)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    for (value, hex) in values {
        let bytes = codec::encode(&value);
        assert_eq!(hex::encode(&bytes), hex, "{value:?}");
        assert_eq!(codec::decode::<T>(&bytes).unwrap(), value);
    }
}

fn l() -> Path {
    Path::flat("l")
}

fn claims() -> Vec<Claim> {
    vec![Claim { path: l(), mode: Mode::Write }]
}

fn session() -> String {
    "se_1".to_owned()
}

fn reported() -> Vec<ReportedHold> {
    vec![ReportedHold { path: l(), mode: Mode::Write, fencing_token: 300 }]
}

pub(crate) fn namespace(durability: Durability) -> Namespace {
    Namespace {
        incarnation: Incarnation(1),
        account: ACCOUNT,
        name: "orders".into(),
        description: "d".into(),
        created_at_ms: 300,
        updated_at_ms: 301,
        durability,
    }
}

#[test]
fn queries_of_accounts_and_namespaces_have_the_bytes_they_always_had() {
    let account = ACCOUNT;
    assert_bytes([
        (Query::Account { id: account }, "010007"),
        (Query::Accounts { after: Some(AccountId(300)), limit: 5 }, "010101ac0205"),
        (Query::ApiKey { key_id: "k1".into() }, "0102026b31"),
        (Query::ApiKeys { account }, "010307"),
        (Query::AccountChanges { after: 300 }, "0104ac02"),
        (Query::Namespace { account, name: "orders".into() }, "010507066f7264657273"),
        (Query::Namespaces { account, after: Some("a".into()), limit: 5 }, "01060701016105"),
        (Query::KeyUse { account }, "011207"),
        (
            Query::Audit { account: None, before: Some(AuditCursor { at_ms: 300, number: 2 }), limit: 5 },
            "01130001ac020205",
        ),
        (Query::AccountUsage { account }, "011407"),
        (Query::AccountState { account }, "011707"),
    ]);
}

#[test]
fn queries_of_locks_have_the_bytes_they_always_had() {
    let (wait, after, limit) = (WaitId(300), Some(WaitId(300)), 5);
    assert_bytes([
        (Query::Lock { namespace: orders(), path: l() }, "010707066f72646572730101016c"),
        (
            Query::Locks { namespace: orders(), prefix: Path::default(), after: Some(l()), limit },
            "010807066f726465727301000101016c05",
        ),
        (Query::Check { namespace: orders(), path: l(), fencing_token: 300 }, "010907066f72646572730101016cac02"),
        (Query::Session { namespace: orders(), session_id: session() }, "010a07066f7264657273010473655f31"),
        (
            Query::Sessions { namespace: orders(), after: Some(session()), limit },
            "010b07066f726465727301010473655f3105",
        ),
        (Query::Waits { namespace: orders(), after, limit }, "010c07066f72646572730101ac0205"),
        (
            Query::Events { namespace: orders(), from_revision: Some(300), prefix: l(), kinds: Kinds::LOCKS, limit },
            "010d07066f72646572730101ac0201016c0105",
        ),
        (Query::Usage { namespace: orders() }, "010e07066f726465727301"),
        (
            Query::KeepAlive { namespace: orders(), session_id: session(), epoch: Some(300) },
            "010f07066f7264657273010473655f3101ac02",
        ),
        (
            Query::ReconcileHolds { namespace: orders(), session_id: session(), held: reported() },
            "011007066f7264657273010473655f310101016c01ac02",
        ),
        (Query::WaitStatus { namespace: orders(), wait }, "011107066f726465727301ac02"),
        (Query::Queue { namespace: orders(), after, limit }, "011507066f72646572730101ac0205"),
        (
            Query::Holds { namespace: orders(), owner: process("p1"), claims: claims() },
            "011607066f726465727301000270310101016c01",
        ),
        (
            Query::KeepAlives {
                sessions: vec![SessionKeepAlive { key: 300, namespace: orders(), session_id: session(), epoch: 300 }],
            },
            "011801ac0207066f7264657273010473655f31ac02",
        ),
    ]);
}

pub(crate) fn holder() -> HolderView {
    HolderView {
        owner: Owner::Session { session_id: session(), holder: Some("h".into()) },
        process_id: "p1".into(),
        mode: Mode::Write,
        fencing_token: 300,
        locked_at_ms: 301,
        deadline_ms: Some(302),
        requested_expires_at_ns: Some(-1),
        phase: Phase::Transition,
        metadata: metadata(&[("k", "v")]),
        release_requested: None,
    }
}

fn lock() -> LockView {
    LockView {
        path: l(),
        state: LockState::WriteLocked,
        locked_at_ms: Some(301),
        write_lock_holder: Some(holder()),
        read_lock_holders: Vec::new(),
        holders_total: 1,
        waiting: 2,
        revision: 303,
    }
}

/// With as few bytes as a lock may have, where a test is about something else.
pub(crate) fn free_lock() -> LockView {
    LockView {
        state: LockState::Unlocked,
        locked_at_ms: None,
        write_lock_holder: None,
        holders_total: 0,
        waiting: 0,
        ..lock()
    }
}

fn refused() -> Refused {
    let step = CycleStep { owner: process("p2"), process_id: "p2".into(), path: l(), waiting: true };
    Refused {
        reason: Reason::Deadlock,
        blockers: vec![Blocker { path: l(), waiting: false, holder: holder() }],
        queue_position: Some(4),
        cycle: vec![step],
    }
}

#[test]
fn replies_about_locks_have_the_bytes_they_always_had() {
    let readers = LockView {
        state: LockState::ReadLocked,
        write_lock_holder: None,
        read_lock_holders: vec![HolderView { owner: process("p1"), mode: Mode::Read, phase: Phase::Held, ..holder() }],
        ..lock()
    };
    let granted = AcquireOutcome::Granted { fencing_token: 300 };
    let waits = Enqueued { wait: WaitId(300), attempt: 2, not_granted: refused() };
    let lost = LostHold { path: l(), fencing_token: 300, current_owner: Some(holder()) };
    let locks = || vec![free_lock()];
    assert_bytes([
        (Response::Done, "0100"),
        (
            Response::Acquired { outcome: granted, locks: vec![lock()] },
            "010800ac020101016c0201ad0201010473655f3101016802703101ac02ad0201ae0201010101016b0176000102af02",
        ),
        (
            Response::Acquired { outcome: AcquireOutcome::Enqueued(Box::new(waits)), locks: locks() },
            "010801ac0202060101016c00010473655f3101016802703101ac02ad0201ae0201010101016b01760104010002703202703201016c010101016c000000000000af02",
        ),
        (
            Response::Acquired { outcome: AcquireOutcome::Refused(Box::new(refused())), locks: locks() },
            "010802060101016c00010473655f3101016802703101ac02ad0201ae0201010101016b01760104010002703202703201016c010101016c000000000000af02",
        ),
        (Response::Released { released: true, locks: locks() }, "0109010101016c000000000000af02"),
        (Response::Lock(readers), "010a01016c0101ad0200010002703102703100ac02ad0201ae0201010001016b01760102af02"),
        (Response::Locks { locks: locks(), next: Some(Path::flat("l")) }, "010b0101016c000000000000af020101016c"),
        (Response::Checked { current: true, lock: free_lock() }, "010c0101016c000000000000af02"),
        (Response::Cancelled { left_queue: true, grant_released: false }, "010d0100"),
        (Response::Reset { removed_holds: 300, removed_waiters: 2 }, "010eac0202"),
        (
            Response::Reconciled { lost: vec![lost], ended_holds: 300, ended_waits: 2 },
            "01110101016cac0201010473655f3101016802703101ac02ad0201ae0201010101016b0176ac0202",
        ),
        (Response::Ignored, "0112"),
        (Response::Usage { holds: 300, waiting: 2, sessions: 3 }, "0117ac020203"),
        (Response::Holds(true), "011d01"),
        (Response::Batch(vec![Ok(Response::Done), Err(CommandError::NamespaceNotFound)]), "01180200000101"),
    ]);
}

#[test]
fn replies_about_sessions_waits_and_events_have_the_bytes_they_always_had() {
    let session = || SessionView {
        session_id: session(),
        number: 300,
        epoch: 301,
        process_id: "p1".into(),
        ttl_ms: 10_000,
        remaining_ms: 9_000,
        metadata: metadata(&[("k", "v")]),
        opened_at_ms: 302,
        holds: 1,
        waiting: 2,
    };
    let wait = || WaitView {
        wait: WaitId(300),
        owner: process("p1"),
        request_id: Some("r".into()),
        claims: claims(),
        upgrade: true,
        attempt: 2,
        ends_at_ms: Some(301),
    };
    let queued = QueuedRequestView { wait: wait(), process_id: "p1".into(), since_ms: 302, not_granted: refused() };
    let event = Event {
        revision: 300,
        at_ms: 301,
        kind: EventKind::Released,
        owner: process("p1"),
        process_id: "p1".into(),
        fencing_token: Some(299),
        claims: claims(),
    };
    assert_bytes([
        (
            Response::SessionOpened { session: session(), resumed: true },
            "010f0473655f31ac02ad02027031904ea84601016b0176ae02010201",
        ),
        (Response::SessionsExpired { ended: vec![1, 300] }, "01100201ac02"),
        (
            Response::KeptAlive(vec![
                KeepAliveOutcome::Recorded { remaining_ms: 9_000 },
                KeepAliveOutcome::Rejected(CommandError::NamespaceNotFound),
                KeepAliveOutcome::Undecided,
            ]),
            "011f0300a846010102",
        ),
        (Response::Granted { fencing_token: 300 }, "0120ac02"),
        (Response::Session(session()), "01130473655f31ac02ad02027031904ea84601016b0176ae020102"),
        (
            Response::Sessions { sessions: vec![session()], more: true },
            "0114010473655f31ac02ad02027031904ea84601016b0176ae02010201",
        ),
        (Response::Waits { waits: vec![wait()], more: true }, "011501ac02000270310101720101016c01010201ad0201"),
        (
            Response::Events { events: vec![event], next_revision: 301, more: true },
            "011601ac02ad02010002703102703101ab020101016c01ad0201",
        ),
        (
            Response::Queue { waits: vec![queued], more: true },
            "011c01ac02000270310101720101016c01010201ad02027031ae02060101016c00010473655f3101016802703101ac02ad0201ae0201010101016b01760104010002703202703201016c0101",
        ),
    ]);
}

fn account(limits: Limits) -> Account {
    Account {
        id: ACCOUNT,
        email: "a@b.c".into(),
        full_name: "Ann".into(),
        max_number_of_namespaces: 300,
        limits,
        status: AccountStatus::Suspended,
        created_at_ms: 301,
        updated_at_ms: 302,
        revision: 303,
    }
}

#[test]
fn replies_about_accounts_and_namespaces_have_the_bytes_they_always_had() {
    let key = || ApiKey {
        key_id: "k1".into(),
        account: ACCOUNT,
        secret_hash: [7; 32],
        description: "d".into(),
        scopes: Scopes::ALL,
        namespaces: Some(vec!["orders".into()]),
        expires_at_ms: Some(300),
        created_at_ms: 301,
    };
    let namespace = || namespace(Durability::Full);
    let of_account = AccountChange::KeyOfAccount { account: ACCOUNT, key_id: "k1".into() };
    let changes = vec![AccountChange::Account(ACCOUNT), AccountChange::ApiKey("k1".into()), of_account];
    let later = Limits { max_tangle: 300, ..Limits::default() };
    assert_bytes([
        (
            Response::Account(account(Limits::default())),
            "010107056140622e6303416e6eac028008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e01ad02ae02af02",
        ),
        (
            Response::Account(account(later)),
            "010107056140622e6303416e6eac028008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e038008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e8080808002ac02e807800840a08d06904e80808004904ee8078020808004808080203c78904ea08d06c0843d904e904e904e904e80808020904ee807e80740904ee807e80710ad02ae02af02",
        ),
        (
            Response::Accounts { accounts: vec![account(Limits::default())], more: true },
            "01020107056140622e6303416e6eac028008800840e807106480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e01ad02ae02af0201",
        ),
        (
            Response::ApiKey(key()),
            "0103026b3107070707070707070707070707070707070707070707070707070707070707070701641f0101066f726465727301ac02ad02",
        ),
        (
            Response::ApiKeys(vec![key()]),
            "010401026b3107070707070707070707070707070707070707070707070707070707070707070701641f0101066f726465727301ac02ad02",
        ),
        (Response::AccountChanges { changes, now: 300 }, "010503000701026b310207026b31ac02"),
        (Response::Namespace(namespace()), "01060107066f72646572730164ac02ad02"),
        (Response::Namespaces { namespaces: vec![namespace()], more: true }, "0107010107066f72646572730164ac02ad0201"),
        (Response::KeyUse(vec![("k1".into(), 300)]), "011901026b31ac02"),
    ]);
}

#[test]
fn replies_about_usage_and_audit_have_the_bytes_they_always_had() {
    let totals = UsageTotals {
        operations: 300,
        grants: 2,
        waits: 3,
        sessions_opened: 4,
        peak_holds: 5,
        peak_waiting: 6,
        peak_sessions: 7,
    };
    let usage = NamespaceUsage {
        name: "orders".into(),
        incarnation: Incarnation(1),
        holds: 8,
        waiting: 9,
        sessions: 10,
        tangled_owners: 11,
        latches: 12,
        semaphores: 13,
        permit_holds: 14,
        permit_waits: 15,
        pools: 16,
        table_bytes: 17,
        barriers: 18,
        arrivals: 19,
        awaiting: 20,
        totals,
    };
    let record = AuditRecord {
        number: 300,
        at_ms: 301,
        account: ACCOUNT,
        actor: Actor::ApiKey { account: ACCOUNT, key_id: "k1".into() },
        request_id: "r1".into(),
        action: AuditAction::LockDeleted,
        key_id: Some("k1".into()),
        namespace: Some("orders".into()),
        path: Some(l()),
        detail: "d".into(),
    };
    let bytes = StateBytes {
        namespace: 300,
        paths: 1,
        owners: 2,
        holds: 3,
        metadata: 4,
        waiting: 5,
        requests: 6,
        sessions: 7,
        events: 8,
        latches: 9,
        semaphores: 10,
        barriers: 11,
        conditions: 12,
    };
    assert_bytes([
        (
            Response::AuditRecords { records: vec![record], more: true },
            "011a01ac02ad02070107026b310272310801026b3101066f72646572730101016c016401",
        ),
        (
            Response::AccountUsage { namespaces: vec![usage], ended: totals },
            "011b01066f72646572730108090a0b0c0d0e0f1011121314ac02020304050607ac02020304050607",
        ),
        (Response::AccountState(vec![("orders".into(), bytes)]), "011e01066f7264657273ac020102030405060708090a0b0c"),
    ]);
}

#[test]
fn replies_have_the_bytes_they_always_had() {
    let reply = |outcome, awaits| Reply { outcome, clock_ms: 300, awaits };
    assert_bytes([
        (reply(Ok(Response::Done), None), "010000ac0200"),
        (reply(Ok(Response::Done), Some(301)), "010000ac0201ad02"),
        (reply(Err(CommandError::NamespaceNotFound), None), "010101ac0200"),
    ]);
}

#[test]
fn errors_have_the_bytes_they_always_had() {
    let text = || "t".to_owned();
    assert_bytes([
        (CommandError::AccountNotFound(ACCOUNT), "010007"),
        (CommandError::NamespaceNotFound, "0101"),
        (CommandError::ApiKeyNotFound, "0102"),
        (CommandError::SessionNotFound(text()), "01030174"),
        (CommandError::Superseded { epoch: 300 }, "0104ac02"),
        (CommandError::RequestIdTaken(text()), "01050174"),
        (CommandError::NotWaiting, "0106"),
        (CommandError::RevisionCompacted { oldest: 300 }, "0107ac02"),
        (CommandError::EmailTaken(text()), "01080174"),
        (CommandError::NamespaceTaken(text()), "01090174"),
        (CommandError::IdTaken, "010a"),
        (CommandError::QuotaExceeded { what: text(), max: 300, hint: text() }, "010b0174ac020174"),
        (CommandError::ChangesCompacted { oldest: 300, now: 301 }, "010cac02ad02"),
        (CommandError::Malformed(text()), "010d0174"),
        (CommandError::Busy(text()), "010e0174"),
        (CommandError::Full(text()), "010f0174"),
        (CommandError::Quarantined, "0110"),
        (CommandError::RateLimited { what: text(), max: 300, wait_ms: 301 }, "01110174ac02ad02"),
        (CommandError::NotProposed(text()), "01120174"),
    ]);
}
