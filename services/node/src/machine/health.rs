//! A shard that failed at an entry: out of service until its state is built again.
//!
//! While there is no state, sections for the shard are kept in order. A rebuild replays the history of the shard on
//! another machine, or takes the state that another replica had at a later entry, then applies what was kept, and puts
//! that state in place.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use holdfast_core::codec;
use holdfast_core::shard::ShardState;
use holdfast_replication::{Applied, ApplyFailure, EntryHeader, FailedEntry, ReplyMode, StateMachineError};
use holdfast_storage::SnapshotPart;
use holdfast_supervise::catch_panic;
use tokio::sync::watch;

use super::exceptions::SectionExceptions;
use super::{Inner, ReadPart, ShardMachine, ShardSignals, signals_of};
use crate::group_machine::PartError;
use crate::mutations;

/// Bytes of sections kept while there is no state, in memory and in a part of a snapshot: a section counts for no less
/// than its encoding. Beyond it, this replica makes no more snapshots of the group, so that the log still has the
/// dropped sections.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of encoded sections in a part that is read. Earlier builds wrote up to twice as many.
pub(crate) const MAX_READ_BYTES: usize = 2 * MAX_KEPT_BYTES;
/// Bytes that a section counts for besides its commands. Its header, the number of commands, and the share of a chunk's
/// own header are encoded in less.
const SECTION_BYTES: usize = 64;
/// Bytes of the length of a command, at most.
const LENGTH_BYTES: usize = 5;

impl Inner {
    /// Returns the last state of a shard that failed for good and all sections since, if none is missing.
    pub(super) fn kept_sections(&self) -> Option<FailedHistory> {
        let mut kept = self.kept.clone().filter(FailedHistory::is_sound)?;
        kept.since.sections.extend(self.backlog.sections.iter().cloned());
        Some(kept)
    }

    /// Returns true if a part of a snapshot has room for all sections since the last state.
    fn fits_part(&self) -> bool {
        self.kept.as_ref().is_none_or(|kept| kept.since.bytes + self.backlog.bytes <= MAX_KEPT_BYTES)
    }
}

/// Whether a shard serves on this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShardHealth {
    Healthy,
    /// It failed at this entry, and its state is being built again.
    Broken(FailedEntry),
    /// It failed at this entry again: it serves no more before another release or another snapshot.
    Failed(FailedEntry),
}

/// Bytes of kept sections in one chunk of a snapshot, once it has one section.
const MAX_CHUNK_BYTES: usize = 512 * 1024;

/// A section that was not applied: the header of its entry, and its commands.
pub(crate) type DeferredSection = (EntryHeader, Vec<Bytes>);

/// Sections in the order of the log: the latest ones. Once there are too many, all are dropped and it begins anew.
#[derive(Clone, Default)]
pub(crate) struct SectionList {
    sections: Vec<DeferredSection>,
    bytes: usize,
    /// The index of the entry after which it begins.
    begins_after: u64,
}

impl SectionList {
    /// Creates an empty list of the sections after the entry of this index.
    pub(super) fn after(index: u64) -> Self {
        Self { begins_after: index, ..Self::default() }
    }

    /// Returns the sections after the entry of this index, or `None` if they are not all in the list.
    fn sections_after(&self, index: u64) -> Option<Vec<DeferredSection>> {
        let after = || self.sections.iter().filter(|(header, _)| header.index > index).cloned().collect();
        (index >= self.begins_after).then(after)
    }

    /// Adds copies of the commands, so that they do not hold their whole entry in memory.
    pub(crate) fn push(&mut self, header: EntryHeader, commands: &[Bytes]) {
        self.bytes += section_bytes(commands);
        if self.bytes > MAX_KEPT_BYTES {
            *self = Self::after(header.index);
            return;
        }
        self.sections.push((header, commands.iter().map(|command| Bytes::copy_from_slice(command)).collect()));
    }
}

/// What became of a state that was built again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Adoption {
    /// It is in place.
    Done,
    /// The outage is over, or another one has begun: nothing was changed.
    Stale,
    /// It lacks these sections, in order, which stay kept aside.
    Missing(Vec<DeferredSection>),
    /// It lacks sections up to the entry of this index, which only the log has.
    InLog(u64),
}

/// A shard without a state, which a rebuild may bring back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outage {
    /// Where it failed.
    pub(crate) failed_entry: FailedEntry,
    /// Sections after the entry of this index are kept aside.
    pub(crate) history_end: u64,
    /// Rises with each outage and each end of one.
    pub(crate) epoch: u64,
}

/// A kept section in a chunk: the fields of its header in order, and its commands.
type EncodedSection = ((u64, u64, u16, u64, u64), Vec<Bytes>);

