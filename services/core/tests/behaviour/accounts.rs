//! Accounts and API keys.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    Account, AccountChange, AccountId, AccountMessage, AccountStatus, AccountsCommand, ApiKey, Bounds, Command,
    CommandError, EntryContext, Limits, NamespacesCommand, Query, Response, Rules, Scopes, shard_key,
};

use crate::support::{at, request_id};

pub(crate) fn create(number: u64, id: u64, email: &str) -> Command {
    Command::Accounts(AccountsCommand::Create {
        request_id: request_id(number),
        id: AccountId(id),
        email: email.to_owned(),
        full_name: "Ann Example".to_owned(),
        max_number_of_namespaces: 25,
        limits: Limits::default(),
    })
}

pub(crate) fn key(id: &str, account: u64) -> ApiKey {
    ApiKey {
        key_id: id.to_owned(),
        account: AccountId(account),
        secret_hash: [7; 32],
        description: "for the tests".to_owned(),
        scopes: Scopes::ALL,
        namespaces: None,
        expires_at_ms: None,
        created_at_ms: 0,
    }
}

pub(crate) fn create_key(id: &str, account: u64) -> Command {
    Command::Accounts(AccountsCommand::CreateApiKey { key: key(id, account) })
}

pub(crate) fn delete_key(id: &str, account: u64) -> Command {
    Command::Accounts(AccountsCommand::DeleteApiKey { account: AccountId(account), key_id: id.to_owned() })
}

pub(crate) fn delete(id: u64) -> Command {
    Command::Accounts(AccountsCommand::Delete { id: AccountId(id) })
}

fn update(id: u64) -> AccountsCommand {
    AccountsCommand::Update {
        id: AccountId(id),
        full_name: None,
        status: None,
        max_number_of_namespaces: None,
        limits: None,
    }
}

fn core() -> ShardState {
    ShardState::new(Application::Accounts, "accounts_00")
}

fn run(core: &mut ShardState, command: &Command) -> Result<Response, CommandError> {
    let context = at(core.clock_ms() + 1);
    core.advance(&context);
    core.apply(&context, command).outcome
}

fn account(core: &mut ShardState, command: &Command) -> Account {
    match run(core, command) {
        Ok(Response::Account(account)) => account,
        other => panic!("not an account: {other:?}"),
    }
}

fn changes(core: &ShardState, after: u64) -> (Vec<AccountChange>, u64) {
    match core.query(0, &Query::AccountChanges { after }).outcome {
        Ok(Response::AccountChanges { changes, now }) => (changes, now),
        other => panic!("not changes: {other:?}"),
    }
}

#[test]
fn an_account_is_created_with_its_email_trimmed_and_lower_cased() {
    let mut core = core();
    let made = account(&mut core, &create(1, 5, "  Ann@Example.COM "));
    assert_eq!(made.email, "ann@example.com");
    assert_eq!((made.id, made.status), (AccountId(5), AccountStatus::Active));
    assert_eq!((made.created_at_ms, made.updated_at_ms), (at(1).wall_ms, at(1).wall_ms));
    assert_eq!(made.revision, core.revision());
    assert_eq!(core.query(0, &Query::Account { id: AccountId(5) }).outcome, Ok(Response::Account(made)));
}

#[test]
fn by_rules_2_an_email_is_kept_as_the_gateway_sends_it() {
    let mut core = core();
    let context = EntryContext { rules: Rules::TWO, ..at(1) };
    core.advance(&context);
    match core.apply(&context, &create(1, 5, "Ann@Example.com")).outcome {
        Ok(Response::Account(made)) => assert_eq!(made.email, "Ann@Example.com"),
        other => panic!("not an account: {other:?}"),
    }
}

#[test]
fn a_taken_email_is_refused_in_any_spelling_and_free_again_after_the_account_is_deleted() {
    let mut core = core();
    account(&mut core, &create(1, 5, "ann@example.com"));
    let refusal = run(&mut core, &create(2, 6, "ANN@example.com\n"));
    assert_eq!(refusal, Err(CommandError::EmailTaken("ann@example.com".into())));
    run(&mut core, &delete(5)).unwrap();
    account(&mut core, &create(3, 6, "ann@example.com"));
}

#[test]
fn a_taken_id_is_refused_so_that_another_is_drawn() {
    let mut core = core();
    account(&mut core, &create(1, 5, "ann@example.com"));
    assert_eq!(run(&mut core, &create(2, 5, "bob@example.com")), Err(CommandError::IdTaken));
}

