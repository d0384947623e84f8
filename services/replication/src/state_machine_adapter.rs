//! openraft's state machine, over an in-memory [`StateMachine`] and snapshots in the store.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, Stream, TryStreamExt};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_storage::{PartUpdate, ReplicaStore, SnapshotPart, StorageError, run_blocking};
use metrics::{Histogram, histogram};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::applied::AppliedIndex;
use crate::apply_queue::{ApplyQueues, QueuedSection, SectionCallers, SectionSize};
use crate::entry::{Body, EntryData, GroupCommand, Section};
use crate::error::{WireError, to_io};
use crate::log_compaction::{EntryLimits, LogCompactor, LogLimits, LogSize};
use crate::reply_sinks::ReplySinks;
use crate::rules::{GroupState, KnownRules};
use crate::section_applier::SectionApplier;
use crate::shard_failures::LocalFailures;
use crate::snapshot_store::{SnapshotAge, SnapshotBuilder, SnapshotStore};
use crate::state_machine::{ApplyFailure, EntryHeader, FailedEntry, ReplyMode, StateMachine, StateMachineError};
use crate::types::{Entry, LogId, Snapshot, SnapshotData, SnapshotMeta, StoredMembership, TypeConfig, decode_meta};

pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachineAdapter>;

/// Applies committed entries; makes and installs snapshots.
pub struct StateMachineAdapter {
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
    sections: Arc<SectionApplier>,
    queues: ApplyQueues,
    /// Looking it up would cost more than recording.
    apply_seconds: Histogram,
    stopped: CancellationToken,
}

/// What is queued is dropped with the adapter: the log has it.
impl Drop for StateMachineAdapter {
    fn drop(&mut self) {
        self.queues.close();
    }
}

/// The shared view of an adapter, which outlives it.
#[derive(Clone)]
pub(crate) struct AdapterHandle {
    /// The index of the machine's state.
    pub(crate) applied_index: AppliedIndex,
    /// What is left to apply of the entries that openraft has passed.
    pub(crate) queues: ApplyQueues,
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

