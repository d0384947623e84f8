//! Applies sections, slice by slice.

use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures::pending;
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_supervise::catch_panic;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use crate::entry::Section;
use crate::error::ProposeError;
use crate::shard_failures::LocalFailures;
use crate::state_machine::{Applied, ApplyFailure, EntryHeader, FailedEntry, ReplyMode, StateMachine};
use crate::types::LogId;

/// What the callers of a section get: the replies, or that their shard failed.
pub(crate) type SectionReplies = Result<Vec<Bytes>, ProposeError>;

/// What sections are applied with. The adapter holds it, and so does each section that is not applied to its end.
pub(crate) struct SectionApplier {
    pub(crate) machine: Arc<dyn StateMachine>,
    /// Where failed shards are published, and as which replica's.
    failures: OnceLock<(u64, LocalFailures)>,
    failed_entry: watch::Sender<Option<FailedEntry>>,
    _stop_guard: DropGuard,
}

impl SectionApplier {
    /// Creates an applier; `stop_guard` ends with it.
    pub(crate) fn new(machine: Arc<dyn StateMachine>, stop_guard: DropGuard) -> Self {
        let (failures, failed_entry) = (OnceLock::new(), watch::Sender::new(None));
        Self { machine, failures, failed_entry, _stop_guard: stop_guard }
    }

    /// Publishes the shards that fail here as those of this replica.
    pub(crate) fn set_failures(&self, replica: u64, failures: LocalFailures) {
        let _ = self.failures.set((replica, failures));
    }

    /// Subscribes to the failure of the machine.
    pub(crate) fn failed_entry(&self) -> watch::Receiver<Option<FailedEntry>> {
        self.failed_entry.subscribe()
    }

    /// Applies a section, one slice each time it is polled; it wakes nobody in between.
    ///
    /// # Errors
    /// When the machine can't go on without this section. Published.
    pub(crate) async fn apply(
        self: Arc<Self>,
        header: EntryHeader,
        section: Section,
        replies: ReplyMode,
    ) -> Result<SectionReplies, io::Error> {
        if is_enabled(Mutation::DuplicateApply) && replies == ReplyMode::Skip && header.index.is_multiple_of(16) {
            let _ = apply_slices(&*self.machine, header, &section, replies).await;
        }
        let failure = match apply_slices(&*self.machine, header, &section, replies).await {
            Ok(replies) => return Ok(Ok(replies)),
            Err(_) if is_enabled(Mutation::UnknownCommandSkipped) => return Ok(Ok(Vec::new())),
            Err(failure) => failure,
        };
        let failed = FailedEntry { term: header.term, index: header.index, failure };
        if !self.machine.isolate(section.shard, &failed) {
            return Err(self.fail(failed));
        }
        self.publish_failed_shards();
        Ok(Err(ProposeError::Unknown("the shard failed on its leader")))
    }

    /// Tells peers which shards do not serve here. Called before the replica says that it has applied the entry.
    pub(crate) fn publish_failed_shards(&self) {
        if let Some((replica, failures)) = self.failures.get() {
            failures.update(*replica, || self.machine.failed_shards().into_keys().collect());
        }
    }

    /// Publishes that the machine failed in the entry of this id. The returned error stops openraft.
    pub(crate) fn fail_at(&self, id: LogId, failure: impl Into<ApplyFailure>) -> io::Error {
        self.fail(FailedEntry { term: id.leader_id.term, index: id.index, failure: failure.into() })
    }

    /// Publishes that the machine failed in this entry. The returned error stops openraft.
    fn fail(&self, failed: FailedEntry) -> io::Error {
        let FailedEntry { term, index, failure } = &failed;
        let error = io::Error::other(format!("entry {index} of term {term}, {failure}"));
        self.failed_entry.send_replace(Some(failed));
        error
    }
}

async fn apply_slices(
    machine: &dyn StateMachine,
    header: EntryHeader,
    section: &Section,
    replies: ReplyMode,
) -> Result<Vec<Bytes>, ApplyFailure> {
    let mut applied = catch(|| machine.apply(header, section.shard, &section.commands, replies))?;
    loop {
        match applied {
            Applied::Done(replies) => return Ok(replies),
            Applied::Part(rest) => {
                pending!();
                applied = catch(rest)?;
            }
        }
    }
}

/// A panic that the machine does not catch fails its shard as well. One that ended the worker of a queue instead would
/// leave the shard busy for ever.
fn catch<T>(work: impl FnOnce() -> Result<T, ApplyFailure>) -> Result<T, ApplyFailure> {
    catch_panic(work).unwrap_or_else(|panicked| {
        let failure = ApplyFailure::invalid_entry(panicked.to_string());
        Err(ApplyFailure { backtrace: panicked.backtrace, ..failure })
    })
}
