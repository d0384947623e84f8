//! openraft's state machine, over an in-memory [`StateMachine`] and snapshots in the store.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_storage::{PartUpdate, ReplicaStore, run_blocking};
use metrics::{Histogram, histogram};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::applied::AppliedIndex;
use crate::entry::{Body, EntryData, GroupCommand, Section};
use crate::error::{ProposeError, WireError, to_io};
use crate::log_compaction::{EntryLimits, LogCompactor, LogLimits, LogSize};
use crate::rules::{GroupState, KnownRules};
use crate::shard_failures::LocalFailures;
use crate::snapshot_store::{SnapshotAge, SnapshotBuilder, SnapshotStore};
use crate::state_machine::{
    Applied, ApplyFailure, EntryHeader, FailedEntry, ReplyMode, StateMachine, StateMachineError,
};
use crate::types::{Entry, LogId, Snapshot, SnapshotData, SnapshotMeta, StoredMembership, TypeConfig, decode_meta};

pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachineAdapter>;

/// Applies committed entries; makes and installs snapshots.
pub struct StateMachineAdapter {
    machine: Arc<dyn StateMachine>,
    snapshots: SnapshotStore,
    applied: Option<LogId>,
    /// The last entry with a section for a shard, by number; of shards with a section since the replica was started.
    last_sections: BTreeMap<u32, u64>,
    applied_index: AppliedIndex,
    membership: StoredMembership,
    term_start: watch::Sender<TermStart>,
    log_size: LogSize,
    known_rules: KnownRules,
    group: GroupState,
    group_state: watch::Sender<GroupState>,
    failed_entry: watch::Sender<Option<FailedEntry>>,
    /// Where failed shards are published, and as which replica's.
    failures: (u64, LocalFailures),
    /// Looking it up would cost more than recording.
    apply_seconds: Histogram,
    stopped: CancellationToken,
    _stop_guard: DropGuard,
}

/// The shared view of an adapter, which outlives it.
#[derive(Clone)]
pub(crate) struct AdapterHandle {
    /// The index of the machine's state.
    pub(crate) applied_index: AppliedIndex,
    /// The age of the snapshot.
    pub(crate) snapshot_age: SnapshotAge,
    /// What was applied since.
    pub(crate) log_size: LogSize,
    /// Becomes `Some` when the machine has failed.
    pub(crate) failed_entry: watch::Receiver<Option<FailedEntry>>,
    /// The replicated group state.
    pub(crate) group_state: watch::Receiver<GroupState>,
    /// The start of the latest term with an applied entry.
    pub(crate) term_start: watch::Receiver<TermStart>,
    snapshots: SnapshotStore,
    stopped: CancellationToken,
}

impl AdapterHandle {
    /// Waits until nothing is applied or saved any more.
    pub(crate) async fn wait_stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// Stops the adapter and its builders: nothing is applied or saved after this. Waits for work in progress.
    pub(crate) async fn stop(&self) {
        self.snapshots.close().await;
        self.stopped.cancelled().await;
    }
}

/// The highest term with an applied entry, and the term of the entry before the term's first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TermStart {
    pub(crate) term: u64,
    pub(crate) previous_term: u64,
}

/// Approximate bytes of an entry in the log besides its block.
const ENTRY_OVERHEAD_BYTES: usize = 16;

impl StateMachineAdapter {
    /// Wraps an empty machine; openraft restores it from the saved snapshot and the log.
    ///
    /// # Errors
    /// When the saved snapshot's metadata can't be decoded, or this program does not know its rules.
    pub fn new(
        machine: Arc<dyn StateMachine>,
        store: ReplicaStore,
        limits: LogLimits,
        known_rules: KnownRules,
    ) -> Result<Self, io::Error> {
        let saved = store.snapshot_meta().map_err(to_io)?.map(|bytes| decode_meta(&bytes)).transpose()?;
        if let Some((_, group)) = &saved {
            group.check(known_rules).map_err(invalid)?;
        }
        let last = saved.and_then(|(meta, _)| meta.last_log_id);
        let (stopped, applied_index) = (CancellationToken::new(), AppliedIndex::default());
        Ok(Self {
            machine,
            snapshots: SnapshotStore::new(store, last, applied_index.clone()),
            applied: None,
            last_sections: BTreeMap::new(),
            applied_index,
            membership: StoredMembership::default(),
            term_start: watch::Sender::default(),
            log_size: LogSize::new(limits),
            known_rules,
            group: GroupState::default(),
            group_state: watch::Sender::default(),
            failed_entry: watch::Sender::new(None),
            failures: (0, LocalFailures::default()),
            apply_seconds: histogram!("holdfast_apply_seconds"),
            _stop_guard: stopped.clone().drop_guard(),
            stopped,
        })
    }

