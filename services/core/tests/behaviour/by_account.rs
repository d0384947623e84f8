//! What shards remember is counted by account, so that nobody's many changes make a shard forget or refuse those of
//! others.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, AccountMessage, Actor, Audited, Bounds, Command, CommandError, Limits, NamespacesCommand, Query,
    Response, limit,
};

use crate::accounts;
use crate::support::{at, request_id};

const BUSY: AccountId = AccountId(1);
const QUIET: AccountId = AccountId(2);

type Outcome = Result<Response, CommandError>;

fn run(core: &mut ShardState, command: NamespacesCommand) -> Outcome {
    apply(core, &Command::Namespaces(command))
}

fn apply(core: &mut ShardState, command: &Command) -> Outcome {
    let context = at(core.clock_ms() + 1);
    core.advance(&context);
    core.apply(&context, command).outcome
}

/// A namespaces shard within tiny bounds that both accounts are open in.
fn namespaces() -> ShardState {
    let mut core = ShardState::with_bounds(Application::Namespaces, "namespaces_00", Bounds::tiny());
    for account in [BUSY, QUIET] {
        let message = AccountMessage::open(account, 100, Limits::default());
        let deliver = NamespacesCommand::Deliver { source: "accounts_00".into(), number: account.0, message };
        assert_eq!(run(&mut core, deliver), Ok(Response::Done));
    }
    core
}

fn create(core: &mut ShardState, account: AccountId, call: u64) -> Outcome {
    let (name, description) = (format!("n{call}"), String::new());
    run(core, NamespacesCommand::Create { request_id: request_id(call), account, name, description })
}

fn delete(core: &mut ShardState, account: AccountId, call: u64) {
    let command = NamespacesCommand::Delete { account, name: format!("n{call}"), incarnation: None };
    assert_eq!(run(core, command), Ok(Response::Done));
}

fn confirm_all(core: &mut ShardState) {
    let numbers = core.outbox().messages().keys().copied().collect();
    assert_eq!(apply(core, &Command::OutboxConfirm { numbers }), Ok(Response::Done));
}

#[test]
fn an_account_with_all_its_namespaces_leaves_others_theirs() {
    let mut core = namespaces();
    let refused = (0..1_000).find_map(|call| {
        let refused = create(&mut core, BUSY, call).err();
        confirm_all(&mut core);
        refused
    });
    assert_eq!(refused.and_then(|refusal| refusal.limit()), Some(&limit::NAMESPACES));
    assert!(create(&mut core, QUIET, 2_000).is_ok());
}

#[test]
fn an_account_whose_changes_are_not_confirmed_is_refused_further_ones_and_others_are_not() {
    let max = Bounds::tiny().pending_messages_per_account as u64;
    let mut core = namespaces();
    for call in 0..max {
        assert!(create(&mut core, BUSY, call).is_ok());
    }
    let refusal = create(&mut core, BUSY, max);
    let refusal = refusal.expect_err("other shards have confirmed nothing");
    assert!(matches!(refusal, CommandError::Busy(_)), "{refusal:?}");
    assert_eq!(refusal.reached(), Some(limit::Reached { limit: &limit::PENDING_CHANGES, max }));
    let command = NamespacesCommand::Delete { account: BUSY, name: "n0".into(), incarnation: None };
    assert!(matches!(run(&mut core, command), Err(CommandError::Busy(_))));
    assert!(create(&mut core, BUSY, max - 1).is_ok(), "a repeat needs no message");
    assert!(create(&mut core, QUIET, max + 1).is_ok());
    confirm_all(&mut core);
    assert!(create(&mut core, BUSY, max).is_ok());
}

