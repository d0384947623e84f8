//! Rejects commands for which there is no memory, and changes that an account makes too often, before they are
//! proposed. Entries in the log are always applied.

use bytes::Bytes;
use holdfast_core::{Command, CommandError, LocksCommand, Reply, Response, codec};

use crate::machine::ShardMachine;

/// Admission result of a command.
pub(crate) enum Admission {
    /// Propose the command.
    Admitted(Bytes),
    /// Propose a batch without the commands that lack memory; their positions and errors follow.
    Partial(Bytes, Vec<(usize, CommandError)>),
    /// Don't propose; return this reply.
    Rejected(Bytes),
}

/// Checks whether there is memory for the state that a command creates, and whether the account may change something.
pub(crate) fn admit(machine: &ShardMachine, term: u64, bytes: Bytes) -> Admission {
    if !machine.is_under_pressure() && !machine.has_rated_changes() {
        return Admission::Admitted(bytes);
    }
    match codec::decode::<Command>(&bytes) {
        Ok(Command::Locks(LocksCommand::Batch(commands))) => admit_batch(machine, term, bytes, commands),
        Ok(Command::Locks(command)) => match machine.check_capacity(term, &command) {
            Ok(()) => Admission::Admitted(bytes),
            Err(refusal) => Admission::Rejected(encode_reply(machine, Err(refusal))),
        },
        Ok(command) => match machine.check_change_rate(term, &command) {
            Ok(()) => Admission::Admitted(bytes),
            Err(refusal) => Admission::Rejected(encode_reply(machine, Err(refusal))),
        },
        // The proposal path rejects undecodable commands.
        Err(_) => Admission::Admitted(bytes),
    }
}

fn admit_batch(machine: &ShardMachine, term: u64, bytes: Bytes, commands: Vec<LocksCommand>) -> Admission {
    let (admitted, refused) = split_batch(commands, |command| machine.check_capacity(term, command));
    if refused.is_empty() {
        return Admission::Admitted(bytes);
    }
    if admitted.is_empty() {
        let outcomes = refused.into_iter().map(|(_, refusal)| Err(refusal)).collect();
        return Admission::Rejected(encode_reply(machine, Ok(Response::Batch(outcomes))));
    }
    let command = Command::Locks(LocksCommand::Batch(admitted));
    Admission::Partial(codec::encode(&command).into(), refused)
}

/// Returns the commands of a list that a check admits, and the positions and errors of the rejected ones.
pub(crate) fn split_batch(
    commands: Vec<LocksCommand>,
    check: impl Fn(&LocksCommand) -> Result<(), CommandError>,
) -> (Vec<LocksCommand>, Vec<(usize, CommandError)>) {
    let (mut admitted, mut refused) = (Vec::with_capacity(commands.len()), Vec::new());
    for (place, command) in commands.into_iter().enumerate() {
        match check(&command) {
            Ok(()) => admitted.push(command),
            Err(refusal) => refused.push((place, refusal)),
        }
    }
    (admitted, refused)
}

/// Inserts the rejected commands' errors into the outcomes of the others, at their original positions.
pub(crate) fn insert_rejected(outcomes: &mut Vec<Result<Response, CommandError>>, refused: Vec<(usize, CommandError)>) {
    for (place, refusal) in refused {
        // Positions are ascending, so each index is right when its error is inserted.
        outcomes.insert(place.min(outcomes.len()), Err(refusal));
    }
}

/// Inserts the rejected commands' errors into the batch reply, at their original positions.
pub(crate) fn merge_rejected(bytes: Bytes, refused: Vec<(usize, CommandError)>) -> Bytes {
    let Ok(mut reply) = codec::decode::<Reply>(&bytes) else { return bytes };
    let Ok(Response::Batch(outcomes)) = &mut reply.outcome else { return bytes };
    insert_rejected(outcomes, refused);
    codec::encode(&reply).into()
}

