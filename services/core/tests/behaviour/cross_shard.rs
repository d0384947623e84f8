//! The three applications together: messages are delivered late, twice, and confirmed late, and nothing comes back.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, Acquire, Command, CommandError, EntryContext, LocksCommand, Mode, Namespace, NamespaceRef,
    NamespacesCommand, Path, Query, RESTORE_MARGIN, Reply, Response, Rules, Wait, delay_locks_snapshot,
};

use crate::accounts;
use crate::support::{Shard, at, lock_request, request_id};

struct ThreeShards {
    accounts: ShardState,
    namespaces: ShardState,
    locks: ShardState,
}

const ANN: AccountId = AccountId(5);

fn apply(core: &mut ShardState, command: &Command) -> Reply {
    apply_by(Rules::ONE, core, command)
}

fn apply_by(rules: Rules, core: &mut ShardState, command: &Command) -> Reply {
    let context = EntryContext { rules, ..at(core.clock_ms().max(1)) };
    core.advance(&context);
    core.apply(&context, command)
}

/// Delivers everything that is pending, each message twice, and confirms what was confirmed.
fn deliver(from: &mut ShardState, to: &mut ShardState) {
    deliver_by(Rules::ONE, from, to);
}

fn deliver_by(rules: Rules, from: &mut ShardState, to: &mut ShardState) {
    let pending: Vec<_> = from.outbox().messages().iter().map(|(number, m)| (*number, m.command.clone())).collect();
    for (number, command) in pending {
        assert_eq!(apply_by(rules, to, &command).outcome, Ok(Response::Done));
        let again = apply_by(rules, to, &command);
        assert_eq!(again.outcome, Ok(Response::Done));
        if again.awaits.is_none_or(|awaited| to.outbox().is_confirmed(awaited)) {
            apply_by(rules, from, &Command::OutboxConfirm { numbers: vec![number] });
        }
    }
}

impl ThreeShards {
    fn new() -> Self {
        Self {
            accounts: ShardState::new(Application::Accounts, "accounts_00"),
            namespaces: ShardState::new(Application::Namespaces, "namespaces_00"),
            locks: ShardState::new(Application::Locks, "locks_00"),
        }
    }

    fn deliver_all(&mut self) {
        while !(self.accounts.outbox().is_empty() && self.namespaces.outbox().is_empty()) {
            deliver(&mut self.accounts, &mut self.namespaces);
            deliver(&mut self.namespaces, &mut self.locks);
        }
    }

    fn create_namespace(&mut self, number: u64, name: &str) -> Result<Namespace, CommandError> {
        let command = NamespacesCommand::Create {
            request_id: request_id(number),
            account: ANN,
            name: name.to_owned(),
            description: String::new(),
        };
        match apply(&mut self.namespaces, &Command::Namespaces(command)).outcome? {
            Response::Namespace(namespace) => Ok(namespace),
            other => panic!("not a namespace: {other:?}"),
        }
    }

    fn delete_namespace(&mut self, name: &str) {
        let command = NamespacesCommand::Delete { account: ANN, name: name.to_owned(), incarnation: None };
        apply(&mut self.namespaces, &Command::Namespaces(command)).outcome.expect("it is there");
    }

    fn acquire(&mut self, namespace: &Namespace, owner: &str) -> Result<bool, CommandError> {
        let request = Acquire { namespace: namespace_ref(namespace), ..lock_request(owner, Mode::Write) };
        match apply(&mut self.locks, &Command::Locks(LocksCommand::Acquire(request))).outcome? {
            Response::Acquired { outcome, .. } => Ok(outcome.fencing_token().is_some()),
            other => panic!("not an answer to an acquire: {other:?}"),
        }
    }
}

fn namespace_ref(namespace: &Namespace) -> NamespaceRef {
    NamespaceRef { account: namespace.account, name: namespace.name.clone(), incarnation: namespace.incarnation }
}