#[test]
fn a_repeat_is_answered_as_the_first_call_however_much_others_create() {
    let mut core = namespaces();
    let first = create(&mut core, QUIET, 1_000);
    delete(&mut core, QUIET, 1_000);
    for call in 0..10 {
        assert!(create(&mut core, BUSY, call).is_ok());
        delete(&mut core, BUSY, call);
        confirm_all(&mut core);
    }
    assert_eq!(create(&mut core, QUIET, 1_000), first);
    let again = create(&mut core, BUSY, 0);
    assert!(again.is_ok(), "its own was forgotten, so it creates another");
    let query = Query::Namespace { account: BUSY, name: "n0".into() };
    assert_eq!(core.query(0, &query).outcome, again);
}

#[test]
fn the_same_request_id_of_two_accounts_names_two_creations() {
    let mut core = namespaces();
    let (one, other) = (create(&mut core, BUSY, 1), create(&mut core, QUIET, 1));
    assert_ne!(one, other);
    assert_eq!((create(&mut core, BUSY, 1), create(&mut core, QUIET, 1)), (one, other));
}

fn accounts_shard() -> ShardState {
    let mut core = ShardState::with_bounds(Application::Accounts, "accounts_00", Bounds::tiny());
    for account in [BUSY, QUIET] {
        let email = format!("{account}@example.com");
        assert!(apply(&mut core, &accounts::create(account.0, account.0, &email)).is_ok());
    }
    core
}

#[test]
fn a_deleted_key_stays_deleted_however_many_keys_others_delete() {
    let mut core = accounts_shard();
    let create_and_delete = |core: &mut ShardState, id: &str, account: AccountId| {
        assert!(apply(core, &accounts::create_key(id, account.0)).is_ok());
        assert_eq!(apply(core, &accounts::delete_key(id, account.0)), Ok(Response::Done));
    };
    create_and_delete(&mut core, "quiet", QUIET);
    for number in 0..10 {
        create_and_delete(&mut core, &format!("k{number}"), BUSY);
    }
    assert_eq!(apply(&mut core, &accounts::create_key("quiet", QUIET.0)), Err(CommandError::ApiKeyNotFound));
    assert_eq!(apply(&mut core, &accounts::create_key("k9", BUSY.0)), Err(CommandError::ApiKeyNotFound));
    let chunks = core.snapshot();
    let mut restored =
        ShardState::restore_with_bounds(Application::Accounts, "accounts_00", &chunks, Bounds::tiny()).unwrap();
    assert_eq!(apply(&mut restored, &accounts::create_key("quiet", QUIET.0)), Err(CommandError::ApiKeyNotFound));
}

fn audited(core: &mut ShardState, call: &str, command: Command) {
    let audited = Audited { actor: Actor::Operator, request_id: call.to_owned(), command: Box::new(command) };
    assert!(apply(core, &Command::Audited(audited)).is_ok());
}

fn audited_calls(core: &ShardState, account: u64) -> Vec<String> {
    let query = Query::Audit { account: Some(AccountId(account)), before: None, limit: 100 };
    match core.query(0, &query).outcome {
        Ok(Response::AuditRecords { records, .. }) => records.into_iter().map(|record| record.request_id).collect(),
        other => panic!("not a page of the audit log: {other:?}"),
    }
}

#[test]
fn a_full_audit_log_forgets_a_record_of_the_account_with_the_most() {
    let bounds = Bounds::tiny();
    assert_eq!((bounds.audit_records, bounds.audit_records_per_account), (5, 3));
    let mut core = ShardState::with_bounds(Application::Accounts, "accounts_00", bounds);
    let account = |id: u64| accounts::create(id, id, &format!("{id}@example.com"));
    audited(&mut core, "one", account(1));
    audited(&mut core, "one key", accounts::create_key("k1", 1));
    audited(&mut core, "two", account(2));
    audited(&mut core, "two key", accounts::create_key("k2", 2));
    audited(&mut core, "two keys", accounts::create_key("k3", 2));
    audited(&mut core, "three", account(3));
    assert_eq!(audited_calls(&core, 1), ["one key", "one"], "the oldest of all stays");
    assert_eq!(audited_calls(&core, 2), ["two keys", "two key"]);
    assert_eq!(audited_calls(&core, 3), ["three"]);
}
