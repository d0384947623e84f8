//! Exceptions: commands and namespaces that an operator has left out of the history of a shard.
//!
//! Whenever the state is built from its history, a section is applied without the exceptions of its entry. A namespace
//! that is left out is in quarantine from then on, which is part of the state.

use bytes::Bytes;
use holdfast_core::{Command, LeftOut, NamespaceRef, codec};
use holdfast_replication::{EntryHeader, Exception, StateMachineError};

use super::ShardMachine;

/// An exception of this shard, and what its state machine knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardException {
    logged: Exception,
    left_out: LeftOut,
}

/// The exceptions of a section.
#[derive(Debug, Default)]
pub(super) struct SectionExceptions {
    /// Positions of commands.
    commands: Vec<u32>,
    /// Namespaces, from this section on.
    pub(super) namespaces: Vec<NamespaceRef>,
}

impl SectionExceptions {
    /// Returns the number of exceptions.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.commands.len() + self.namespaces.len()).unwrap_or(u32::MAX)
    }

    /// Returns the replacement of the command at this position, if that is left out: a command without effect.
    pub(super) fn replacement(&self, position: u32) -> Option<Command> {
        self.commands.contains(&position).then(|| Command::OutboxConfirm { numbers: Vec::new() })
    }
}

/// Encodes an exception for the log.
pub(crate) fn encode_left_out(left_out: &LeftOut) -> Bytes {
    codec::encode(left_out).into()
}

impl ShardMachine {
    /// Reads the exceptions of this shard.
    ///
    /// # Errors
    /// When this program can't read it.
    pub(crate) fn read_exceptions(&self, logged: Vec<Exception>) -> Result<ShardExceptions, StateMachineError> {
        let read = |logged: Exception| match codec::decode(&logged.what) {
            Ok(left_out) => Ok(ShardException { logged, left_out }),
            Err(error) => Err(StateMachineError(format!(
                "what is left out of shard {} from entry {} on can't be read, it needs a later release: {error}",
                self.shard, logged.index
            ))),
        };
        logged.into_iter().map(read).collect::<Result<_, _>>().map(ShardExceptions)
    }

    /// Sets the exceptions, from the next section on. When they change, the latest checkpoint is dropped: its state may
    /// have what is left out now, so no replica may be built again from it.
    pub(crate) fn set_exceptions(&self, exceptions: ShardExceptions) {
        let mut inner = self.inner.lock();
        if inner.exceptions != exceptions {
            inner.exceptions = exceptions;
            self.checkpoint.send_replace(None);
        }
    }

    /// Returns the exceptions of this shard.
    pub(crate) fn exceptions(&self) -> ShardExceptions {
        self.inner.lock().exceptions.clone()
    }
}

/// All exceptions of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShardExceptions(Vec<ShardException>);

impl ShardExceptions {
    /// Returns the exceptions of the section of an entry.
    pub(super) fn of_section(&self, header: EntryHeader) -> SectionExceptions {
        let mut of_section = SectionExceptions::default();
        for exception in self.0.iter().filter(|exception| exception.logged.index == header.index) {
            match &exception.left_out {
                LeftOut::Command(position) => of_section.commands.push(*position),
                LeftOut::Namespace(namespace) => of_section.namespaces.push(namespace.clone()),
            }
        }
        of_section
    }

    /// Removes exceptions that a part of a snapshot already obeys.
    pub(crate) fn remove_obeyed(&mut self, obeyed: &[Exception]) {
        self.0.retain(|exception| !obeyed.contains(&exception.logged));
    }

    /// Removes the exceptions of a section after it was applied.
    pub(crate) fn remove_at(&mut self, index: u64) {
        self.0.retain(|exception| exception.logged.index != index);
    }

    /// Removes the exceptions behind the entry of this index.
    pub(crate) fn remove_after(&mut self, index: u64) {
        self.0.retain(|exception| exception.logged.index <= index);
    }