pub(crate) fn encode_reply(machine: &ShardMachine, outcome: Result<Response, CommandError>) -> Bytes {
    codec::encode(&Reply { outcome, clock_ms: machine.clock_ms(), awaits: None }).into()
}

#[cfg(test)]
mod tests {
    use holdfast_core::Application;
    use holdfast_core::{
        AccountId, AccountsCommand, Actor, Audited, CreateLatch, LatchCommand, LatchIds, LatchRef, Limits, Metadata,
        NamespaceMessage, Path, RequestId, Rules,
    };
    use holdfast_replication::{EntryHeader, ReplyMode};

    use super::*;
    use crate::memory::NodeMemory;
    use crate::testing::{acquire, finish, namespace};

    const TERM: u64 = 3;

    fn delete(path: &str) -> LocksCommand {
        LocksCommand::Delete { namespace: namespace(), path: Path(vec![path.into()]) }
    }

    fn encoded(command: LocksCommand) -> Bytes {
        codec::encode(&Command::Locks(command)).into()
    }

    /// A shard with one held lock and one latch, on a node with this memory limit.
    fn machine(limit: u64) -> ShardMachine {
        let machine = ShardMachine::new(Application::Locks, "locks_00", None, None).with_memory(NodeMemory::new(limit));
        let message = NamespaceMessage::open(namespace(), Limits::default());
        let open = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
        machine.set_rules(Rules::TWO.0);
        let header = EntryHeader { rules: Rules::TWO.0, now_ms: 1, wall_ms: 1, ..EntryHeader::default() };
        let latch = CreateLatch {
            namespace: namespace(),
            path: Path::flat("latch"),
            total: 9,
            ids: LatchIds::Indexed,
            expires_in_ms: 10_000,
            retain_ms: 60_000,
            description: String::new(),
            metadata: Metadata::new(),
        };
        let latch = LocksCommand::Latch(LatchCommand::Create(latch));
        let commands = [encoded(open), encoded(acquire("held")), encoded(latch)];
        finish(machine.apply(header, &commands, ReplyMode::Encode).expect("it is sound"));
        machine.on_leadership_change(Some(TERM));
        machine
    }

    #[test]
    fn all_is_proposed_while_there_is_room() {
        let machine = machine(1 << 20);
        let command = encoded(acquire("new"));
        assert!(matches!(admit(&machine, TERM, command.clone()), Admission::Admitted(bytes) if bytes == command));
    }

    #[test]
    fn what_is_new_is_refused_and_what_is_known_goes_on() {
        let machine = machine(1_000);
        assert!(matches!(admit(&machine, TERM, encoded(acquire("held"))), Admission::Admitted(_)));
        assert!(matches!(admit(&machine, TERM, encoded(delete("held"))), Admission::Admitted(_)));
        assert!(
            matches!(admit(&machine, TERM - 1, encoded(acquire("new"))), Admission::Admitted(_)),
            "it does not lead then"
        );
        let Admission::Rejected(bytes) = admit(&machine, TERM, encoded(acquire("new"))) else {
            panic!("there is no room")
        };
        let reply: Reply = codec::decode(&bytes).unwrap();
        assert!(matches!(reply.outcome, Err(CommandError::Full(_))), "{reply:?}");
    }

    #[test]
    fn a_total_that_takes_more_memory_is_refused_and_one_that_takes_none_is_not() {
        let machine = machine(1_000);
        let set_total = |total| {
            let latch = LatchRef { namespace: namespace(), path: Path::flat("latch"), id: None };
            encoded(LocksCommand::Latch(LatchCommand::SetTotal { latch, total, if_total: None }))
        };
        assert!(matches!(admit(&machine, TERM, set_total(1_000_000)), Admission::Rejected(_)));
        assert!(matches!(admit(&machine, TERM, set_total(9)), Admission::Admitted(_)));
    }

