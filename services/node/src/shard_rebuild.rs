//! Builds the state of a shard again: from its own history, or from the state that other replicas have.

use bytes::Bytes;
use holdfast_core::shard::ShardState;
use holdfast_replication::{CheckpointPart, EntryHeader, FailedEntry, HistoryStep, StateMachineError};
use holdfast_storage::{StorageError, run_blocking};
use tokio::task::yield_now;

use crate::group_machine::ShardPart;
use crate::machine::{Adoption, Checkpoint, FailedHistory, Outage, ReadPart, ShardExceptions, ShardMachine, digest_of};
use crate::replica::ShardReplica;

/// Why a state could not be built again.
pub(crate) enum RebuildError {
    /// It failed again, at an entry of the history or at a later entry. Has the history from before that entry.
    Failed(Box<FailedEntry>, FailedHistory),
    /// The history could not be read, or changed meanwhile.
    Unreadable(String),
    /// The state would not be the right one: some later sections are no longer here, or the saved state includes a
    /// command or namespace that an operator has left out.
    Unusable(String),
}

/// A machine on which a state is built, and what it consists of.
struct Replay {
    machine: ShardMachine,
    /// The index of the last entry that the state has, or that has nothing for it.
    index: u64,
    /// The history, without later sections.
    history: FailedHistory,
    /// The exceptions that the saved part does not obey.
    left: ShardExceptions,
    failed: Option<FailedEntry>,
}

impl Replay {
    fn new(machine: ShardMachine) -> Self {
        let (history, left) = (FailedHistory::default(), ShardExceptions::default());
        Self { machine, index: 0, history, left, failed: None }
    }

    fn visit(&mut self, step: HistoryStep<'_>) -> Result<(), StateMachineError> {
        match step {
            HistoryStep::Section { header, commands } => self.apply_history(header, &commands),
            HistoryStep::Snapshot { index, part, exceptions } => {
                let mut left = self.machine.exceptions();
                left.remove_obeyed(exceptions);
                // What comes later is replayed from the log without it.
                left.remove_after(index);
                let part = ShardPart::read(part)?;
                let ReadPart { core, sections } = self.machine.read_part(&part)?;
                self.machine.install(core);
                self.history.state = Some(part.state);
                for (header, commands) in &sections {
                    left.remove_at(header.index);
                    self.apply_history(*header, commands);
                }
                (self.left, self.index) = (left, index);
            }
        }
        Ok(())
    }

    fn apply_history(&mut self, header: EntryHeader, commands: &[Bytes]) {
        self.apply(header, commands);
        self.history.since.push(header, commands);
    }

    /// Applies a section, unless an earlier one failed.
    fn apply(&mut self, header: EntryHeader, commands: &[Bytes]) {
        self.index = header.index;
        if self.failed.is_none()
            && let Err(failure) = self.machine.apply_whole(header, commands)
        {
            self.failed = Some(FailedEntry { term: header.term, index: header.index, failure });
        }
    }

    fn check(&mut self) -> Result<(), RebuildError> {
        match self.failed.take() {
            None => Ok(()),
            Some(failed) => Err(RebuildError::Failed(Box::new(failed), std::mem::take(&mut self.history))),
        }
    }

    /// Applies what came since, and puts the state in place. Returns false, and changes nothing, if the outage is over
    /// by then.
    async fn finish(mut self, shard: &ShardReplica, outage: &Outage) -> Result<bool, RebuildError> {
        // A leader state that is gone may have proposed what its successor would not expect.
        shard.propose_barrier().await;
        loop {
            let adoption = shard.machine.adopt(outage.epoch, &self.machine, self.index);
            match adoption.map_err(|error| RebuildError::Unusable(error.0))? {
                Adoption::Done => return Ok(true),
                Adoption::Stale => return Ok(false),
                Adoption::Missing(missing) => {
                    for (header, commands) in missing {
                        self.apply(header, &commands);
                        yield_now().await;
                    }
                }
                Adoption::InLog(until) => {
                    let has = self.index;
                    let replayed = shard.replay(until, |step| self.apply_later(has, step)).await;
                    replayed.map_err(|error| RebuildError::Unreadable(error.to_string()))?;
                    self.index = self.index.max(until);
                }
            }
            self.check()?;
        }
    }