    /// Returns a part of the saved snapshot with the snapshot's metadata. Damage in it makes a new snapshot due.
    pub(crate) fn saved_part(&self, name: &str) -> Result<Option<(Bytes, SnapshotPart)>, StorageError> {
        let sent = self.snapshots.sent();
        let saved = self.snapshots.store().snapshot_part(name).inspect_err(|error| {
            if error.is_corrupt() {
                sent.report_damage();
            }
        })?;
        let sent = sent.clone();
        Ok(saved.map(|(meta, part)| (meta, part.on_damage(move || sent.report_damage()))))
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
            sections: Arc::new(SectionApplier::new(machine, stopped.clone().drop_guard())),
            queues: ApplyQueues::new(applied_index.clone()),
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
            apply_seconds: histogram!("holdfast_apply_seconds"),
            stopped,
        })
    }

    /// Returns the shared view of the adapter.
    pub(crate) fn handle(&self) -> AdapterHandle {
        AdapterHandle {
            applied_index: self.applied_index.clone(),
            snapshot_age: self.snapshots.age(),
            log_size: self.log_size.clone(),
            queues: self.queues.clone(),
            failed_entry: self.sections.failed_entry(),
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
    pub(crate) fn with_failures(self, replica: u64, failures: LocalFailures) -> Self {
        self.sections.set_failures(replica, failures);
        self
    }

    /// Returns the task that limits the log's size.
    pub(crate) fn compactor(&self) -> LogCompactor {
        let machine = Arc::downgrade(&self.sections.machine);
        let can_freeze = move || machine.upgrade().is_some_and(|machine| machine.can_freeze());
        self.log_size.compactor(Box::new(can_freeze), self.snapshots.sent().clone())
    }

    async fn apply_one(&mut self, (entry, responder): EntryResponder<TypeConfig>) -> Result<(), io::Error> {
        let id = entry.log_id();
        let (term, previous_term) = (id.leader_id.term, self.applied.map_or(0, |before| before.leader_id.term));
        if term != previous_term {
            // A leader serves once everything of earlier terms is applied.
            self.queues.drain().await?;
        }
        self.applied_index.begin(id.index);
        let bytes = entry_bytes(&entry);
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(id), membership);
            }
            EntryPayload::Normal(data) => self.apply_block(id, data).await?,
        }
        self.applied = Some(id);
        self.queues.dispatched(id.index);
        self.log_size.applied(id.index, bytes);
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

    async fn apply_block(&mut self, id: LogId, data: EntryData) -> Result<(), io::Error> {
        let mut block = data.read().map_err(|error| self.sections.fail_at(id, error))?;
        let sections = match &mut block.body {
            Body::Commands(sections) => std::mem::take(sections),
            Body::Structural(command) => {
                self.queues.drain().await?;
                return self.apply_structural(id, command).map_err(|failure| self.sections.fail_at(id, failure));
            }
        };
        let group = self.group.raised(block.rules, self.known_rules);
        let group = group.map_err(|error| self.sections.fail_at(id, error))?;
        if group != self.group {
            self.queues.drain().await?;
        }
        self.apply_sections(block.header(id, &group), sections, data.replies).await?;
        self.set_group_state(group);
        Ok(())
    }

    /// Applies the first slice of each section, unless its shard is busy, and queues what is left.
    async fn apply_sections(
        &mut self,
        header: EntryHeader,
        sections: Vec<Section>,
        sinks: Option<Arc<ReplySinks>>,
    ) -> Result<(), io::Error> {
        let (began, mut late) = (Instant::now(), Vec::new());
        let reply_mode = if sinks.is_some() { ReplyMode::Encode } else { ReplyMode::Skip };
        for (position, mut section) in sections.into_iter().enumerate() {
            self.last_sections.insert(section.shard, header.index);
            let must_wait = self.queues.is_busy(section.shard);
            if must_wait {
                section.detach();
            }
            let callers = SectionCallers(sinks.clone().map(|sinks| (sinks, position)));
            let mut section = QueuedSection {
                shard: section.shard,
                index: header.index,
                size: SectionSize::of(&section),
                apply: Arc::clone(&self.sections).apply(header, section, reply_mode).boxed(),
                callers,
            };
            match if must_wait { None } else { section.apply_slice() } {
                None => {
                    self.queues.push(section).await?;
                    yield_now().await;
                }
                Some(replies) if is_enabled(Mutation::ReplyByEntry) => late.push((section.callers, replies?)),
                Some(replies) => section.callers.answer(replies?),
            }
        }
        if !late.is_empty() {
            self.queues.drain().await?;
            late.into_iter().for_each(|(callers, replies)| callers.answer(replies));
        }
        self.apply_seconds.record(began.elapsed().as_secs_f64());
        Ok(())
    }

    fn apply_structural(&mut self, id: LogId, command: &GroupCommand) -> Result<(), ApplyFailure> {
        match command {
            GroupCommand::RaiseRules(next) => self.set_group_state(self.group.raised(*next, self.known_rules)?),
            GroupCommand::Checkpoint { shard, from } => self.machine().checkpoint(*shard, id.index, *from),
            GroupCommand::Quarantine(exception) => {
                let Some(group) = self.group.with_exception(exception) else { return Ok(()) };
                self.machine().set_exceptions(&group.exceptions)?;
                self.set_group_state(group);
                // Whether or not it serves here: its state may have what is left out.
                let failed_entry = exception.failure(id);
                if !self.machine().isolate(exception.shard, &failed_entry) {
                    return Err(failed_entry.failure);
                }
                self.sections.publish_failed_shards();
            }
        }
        Ok(())
    }

    fn machine(&self) -> &dyn StateMachine {
        &*self.sections.machine
    }

    fn set_group_state(&mut self, group: GroupState) {
        if self.group == group {
            return;
        }
        self.group = group.clone();
        if let Some(rules) = group.rules {
            self.snapshots.store().record_rules(rules);
            self.machine().set_rules(rules);
        }
        self.group_state.send_replace(group);
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
        // What is queued may still break a shard.
        self.queues.drain().await.ok()?;
        if !force && !self.machine().can_freeze() {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let drained = self.queues.drain().await.map_err(|error| StateMachineError(error.to_string()));
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        let saved = self.snapshots.last().await.filter(|saved| Some(*saved) <= self.applied);
        // The saved snapshot has all sections of a shard that got none since the start: its state is from there.
        let last_section = |shard: u32| self.last_sections.get(&shard).copied().unwrap_or(0);
        let has_all = |shard, saved: LogId| last_section(shard) <= saved.index || is_enabled(Mutation::PartBehind);
        // A part that can't be read is to be replaced, though its shard is idle.
        let is_sound = !self.snapshots.sent().is_damaged();
        let is_saved = |shard: u32| is_sound && saved.is_some_and(|saved| has_all(shard, saved));
        let frozen = Some(drained.and_then(|()| self.machine().freeze(&is_saved)));
        let covered_bytes = self.log_size.snapshot_begun();
        let (snapshots, log_size) = (self.snapshots.clone(), self.log_size.clone());
        SnapshotBuilder { snapshots, meta, group: self.group.clone(), frozen, log_size, covered_bytes }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotData) -> Result<(), io::Error> {
        let SnapshotData { group, stored, .. } = snapshot;
        group.check(self.known_rules).map_err(invalid)?;
        let index = meta.last_log_id.map_or(0, |id| id.index);
        self.queues.drain().await?;
        self.applied_index.begin(index);
        self.machine().set_exceptions(&group.exceptions).map_err(invalid)?;
        let parts = stored.parts();
        run_blocking(|| self.machine().restore(index, &parts)).map_err(invalid)?;
        self.sections.publish_failed_shards();
        self.set_group_state(group.clone());
        self.snapshots.save(meta, &group, parts.into_iter().map(PartUpdate::Write).collect()).await?;
        self.snapshots.sent().clear();
        self.applied = meta.last_log_id;
        self.queues.dispatched(index);
        self.membership = meta.last_membership.clone();
        self.log_size.restored();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        self.snapshots.to_send()
    }
}
