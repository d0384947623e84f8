//! Limits, what is shown of many, and lists.

use holdfast_core::{Acquire, Claim, CommandError, Limits, Mode, Path, Query, Response};

use crate::support::{Shard, lock_request, names, namespace, open, orders, path};

fn other(name: &str, owner: &str) -> Acquire {
    Acquire { claims: vec![Claim { path: Path::flat(name), mode: Mode::Write }], ..lock_request(owner, Mode::Write) }
}

#[test]
fn a_full_namespace_refuses_new_holds_and_harms_none_that_exists() {
    let limits = Limits { max_holds_per_namespace: 2, ..Limits::default() };
    let mut shard = Shard::with_limits(limits);
    shard.granted(other("a", "p1"));
    shard.granted(other("b", "p1"));
    let refusal = shard.try_acquire(other("c", "p1")).unwrap_err();
    assert!(matches!(&refusal, CommandError::QuotaExceeded { max: 2, .. }), "{refusal}");
    shard.granted(other("a", "p1"));
    shard.delete("b");
    shard.granted(other("c", "p1"));
}

#[test]
fn a_lowered_limit_lets_existing_holds_be_extended() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Read));
    let none = Limits { max_holds_per_namespace: 0, max_readers_per_lock: 0, ..Limits::default() };
    shard.apply(&open(2, orders(), none));
    shard.granted(lock_request("p1", Mode::Read));
    assert!(matches!(shard.try_acquire(lock_request("p2", Mode::Read)), Err(CommandError::QuotaExceeded { .. })));
}

#[test]
fn a_lock_with_all_its_readers_refuses_one_more() {
    let mut shard = Shard::with_limits(Limits { max_readers_per_lock: 2, ..Limits::default() });
    shard.granted(lock_request("p1", Mode::Read));
    shard.granted(lock_request("p2", Mode::Read));
    let refusal = shard.try_acquire(lock_request("p3", Mode::Read)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the number of readers of a lock is limited to 2; wait until a reader has left or have the limit raised"
    );
    shard.granted(lock_request("p2", Mode::Read));
    shard.release("p1");
    shard.granted(lock_request("p3", Mode::Read));
}

#[test]
fn acquire_and_release_show_sixteen_readers_and_get_shows_all() {
    let mut shard = Shard::new();
    for number in 0..20 {
        shard.granted(lock_request(&format!("p{number:02}"), Mode::Read));
    }
    let last = shard.acquire(lock_request("p20", Mode::Read)).lock;
    assert_eq!((last.read_lock_holders.len(), last.holders_total), (16, 21));
    let (_, released) = shard.release("p00");
    assert_eq!((released.read_lock_holders.len(), released.holders_total), (16, 20));
    assert_eq!(names(&released.read_lock_holders)[0], "p01");
    let all = shard.get("l");
    assert_eq!((all.read_lock_holders.len(), all.holders_total), (20, 20));
    assert_eq!(shard.refused(lock_request("w", Mode::Write)).blockers.len(), 16);
}

#[test]
fn held_locks_are_listed_in_order_of_path_page_by_page() {
    let mut shard = Shard::new();
    let all: [&[&str]; 6] = [&["a"], &["a", "x"], &["a", "x", "y"], &["a", "z"], &["a!"], &["b"]];
    for segments in all.iter().rev() {
        let claims = vec![Claim { path: path(segments), mode: Mode::Write }];
        shard.granted(Acquire { claims, ..lock_request("p1", Mode::Write) });
    }
    let listed = |prefix: &[&str], after: Option<&[&str]>, limit| {
        let (locks, more) = shard.list(prefix, after, limit);
        (locks.into_iter().map(|lock| lock.path).collect::<Vec<_>>(), more)
    };
    let paths = |from: usize, to: usize| all[from..to].iter().map(|segments| path(segments)).collect::<Vec<_>>();
    assert_eq!(listed(&[], None, 100), (paths(0, 6), false));
    assert_eq!(listed(&["a"], None, 100), (paths(0, 4), false));
    assert_eq!(listed(&["a", "x"], None, 100), (paths(1, 3), false));
    assert_eq!(listed(&["a"], None, 2), (paths(0, 2), true));
    assert_eq!(listed(&["a"], Some(all[1]), 2), (paths(2, 4), false));
    assert_eq!(listed(&["a", "x"], Some(&["a"]), 100), (paths(1, 3), false), "a start before the prefix is no start");
    assert_eq!(listed(&["c"], None, 100), (vec![], false));
    assert_eq!(listed(&[], None, 0), (paths(0, 1), true), "a page has at least one row");
}

#[test]
fn queries_know_only_the_open_incarnation() {
    let shard = Shard::new();
    let (stale, l) = (namespace("orders", 2), Path::flat("l"));
    for query in [
        Query::Lock { namespace: stale.clone(), path: l.clone() },
        Query::Locks { namespace: stale.clone(), prefix: Path::default(), after: None, limit: 1 },
        Query::Check { namespace: stale, path: l, fencing_token: 1 },
    ] {
        assert_eq!(shard.query(&query), Err(CommandError::NamespaceNotFound));
    }
}

#[test]
fn a_check_shows_the_lock() {
    let mut shard = Shard::new();
    let token = shard.granted(lock_request("p1", Mode::Read));
    let query = |fencing_token| Query::Check { namespace: orders(), path: Path::flat("l"), fencing_token };
    let lock = shard.get("l");
    assert_eq!(shard.query(&query(token)), Ok(Response::Checked { current: true, lock: lock.clone() }));
    assert_eq!(shard.query(&query(token + 1)), Ok(Response::Checked { current: false, lock }));
}