#[test]
fn a_repeated_creation_answers_as_the_first_did_and_never_brings_an_account_back() {
    let mut core = core();
    let first = account(&mut core, &create(1, 5, "ann@example.com"));
    let revision = core.revision();
    assert_eq!(account(&mut core, &create(1, 99, "ann@example.com")), first);
    assert_eq!(core.revision(), revision);
    run(&mut core, &delete(5)).unwrap();
    assert_eq!(account(&mut core, &create(1, 5, "ann@example.com")), first);
    assert_eq!(
        core.query(0, &Query::Account { id: AccountId(5) }).outcome,
        Err(CommandError::AccountNotFound(AccountId(5)))
    );
}

#[test]
fn an_update_changes_what_is_given_and_leaves_the_rest() {
    let mut core = core();
    let before = account(&mut core, &create(1, 5, "ann@example.com"));
    let AccountsCommand::Update { id, max_number_of_namespaces, limits, .. } = update(5) else { unreachable!() };
    let command = AccountsCommand::Update {
        id,
        full_name: Some("Ann B".into()),
        status: Some(AccountStatus::Suspended),
        max_number_of_namespaces,
        limits,
    };
    let after = account(&mut core, &Command::Accounts(command));
    let expected = Account {
        full_name: "Ann B".into(),
        status: AccountStatus::Suspended,
        updated_at_ms: at(2).wall_ms,
        revision: before.revision + 1,
        ..before
    };
    assert_eq!(after, expected);
    assert_eq!(account(&mut core, &Command::Accounts(update(5))), expected, "nothing given, nothing changed");
    assert_eq!(run(&mut core, &Command::Accounts(update(6))), Err(CommandError::AccountNotFound(AccountId(6))));
}

#[test]
fn accounts_are_listed_by_id_page_by_page() {
    let mut core = core();
    for id in [3, 1, 2] {
        account(&mut core, &create(id, id, &format!("{id}@example.com")));
    }
    let page = |after: Option<u64>, limit| match core.query(0, &Query::Accounts { after: after.map(AccountId), limit })
    {
        holdfast_core::Reply { outcome: Ok(Response::Accounts { accounts, more }), .. } => {
            (accounts.iter().map(|account| account.id.0).collect::<Vec<_>>(), more)
        }
        other => panic!("not accounts: {other:?}"),
    };
    assert_eq!(page(None, 2), (vec![1, 2], true));
    assert_eq!(page(Some(2), 2), (vec![3], false));
    assert_eq!(page(Some(3), 2), (vec![], false));
}

#[test]
fn keys_are_found_by_id_and_listed_in_order_of_creation() {
    let mut core = core();
    account(&mut core, &create(1, 5, "ann@example.com"));
    for id in ["zz", "aa", "mm"] {
        run(&mut core, &create_key(id, 5)).unwrap();
    }
    let found = core.query(0, &Query::ApiKey { key_id: "aa".into() }).outcome;
    let expected = ApiKey { created_at_ms: at(3).wall_ms, ..key("aa", 5) };
    assert_eq!(found, Ok(Response::ApiKey(expected)));
    let Ok(Response::ApiKeys(keys)) = core.query(0, &Query::ApiKeys { account: AccountId(5) }).outcome else {
        panic!("not keys")
    };
    assert_eq!(keys.iter().map(|key| key.key_id.as_str()).collect::<Vec<_>>(), ["zz", "aa", "mm"]);
    assert_eq!(core.query(0, &Query::ApiKey { key_id: "bb".into() }).outcome, Err(CommandError::ApiKeyNotFound));
}

#[test]
fn a_repeated_key_answers_as_the_first_did_and_a_different_one_of_the_same_id_is_refused() {
    let mut core = core();
    account(&mut core, &create(1, 5, "ann@example.com"));
    account(&mut core, &create(2, 6, "bob@example.com"));
    let first = run(&mut core, &create_key("aa", 5));
    assert_eq!(run(&mut core, &create_key("aa", 5)), first);
    assert_eq!(run(&mut core, &create_key("aa", 6)), Err(CommandError::IdTaken));
    let other_secret = ApiKey { secret_hash: [8; 32], ..key("aa", 5) };
    let command = Command::Accounts(AccountsCommand::CreateApiKey { key: other_secret });
    assert_eq!(run(&mut core, &command), Err(CommandError::IdTaken));
    assert_eq!(run(&mut core, &create_key("bb", 9)), Err(CommandError::AccountNotFound(AccountId(9))));
}

