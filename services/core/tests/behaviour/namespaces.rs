//! Namespaces, their incarnations, and what their locks shards are told.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    AccountId, AccountMessage, Command, CommandError, Incarnation, Limits, LocksCommand, Namespace, NamespaceMessage,
    NamespacesCommand, Query, Reply, Response, shard_key,
};

use crate::support::{ACCOUNT, at, request_id};

pub(crate) fn open_account(number: u64, max_number_of_namespaces: u32, limits: Limits) -> Command {
    let message = AccountMessage::open(ACCOUNT, max_number_of_namespaces, limits);
    Command::Namespaces(NamespacesCommand::Deliver { source: "accounts_00".into(), number, message })
}

pub(crate) fn purge_account(number: u64) -> Command {
    let message = AccountMessage::Purge { account: ACCOUNT };
    Command::Namespaces(NamespacesCommand::Deliver { source: "accounts_00".into(), number, message })
}

pub(crate) fn create(number: u64, name: &str) -> Command {
    Command::Namespaces(NamespacesCommand::Create {
        request_id: request_id(number),
        account: ACCOUNT,
        name: name.to_owned(),
        description: "of the tests".to_owned(),
    })
}

pub(crate) fn delete(name: &str, incarnation: Option<Incarnation>) -> Command {
    Command::Namespaces(NamespacesCommand::Delete { account: ACCOUNT, name: name.to_owned(), incarnation })
}

fn update(name: &str, description: Option<&str>) -> Command {
    let description = description.map(str::to_owned);
    Command::Namespaces(NamespacesCommand::Update { account: ACCOUNT, name: name.to_owned(), description })
}

pub(crate) fn core() -> ShardState {
    let mut core = ShardState::new(Application::Namespaces, "namespaces_00");
    assert_eq!(run(&mut core, &open_account(1, 3, Limits::default())).outcome, Ok(Response::Done));
    core
}

pub(crate) fn run(core: &mut ShardState, command: &Command) -> Reply {
    let context = at(core.clock_ms() + 1);
    core.advance(&context);
    core.apply(&context, command)
}

fn created(core: &mut ShardState, command: &Command) -> Namespace {
    match run(core, command).outcome {
        Ok(Response::Namespace(namespace)) => namespace,
        other => panic!("not a namespace: {other:?}"),
    }
}

/// What the locks shards are told, in order.
fn sent_messages(core: &ShardState) -> Vec<(u32, NamespaceMessage)> {
    let messages = core.outbox().messages().iter();
    messages
        .map(|(number, outgoing)| match &outgoing.command {
            Command::Locks(LocksCommand::Deliver { source, number: inner, message }) => {
                assert_eq!((source.as_str(), inner), ("namespaces_00", number));
                assert_eq!(outgoing.application, Application::Locks);
                (outgoing.shard_key, message.clone())
            }
            other => panic!("not for a locks shard: {other:?}"),
        })
        .collect()
}

fn get(core: &ShardState, name: &str) -> Result<Response, CommandError> {
    core.query(0, &Query::Namespace { account: ACCOUNT, name: name.to_owned() }).outcome
}

#[test]
fn a_namespace_is_created_and_its_locks_shard_is_told() {
    let mut core = core();
    let namespace = created(&mut core, &create(1, "orders"));
    assert_eq!((namespace.name.as_str(), namespace.description.as_str()), ("orders", "of the tests"));
    assert_eq!(namespace.created_at_ms, at(2).wall_ms);
    assert_eq!(get(&core, "orders"), Ok(Response::Namespace(namespace.clone())));
    let reference = crate::support::namespace("orders", namespace.incarnation.0);
    let message = NamespaceMessage::Open { namespace: reference, limits: Limits::default() };
    assert_eq!(sent_messages(&core), [(shard_key(Application::Locks, ACCOUNT.0, "orders"), message)]);
}

#[test]
fn a_namespace_is_refused_when_its_name_is_taken_its_account_unknown_or_the_quota_reached() {
    let mut core = core();
    created(&mut core, &create(1, "a"));
    assert_eq!(run(&mut core, &create(2, "a")).outcome, Err(CommandError::NamespaceTaken("a".into())));
    created(&mut core, &create(3, "b"));
    created(&mut core, &create(4, "c"));
    let refusal = run(&mut core, &create(5, "d")).outcome.unwrap_err();
    assert!(matches!(&refusal, CommandError::QuotaExceeded { max: 3, .. }), "{refusal}");
    run(&mut core, &delete("b", None));
    created(&mut core, &create(6, "d"));
    let Command::Namespaces(NamespacesCommand::Create { request_id, name, description, .. }) = create(7, "a") else {
        unreachable!()
    };
    let account = AccountId(99);
    let command = Command::Namespaces(NamespacesCommand::Create { request_id, account, name, description });
    assert_eq!(run(&mut core, &command).outcome, Err(CommandError::AccountNotFound(account)));
}

#[test]
fn a_description_beyond_the_limit_is_refused() {
    let mut core = core();
    run(&mut core, &open_account(2, 3, Limits { max_description_bytes: 12, ..Limits::default() }));
    created(&mut core, &create(1, "a"));
    assert!(matches!(
        run(&mut core, &update("a", Some("thirteen char"))).outcome,
        Err(CommandError::QuotaExceeded { .. })
    ));
    assert_eq!(created(&mut core, &update("a", Some("short"))).description, "short");
}