    /// Applies a step of the history if it comes after the entry of index `has`.
    fn apply_later(&mut self, has: u64, step: HistoryStep<'_>) -> Result<(), StateMachineError> {
        match step {
            HistoryStep::Snapshot { index, .. } if index > has => {
                Err(StateMachineError(format!("entries {} to {index} are in a snapshot by now", has + 1)))
            }
            HistoryStep::Section { header, commands } if header.index > has => {
                self.apply(header, &commands);
                Ok(())
            }
            HistoryStep::Snapshot { .. } | HistoryStep::Section { .. } => Ok(()),
        }
    }
}

/// Replays the history of the shard, then what came since, and puts the state in place. Returns false, and changes
/// nothing, if the outage is over by then.
pub(crate) async fn rebuild(shard: &ShardReplica, outage: &Outage) -> Result<bool, RebuildError> {
    let mut replay = Replay::new(shard.machine.for_rebuild());
    let replayed = shard.replay(outage.history_end, |step| replay.visit(step)).await;
    replayed.map_err(|error| RebuildError::Unreadable(error.to_string()))?;
    if let Some(index) = replay.left.first_index() {
        let reason = format!("the saved state has what an operator has left out from entry {index} on");
        return Err(RebuildError::Unusable(reason));
    }
    replay.check()?;
    replay.index = replay.index.max(outage.history_end);
    replay.finish(shard, outage).await
}

/// Takes the state at a checkpoint from another replica, applies what came since, and puts it in place. Changes nothing
/// if the outage is over, or the shard failed after the checkpoint only. Returns true if it was put in place.
///
/// # Errors
/// Why that is not possible now.
pub(crate) async fn rebuild_from_others(shard: &ShardReplica, checkpoint: &Checkpoint) -> Result<bool, String> {
    let Some(outage) = shard.machine.outage().filter(|outage| outage.failed_entry.index <= checkpoint.index) else {
        return Ok(false);
    };
    let part = shard.fetch_checkpoint(checkpoint).await.map_err(|error| error.to_string())?;
    let machine = shard.machine.for_rebuild();
    machine.install(run_blocking(|| read_fetched(&machine, &part))?);
    let mut replay = Replay::new(machine);
    replay.index = checkpoint.index;
    match replay.finish(shard, &outage).await {
        Ok(is_in_place) => Ok(is_in_place),
        Err(RebuildError::Failed(failed, _)) => Err(format!(
            "with the state of replica {} it fails at entry {}: {}",
            part.replica, failed.index, failed.failure
        )),
        Err(RebuildError::Unreadable(reason) | RebuildError::Unusable(reason)) => Err(reason),
    }
}

