//! Which answers wait for other shards, and until when.

use holdfast_core::shard::ShardState;
use holdfast_core::{Command, CommandError, Limits};

use crate::namespaces::{core, create, delete, open_account, purge_account, run};

fn confirm(core: &mut ShardState, numbers: &[u64]) {
    run(core, &Command::OutboxConfirm { numbers: numbers.to_vec() });
}

#[test]
fn a_creation_waits_for_its_open_and_so_does_its_repeat() {
    let mut core = core();
    let number = run(&mut core, &create(1, "a")).awaits.expect("it waits");
    assert!(!core.outbox().is_confirmed(number));
    let again = run(&mut core, &create(1, "a")).awaits.expect("the repeat waits too");
    assert!(!core.outbox().is_confirmed(again));
    confirm(&mut core, &[number]);
    assert!(core.outbox().is_confirmed(number) && core.outbox().is_confirmed(again));
    assert_eq!(run(&mut core, &create(1, "a")).awaits, None);
}

#[test]
fn a_deletion_waits_for_its_purge_alone() {
    let mut core = core();
    run(&mut core, &create(1, "a"));
    run(&mut core, &create(2, "b"));
    let number = run(&mut core, &delete("a", None)).awaits.expect("it waits");
    confirm(&mut core, &[1, number]);
    assert!(core.outbox().is_confirmed(number), "the open of the other namespace does not matter");
}

#[test]
fn a_repeated_deletion_that_finds_nothing_waits_for_the_purge_of_the_first() {
    let mut core = core();
    run(&mut core, &create(1, "a"));
    confirm(&mut core, &[1]);
    run(&mut core, &delete("a", None));
    let again = run(&mut core, &delete("a", None));
    assert_eq!(again.outcome, Err(CommandError::NamespaceNotFound));
    let number = again.awaits.expect("it waits");
    assert!(!core.outbox().is_confirmed(number));
    confirm(&mut core, &[2]);
    assert!(core.outbox().is_confirmed(number));
}

#[test]
fn a_refusal_waits_for_nothing() {
    let mut core = core();
    run(&mut core, &create(1, "a"));
    let reply = run(&mut core, &create(2, "a"));
    assert_eq!((reply.outcome, reply.awaits), (Err(CommandError::NamespaceTaken("a".into())), None));
}

#[test]
fn a_purge_of_an_account_waits_for_all_its_namespaces_and_for_what_was_pending_already() {
    let mut core = core();
    for (number, name) in [(1, "a"), (2, "b"), (3, "c")] {
        run(&mut core, &create(number, name));
    }
    run(&mut core, &delete("c", None));
    confirm(&mut core, &[1, 2, 3]);
    let number = run(&mut core, &purge_account(2)).awaits.expect("it waits");
    assert_eq!((number, core.outbox().messages().len()), (6, 3));
    for (done, left) in [(6, false), (4, false), (5, true)] {
        confirm(&mut core, &[done]);
        assert_eq!(core.outbox().is_confirmed(number), left);
    }
}

#[test]
fn a_message_that_was_seen_before_waits_for_what_the_first_made() {
    let mut core = core();
    run(&mut core, &create(1, "a"));
    run(&mut core, &create(2, "b"));
    confirm(&mut core, &[1, 2]);
    run(&mut core, &purge_account(2));
    let number = run(&mut core, &purge_account(2)).awaits.expect("it waits");
    confirm(&mut core, &[number]);
    assert!(!core.outbox().is_confirmed(number));
    confirm(&mut core, &[3]);
    assert!(core.outbox().is_confirmed(number));
    assert_eq!(run(&mut core, &purge_account(2)).awaits, None);
}

#[test]
fn a_change_of_limits_waits_until_the_locks_shards_know() {
    let mut core = core();
    run(&mut core, &create(1, "a"));
    confirm(&mut core, &[1]);
    let limits = Limits { max_readers_per_lock: 2, ..Limits::default() };
    assert_eq!(run(&mut core, &open_account(2, 3, limits)).awaits, Some(2));
    assert_eq!(run(&mut core, &open_account(2, 3, Limits::default())).awaits, Some(2));
}
