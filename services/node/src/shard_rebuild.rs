//! Builds the state of a shard again: from its own history, or from the state that other replicas have.

use bytes::Bytes;
use holdfast_replication::{EntryHeader, FailedEntry, HistoryStep, StateMachineError};
use tokio::task::yield_now;

use crate::group_machine::ShardPart;
use crate::machine::{Checkpoint, FailedHistory, Outage, ReadPart, ShardMachine, digest_of};
use crate::replica::ShardReplica;

/// Why a state could not be built again.
pub(crate) enum RebuildError {
    /// It failed again, at an entry of the history or at one that came since. What the shard was made of before those.
    Failed(FailedEntry, FailedHistory),
    /// The history could not be read, or changed meanwhile.
    Unreadable(String),
    /// Some of what came since is not here any more.
    TooLate(String),
}

/// A machine on which a state is built, and what it consists of.
struct Replay {
    machine: ShardMachine,
    /// The index of the last entry that the state has, or that has nothing for it.
    index: u64,
    /// The history, without what came since.
    history: FailedHistory,
    failed: Option<FailedEntry>,
}

impl Replay {
    fn new(machine: ShardMachine) -> Self {
        Self { machine, index: 0, history: FailedHistory::default(), failed: None }
    }

    fn visit(&mut self, step: HistoryStep<'_>) -> Result<(), StateMachineError> {
        match step {
            HistoryStep::Section { header, commands } => self.apply_history(header, &commands),
            HistoryStep::Snapshot { index, chunks } => {
                let part = ShardPart::decode(chunks)?;
                let ReadPart { core, sections } = self.machine.read_part(&part)?;
                self.machine.install(core);
                self.history.state = part.state;
                sections.iter().for_each(|(header, commands)| self.apply_history(*header, commands));
                self.index = index;
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
            Some(failed) => Err(RebuildError::Failed(failed, std::mem::take(&mut self.history))),
        }
    }

    /// Applies what came since, and puts the state in place. Changes nothing if the outage is over by then.
    async fn finish(mut self, shard: &ShardReplica, outage: &Outage) -> Result<(), RebuildError> {
        // A leader state that is gone may have proposed what its successor would not expect.
        shard.propose_barrier().await;
        loop {
            let missing = shard.machine.adopt(outage.epoch, &self.machine, self.index);
            let missing = missing.map_err(|error| RebuildError::TooLate(error.0))?;
            if missing.is_empty() {
                return Ok(());
            }
            for (header, commands) in missing {
                self.apply(header, &commands);
                yield_now().await;
            }
            self.check()?;
        }
    }
}

/// Replays the history of the shard, then what came since, and puts the state in place.
pub(crate) async fn rebuild(shard: &ShardReplica, outage: &Outage) -> Result<(), RebuildError> {
    let mut replay = Replay::new(shard.machine.for_rebuild());
    let replayed = shard.replay(outage.history_end, |step| replay.visit(step)).await;
    replayed.map_err(|error| RebuildError::Unreadable(error.to_string()))?;
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
    let Some(outage) = shard.machine.outage().filter(|outage| outage.history_end <= checkpoint.index) else {
        return Ok(false);
    };
    let part = shard.fetch_checkpoint(checkpoint).await.map_err(|error| error.to_string())?;
    if digest_of(&part.chunks) != part.digest {
        return Err(format!("what replica {} sent is not the state that it has digested", part.replica));
    }
    let machine = shard.machine.for_rebuild();
    machine.install(machine.read_state(&part.chunks).map_err(|error| error.0)?);
    let mut replay = Replay::new(machine);
    replay.index = checkpoint.index;
    match replay.finish(shard, &outage).await {
        Ok(()) => Ok(true),
        Err(RebuildError::Failed(failed, _)) => Err(format!(
            "with the state of replica {} it fails at entry {}: {}",
            part.replica, failed.index, failed.failure
        )),
        Err(RebuildError::Unreadable(reason) | RebuildError::TooLate(reason)) => Err(reason),
    }
}