#[test]
fn a_new_accounts_namespace_can_be_locked_as_soon_as_its_creation_may_be_answered() {
    let mut chain = ThreeShards::new();
    let reply = apply(&mut chain.accounts, &accounts::create(1, ANN.0, "ann@example.com"));
    let awaited = reply.awaits.expect("it waits");
    assert_eq!(chain.create_namespace(1, "a"), Err(CommandError::AccountNotFound(ANN)));
    deliver(&mut chain.accounts, &mut chain.namespaces);
    assert!(chain.accounts.outbox().is_confirmed(awaited));
    let namespace = chain.create_namespace(2, "a").unwrap();
    assert_eq!(chain.acquire(&namespace, "p1"), Err(CommandError::NamespaceNotFound));
    deliver(&mut chain.namespaces, &mut chain.locks);
    assert_eq!(chain.acquire(&namespace, "p1"), Ok(true));
}

#[test]
fn what_an_account_used_is_kept_while_it_exists_and_goes_with_it() {
    let mut chain = ThreeShards::new();
    let usage = |chain: &ThreeShards| match chain.locks.query(0, &Query::AccountUsage { account: ANN }).outcome {
        Ok(Response::AccountUsage { namespaces, ended }) => (namespaces.len(), ended.grants),
        other => panic!("not what an account uses: {other:?}"),
    };
    apply(&mut chain.accounts, &accounts::create(1, ANN.0, "ann@example.com"));
    chain.deliver_all();
    let deleted = chain.create_namespace(1, "a").unwrap();
    let kept = chain.create_namespace(2, "b").unwrap();
    chain.deliver_all();
    assert_eq!((chain.acquire(&deleted, "p1"), chain.acquire(&kept, "p1")), (Ok(true), Ok(true)));
    chain.delete_namespace("a");
    chain.deliver_all();
    assert_eq!(usage(&chain), (1, 1));
    let chunks = chain.namespaces.snapshot();
    chain.namespaces = ShardState::restore(Application::Namespaces, "namespaces_00", &chunks).unwrap();
    apply(&mut chain.accounts, &accounts::delete(ANN.0));
    deliver_by(Rules::TWO, &mut chain.accounts, &mut chain.namespaces);
    deliver_by(Rules::TWO, &mut chain.namespaces, &mut chain.locks);
    assert!(chain.namespaces.outbox().is_empty());
    assert_eq!(usage(&chain), (0, 0));
}

#[test]
fn a_namespace_that_is_deleted_and_made_again_has_no_old_lock() {
    let mut chain = ThreeShards::new();
    apply(&mut chain.accounts, &accounts::create(1, ANN.0, "ann@example.com"));
    chain.deliver_all();
    let first = chain.create_namespace(1, "a").unwrap();
    chain.deliver_all();
    assert_eq!(chain.acquire(&first, "p1"), Ok(true));
    chain.delete_namespace("a");
    let second = chain.create_namespace(2, "a").unwrap();
    assert_eq!(chain.acquire(&second, "p2"), Err(CommandError::NamespaceNotFound), "nothing was delivered yet");
    chain.deliver_all();
    assert_eq!(chain.acquire(&first, "p1"), Err(CommandError::NamespaceNotFound));
    assert_eq!(chain.acquire(&second, "p2"), Ok(true));
}

#[test]
fn deleting_an_account_is_confirmed_only_when_its_locks_are_gone() {
    let mut chain = ThreeShards::new();
    apply(&mut chain.accounts, &accounts::create(1, ANN.0, "ann@example.com"));
    chain.deliver_all();
    let namespace = chain.create_namespace(1, "a").unwrap();
    chain.deliver_all();
    assert_eq!(chain.acquire(&namespace, "p1"), Ok(true));
    let awaited = apply(&mut chain.accounts, &accounts::delete(ANN.0)).awaits.expect("it waits");
    deliver(&mut chain.accounts, &mut chain.namespaces);
    assert!(!chain.accounts.outbox().is_confirmed(awaited), "the locks shard has not confirmed yet");
    chain.deliver_all();
    assert!(chain.accounts.outbox().is_confirmed(awaited));
    assert_eq!(chain.locks.next_deadline_ms(), None);
    let query = Query::Lock { namespace: namespace_ref(&namespace), path: Path::flat("l") };
    assert_eq!(chain.locks.query(0, &query).outcome, Err(CommandError::NamespaceNotFound));
    assert_eq!(chain.create_namespace(3, "b"), Err(CommandError::AccountNotFound(ANN)));
}