#[test]
fn a_repeated_creation_answers_as_the_first_did_and_never_brings_a_namespace_back() {
    let mut core = core();
    let first = created(&mut core, &create(1, "a"));
    assert_eq!(created(&mut core, &create(1, "a")), first);
    run(&mut core, &delete("a", None));
    assert_eq!(created(&mut core, &create(1, "a")), first);
    assert_eq!(get(&core, "a"), Err(CommandError::NamespaceNotFound));
}

#[test]
fn an_update_changes_the_description_and_nothing_else() {
    let mut core = core();
    let first = created(&mut core, &create(1, "a"));
    let expected = Namespace { description: "new".into(), updated_at_ms: at(3).wall_ms, ..first };
    assert_eq!(created(&mut core, &update("a", Some("new"))), expected);
    assert_eq!(created(&mut core, &update("a", None)), expected);
    assert_eq!(run(&mut core, &update("b", None)).outcome, Err(CommandError::NamespaceNotFound));
}

#[test]
fn a_namespace_that_is_made_again_is_another_and_is_opened_after_the_purge_of_the_first() {
    let mut core = core();
    let first = created(&mut core, &create(1, "a"));
    assert_eq!(run(&mut core, &delete("a", None)).outcome, Ok(Response::Done));
    assert_eq!(get(&core, "a"), Err(CommandError::NamespaceNotFound));
    let second = created(&mut core, &create(2, "a"));
    assert!(second.incarnation > first.incarnation);
    let told: Vec<_> = sent_messages(&core).into_iter().map(|(_, message)| message).collect();
    let reference = |namespace: &Namespace| crate::support::namespace("a", namespace.incarnation.0);
    let expected = [
        NamespaceMessage::Open { namespace: reference(&first), limits: Limits::default() },
        NamespaceMessage::Purge { namespace: reference(&first) },
        NamespaceMessage::Open { namespace: reference(&second), limits: Limits::default() },
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_deletion_of_one_incarnation_leaves_another_alone() {
    let mut core = core();
    let first = created(&mut core, &create(1, "a"));
    run(&mut core, &delete("a", Some(first.incarnation)));
    let second = created(&mut core, &create(2, "a"));
    let stale = run(&mut core, &delete("a", Some(first.incarnation)));
    assert_eq!(stale.outcome, Err(CommandError::NamespaceNotFound));
    assert_eq!(run(&mut core, &delete("a", Some(second.incarnation))).outcome, Ok(Response::Done));
    assert_eq!(run(&mut core, &delete("a", None)).outcome, Err(CommandError::NamespaceNotFound));
}

#[test]
fn namespaces_are_listed_by_name_page_by_page() {
    let mut core = core();
    for (number, name) in ["c", "a", "b"].iter().enumerate() {
        created(&mut core, &create(number as u64, name));
    }
    let page = |after: Option<&str>, limit| {
        let query = Query::Namespaces { account: ACCOUNT, after: after.map(str::to_owned), limit };
        match core.query(0, &query).outcome {
            Ok(Response::Namespaces { namespaces, more }) => {
                (namespaces.into_iter().map(|namespace| namespace.name).collect::<Vec<_>>(), more)
            }
            other => panic!("not namespaces: {other:?}"),
        }
    };
    assert_eq!(page(None, 2), (vec!["a".into(), "b".into()], true));
    assert_eq!(page(Some("b"), 2), (vec!["c".into()], false));
    let unknown = Query::Namespaces { account: AccountId(99), after: None, limit: 1 };
    assert_eq!(core.query(0, &unknown).outcome, Err(CommandError::AccountNotFound(AccountId(99))));
}

#[test]
fn new_limits_of_an_account_reach_the_locks_shards_of_its_namespaces() {
    let mut core = core();
    let first = created(&mut core, &create(1, "a"));
    run(&mut core, &Command::OutboxConfirm { numbers: vec![1] });
    assert!(core.outbox().is_empty());
    run(&mut core, &open_account(2, 9, Limits::default()));
    assert!(core.outbox().is_empty(), "locks shards need not know of the number of namespaces");
    let limits = Limits { max_holds_per_namespace: 5, ..Limits::default() };
    run(&mut core, &open_account(3, 9, limits.clone()));
    let namespace = crate::support::namespace("a", first.incarnation.0);
    assert_eq!(
        sent_messages(&core),
        [(shard_key(Application::Locks, ACCOUNT.0, "a"), NamespaceMessage::Open { namespace, limits })]
    );
}

#[test]
fn an_account_that_is_purged_takes_its_namespaces_along() {
    let mut core = core();
    created(&mut core, &create(1, "a"));
    created(&mut core, &create(2, "b"));
    run(&mut core, &Command::OutboxConfirm { numbers: vec![1, 2] });
    assert_eq!(run(&mut core, &purge_account(2)).outcome, Ok(Response::Done));
    assert!(sent_messages(&core).iter().all(|(_, message)| matches!(message, NamespaceMessage::Purge { .. })));
    assert_eq!(sent_messages(&core).len(), 2);
    assert_eq!(get(&core, "a"), Err(CommandError::NamespaceNotFound));
    assert_eq!(run(&mut core, &create(3, "c")).outcome, Err(CommandError::AccountNotFound(ACCOUNT)));
}

#[test]
fn a_repeated_message_does_nothing_again() {
    let mut core = core();
    created(&mut core, &create(1, "a"));
    run(&mut core, &purge_account(2));
    run(&mut core, &open_account(3, 3, Limits::default()));
    created(&mut core, &create(2, "a"));
    let before = (core.outbox().messages().len(), core.revision());
    assert_eq!(run(&mut core, &purge_account(2)).outcome, Ok(Response::Done));
    assert_eq!((core.outbox().messages().len(), core.revision()), before);
    assert!(get(&core, "a").is_ok());
}