/// Decodes a state that another replica has sent.
///
/// # Errors
/// When the state can't be read, or does not match its digest.
fn read_fetched(machine: &ShardMachine, part: &CheckpointPart) -> Result<ShardState, String> {
    let mut failed = None;
    let readable = |chunk: Result<Bytes, StorageError>| chunk.map_err(|error| failed = Some(error)).ok();
    let digest = digest_of(part.state.chunks().map_while(readable));
    if let Some(error) = failed {
        return Err(error.to_string());
    }
    if digest != part.digest {
        return Err(format!("what replica {} sent is not the state that it has digested", part.replica));
    }
    machine.read_state(&part.state).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Application, LeftOut};
    use holdfast_replication::Exception;
    use holdfast_storage::SnapshotPart;

    use super::*;
    use crate::group_machine::snapshot_part;
    use crate::machine::encode_left_out;

    fn machine() -> ShardMachine {
        ShardMachine::new(Application::Locks, "locks_00", None, None)
    }

    /// The first command of entry 5 is left out.
    fn exception() -> Exception {
        Exception { shard: 0, index: 5, what: encode_left_out(&LeftOut::Command(0)) }
    }

    fn replay() -> Replay {
        let machine = machine();
        machine.set_exceptions(machine.read_exceptions(vec![exception()]).expect("it was encoded here"));
        Replay::new(machine)
    }

    fn header(index: u64) -> EntryHeader {
        EntryHeader { term: 1, index, rules: 1, now_ms: index, wall_ms: index }
    }

    fn sound_part() -> SnapshotPart {
        machine().freeze().expect("it has a state")
    }

    fn empty_part() -> SnapshotPart {
        SnapshotPart::from_chunks("locks_00", Vec::new())
    }

    fn visit(replay: &mut Replay, index: u64, part: &SnapshotPart, exceptions: &[Exception]) {
        replay.visit(HistoryStep::Snapshot { index, part, exceptions }).expect("it can be read");
    }

    #[test]
    fn a_saved_state_that_may_have_what_is_left_out_is_of_no_use() {
        let mut replay = replay();
        visit(&mut replay, 8, &sound_part(), &[]);
        assert_eq!(replay.left.first_index(), Some(5));
    }

    #[test]
    fn what_is_left_out_is_so_by_the_saved_state_or_while_its_entry_is_replayed() {
        let mut saved_later = replay();
        visit(&mut saved_later, 8, &sound_part(), &[exception()]);
        assert_eq!(saved_later.left.first_index(), None);

        let unreadable = vec![Bytes::from_static(b"no command")];
        let mut from_log = replay();
        visit(&mut from_log, 3, &sound_part(), &[]);
        assert_eq!(from_log.left.first_index(), None, "the log is replayed without it");
        let section = HistoryStep::Section { header: header(5), commands: unreadable.clone() };
        from_log.visit(section).expect("it is applied without the command");
        assert!(from_log.left.first_index().is_none() && from_log.check().is_ok() && from_log.index == 5);

        let mut history = FailedHistory::default();
        history.since.push(header(4), &[]);
        history.since.push(header(5), &unreadable);
        let failed = snapshot_part("locks_00", move || history.encode(), empty_part());
        let mut from_part = replay();
        visit(&mut from_part, 8, &failed, &[]);
        assert!(from_part.left.first_index().is_none() && from_part.check().is_ok() && from_part.index == 8);
    }

    #[test]
    fn a_fetched_state_is_used_only_if_it_is_the_one_that_was_digested() {
        let frozen = machine().frozen_state().expect("it has a state");
        let chunks: Vec<Bytes> = frozen.encode().into_iter().map(Bytes::from).collect();
        let fetched = |digest, chunks: &[Bytes]| {
            let state = SnapshotPart::from_chunks("a checkpoint", chunks.to_vec());
            read_fetched(&machine(), &CheckpointPart { replica: 2, digest, state })
        };
        assert!(fetched(digest_of(&chunks), &chunks).is_ok());
        let cut = &chunks[..chunks.len() - 1];
        let refusal = fetched(digest_of(&chunks), cut).expect_err("it is another one");
        assert!(refusal.contains("replica 2"), "{refusal}");
        assert!(fetched(digest_of(cut), cut).is_err(), "it can't be decoded");
    }

    #[test]
    fn only_what_comes_after_a_state_is_applied_to_it_from_the_log() {
        let mut replay = Replay::new(machine());
        replay.index = 6;
        let unreadable = || vec![Bytes::from_static(b"no command")];
        let section = |index| HistoryStep::Section { header: header(index), commands: unreadable() };
        replay
            .apply_later(6, HistoryStep::Snapshot { index: 6, part: &empty_part(), exceptions: &[] })
            .expect("it has that");
        replay.apply_later(6, section(6)).expect("it has that");
        assert!(replay.check().is_ok());
        replay.apply_later(6, section(7)).expect("it is applied");
        assert!(replay.check().is_err() && replay.index == 7);
        let empty = empty_part();
        let later = HistoryStep::Snapshot { index: 8, part: &empty, exceptions: &[] };
        assert!(replay.apply_later(7, later).is_err(), "entry 8 is not in the log");
    }

    #[test]
    fn a_history_that_fails_is_returned_with_what_it_consists_of() {
        let mut replay = Replay::new(machine());
        visit(&mut replay, 3, &sound_part(), &[]);
        for index in [5, 7] {
            let commands = vec![Bytes::from_static(b"no command")];
            replay.visit(HistoryStep::Section { header: header(index), commands }).expect("it is kept");
        }
        let Err(RebuildError::Failed(failed, history)) = replay.check() else { panic!("it can't be read") };
        assert_eq!((failed.term, failed.index), (1, 5), "the first that fails");
        let kept = FailedHistory::decode(&history.encode()).expect("it is readable");
        assert_eq!(kept.iter().map(|(header, _)| header.index).collect::<Vec<_>>(), [5, 7]);
    }
}
