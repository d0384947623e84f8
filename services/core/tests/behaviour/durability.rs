//! The durability of a namespace: where it is kept, how it travels, and what a locks shard refuses for it.

use holdfast_core::Application;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    Acquire, BarrierCommand, Command, CommandError, CreateLatch, Durability, EntryContext, LatchCommand, LatchIds,
    Limits, LocksCommand, Mode, Namespace, NamespaceMessage, NamespaceRef, NamespacesCommand, OpenSession, Owner, Path,
    Query, Response, Rules, codec,
};

use crate::support::{ACCOUNT, Shard, at, lock_request, namespace, orders, process, request_id};
use crate::wait_requests::open_command;
use crate::{namespaces, primitives};

/// A namespace whose lock table is not in the log.
pub(crate) fn soft() -> NamespaceRef {
    namespace("soft", 2)
}

fn create(number: u64, name: &str, durability: Durability) -> Command {
    let (name, description) = (name.to_owned(), "of the tests".to_owned());
    Command::Namespaces(NamespacesCommand::create(request_id(number), ACCOUNT, name, description, durability))
}

fn run(core: &mut ShardState, command: &Command) -> Result<Response, CommandError> {
    let context = EntryContext { rules: Rules::TWO, ..at(core.clock_ms() + 1) };
    core.advance(&context);
    core.apply(&context, command).outcome
}

/// The namespace of a response after it went over the wire.
fn received(outcome: Result<Response, CommandError>) -> Namespace {
    let response: Response = codec::decode(&codec::encode(&outcome.unwrap())).unwrap();
    response.into_namespace().unwrap()
}

fn last_message(core: &ShardState) -> NamespaceMessage {
    match core.outbox().messages().values().last().map(|message| message.command.clone()) {
        Some(Command::Locks(LocksCommand::Deliver { message, .. })) => message,
        other => panic!("not for a locks shard: {other:?}"),
    }
}

/// A shard with `orders` and `soft`.
pub(crate) fn session_durable() -> Shard {
    with_soft(Shard::new())
}

/// A shard with `soft`.
pub(crate) fn with_soft(mut shard: Shard) -> Shard {
    shard.rules = Rules::TWO;
    let message = NamespaceMessage::open_durable(soft(), Limits::default(), Durability::Session);
    let deliver = LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message };
    assert_eq!(shard.apply(&Command::Locks(deliver)).outcome, Ok(Response::Done));
    shard
}

#[test]
fn a_durability_is_remembered_by_all_that_know_the_namespace() {
    let mut core = namespaces::core();
    let made = received(run(&mut core, &create(1, "soft", Durability::Session)));
    assert_eq!(made.durability, Durability::Session);
    assert_eq!(received(run(&mut core, &create(1, "soft", Durability::Session))), made, "a repeat");
    let full = received(run(&mut core, &create(2, "full", Durability::Full)));
    assert_eq!(full.durability, Durability::Full);

    core = ShardState::restore(Application::Namespaces, "namespaces_00", core.snapshot()).unwrap();
    assert_eq!(received(run(&mut core, &create(1, "soft", Durability::Session))), made, "a repeat after a restore");
    let account = ACCOUNT;
    let get = Query::Namespace { account, name: "soft".into() };
    assert_eq!(received(core.query(0, &get).outcome), made);
    let page = core.query(0, &Query::Namespaces { account, after: None, limit: 5 }).outcome.unwrap();
    assert_eq!(page.into_namespaces(), Ok((vec![full, made.clone()], false)));
    let (name, description) = ("soft".to_owned(), Some("new".to_owned()));
    let changed =
        received(run(&mut core, &Command::Namespaces(NamespacesCommand::Update { account, name, description })));
    assert_eq!((changed.description.as_str(), changed.durability), ("new", Durability::Session));
}

#[test]
fn the_locks_shard_is_told_and_told_again() {
    let mut core = namespaces::core();
    let made = received(run(&mut core, &create(1, "soft", Durability::Session)));
    let (namespace, durability) = (namespace("soft", made.incarnation.0), Durability::Session);
    let opened = |limits| NamespaceMessage::Open3 { namespace: namespace.clone(), limits, durability };
    assert_eq!(last_message(&core), opened(Limits::default()));
    let limits = Limits { max_holds_per_namespace: 9, ..Limits::default() };
    run(&mut core, &namespaces::open_account(2, 3, limits.clone())).unwrap();
    assert_eq!(last_message(&core), opened(limits));
}

#[test]
fn commands_and_messages_with_a_durability_need_rules_2() {
    assert_eq!(create(1, "a", Durability::Full).min_rules(), Rules::ONE);
    assert_eq!(create(1, "a", Durability::Session).min_rules(), Rules::TWO);
    let open = |durability| {
        let message = NamespaceMessage::open_durable(orders(), Limits::default(), durability);
        LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message }
    };
    assert_eq!(open(Durability::Full).min_rules(), Rules::ONE);
    assert_eq!(open(Durability::Session).min_rules(), Rules::TWO);
}

/// A grant by the log would be one that the leader's table does not know of.
#[test]
fn the_log_grants_nothing_in_a_table_that_it_does_not_have() {
    let shard = session_durable();
    for mut shard in [shard.restored(), shard] {
        refused(shard.query(&Query::Lock { namespace: soft(), path: Path::flat("l") }), "namespace");
        refused(shard.query(&Query::Holds { namespace: soft(), owner: process("p"), claims: Vec::new() }), "namespace");
        let latch = CreateLatch { namespace: soft(), ..primitives::create("l", 2, LatchIds::Named) };
        assert!(primitives::latch(&mut shard, LatchCommand::Create(latch)).is_ok(), "latches are in the log");
        assert!(shard.granted(lock_request("p", Mode::Write)) > 0, "in another namespace");
        shard.core.verify();
    }
}

/// Whoever is refused is told by which field, and why.
#[test]
fn what_such_a_namespace_does_not_have_is_refused_by_its_field() {
    let mut shard = session_durable();
    let by_process = Acquire { namespace: soft(), ..lock_request("p", Mode::Write) };
    let owner = Owner::Session { session_id: "se_1".into(), holder: None };
    let by_session = Acquire { owner, ..by_process.clone() };
    for (command, field) in [
        (LocksCommand::Acquire(by_process), "process_id"),
        (LocksCommand::Acquire(by_session), "session_id"),
        (LocksCommand::Delete { namespace: soft(), path: Path::flat("l") }, "path"),
        (LocksCommand::OpenSession(OpenSession { namespace: soft(), ..open_command("se_1", false, 1) }), "keeps_table"),
        (LocksCommand::Barrier(BarrierCommand::Delete { namespace: soft(), path: Path::flat("b") }), "namespace"),
    ] {
        refused(shard.apply(&Command::Locks(command)).outcome, field);
    }
}

fn refused(outcome: Result<Response, CommandError>, field: &str) {
    let names = |text: &str| text.starts_with(&format!("{field}: "));
    assert!(matches!(&outcome, Err(CommandError::InvalidArgument(text)) if names(text)), "{outcome:?}");
}