    /// Returns the shared view of the adapter.
    pub(crate) fn handle(&self) -> AdapterHandle {
        AdapterHandle {
            applied_index: self.applied_index.clone(),
            snapshot_age: self.snapshots.age(),
            log_size: self.log_size.clone(),
            failed_entry: self.failed_entry.subscribe(),
            group_state: self.group_state.subscribe(),
            term_start: self.term_start.subscribe(),
            snapshots: self.snapshots.clone(),
            stopped: self.stopped.clone(),
        }
    }

    /// Limits the log by entries too.
    #[must_use]
    pub(crate) fn with_entry_limits(self, limits: EntryLimits) -> Self {
        self.log_size.set_entry_limits(limits);
        self
    }

    /// Publishes the shards that fail here as those of this replica.
    #[must_use]
    pub(crate) fn with_failures(mut self, replica: u64, failures: LocalFailures) -> Self {
        self.failures = (replica, failures);
        self
    }

    /// Returns the task that limits the log's size.
    pub(crate) fn compactor(&self) -> LogCompactor {
        let machine = Arc::downgrade(&self.machine);
        let can_freeze = move || machine.upgrade().is_some_and(|machine| machine.can_freeze());
        self.log_size.compactor(Box::new(can_freeze), self.snapshots.sent().clone())
    }

    async fn apply_one(&mut self, (entry, responder): EntryResponder<TypeConfig>) -> Result<(), io::Error> {
        let id = entry.log_id();
        self.applied_index.begin(id.index);
        let bytes = entry_bytes(&entry);
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(id), membership);
            }
            EntryPayload::Normal(data) => {
                self.apply_block(id, &data).await.map_err(|failure| self.fail(id, failure))?
            }
        }
        let previous_term = self.applied.map_or(0, |before| before.leader_id.term);
        self.applied = Some(id);
        self.applied_index.end(id.index);
        self.log_size.applied(id.index, bytes);
        let term = id.leader_id.term;
        // Only ever rises: with each new leader's first entry.
        self.term_start.send_if_modified(|highest| {
            let rises = term > highest.term;
            if rises {
                *highest = TermStart { term, previous_term };
            }
            rises
        });
        if let Some(responder) = responder {
            responder.send(());
        }
        Ok(())
    }

    async fn apply_block(&mut self, id: LogId, data: &EntryData) -> Result<(), ApplyFailure> {
        let block = data.read()?;
        let sections = match &block.body {
            Body::Commands(sections) => sections,
            Body::Structural(command) => return self.apply_structural(id, command),
        };
        let group = self.group.raised(block.rules, self.known_rules)?;
        let header = block.header(id, &group);
        let (began, mut late) = (Instant::now(), Vec::new());
        for (position, section) in sections.iter().enumerate() {
            self.last_sections.insert(section.shard, id.index);
            let replies = self.apply_section(id, data, header, position, section).await?;
            if is_enabled(Mutation::ReplyByEntry) {
                late.push((position, replies));
            } else {
                answer(data, position, replies);
            }
        }
        late.into_iter().for_each(|(position, replies)| answer(data, position, replies));
        self.apply_seconds.record(began.elapsed().as_secs_f64());
        self.set_group_state(group);
        Ok(())
    }

    fn apply_structural(&mut self, id: LogId, command: &GroupCommand) -> Result<(), ApplyFailure> {
        match command {
            GroupCommand::RaiseRules(next) => self.set_group_state(self.group.raised(*next, self.known_rules)?),
            GroupCommand::Checkpoint { shard, from } => self.machine.checkpoint(*shard, id.index, *from),
            GroupCommand::Quarantine(exception) => {
                let Some(group) = self.group.with_exception(exception) else { return Ok(()) };
                self.machine.set_exceptions(&group.exceptions)?;
                self.set_group_state(group);
                // Whether or not it serves here: its state may have what is left out.
                let failed_entry = exception.failure(id);
                if !self.machine.isolate(exception.shard, &failed_entry) {
                    return Err(failed_entry.failure);
                }
                self.publish_failed_shards();
            }
        }
        Ok(())
    }

    /// Applies one section and returns the replies to its callers; if its shard failed, they are told already.
    async fn apply_section(
        &self,
        id: LogId,
        data: &EntryData,
        header: EntryHeader,
        position: usize,
        section: &Section,
    ) -> Result<Vec<Bytes>, ApplyFailure> {
        let replies = if data.replies.is_some() { ReplyMode::Encode } else { ReplyMode::Skip };
        if is_enabled(Mutation::DuplicateApply) && replies == ReplyMode::Skip && id.index.is_multiple_of(16) {
            let _ = apply_slices(&*self.machine, header, section, replies).await;
        }
        let failure = match apply_slices(&*self.machine, header, section, replies).await {
            Ok(replies) => return Ok(replies),
            Err(_) if is_enabled(Mutation::UnknownCommandSkipped) => return Ok(Vec::new()),
            Err(failure) => failure,
        };
        let failed = FailedEntry { term: id.leader_id.term, index: id.index, failure };
        if !self.machine.isolate(section.shard, &failed) {
            return Err(failed.failure);
        }
        self.publish_failed_shards();
        if let Some(sinks) = &data.replies {
            sinks.fail_section(position, &ProposeError::Unknown("the shard failed on its leader"));
        }
        Ok(Vec::new())
    }

    /// Tells peers which shards do not serve here. Called before the replica says that it has applied the entry.
    fn publish_failed_shards(&self) {
        let (replica, failures) = &self.failures;
        failures.update(*replica, || self.machine.failed_shards().into_keys().collect());
    }

    fn set_group_state(&mut self, group: GroupState) {
        if self.group == group {
            return;
        }
        self.group = group.clone();
        if let Some(rules) = group.rules {
            self.snapshots.store().record_rules(rules);
            self.machine.set_rules(rules);
        }
        self.group_state.send_replace(group);
    }

    /// Records that the machine failed in this entry. The returned error stops openraft.
    fn fail(&self, id: LogId, failure: ApplyFailure) -> io::Error {
        let error = io::Error::other(format!("entry {} of term {}, {failure}", id.index, id.leader_id.term));
        self.failed_entry.send_replace(Some(FailedEntry { term: id.leader_id.term, index: id.index, failure }));
        error
    }
}

