//! Limits that came with rules 2: how they travel, and that whatever was written before them stays as it is.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    Account, AccountId, AccountMessage, AccountStatus, AccountsCommand, Command, CommandError, EntryContext, Limits,
    LocksCommand, NamespaceMessage, NamespacesCommand, Query, Response, Rules, codec,
};

use crate::support::{ACCOUNT, Shard, at, open, orders};
use crate::{accounts, namespaces};

fn limits() -> Limits {
    Limits { max_path_depth: 5, max_tangle: 3, max_event_bytes: 77, ..Limits::default() }
}

fn update(limits: Limits) -> Command {
    let (id, full_name, status, max_number_of_namespaces) = (AccountId(5), None, None, None);
    Command::Accounts(AccountsCommand::Update2 { id, full_name, status, max_number_of_namespaces, limits })
}

fn run(core: &mut ShardState, command: &Command) -> Result<Response, CommandError> {
    let context = EntryContext { rules: Rules::TWO, ..at(core.clock_ms() + 1) };
    core.advance(&context);
    core.apply(&context, command).outcome
}

fn sent_commands(core: &ShardState) -> Vec<Command> {
    core.outbox().messages().values().map(|message| message.command.clone()).collect()
}

/// What an account says of its limits after it went over the wire.
fn limits_of(core: &ShardState) -> Limits {
    match codec::decode(&codec::encode(&core.query(0, &Query::Account { id: AccountId(5) }).outcome.unwrap())) {
        Ok(Response::Account(Account { limits, .. })) => limits,
        other => panic!("not an account: {other:?}"),
    }
}

#[test]
fn later_limits_reach_the_locks_and_outlive_snapshots() {
    let mut core = ShardState::new(Application::Accounts, "accounts_00");
    run(&mut core, &accounts::create(1, 5, "ann@example.com")).unwrap();
    run(&mut core, &update(limits())).unwrap();
    core = ShardState::restore(Application::Accounts, "accounts_00", core.snapshot()).unwrap();
    assert_eq!(limits_of(&core), limits());
    let message = sent_commands(&core).pop().unwrap();
    let Command::Namespaces(NamespacesCommand::Deliver { message: AccountMessage::Open2 { .. }, .. }) = &message else {
        panic!("not all limits: {message:?}");
    };

    let mut core = ShardState::new(Application::Namespaces, "namespaces_00");
    run(&mut core, &namespaces::open_account(1, 3, limits())).unwrap();
    core = ShardState::restore(Application::Namespaces, "namespaces_00", core.snapshot()).unwrap();
    run(&mut core, &namespaces::create(1, "orders")).unwrap();
    let Some(Command::Locks(LocksCommand::Deliver { message, .. })) = sent_commands(&core).pop() else {
        panic!("nothing")
    };
    assert!(matches!(&message, NamespaceMessage::Open2 { limits: told, .. } if *told == limits()), "{message:?}");

    let shard = Shard::with_limits(limits());
    let plain = Shard::with_limits(limits().with_later_of(&Limits::default()));
    assert_ne!(shard.restored().core.snapshot(), plain.core.snapshot(), "they are in the snapshot");
    assert_eq!(shard.restored().core.snapshot(), shard.core.snapshot());
}

#[test]
fn a_change_that_does_not_name_them_leaves_later_limits_as_they_are() {
    let mut core = ShardState::new(Application::Accounts, "accounts_00");
    run(&mut core, &accounts::create(1, 5, "ann@example.com")).unwrap();
    run(&mut core, &update(limits())).unwrap();
    let (id, full_name, max_number_of_namespaces) = (AccountId(5), None, None);
    let first = Some(Limits { max_path_depth: 6, ..Limits::default() });
    let status = Some(AccountStatus::Suspended);
    let change = AccountsCommand::Update { id, full_name, status, max_number_of_namespaces, limits: first };
    run(&mut core, &Command::Accounts(change)).unwrap();
    assert_eq!(limits_of(&core), Limits { max_path_depth: 6, ..limits() });
}

#[test]
fn before_rules_2_nothing_with_later_limits_is_known() {
    let commands = [
        (Application::Accounts, update(limits())),
        (Application::Namespaces, namespaces::open_account(1, 3, limits())),
        (Application::Locks, open(1, orders(), limits())),
    ];
    for (application, command) in commands {
        assert_eq!(command.min_rules(), Rules::TWO);
        let mut core = ShardState::new(application, "s");
        let before = core.snapshot();
        let outcome = core.apply(&at(0), &command).outcome;
        assert!(matches!(outcome, Err(CommandError::Malformed(_))), "{outcome:?}");
        assert_eq!(core.snapshot(), before);
    }
}

#[test]
fn without_later_limits_everything_is_written_as_before() {
    let first = Limits { max_path_depth: 5, ..Limits::default() };
    assert_eq!(open(1, orders(), first.clone()).min_rules(), Rules::ONE);
    assert_eq!(namespaces::open_account(1, 3, first.clone()).min_rules(), Rules::ONE);
    let account = |limits| Account {
        id: ACCOUNT,
        email: "a@b.c".into(),
        full_name: "Ann".into(),
        max_number_of_namespaces: 3,
        limits,
        status: AccountStatus::Suspended,
        created_at_ms: 300,
        updated_at_ms: 301,
        revision: 2,
    };
    let bytes = |limits| hex::encode(codec::encode(&account(limits)));
    let before =
        "0107056140622e6303416e6e038008800840e807056480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e";
    assert_eq!(bytes(first), format!("{before}01ac02ad0202"));
    let later = "8008800840e807056480b89929c0cf24c0cf24e807c0cf24c0843da08d06a08d06a08d06904e";
    let later = format!("{later}808080800203e807800840a08d06904e4d904ee8078020808004808080203c78");
    // Those of latches, semaphores, pools, barriers and conditions.
    let later = format!("{later}904ea08d06c0843d904e904e904e904e80808020904ee807e80740904ee807e80710");
    assert_eq!(bytes(limits()), format!("{before}03{later}ac02ad0202"));
}
