//! Proposing a command: checks before it is queued, and the wait for its reply.

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{DISK_IS_FULL, Group, MAX_COMMAND_BYTES, QUORUM_POLL_INTERVAL};
use crate::entry::{EntryData, GroupCommand};
use crate::error::{NotLeader, ProposeError};
use crate::proposal::{Proposal, ProposalResult, ProposalState};
use crate::proposer;
use crate::state_machine::CommandCost;

impl Group {
    /// Writes a command for the shard of this number to the log and returns its reply, once its entry is durable on a
    /// quorum and applied here.
    ///
    /// # Errors
    /// `NotLeader` and `NotProposed`: nothing was done. `Unknown`: it may have been applied, or may still be.
    pub async fn propose(
        &self,
        shard: u32,
        term: u64,
        command: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, ProposeError> {
        let cost = self.check(shard, term, &command)?;
        self.propose_at(shard, cost, term, Some(command), deadline).await
    }

    /// As above, for commands of the leader itself, which take precedence over accounts' commands. Callers limit how
    /// many they have in flight.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn propose_own(
        &self,
        shard: u32,
        term: u64,
        command: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, ProposeError> {
        let cost = self.check(shard, term, &command)?;
        self.propose_at(shard, CommandCost { account: None, ..cost }, term, Some(command), deadline).await
    }

    /// Writes a section without commands, alone or beside those of other shards: the entry's time advances the clock of
    /// the shard and thereby ends what is due.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn propose_clock_tick(&self, shard: u32, term: u64, deadline: Instant) -> Result<(), ProposeError> {
        if !self.has_disk_space() {
            return Err(ProposeError::NotProposed(DISK_IS_FULL));
        }
        self.propose_barrier(shard, term, deadline).await
    }

    /// As [`Self::propose_clock_tick`], also while the disk is nearly full: a few bytes, for a shard that must know that
    /// everything proposed before is applied.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn propose_barrier(&self, shard: u32, term: u64, deadline: Instant) -> Result<(), ProposeError> {
        if self.leadership().is_none_or(|leads| leads.term != term) {
            return Err(self.not_leader().into());
        }
        let cost = CommandCost { account: None, kind: 0, units: 1 };
        self.propose_at(shard, cost, term, None, deadline).await.map(drop)
    }

    /// Writes a change of the group itself in this term, past the queue, and waits until it is applied here.
    pub(crate) async fn propose_structural(&self, term: u64, command: GroupCommand) -> Result<(), ProposeError> {
        // The clocks are irrelevant for a change of the group: they reach no state machine.
        let data = EntryData::structural(self.rules(), 0, 0, command);
        let written = proposer::write(self.raft(), term, data).await?;
        proposer::outcome(written.await)
    }

    /// Checks whether this replica may propose the command and every replica of the group can apply it; returns its cost.
    fn check(&self, shard: u32, term: u64, command: &Bytes) -> Result<CommandCost, ProposeError> {
        if self.leadership().is_none_or(|leads| leads.term != term) {
            return Err(self.not_leader().into());
        }
        if !self.has_quorum(term, self.timing().lease()) {
            // Another replica may lead by now, or soon.
            return Err(NotLeader { leader: None, term: 0 }.into());
        }
        if !self.has_disk_space() {
            return Err(ProposeError::NotProposed(DISK_IS_FULL));
        }
        if command.len() > MAX_COMMAND_BYTES {
            return Err(ProposeError::NotProposed("the command is too large"));
        }
        let machine = self.machine().ok_or(ProposeError::NotProposed("the replica is stopping"))?;
        machine
            .assess(self.rules(), shard, command)
            .map_err(|error| ProposeError::UnsupportedCommand(error.to_string()))
    }

    async fn propose_at(
        &self,
        shard: u32,
        cost: CommandCost,
        term: u64,
        command: Option<Bytes>,
        deadline: Instant,
    ) -> Result<Bytes, ProposeError> {
        let state = ProposalState::default();
        let (reply, receiver) = oneshot::channel();
        let CommandCost { account, kind, units: min_units } = cost;
        let proposal = Proposal { shard, term, command, kind, min_units, state: state.clone(), reply };
        self.inner.queue.push(account, proposal)?;
        match self.wait_for_reply(term, receiver, deadline).await {
            Ok(reply) => reply,
            Err(reason) if state.cancel() => Err(ProposeError::NotProposed(reason)),
            Err(reason) => Err(ProposeError::Unknown(reason)),
        }
    }

    /// Waits for the reply, or for a reason why none can come in time. A leader that is cut off would keep callers
    /// waiting until their deadlines; it redirects them earlier, so that they find the leader of the majority.
    async fn wait_for_reply(
        &self,
        term: u64,
        mut receiver: oneshot::Receiver<ProposalResult>,
        deadline: Instant,
    ) -> Result<ProposalResult, &'static str> {
        loop {
            let look = deadline.min(Instant::now() + QUORUM_POLL_INTERVAL);
            match timeout_at(look, &mut receiver).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(_)) => return Err("the replica is stopping, or another leader discarded the entry"),
                Err(_) if look == deadline => return Err("the deadline passed before the entry was committed"),
                Err(_) if !self.has_recent_quorum(term) => {
                    return Err("the leader has lost its quorum");
                }
                Err(_) => {}
            }
        }
    }
}
