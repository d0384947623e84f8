//! Refusing what there is no room for, before it is proposed. What is in the log is always applied.

use bytes::Bytes;
use holdfast_core::{Answer, Command, LocksCommand, Refusal, Reply, codec};
use holdfast_replication::Machine;

use crate::machine::ShardMachine;

/// What became of a command that is to be proposed.
pub(crate) enum Admission {
    /// To be proposed.
    All(Bytes),
    /// A list of commands, without those for which there is no room: where they were, and why not.
    Some(Bytes, Vec<(usize, Refusal)>),
    /// Not to be proposed: the reply.
    None(Bytes),
}

/// Looks whether there is room for what a command makes.
pub(crate) fn admit(machine: &ShardMachine, term: u64, bytes: Bytes) -> Admission {
    if !machine.is_tight() {
        return Admission::All(bytes);
    }
    match codec::decode(&bytes) {
        Ok(Command::Locks(LocksCommand::InOrder(commands))) => admit_some(machine, term, bytes, commands),
        Ok(Command::Locks(command)) => match machine.check_room(term, &command) {
            Ok(()) => Admission::All(bytes),
            Err(refusal) => Admission::None(reply(machine, Err(refusal))),
        },
        // Whatever can't be read is refused where it is proposed.
        Ok(_) | Err(_) => Admission::All(bytes),
    }
}

fn admit_some(machine: &ShardMachine, term: u64, bytes: Bytes, commands: Vec<LocksCommand>) -> Admission {
    let (mut admitted, mut refused) = (Vec::with_capacity(commands.len()), Vec::new());
    for (place, command) in commands.into_iter().enumerate() {
        match machine.check_room(term, &command) {
            Ok(()) => admitted.push(command),
            Err(refusal) => refused.push((place, refusal)),
        }
    }
    if refused.is_empty() {
        return Admission::All(bytes);
    }
    if admitted.is_empty() {
        let outcomes = refused.into_iter().map(|(_, refusal)| Err(refusal)).collect();
        return Admission::None(reply(machine, Ok(Answer::InOrder(outcomes))));
    }
    let command = Command::Locks(LocksCommand::InOrder(admitted));
    Admission::Some(codec::encode(&command).into(), refused)
}

/// Says of a list in its places what was refused of it.
pub(crate) fn with_refused(bytes: Bytes, refused: Vec<(usize, Refusal)>) -> Bytes {
    let Ok(mut reply) = codec::decode::<Reply>(&bytes) else { return bytes };
    let Ok(Answer::InOrder(outcomes)) = &mut reply.outcome else { return bytes };
    for (place, refusal) in refused {
        // They come in order, so that each finds its place.
        outcomes.insert(place.min(outcomes.len()), Err(refusal));
    }
    codec::encode(&reply).into()
}

pub(crate) fn reply(machine: &ShardMachine, outcome: Result<Answer, Refusal>) -> Bytes {
    codec::encode(&Reply { outcome, clock_ms: Machine::clock_ms(machine), awaits: None }).into()
}

#[cfg(test)]
mod tests {
    use holdfast_core::shard::Application;
    use holdfast_core::{Limits, NamespaceMessage, Path, Rules};
    use holdfast_replication::{Replies, Stamp};

    use super::*;
    use crate::memory::NodeMemory;
    use crate::testing::{acquire, namespace};

    const TERM: u64 = 3;

    fn delete(path: &str) -> LocksCommand {
        LocksCommand::Delete { namespace: namespace(), path: Path(vec![path.into()]) }
    }

    fn encoded(command: LocksCommand) -> Bytes {
        codec::encode(&Command::Locks(command)).into()
    }

    /// A shard in which a lock is held, of a node that has more memory than that or has none left.
    fn machine(limit: u64) -> ShardMachine {
        let machine = ShardMachine::new(Application::Locks, "locks_00", None, None).counted_in(NodeMemory::new(limit));
        let message = NamespaceMessage::open(namespace(), Limits::default());
        let open = LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message };
        machine.go_by(Rules::TWO.0);
        let stamp = Stamp { rules: Rules::TWO.0, now_ms: 1, wall_ms: 1 };
        let commands = [encoded(open), encoded(acquire("held"))];
        assert!(machine.apply(stamp, &commands, Replies::Wanted).is_ok());
        machine.lead(Some(TERM));
        machine
    }

    #[test]
    fn all_is_proposed_while_there_is_room() {
        let machine = machine(1 << 20);
        let command = encoded(acquire("new"));
        assert!(matches!(admit(&machine, TERM, command.clone()), Admission::All(bytes) if bytes == command));
    }

    #[test]
    fn what_is_new_is_refused_and_what_is_known_goes_on() {
        let machine = machine(1_000);
        assert!(matches!(admit(&machine, TERM, encoded(acquire("held"))), Admission::All(_)));
        assert!(matches!(admit(&machine, TERM, encoded(delete("held"))), Admission::All(_)));
        assert!(
            matches!(admit(&machine, TERM - 1, encoded(acquire("new"))), Admission::All(_)),
            "it does not lead then"
        );
        let Admission::None(bytes) = admit(&machine, TERM, encoded(acquire("new"))) else { panic!("there is no room") };
        let reply: Reply = codec::decode(&bytes).unwrap();
        assert!(matches!(reply.outcome, Err(Refusal::Full(_))), "{reply:?}");
    }

    #[test]
    fn of_a_list_what_is_left_is_proposed_and_each_answer_finds_its_place() {
        let machine = machine(1_000);
        let list = [acquire("new"), delete("a"), acquire("held"), acquire("newer"), delete("b"), acquire("newest")];
        let admitted = admit(&machine, TERM, encoded(LocksCommand::InOrder(list.to_vec())));
        let Admission::Some(bytes, left_out) = admitted else { panic!("half of it is new") };
        let left = LocksCommand::InOrder(vec![delete("a"), acquire("held"), delete("b")]);
        assert_eq!(codec::decode::<Command>(&bytes).unwrap(), Command::Locks(left));
        let done = vec![Ok(Answer::Done), Ok(Answer::Ignored), Ok(Answer::Done)];
        let merged = with_refused(reply(&machine, Ok(Answer::InOrder(done))), left_out);
        let Ok(Answer::InOrder(merged)) = codec::decode::<Reply>(&merged).unwrap().outcome else { panic!("no list") };
        let is_full = |outcome: &Result<Answer, Refusal>| matches!(outcome, Err(Refusal::Full(_)));
        assert!(is_full(&merged[0]) && is_full(&merged[3]) && is_full(&merged[5]), "{merged:?}");
        assert_eq!([&merged[1], &merged[2], &merged[4]], [&Ok(Answer::Done), &Ok(Answer::Ignored), &Ok(Answer::Done)]);
    }

    #[test]
    fn a_list_of_which_nothing_is_left_is_answered_at_once() {
        let machine = machine(1_000);
        let list = LocksCommand::InOrder(vec![acquire("new"), acquire("newer")]);
        let Admission::None(bytes) = admit(&machine, TERM, encoded(list)) else { panic!("all of it is new") };
        let reply: Reply = codec::decode(&bytes).unwrap();
        assert!(matches!(reply.outcome, Ok(Answer::InOrder(outcomes)) if outcomes.len() == 2));
    }
}
