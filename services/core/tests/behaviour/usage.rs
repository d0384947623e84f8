//! What accounts use is counted by what they do, and survives snapshots and the end of namespaces.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{Acquire, Mode, NamespaceUsage, Query, Response, UsageTotals, Wait};

use crate::support::{ACCOUNT, Shard, lock_request, orders, purge};

fn usage(core: &ShardState) -> (Vec<NamespaceUsage>, UsageTotals) {
    match core.query(0, &Query::AccountUsage { account: ACCOUNT }).outcome {
        Ok(Response::AccountUsage { namespaces, ended }) => (namespaces, ended),
        other => panic!("not what an account uses: {other:?}"),
    }
}

fn busy_shard() -> Shard {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Read));
    shard.granted(lock_request("p2", Mode::Read));
    shard.granted(lock_request("p2", Mode::Read));
    shard.enqueued(Acquire { wait: Wait::For(500), attempt: 9, ..lock_request("p3", Mode::Write) });
    shard.release("p1");
    shard.open_session("se_1");
    shard
}

#[test]
fn operations_grants_waits_and_peaks_are_counted() {
    let mut shard = busy_shard();
    let (namespaces, ended) = usage(&shard.core);
    assert_eq!(ended, UsageTotals::default());
    let totals = UsageTotals {
        operations: 6,
        grants: 2,
        waits: 1,
        sessions_opened: 1,
        peak_holds: 2,
        peak_waiting: 1,
        peak_sessions: 1,
    };
    let now = NamespaceUsage {
        name: "orders".into(),
        incarnation: orders().incarnation,
        holds: 1,
        waiting: 1,
        sessions: 1,
        tangled_owners: 0,
        latches: 0,
        semaphores: 0,
        permit_holds: 0,
        permit_waits: 0,
        pools: 0,
        table_bytes: 0,
        barriers: 0,
        arrivals: 0,
        awaiting: 0,
        totals,
    };
    assert_eq!(namespaces, [now]);
    shard.release("p2");
    let (namespaces, _) = usage(&shard.core);
    assert_eq!((namespaces[0].holds, namespaces[0].waiting), (1, 0), "the one who waited has it");
    assert_eq!(namespaces[0].totals, UsageTotals { operations: 7, grants: 3, ..totals });
    let restored = ShardState::restore(Application::Locks, "locks_00", shard.core.snapshot()).unwrap();
    assert_eq!(usage(&restored), usage(&shard.core));
}

#[test]
fn what_was_done_in_a_namespace_is_known_after_its_end() {
    let mut shard = busy_shard();
    let before = usage(&shard.core).0[0].totals;
    assert_eq!(shard.apply(&purge(2, orders())).outcome, Ok(Response::Done));
    assert_eq!(usage(&shard.core), (vec![], before));
    let restored = ShardState::restore(Application::Locks, "locks_00", shard.core.snapshot()).unwrap();
    assert_eq!(usage(&restored), (vec![], before));
}