#[test]
fn after_a_restore_tokens_and_incarnations_go_on_above_all_before_and_shards_hear_of_one_another_again() {
    let mut chain = ThreeShards::new();
    apply(&mut chain.accounts, &accounts::create(1, ANN.0, "ann@example.com"));
    chain.deliver_all();
    let early = chain.create_namespace(1, "early").unwrap();
    chain.deliver_all();
    // Locks are saved first; then a namespace comes and another one goes.
    let locks = chain.locks.snapshot();
    let late = chain.create_namespace(2, "late").unwrap();
    chain.deliver_all();
    let (namespaces, accounts) = (chain.namespaces.snapshot(), chain.accounts.snapshot());
    // What is not in the backup: tokens and an incarnation that were given all the same.
    let lost = chain.create_namespace(3, "lost").unwrap();
    chain.deliver_all();
    assert_eq!(chain.acquire(&early, "p1"), Ok(true));
    let before = chain.locks.revision();

    let restored = |application, id: &str, chunks: &[Vec<u8>]| {
        let mut core = ShardState::restore(application, id, chunks).unwrap();
        core.advance_after_restore().unwrap();
        core
    };
    let mut chain = ThreeShards {
        accounts: restored(Application::Accounts, "accounts_00", &accounts),
        namespaces: restored(Application::Namespaces, "namespaces_00", &namespaces),
        locks: restored(Application::Locks, "locks_00", &locks),
    };
    chain.deliver_all();
    // The locks shard never heard of the one that was made after it was saved; now it has.
    assert_eq!(chain.acquire(&late, "p1"), Ok(true));
    assert!(chain.locks.revision() > before + RESTORE_MARGIN / 2);
    assert_eq!(chain.acquire(&early, "p2"), Ok(true), "the hold came after the backup");
    let again = chain.create_namespace(4, "lost").unwrap();
    assert!(again.incarnation > lost.incarnation);
    chain.deliver_all();
    assert_eq!(chain.acquire(&again, "p1"), Ok(true));
    assert_eq!(chain.acquire(&lost, "p1"), Err(CommandError::NamespaceNotFound));
}

#[test]
fn shards_hear_of_one_another_again_where_numbers_advance_in_the_log() {
    let mut chain = ThreeShards::new();
    apply(&mut chain.accounts, &accounts::create(1, ANN.0, "ann@example.com"));
    chain.deliver_all();
    // The locks shard has accepted a message that the namespaces shard does not remember.
    let namespaces = chain.namespaces.snapshot();
    let lost = chain.create_namespace(1, "lost").unwrap();
    chain.deliver_all();
    chain.namespaces = ShardState::restore(Application::Namespaces, "namespaces_00", &namespaces).unwrap();
    apply(&mut chain.namespaces, &Command::AdvanceNumbers);
    let made = chain.create_namespace(2, "made").unwrap();
    chain.deliver_all();
    assert!(made.incarnation > lost.incarnation);
    assert_eq!(chain.acquire(&made, "p1"), Ok(true));
}

#[test]
fn a_restored_shard_whose_clock_was_behind_keeps_all_remaining_times() {
    let mut shard = Shard::new();
    shard.acquire(Acquire { ttl_ms: Some(5_000), ..lock_request("p", Mode::Write) });
    shard.try_acquire(Acquire { wait: Wait::For(3_000), ..lock_request("q", Mode::Write) }).unwrap();
    let (clock, due) = (shard.core.clock_ms(), shard.core.next_deadline_ms().unwrap());
    for by in [0, 1, 1_000_000] {
        let chunks: Vec<Vec<u8>> = delay_locks_snapshot(&shard.core.snapshot(), by).collect::<Result<_, _>>().unwrap();
        let delayed = ShardState::restore(Application::Locks, "locks_00", &chunks).unwrap();
        assert_eq!((delayed.clock_ms(), delayed.next_deadline_ms()), (clock + by, Some(due + by)));
        assert_eq!(delayed.footprint(), shard.core.footprint());
        if by == 0 {
            assert_eq!(delayed.snapshot(), shard.core.snapshot());
        }
    }
    assert!(delay_locks_snapshot(&[b"damaged"], 1).any(|chunk| chunk.is_err()));
    let whole = shard.core.snapshot();
    assert!(delay_locks_snapshot(&whole[..1], 1).any(|chunk| chunk.is_err()), "its end is missing");
}