#[test]
fn the_latest_use_of_a_key_is_kept_in_snapshots_too_and_is_no_change_to_follow() {
    let mut core = core();
    run(&mut core, &create(1, 5, "a@b.c")).unwrap();
    run(&mut core, &create(2, 6, "b@b.c")).unwrap();
    for (id, account) in [("k2", 5), ("k1", 5), ("k3", 5), ("other", 6)] {
        run(&mut core, &create_key(id, account)).unwrap();
    }
    let (_, before) = changes(&core, 0);
    let note = |used: &[(&str, u64)]| {
        let used = used.iter().map(|(id, used_ms)| ((*id).to_owned(), *used_ms)).collect();
        Command::Accounts(AccountsCommand::RecordKeyUse { used })
    };
    assert_eq!(run(&mut core, &note(&[("k1", 30), ("k2", 20), ("unknown", 10), ("other", 5)])), Ok(Response::Done));
    assert_eq!(run(&mut core, &note(&[("k1", 29), ("k2", 40)])), Ok(Response::Done));
    let used = |core: &ShardState, account| core.query(0, &Query::KeyUse { account: AccountId(account) }).outcome;
    let of_five = Response::KeyUse(vec![("k1".to_owned(), 30), ("k2".to_owned(), 40)]);
    assert_eq!(used(&core, 5), Ok(of_five.clone()));
    assert_eq!(changes(&core, before), (Vec::new(), before));
    let restored = ShardState::restore(Application::Accounts, "accounts_00", core.snapshot()).unwrap();
    assert_eq!(used(&restored, 5), Ok(of_five));
    run(&mut core, &delete_key("k1", 5)).unwrap();
    assert_eq!(used(&core, 5), Ok(Response::KeyUse(vec![("k2".to_owned(), 40)])));
    assert_eq!(used(&core, 7), Err(CommandError::AccountNotFound(AccountId(7))));
}

#[test]
fn a_repeated_creation_of_a_deleted_key_does_not_make_it_valid_again() {
    let mut core = core();
    account(&mut core, &create(1, 1, "a@example.com"));
    run(&mut core, &create_key("k", 1)).unwrap();
    run(&mut core, &delete_key("k", 1)).unwrap();
    assert_eq!(run(&mut core, &create_key("k", 1)), Err(CommandError::ApiKeyNotFound));
    assert_eq!(core.query(0, &Query::ApiKey { key_id: "k".into() }).outcome, Err(CommandError::ApiKeyNotFound));
}

#[test]
fn an_account_has_a_limited_number_of_keys_and_another_its_own() {
    let mut core = core();
    account(&mut core, &create(1, 5, "ann@example.com"));
    for number in 0..Bounds::of(Rules::ONE).api_keys_per_account {
        run(&mut core, &create_key(&format!("k{number}"), 5)).unwrap();
    }
    assert!(matches!(run(&mut core, &create_key("more", 5)), Err(CommandError::QuotaExceeded { .. })));
    account(&mut core, &create(2, 6, "bob@example.com"));
    run(&mut core, &create_key("another account's", 6)).unwrap();
    assert!(run(&mut core, &create_key("k0", 5)).is_ok(), "a repeat makes no key");
    run(&mut core, &delete_key("k0", 5)).unwrap();
    run(&mut core, &create_key("more", 5)).unwrap();
}

#[test]
fn another_accounts_key_looks_like_an_unknown_one_when_it_is_deleted() {
    let mut core = core();
    account(&mut core, &create(1, 5, "ann@example.com"));
    account(&mut core, &create(2, 6, "bob@example.com"));
    run(&mut core, &create_key("aa", 5)).unwrap();
    assert_eq!(run(&mut core, &delete_key("aa", 6)), Err(CommandError::ApiKeyNotFound));
    assert_eq!(run(&mut core, &delete_key("bb", 5)), Err(CommandError::ApiKeyNotFound));
    assert_eq!(run(&mut core, &delete_key("aa", 5)), Ok(Response::Done));
    assert_eq!(run(&mut core, &delete_key("aa", 5)), Err(CommandError::ApiKeyNotFound));
}