/// The last state of a shard that failed for good, and its sections since. A release that can apply them builds the
/// state from these.
#[derive(Clone, Default)]
pub(crate) struct FailedHistory {
    /// The state; none for an empty shard. It is read from where it is stored, and stays stored for that.
    pub(crate) state: Option<SnapshotPart>,
    pub(crate) since: SectionList,
    /// Set once the state was found damaged: then it can be in no snapshot.
    pub(crate) is_damaged: Arc<AtomicBool>,
}

impl FailedHistory {
    fn is_sound(&self) -> bool {
        !self.is_damaged.load(Ordering::Relaxed)
    }

    /// Returns the state as a part that notes damage when it is read.
    pub(crate) fn watched_state(&self, shard: &str) -> SnapshotPart {
        let Some(state) = self.state.clone() else { return SnapshotPart::from_chunks(shard, Vec::new()) };
        let is_damaged = Arc::clone(&self.is_damaged);
        state.on_damage(move || is_damaged.store(true, Ordering::Relaxed))
    }

    /// Encodes the sections in chunks: at least one, also if there are no sections.
    pub(crate) fn encode(&self) -> Vec<Bytes> {
        let (mut chunks, mut pending, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (header, commands) in &self.since.sections {
            let EntryHeader { term, index, rules, now_ms, wall_ms } = *header;
            pending.push(((term, index, rules, now_ms, wall_ms), commands));
            bytes += section_bytes(commands);
            if bytes >= MAX_CHUNK_BYTES {
                chunks.push(codec::encode(&std::mem::take(&mut pending)).into());
                bytes = 0;
            }
        }
        if !pending.is_empty() || chunks.is_empty() {
            chunks.push(codec::encode(&pending).into());
        }
        chunks
    }

    /// Decodes the sections that [`Self::encode`] made chunks of.
    ///
    /// # Errors
    /// When they are damaged.
    pub(crate) fn decode(chunks: &[Bytes]) -> Result<Vec<DeferredSection>, StateMachineError> {
        let mut sections = Vec::new();
        for chunk in chunks {
            let decoded: Vec<EncodedSection> = codec::decode(chunk).map_err(unreadable)?;
            sections.extend(decoded.into_iter().map(|((term, index, rules, now_ms, wall_ms), commands)| {
                (EntryHeader { term, index, rules, now_ms, wall_ms }, commands)
            }));
        }
        Ok(sections)
    }
}

fn unreadable(error: impl fmt::Display) -> StateMachineError {
    StateMachineError(format!("kept sections can't be read: {error}"))
}

fn section_bytes(commands: &[Bytes]) -> usize {
    SECTION_BYTES + commands.iter().map(|command| LENGTH_BYTES + command.len()).sum::<usize>()
}

impl ShardMachine {
    /// Subscribes to the health of the shard.
    pub(crate) fn health(&self) -> watch::Receiver<ShardHealth> {
        self.health.subscribe()
    }

    /// Checks whether the shard serves.
    ///
    /// # Errors
    /// When it failed.
    pub(crate) fn check_health(&self) -> Result<(), StateMachineError> {
        match &*self.health.borrow() {
            ShardHealth::Healthy => Ok(()),
            ShardHealth::Broken(failed) | ShardHealth::Failed(failed) => Err(StateMachineError(format!(
                "shard {} failed on this node at entry {} of its log",
                self.shard, failed.index
            ))),
        }
    }

    /// Returns the index of the entry that the shard failed at, while it does not serve.
    pub(crate) fn failed_index(&self) -> Option<u64> {
        match &*self.health.borrow() {
            ShardHealth::Healthy => None,
            ShardHealth::Broken(failed) | ShardHealth::Failed(failed) => Some(failed.index),
        }
    }

    /// Returns true if the shard can be part of a snapshot.
    pub(crate) fn can_freeze(&self) -> bool {
        let inner = self.inner.lock();
        inner.core.is_some() || inner.kept.as_ref().is_some_and(FailedHistory::is_sound)
    }

    /// Takes the shard out of service after it failed in this entry; the others of its group go on.
    pub(crate) fn isolate(&self, failed_entry: &FailedEntry) {
        self.begin_outage(failed_entry, failed_entry.index);
    }