    /// Returns the index of the entry of the first, if there is one.
    pub(crate) fn first_index(&self) -> Option<u64> {
        self.0.first().map(|exception| exception.logged.index)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::shard::ShardState;
    use holdfast_core::{Application, CommandError, Path, Query, RESTORE_MARGIN};
    use holdfast_replication::{ApplyStep, ReplyMode};

    use super::*;
    use crate::run_markers::FatalStep;
    use crate::testing;

    fn exception(index: u64, left_out: &LeftOut) -> Exception {
        Exception { shard: 0, index, what: encode_left_out(left_out) }
    }

    fn machine(left_out: &[(u64, LeftOut)]) -> ShardMachine {
        let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
        let logged = left_out.iter().map(|(index, left_out)| exception(*index, left_out)).collect();
        machine.set_exceptions(machine.read_exceptions(logged).expect("it was encoded here"));
        machine
    }

    fn apply(machine: &ShardMachine, index: u64, commands: &[Bytes]) {
        let header = EntryHeader { term: 1, index, rules: 1, now_ms: 1_000, wall_ms: 1_000 };
        testing::finish(machine.apply(header, commands, ReplyMode::Skip).expect("it is sound"));
    }

    fn encoded(command: holdfast_core::LocksCommand) -> Bytes {
        codec::encode(&Command::Locks(command)).into()
    }

    fn is_held(machine: &ShardMachine, path: &str) -> Result<bool, CommandError> {
        let query = Query::Lock { namespace: testing::namespace(), path: Path::flat(path) };
        match machine.query(1_000, &query).expect("it has a state").outcome? {
            holdfast_core::Response::Lock(lock) => Ok(lock.holders_total == 1),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_left_out_later_ends_a_checkpoint_that_may_have_it() {
        let machine = machine(&[(5, LeftOut::Command(0))]);
        machine.checkpoint(7, None);
        let logged = vec![exception(5, &LeftOut::Command(0))];
        machine.set_exceptions(machine.read_exceptions(logged.clone()).expect("it was encoded here"));
        assert!(machine.latest_checkpoint().is_some(), "nothing more is left out");
        let more = [logged, vec![exception(6, &LeftOut::Command(0))]].concat();
        machine.set_exceptions(machine.read_exceptions(more).expect("it was encoded here"));
        assert!(machine.latest_checkpoint().is_none());
    }

    #[test]
    fn a_command_that_is_left_out_has_no_effect_and_need_not_be_readable() {
        let machine = machine(&[(5, LeftOut::Command(1)), (5, LeftOut::Command(2)), (9, LeftOut::Command(0))]);
        apply(&machine, 3, &[encoded(testing::open_namespace())]);
        let unreadable = Bytes::from_static(b"no command");
        apply(&machine, 5, &[encoded(testing::acquire("a")), encoded(testing::acquire("b")), unreadable]);
        apply(&machine, 7, &[encoded(testing::acquire("c"))]);
        let held = ["a", "b", "c"].map(|path| is_held(&machine, path));
        assert_eq!(held, [Ok(true), Ok(false), Ok(true)]);
    }

    #[test]
    fn numbers_that_were_given_out_with_what_is_left_out_are_not_given_out_again() {
        let token = |left_out: &[(u64, LeftOut)]| {
            let machine = machine(left_out);
            apply(&machine, 3, &[encoded(testing::open_namespace())]);
            apply(&machine, 5, &[encoded(testing::acquire("a")), encoded(testing::acquire("b"))]);
            apply(&machine, 7, &[encoded(testing::acquire("c"))]);
            machine.inner.lock().core.as_ref().map(ShardState::revision).expect("it has a state")
        };
        assert!(token(&[(5, LeftOut::Command(1))]) > token(&[]) + RESTORE_MARGIN / 2);
        let further = token(&[(5, LeftOut::Command(1)), (5, LeftOut::Command(0))]);
        assert!(further > token(&[(5, LeftOut::Command(1))]) + RESTORE_MARGIN / 2, "one was left out later");
        assert_eq!(token(&[(4, LeftOut::Command(1))]), token(&[]), "there is no such section");
    }

    #[test]
    fn a_step_that_ended_the_process_is_not_tried_again_unless_more_of_its_section_is_left_out() {
        let (step, shard) = (ApplyStep::Command(1), "locks_00".to_owned());
        let fatal = FatalStep { shard, term: 1, index: 5, step, left_out: 0 };
        let failure = |left_out: &[(u64, LeftOut)]| {
            let machine = machine(left_out).with_markers(None, Some(fatal.clone()));
            apply(&machine, 3, &[encoded(testing::open_namespace())]);
            apply(&machine, 4, &[encoded(testing::acquire("a"))]);
            let header = EntryHeader { term: 1, index: 5, rules: 1, now_ms: 1_000, wall_ms: 1_000 };
            let commands = [encoded(testing::acquire("b")), encoded(testing::acquire("c"))];
            machine.apply(header, &commands, ReplyMode::Skip).err()
        };
        for left_out in [&[][..], &[(4, LeftOut::Command(0))]] {
            let failed = failure(left_out).expect("it is not tried");
            assert_eq!((failed.step, failed.namespace.as_str()), (step, &*testing::namespace().to_string()));
        }
        assert!(failure(&[(5, LeftOut::Command(1))]).is_none());
    }

    #[test]
    fn a_namespace_is_left_out_from_its_section_on() {
        let machine = machine(&[(5, LeftOut::Namespace(testing::namespace()))]);
        apply(&machine, 3, &[encoded(testing::open_namespace())]);
        assert_eq!(is_held(&machine, "a"), Ok(false));
        apply(&machine, 5, &[encoded(testing::acquire("a"))]);
        assert_eq!(is_held(&machine, "a"), Err(CommandError::Quarantined));
        assert_eq!(machine.usage().holds, 0);
    }

    #[test]
    fn what_a_program_can_not_read_is_not_left_out_by_guess() {
        let machine = ShardMachine::new(Application::Locks, "locks_00", None, None);
        let unknown = Exception { shard: 0, index: 5, what: Bytes::from_static(&[codec::VERSION, 200]) };
        let refusal = machine.read_exceptions(vec![unknown]).expect_err("no release has written it");
        assert!(refusal.0.contains("entry 5") && refusal.0.contains("later release"), "{refusal}");
    }
}