    #[test]
    fn of_a_list_what_is_left_is_proposed_and_each_answer_finds_its_place() {
        let machine = machine(1_000);
        let list = [acquire("new"), delete("a"), acquire("held"), acquire("newer"), delete("b"), acquire("newest")];
        let admitted = admit(&machine, TERM, encoded(LocksCommand::Batch(list.to_vec())));
        let Admission::Partial(bytes, left_out) = admitted else { panic!("half of it is new") };
        let left = LocksCommand::Batch(vec![delete("a"), acquire("held"), delete("b")]);
        assert_eq!(codec::decode::<Command>(&bytes).unwrap(), Command::Locks(left));
        let done = vec![Ok(Response::Done), Ok(Response::Ignored), Ok(Response::Done)];
        let merged = merge_rejected(encode_reply(&machine, Ok(Response::Batch(done))), left_out);
        let Ok(Response::Batch(merged)) = codec::decode::<Reply>(&merged).unwrap().outcome else { panic!("no list") };
        let is_full = |outcome: &Result<Response, CommandError>| matches!(outcome, Err(CommandError::Full(_)));
        assert!(is_full(&merged[0]) && is_full(&merged[3]) && is_full(&merged[5]), "{merged:?}");
        assert_eq!(
            [&merged[1], &merged[2], &merged[4]],
            [&Ok(Response::Done), &Ok(Response::Ignored), &Ok(Response::Done)]
        );
    }

    #[test]
    fn a_tenant_changes_its_keys_only_so_often_and_the_operator_as_often_as_it_wants() {
        let machine = ShardMachine::new(Application::Accounts, "accounts_00", None, None);
        let account = AccountId(7);
        let create = AccountsCommand::Create {
            request_id: RequestId([0; 16]),
            id: account,
            email: "a@b.c".into(),
            full_name: "Ann".into(),
            max_number_of_namespaces: 1,
            limits: Limits::default(),
        };
        let header = EntryHeader { term: 1, index: 1, rules: Rules::TWO.0, now_ms: 1, wall_ms: 1 };
        let commands = [Bytes::from(codec::encode(&Command::Accounts(create)))];
        finish(machine.apply(header, &commands, ReplyMode::Encode).expect("it is sound"));
        machine.on_leadership_change(Some(TERM));
        let deletion = |actor| {
            let command = Command::Accounts(AccountsCommand::DeleteApiKey { account, key_id: "k".into() });
            let audited = Audited { actor, request_id: "r".into(), command: Box::new(command) };
            Bytes::from(codec::encode(&Command::Audited(audited)))
        };
        let is_admitted = |actor| matches!(admit(&machine, TERM, deletion(actor)), Admission::Admitted(_));
        let admitted = (0..1_000).take_while(|_| is_admitted(Actor::Account(account))).count();
        let max = usize::try_from(Limits::default().max_key_changes).unwrap();
        assert!((max..max + 10).contains(&admitted), "{admitted}");
        let Admission::Rejected(bytes) = admit(&machine, TERM, deletion(Actor::Account(account))) else {
            panic!("there were too many")
        };
        let reply: Reply = codec::decode(&bytes).unwrap();
        assert!(matches!(reply.outcome, Err(CommandError::RateLimited { max: 60, .. })), "{reply:?}");
        assert!((0..100).all(|_| is_admitted(Actor::Operator)));
        let elsewhere = admit(&machine, TERM - 1, deletion(Actor::Account(account)));
        assert!(matches!(elsewhere, Admission::Admitted(_)), "it does not lead then");
    }

    #[test]
    fn a_list_of_which_nothing_is_left_is_answered_at_once() {
        let machine = machine(1_000);
        let list = LocksCommand::Batch(vec![acquire("new"), acquire("newer")]);
        let Admission::Rejected(bytes) = admit(&machine, TERM, encoded(list)) else { panic!("all of it is new") };
        let reply: Reply = codec::decode(&bytes).unwrap();
        assert!(matches!(reply.outcome, Ok(Response::Batch(outcomes)) if outcomes.len() == 2));
    }
}