    /// As above; the sections after the entry of index `history_end` are kept aside.
    fn begin_outage(&self, failed_entry: &FailedEntry, history_end: u64) -> Outage {
        let mut inner = self.inner.lock();
        if inner.core.is_some() {
            // A command that can't be decoded leaves the state behind, and a panic outside of a step anywhere.
            self.fail(&mut inner);
        } else if *self.health.borrow() != ShardHealth::Healthy {
            // What it was made of up to an earlier entry is no part of a snapshot without the sections up to this one.
            inner.kept = None;
        }
        inner.backlog = SectionList::after(history_end);
        inner.epoch += 1;
        inner.drop_takeover();
        let epoch = inner.epoch;
        self.health.send_replace(ShardHealth::Broken(failed_entry.clone()));
        // Under the lock, so that they replace no later ones.
        self.replace_signals(ShardSignals::default());
        drop(inner);
        Outage { failed_entry: failed_entry.clone(), history_end, epoch }
    }

    /// Returns true if the history of a shard that failed for good has a section of the entry of this index.
    pub(crate) fn has_kept_section(&self, index: u64) -> bool {
        let kept = self.inner.lock().kept_sections();
        kept.is_some_and(|kept| kept.since.sections.iter().any(|(header, _)| header.index == index))
    }

    /// Returns the outage of a broken shard, whose own history was not tried again yet.
    pub(crate) fn broken(&self) -> Option<Outage> {
        let outage = self.outage()?;
        matches!(*self.health.borrow(), ShardHealth::Broken(_)).then_some(outage)
    }

    /// Returns the outage of a shard that serves no more, for now or for good.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let inner = self.inner.lock();
        match &*self.health.borrow() {
            ShardHealth::Healthy => None,
            ShardHealth::Broken(failed) | ShardHealth::Failed(failed) => Some(Outage {
                failed_entry: failed.clone(),
                history_end: inner.backlog.begins_after,
                epoch: inner.epoch,
            }),
        }
    }

    /// Returns the exceptions of a section that is about to be applied. `None` if there is no state to apply the
    /// section to: then it is kept, and its callers are told that the outcome is unknown.
    pub(super) fn begin_section(&self, header: EntryHeader, commands: &[Bytes]) -> Option<SectionExceptions> {
        let mut inner = self.inner.lock();
        if inner.core.is_none() && *self.health.borrow() != ShardHealth::Healthy {
            inner.last_clock_ms = inner.last_clock_ms.max(header.now_ms);
            let begins_after = inner.backlog.begins_after;
            inner.backlog.push(header, commands);
            // What was dropped can be in no snapshot, and what a part has no room for neither.
            if inner.backlog.begins_after != begins_after || !inner.fits_part() {
                inner.kept = None;
            }
            return None;
        }
        Some(inner.exceptions.of_section(header))
    }

    /// Drops the partly changed state and the leader state.
    pub(super) fn fail(&self, inner: &mut Inner) {
        let clock_ms = catch_panic(|| inner.core.as_ref().map_or(inner.last_clock_ms, ShardState::clock_ms));
        inner.last_clock_ms = clock_ms.unwrap_or(inner.last_clock_ms);
        let (core, table) = (inner.core.take(), inner.take_leader_state());
        // A state that may be partly changed is no part of a snapshot.
        inner.kept = core.as_ref().and_then(mutations::part_of_broken);
        // The fault in them may cause another panic on drop.
        let _ = catch_panic(move || drop(table));
        let _ = catch_panic(move || drop(core));
        self.memory.reset(&[]);
        self.leader_state_changed.notify_waiters();
        self.expiry_resolved.notify_waiters();
    }

    /// Takes the shard out of service for good after it failed again; `kept` is what it was made of up to the end of
    /// the outage's history. Changes nothing if the state was replaced or lost again since.
    pub(crate) fn mark_failed(&self, outage: &Outage, failed_entry: FailedEntry, kept: Option<FailedHistory>) {
        let mut inner = self.inner.lock();
        if inner.epoch == outage.epoch {
            // Sections between the two may have been dropped meanwhile.
            let continues = inner.backlog.begins_after == outage.history_end;
            inner.kept = kept.filter(|kept| continues && kept.since.begins_after == 0);
            if !inner.fits_part() {
                inner.kept = None;
            }
            self.health.send_replace(ShardHealth::Failed(failed_entry));
        }
    }

    /// Replaces the state by that of a snapshot up to this index. If the shard failed where the snapshot was made, it
    /// has sections since its state, which are tried here, twice.
    ///
    /// # Errors
    /// When the state can't be read a second time.
    pub(crate) fn install_part(
        &self,
        index: u64,
        read: ReadPart,
        state: SnapshotPart,
    ) -> Result<(), StateMachineError> {
        let ReadPart { core, sections } = read;
        self.install(core);
        if self.apply_all(&sections).is_ok() {
            return Ok(());
        }
        self.install(self.read_state(&state)?);
        let Err(failed_entry) = self.apply_all(&sections) else { return Ok(()) };
        let outage = self.begin_outage(&failed_entry, index);
        let mut since = SectionList::default();
        sections.iter().for_each(|(header, commands)| since.push(*header, commands));
        self.mark_failed(
            &outage,
            failed_entry,
            Some(FailedHistory { state: Some(state), since, ..FailedHistory::default() }),
        );
        Ok(())
    }

