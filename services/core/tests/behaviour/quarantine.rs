//! Namespaces that an operator has set aside.

use holdfast_core::{Acquire, CommandError, Limits, LocksCommand, Mode, Path, Query, Reason, Response, Rules};

use crate::support::{Shard, assert_nothing_is_left, lock_request, namespace, open, orders, purge};
use crate::wait_requests::{wait_request, write};

/// The same request in another namespace.
fn elsewhere(request: Acquire) -> Acquire {
    Acquire { namespace: namespace("invoices", 2), ..request }
}

/// A shard with two namespaces; `orders` has a hold, a request that waits for it, and a session.
fn busy_shard(rules: Rules) -> Shard {
    let mut shard = Shard::new();
    shard.rules = rules;
    assert_eq!(shard.apply(&open(2, namespace("invoices", 2), Limits::default())).outcome, Ok(Response::Done));
    shard.granted(lock_request("a", Mode::Write));
    shard.queued(wait_request("q", &[write("l")]), Reason::Held);
    shard.open_session("se_1");
    shard.granted(elsewhere(lock_request("a", Mode::Write)));
    shard
}

/// A restored replica and one with other internal numbers are in the same state.
fn assert_restorable(shard: &Shard) {
    shard.core.verify();
    let restored = shard.restored();
    restored.core.verify();
    assert_eq!(restored.core.snapshot(), shard.core.snapshot());
    assert_eq!(shard.core.renumbered(5).snapshot(), shard.core.snapshot());
}

#[test]
fn a_namespace_that_is_set_aside_stands_still_and_no_other_does() {
    for rules in [Rules::ONE, Rules::TWO] {
        let mut shard = busy_shard(rules);
        let number = shard.core.sessions().next().expect("it is open").number;
        shard.core.quarantine(&orders());
        assert_restorable(&shard);
        // Longer than its hold, its wait and its session live.
        for _ in 0..20 {
            shard.advance_by(1_000);
        }
        assert_restorable(&shard);
        let left = shard.core.footprint();
        assert_eq!((left.holds, left.waits, left.sessions), (1, 1, 1), "the hold of the other one has ended");
        assert_eq!((shard.core.next_deadline_ms(), shard.core.has_backlog()), (None, false));
        assert_eq!((shard.core.sessions().count(), shard.core.waits().count()), (0, 0), "no leader follows them");
        let expired = shard.run(LocksCommand::ExpireSessions { ids: vec![number], known_revision: u64::MAX });
        assert_eq!(expired, Ok(Response::SessionsExpired { ended: vec![] }));

        assert_eq!(shard.try_acquire(lock_request("b", Mode::Write)), Err(CommandError::Quarantined));
        let query = Query::Lock { namespace: orders(), path: Path::flat("l") };
        assert_eq!(shard.query(&query), Err(CommandError::Quarantined));
        // That it is open is said again whenever its limits change.
        assert_eq!(shard.apply(&open(3, orders(), Limits::default())).outcome, Ok(Response::Done));
        assert_eq!(shard.try_acquire(lock_request("b", Mode::Write)), Err(CommandError::Quarantined));
        shard.granted(elsewhere(lock_request("b", Mode::Write)));
        assert_restorable(&shard);
    }
}

#[test]
fn a_namespace_that_is_set_aside_can_be_deleted() {
    let mut shard = busy_shard(Rules::TWO);
    shard.core.quarantine(&orders());
    shard.advance_by(5_000);
    assert_eq!(shard.apply(&purge(3, orders())).outcome, Ok(Response::Done));
    shard.core.drop_effects();
    assert!(!shard.core.purge_indexes(usize::MAX));
    assert_nothing_is_left(&shard.core);
    assert_eq!(shard.try_acquire(lock_request("b", Mode::Write)), Err(CommandError::NamespaceNotFound));
    assert_restorable(&shard);
    // Its next incarnation is another one.
    let next = namespace("orders", 3);
    assert_eq!(shard.apply(&open(4, next.clone(), Limits::default())).outcome, Ok(Response::Done));
    shard.granted(Acquire { namespace: next, ..lock_request("b", Mode::Write) });
}

#[test]
fn a_namespace_may_be_set_aside_before_it_is_open() {
    let mut shard = Shard::new();
    let later = namespace("later", 5);
    shard.core.quarantine(&later);
    assert_eq!(shard.apply(&open(2, later.clone(), Limits::default())).outcome, Ok(Response::Done));
    let request = Acquire { namespace: later.clone(), ..lock_request("a", Mode::Write) };
    assert_eq!(shard.try_acquire(request.clone()), Err(CommandError::Quarantined));
    assert_restorable(&shard);
    assert_eq!(shard.apply(&purge(3, later)).outcome, Ok(Response::Done));
    assert_eq!(shard.try_acquire(request), Err(CommandError::NamespaceNotFound));
}

#[test]
fn between_entries_no_namespace_is_in_work() {
    let shard = busy_shard(Rules::TWO);
    assert_eq!(shard.core.namespace_in_work(), None);
}