#[test]
fn deleting_an_account_deletes_its_keys_and_tells_who_follows() {
    let mut core = core();
    account(&mut core, &create(1, 5, "ann@example.com"));
    account(&mut core, &create(2, 6, "bob@example.com"));
    run(&mut core, &create_key("aa", 5)).unwrap();
    run(&mut core, &create_key("bb", 5)).unwrap();
    run(&mut core, &create_key("cc", 6)).unwrap();
    let (_, before) = changes(&core, 0);
    assert_eq!(run(&mut core, &delete(5)), Ok(Response::Done));
    let expected =
        [AccountChange::ApiKey("aa".into()), AccountChange::ApiKey("bb".into()), AccountChange::Account(AccountId(5))];
    assert_eq!(changes(&core, before), (expected.to_vec(), core.revision()));
    assert_eq!(core.query(0, &Query::ApiKey { key_id: "aa".into() }).outcome, Err(CommandError::ApiKeyNotFound));
    assert!(core.query(0, &Query::ApiKey { key_id: "cc".into() }).outcome.is_ok());
    let keys = core.query(0, &Query::ApiKeys { account: AccountId(5) }).outcome;
    assert_eq!(keys, Err(CommandError::AccountNotFound(AccountId(5))));
    assert_eq!(run(&mut core, &delete(5)), Err(CommandError::AccountNotFound(AccountId(5))));
}

#[test]
fn from_rules_2_on_a_change_of_a_key_names_its_account() {
    let mut core = core();
    let mut run = |command: &Command| {
        let context = EntryContext { rules: Rules::TWO, ..at(core.clock_ms() + 1) };
        core.advance(&context);
        core.apply(&context, command).outcome.unwrap();
    };
    [create(1, 5, "ann@example.com"), create_key("aa", 5), delete_key("aa", 5)].iter().for_each(&mut run);
    [create_key("bb", 5), delete(5)].iter().for_each(&mut run);
    let account = AccountId(5);
    let changed = |key_id: &str| AccountChange::KeyOfAccount { account, key_id: key_id.to_owned() };
    let of_account = || AccountChange::Account(account);
    let expected = [of_account(), changed("aa"), changed("aa"), changed("bb"), changed("bb"), of_account()];
    let core = ShardState::restore(Application::Accounts, "accounts_00", core.snapshot()).unwrap();
    assert_eq!(changes(&core, 0), (expected.to_vec(), core.revision()));
}

#[test]
fn commands_and_queries_of_other_applications_are_refused() {
    let mut core = core();
    let command = crate::support::open(1, crate::support::orders(), Limits::default());
    assert!(matches!(run(&mut core, &command), Err(CommandError::Malformed(_))));
    let query = Query::Namespace { account: AccountId(1), name: "a".into() };
    assert!(matches!(core.query(0, &query).outcome, Err(CommandError::Malformed(_))));
}

/// What the account's namespaces shard is told, in order.
fn sent_messages(core: &ShardState) -> Vec<AccountMessage> {
    let messages = core.outbox().messages().values();
    messages
        .map(|outgoing| match &outgoing.command {
            Command::Namespaces(NamespacesCommand::Deliver { source, message, .. }) => {
                assert_eq!((source.as_str(), outgoing.application), ("accounts_00", Application::Namespaces));
                assert_eq!(outgoing.shard_key, shard_key(Application::Namespaces, 5, ""));
                message.clone()
            }
            other => panic!("not for a namespaces shard: {other:?}"),
        })
        .collect()
}

#[test]
fn namespaces_shards_are_told_of_what_concerns_them_and_the_answers_wait_for_them() {
    let mut core = core();
    let change = |status, max_number_of_namespaces, limits| {
        let (id, full_name) = (AccountId(5), None);
        Command::Accounts(AccountsCommand::Update { id, full_name, status, max_number_of_namespaces, limits })
    };
    let limits = Limits { max_path_depth: 3, ..Limits::default() };
    let commands = [
        (create(1, 5, "ann@example.com"), Some(1)),
        (create(1, 5, "ann@example.com"), Some(1)),
        (change(Some(AccountStatus::Suspended), None, None), None),
        (change(None, Some(7), None), Some(2)),
        (change(None, Some(7), None), Some(2)),
        (change(None, None, Some(limits.clone())), Some(3)),
        (delete(5), Some(4)),
    ];
    for (command, awaited) in commands {
        let reply = core.apply(&at(1), &command);
        assert!(reply.outcome.is_ok());
        assert_eq!(reply.awaits, awaited, "{command:?}");
    }
    let open = |max_number_of_namespaces, limits: &Limits| AccountMessage::Open {
        account: AccountId(5),
        max_number_of_namespaces,
        limits: limits.clone(),
    };
    let purge = AccountMessage::Purge { account: AccountId(5) };
    assert_eq!(
        sent_messages(&core),
        [open(25, &Limits::default()), open(7, &Limits::default()), open(7, &limits), purge]
    );
}