    /// Takes the shard out of service for good, since its part of a snapshot up to this index is damaged: other
    /// replicas have its state.
    pub(crate) fn fail_at_snapshot(&self, index: u64, error: &PartError) {
        tracing::error!(shard = self.shard, index, %error, "shard out of service: snapshot part damaged");
        let failure = ApplyFailure::invalid_entry(error.to_string());
        let failed_entry = FailedEntry { term: 0, index, failure };
        let outage = self.begin_outage(&failed_entry, index);
        self.mark_failed(&outage, failed_entry, None);
    }

    /// Applies the sections of a part. Fails with the entry of the first that fails.
    fn apply_all(&self, sections: &[DeferredSection]) -> Result<(), FailedEntry> {
        self.inner.lock().differs_from_part = !sections.is_empty();
        sections.iter().try_for_each(|(header, commands)| {
            let EntryHeader { term, index, .. } = *header;
            self.apply_whole(*header, commands).map_err(|failure| FailedEntry { term, index, failure })
        })
    }

    /// Returns an empty machine of the same shard, to replay its history on.
    pub(crate) fn for_rebuild(&self) -> Self {
        let empty = Self::new(self.application, &self.shard, self.bounds.clone(), self.observer.clone());
        let empty = empty.with_markers(self.steps.clone(), self.fatal.clone()).with_slices(self.slice_commands);
        empty.set_exceptions(self.exceptions());
        empty
    }

    /// Applies a whole section at once.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn apply_whole(&self, header: EntryHeader, commands: &[Bytes]) -> Result<(), ApplyFailure> {
        let mut applied = self.apply(header, commands, ReplyMode::Skip)?;
        while let Applied::Part(rest) = applied {
            applied = rest()?;
        }
        Ok(())
    }

    /// Puts the state of `rebuilt` in place if it has everything that this machine was given. It has all sections up to
    /// the entry of index `has`. Otherwise returns what it lacks. Changes nothing if the state was replaced or lost
    /// again since `epoch`.
    ///
    /// # Errors
    /// When there is no state in `rebuilt`.
    pub(crate) fn adopt(&self, epoch: u64, rebuilt: &Self, has: u64) -> Result<Adoption, StateMachineError> {
        let mut inner = self.inner.lock();
        if inner.epoch != epoch {
            return Ok(Adoption::Stale);
        }
        match inner.backlog.sections_after(has) {
            None => return Ok(Adoption::InLog(inner.backlog.begins_after)),
            Some(missing) if !missing.is_empty() => return Ok(Adoption::Missing(missing)),
            Some(_) => {}
        }
        let Some(core) = rebuilt.inner.lock().core.take() else {
            return Err(StateMachineError("there is no state to put in place".to_owned()));
        };
        let signals = signals_of(&core);
        self.memory.take_over(&rebuilt.memory);
        inner.core = Some(core);
        (inner.kept, inner.backlog) = (None, SectionList::default());
        // The saved part may have sections since its state, or be of before the state that another replica had.
        inner.differs_from_part = true;
        inner.epoch += 1;
        inner.drop_takeover();
        if let Some(failed) = inner.build_leader_state() {
            self.leader_state_failed.send_replace(Some(failed));
        }
        self.health.send_replace(ShardHealth::Healthy);
        // Under the lock, so that they replace no later ones.
        self.replace_signals(signals);
        drop(inner);
        self.leader_state_changed.notify_waiters();
        Ok(Adoption::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_count_for_no_less_than_they_are_encoded_in() {
        let last =
            EntryHeader { term: u64::MAX, index: u64::MAX, rules: u16::MAX, now_ms: u64::MAX, wall_ms: u64::MAX };
        for length in [0, 1, 127, 128, 16_384, 2_097_152] {
            let count = (1_000_000 / (length + 1)).max(1);
            let mut history = FailedHistory::default();
            history.since.push(last, &vec![Bytes::from(vec![0; length]); count]);
            history.since.push(last, &[]);
            let encoded: usize = history.encode().iter().map(Bytes::len).sum();
            assert!(encoded <= history.since.bytes, "{count} commands of {length} bytes");
            assert_eq!(FailedHistory::decode(&history.encode()).expect("it is readable").len(), 2);
        }
    }
}