/// Answers the callers of a section that have no answer yet.
fn answer(data: &EntryData, position: usize, replies: Vec<Bytes>) {
    if let Some(sinks) = &data.replies {
        sinks.answer(position, replies);
    }
}

/// Applies a section's slices; queries and other tasks of the thread run between two slices.
async fn apply_slices(
    machine: &dyn StateMachine,
    header: EntryHeader,
    section: &Section,
    replies: ReplyMode,
) -> Result<Vec<Bytes>, ApplyFailure> {
    let mut applied = machine.apply(header, section.shard, &section.commands, replies)?;
    loop {
        match applied {
            Applied::Done(replies) => return Ok(replies),
            Applied::Part(rest) => {
                yield_now().await;
                applied = rest()?;
            }
        }
    }
}

fn entry_bytes(entry: &Entry) -> u64 {
    let block = match &entry.payload {
        EntryPayload::Normal(data) => data.block.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    };
    (block + ENTRY_OVERHEAD_BYTES) as u64
}

fn invalid(error: StateMachineError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl From<StateMachineError> for ApplyFailure {
    fn from(error: StateMachineError) -> Self {
        Self::invalid_entry(error.0)
    }
}

impl From<WireError> for ApplyFailure {
    fn from(error: WireError) -> Self {
        Self::invalid_entry(error.to_string())
    }
}

impl RaftStateMachine<TypeConfig> for StateMachineAdapter {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.try_next().await? {
            self.apply_one(entry).await?;
        }
        Ok(())
    }

    /// Makes no snapshot while a shard is being built again.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        if !force && !self.machine.can_freeze() {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        let saved = self.snapshots.last().await.filter(|saved| Some(*saved) <= self.applied);
        // The saved snapshot has all sections of a shard that got none since the start: its state is from there.
        let last_section = |shard: u32| self.last_sections.get(&shard).copied().unwrap_or(0);
        let has_all = |shard, saved: LogId| last_section(shard) <= saved.index || is_enabled(Mutation::PartBehind);
        // A part that can't be read is to be replaced, though its shard is idle.
        let is_sound = !self.snapshots.sent().is_damaged();
        let is_saved = |shard: u32| is_sound && saved.is_some_and(|saved| has_all(shard, saved));
        let (frozen, covered_bytes) = (Some(self.machine.freeze(&is_saved)), self.log_size.snapshot_begun());
        let (snapshots, log_size) = (self.snapshots.clone(), self.log_size.clone());
        SnapshotBuilder { snapshots, meta, group: self.group.clone(), frozen, log_size, covered_bytes }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotData) -> Result<(), io::Error> {
        let SnapshotData { group, stored, .. } = snapshot;
        group.check(self.known_rules).map_err(invalid)?;
        let index = meta.last_log_id.map_or(0, |id| id.index);
        self.applied_index.begin(index);
        self.machine.set_exceptions(&group.exceptions).map_err(invalid)?;
        let parts = stored.parts();
        run_blocking(|| self.machine.restore(index, &parts)).map_err(invalid)?;
        self.publish_failed_shards();
        self.set_group_state(group.clone());
        self.snapshots.save(meta, &group, parts.into_iter().map(PartUpdate::Write).collect()).await?;
        self.snapshots.sent().clear();
        self.applied = meta.last_log_id;
        self.applied_index.end(index);
        self.membership = meta.last_membership.clone();
        self.log_size.restored();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        self.snapshots.to_send()
    }
}
