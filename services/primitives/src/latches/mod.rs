//! Latches of one namespace: counts of jobs that are done, each counted once.
//!
//! Invariants: a final status never changes, and the number of done jobs never exceeds the total. A latch completes in
//! the step that counts its last job. Nothing here has an owner, so nothing ends with a session.
//!
//! Deliberately unknown here: who waits. Leaders hold replies back until a latch is settled.

mod charge;
mod done_jobs;
mod name_set;
mod queries;
mod snapshot;
mod verify;

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};
use serde::{Deserialize, Serialize};

use crate::item_bytes::ItemBytes;
use crate::kit::{END_UNITS, Kit, Notice, check_path, quota_exceeded};
use crate::metadata::EncodedMetadata;
use crate::{
    CommandError, CountDown, CreateLatch, EventKind, Jobs, Kind, LATCH_EXPIRES_IN_MS, LATCH_RETAIN_MS, LatchCommand,
    LatchIds, LatchRef, LatchStatus, Limits, MAX_IDS_PER_COUNT_DOWN, MAX_NAME_BYTES, Path, Response, Revision,
};
use done_jobs::DoneJobs;

pub use snapshot::{FrozenLatches, LatchCursor, LatchItem};

/// The latches of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Latches {
    by_path: BTreeMap<Arc<Path>, Arc<Latch>>,
    /// By the shard clock at which a latch expires or is gone, and by its id.
    due: BTreeMap<(u64, Revision), Arc<Path>>,
    /// The bytes of all of them.
    bytes: ItemBytes,
}

/// One latch. Shared with snapshots in progress.
#[derive(Clone, Debug)]
pub struct Latch {
    facts: LatchFacts,
    done: DoneJobs,
}

/// A latch without the jobs that are done. The serialized form is stored: fields never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatchFacts {
    /// The revision of its creation.
    id: Revision,
    total: u64,
    /// The total of its creation, by which a repeat is detected.
    first_total: u64,
    ids: LatchIds,
    status: LatchStatus,
    expires_in_ms: u64,
    retain_ms: u64,
    /// Shard clock at which it expires or, with a final status, at which it is gone.
    deadline_ms: u64,
    /// Wall clock.
    finished_at_ms: Option<u64>,
    description: String,
    metadata: EncodedMetadata,
    /// The revision of its last change.
    revision: Revision,
}

impl Latches {
    /// Returns the number of latches.
    pub fn latch_count(&self) -> usize {
        self.by_path.len()
    }

    /// Returns the bytes of all latches.
    pub fn bytes(&self) -> ItemBytes {
        self.bytes
    }

    /// Returns the first instant of the shard clock at which something is due, and the id of its latch.
    pub fn first_due(&self) -> Option<(u64, Revision)> {
        self.due.first_key_value().map(|(due, _)| *due)
    }

    /// Applies a command.
    pub fn apply(&mut self, kit: &mut Kit<'_>, command: &LatchCommand) -> Result<Response, CommandError> {
        match command {
            LatchCommand::Create(create) => self.create(kit, create),
            LatchCommand::CountDown(count) => self.count_down(kit, count),
            LatchCommand::SetTotal { latch, total, if_total } => self.set_total(kit, latch, *total, *if_total),
            LatchCommand::Delete(latch) => {
                self.delete(kit, latch);
                Ok(Response::Done)
            }
        }
    }

    /// Does what is due first: a latch expires, or it is gone.
    pub fn end_first_due(&mut self, kit: &mut Kit<'_>) {
        if let Some(path) = self.due.first_key_value().map(|(_, path)| Arc::clone(path)) {
            self.end_due(kit, &path);
        }
    }

    /// Does what is due at a path, so that a command meets no latch whose time is over.
    fn end_due_at(&mut self, kit: &mut Kit<'_>, path: &Path) {
        while let Some((path, latch)) = self.by_path.get_key_value(path)
            && latch.facts.deadline_ms <= kit.clock_ms()
        {
            let path = Arc::clone(path);
            self.end_due(kit, &path);
        }
    }

    fn end_due(&mut self, kit: &mut Kit<'_>, path: &Arc<Path>) {
        let Some(at_ms) = self.by_path.get(path).map(|latch| latch.facts.deadline_ms) else { return };
        // As if the leader had been punctual: it is retained from its deadline on.
        let expired = self.change(path, |latch| {
            let is_active = !latch.facts.status.is_final();
            if is_active {
                latch.facts.finish(kit, path, LatchStatus::Expired, at_ms);
            }
            is_active
        });
        if expired != Some(true) {
            kit.spend(END_UNITS);
            self.remove(path);
            kit.notify(Notice::LatchSettled(Path::clone(path)));
        }
    }

    /// Changes a latch, and what is known of it elsewhere.
    fn change<T>(&mut self, path: &Path, change: impl FnOnce(&mut Latch) -> T) -> Option<T> {
        let path = Arc::clone(self.by_path.get_key_value(path)?.0);
        let latch = Arc::make_mut(self.by_path.get_mut(&path)?);
        let (due, bytes) = (latch.due(), latch.bytes(&path));
        let result = change(latch);
        self.bytes = self.bytes - bytes + latch.bytes(&path);
        if due != latch.due() {
            self.due.remove(&due);
            self.due.insert(latch.due(), path);
        }
        Some(result)
    }

    fn insert(&mut self, path: Arc<Path>, latch: Latch) {
        self.bytes += latch.bytes(&path);
        self.due.insert(latch.due(), Arc::clone(&path));
        self.by_path.insert(path, Arc::new(latch));
    }

    fn remove(&mut self, path: &Path) {
        if let Some(latch) = self.by_path.remove(path) {
            self.bytes -= latch.bytes(path);
            self.due.remove(&latch.due());
        }
    }

    fn create(&mut self, kit: &mut Kit<'_>, create: &CreateLatch) -> Result<Response, CommandError> {
        self.end_due_at(kit, &create.path);
        if let Some(latch) = self.by_path.get(&create.path) {
            if !latch.facts.is_of(create) {
                return Err(CommandError::PrimitiveTaken { kind: Kind::Latch, path: create.path.clone() });
            }
            return Ok(Response::LatchCreated { latch: latch.view(&create.path), is_new: false });
        }
        check_creation(kit.limits, create)?;
        let max = kit.limits.max_latches_per_namespace;
        if self.by_path.len() as u64 >= max {
            let hint = "delete latches or have the limit raised";
            return Err(quota_exceeded("the number of latches in a namespace", max, hint));
        }
        kit.check_bytes(charge::of_creation(create))?;
        let id = kit.record(EventKind::LatchCreated, &create.path);
        let mut latch = Latch::new(create, id, kit.clock_ms());
        latch.complete_if_done(kit, &create.path);
        let shown = latch.view(&create.path);
        self.insert(Arc::new(create.path.clone()), latch);
        Ok(Response::LatchCreated { latch: shown, is_new: true })
    }

    /// Returns the latch that a command names, after what was due.
    fn find(&mut self, kit: &mut Kit<'_>, wanted: &LatchRef) -> Result<&Latch, CommandError> {
        self.end_due_at(kit, &wanted.path);
        self.get(wanted)
    }

    fn count_down(&mut self, kit: &mut Kit<'_>, count: &CountDown) -> Result<Response, CommandError> {
        check_jobs(&count.jobs)?;
        let path = &count.latch.path;
        let latch = self.find(kit, &count.latch)?;
        latch.check_ids(&count.jobs)?;
        if latch.facts.status.is_final() {
            return Ok(Response::CountedDown { counted: 0, latch: latch.view(path) });
        }
        kit.check_bytes(latch.done.bytes_of_new(&count.jobs))?;
        let counted = self.change(path, |latch| {
            let counted = latch.done.add(&count.jobs, latch.facts.total);
            if counted > 0 {
                latch.facts.revision = kit.next_revision();
            }
            latch.complete_if_done(kit, path);
            counted
        });
        let latch = self.get(&count.latch)?;
        Ok(Response::CountedDown { counted: counted.unwrap_or_default(), latch: latch.view(path) })
    }

    fn set_total(
        &mut self,
        kit: &mut Kit<'_>,
        wanted: &LatchRef,
        total: u64,
        if_total: Option<u64>,
    ) -> Result<Response, CommandError> {
        let path = &wanted.path;
        let latch = self.find(kit, wanted)?;
        if !latch.changes_total(total, if_total) {
            return Ok(Response::LatchTotalSet { success: total == latch.facts.total, latch: latch.view(path) });
        }
        latch.check_total(kit.limits, total)?;
        kit.check_bytes(latch.bytes_of_total(total))?;
        self.change(path, |latch| {
            latch.facts.total = total;
            latch.facts.revision = kit.next_revision();
            latch.complete_if_done(kit, path);
        });
        Ok(Response::LatchTotalSet { success: true, latch: self.get(wanted)?.view(path) })
    }

    fn delete(&mut self, kit: &mut Kit<'_>, wanted: &LatchRef) {
        self.end_due_at(kit, &wanted.path);
        if self.get(wanted).is_ok() {
            self.remove(&wanted.path);
            kit.record(EventKind::LatchDeleted, &wanted.path);
            kit.notify(Notice::LatchSettled(wanted.path.clone()));
        }
    }
}

impl Latch {
    fn new(create: &CreateLatch, id: Revision, clock_ms: u64) -> Self {
        let facts = LatchFacts {
            id,
            total: create.total,
            first_total: create.total,
            ids: create.ids,
            status: LatchStatus::Active,
            expires_in_ms: create.expires_in_ms,
            retain_ms: create.retain_ms,
            deadline_ms: clock_ms.saturating_add(create.expires_in_ms),
            finished_at_ms: None,
            description: create.description.clone(),
            metadata: EncodedMetadata::of(&create.metadata),
            revision: id,
        };
        Self { facts, done: DoneJobs::new(create.ids) }
    }

    /// Returns whether another total would be set, unless it is invalid.
    fn changes_total(&self, total: u64, if_total: Option<u64>) -> bool {
        let present = self.facts.total;
        total != present && if_total.is_none_or(|expected| expected == present) && !self.facts.status.is_final()
    }

    /// Checks another total.
    fn check_total(&self, limits: &Limits, total: u64) -> Result<(), CommandError> {
        if total < self.done.len() {
            return Err(invalid(format!("total: {} jobs are done, so that it can't be lower", self.done.len())));
        }
        if self.facts.ids == LatchIds::Indexed && total < self.facts.total {
            return Err(invalid("total: that of a latch that counts numbers can only rise".to_owned()));
        }
        check_total(limits, self.facts.ids, total)
    }

    fn due(&self) -> (u64, Revision) {
        (self.facts.deadline_ms, self.facts.id)
    }

    fn complete_if_done(&mut self, kit: &mut Kit<'_>, path: &Path) {
        if self.done.len() >= self.facts.total && !self.facts.status.is_final() {
            let now_ms = kit.clock_ms();
            self.facts.finish(kit, path, LatchStatus::Completed, now_ms);
        }
    }

    /// Checks that jobs are named in the way of the latch, and that it has them.
    fn check_ids(&self, jobs: &Jobs) -> Result<(), CommandError> {
        match (self.facts.ids, jobs) {
            (LatchIds::Named, Jobs::Named(_)) => Ok(()),
            (LatchIds::Indexed, Jobs::Indexed(ranges)) => {
                let fits = ranges.iter().all(|(_, to)| *to < self.facts.total);
                let last = self.facts.total.saturating_sub(1);
                fits.then_some(()).ok_or_else(|| invalid(format!("ranges: the latch counts numbers from 0 to {last}")))
            }
            (LatchIds::Named, _) => Err(invalid("ranges: the latch counts ids, not numbers".to_owned())),
            (LatchIds::Indexed, _) => Err(invalid("ids: the latch counts numbers, not ids".to_owned())),
        }
    }
}

impl LatchFacts {
    /// Gives the latch a final status, since an instant of the shard clock.
    fn finish(&mut self, kit: &mut Kit<'_>, path: &Path, status: LatchStatus, since_ms: u64) {
        let kind = if status == LatchStatus::Completed { EventKind::LatchCompleted } else { EventKind::LatchExpired };
        self.revision = kit.record(kind, path);
        self.status = status;
        self.finished_at_ms = Some(kit.wall_ms);
        self.deadline_ms = since_ms.saturating_add(self.retain_ms);
        kit.notify(Notice::LatchSettled(path.clone()));
    }

    /// Returns whether the latch was created with these parameters.
    fn is_of(&self, create: &CreateLatch) -> bool {
        let CreateLatch { namespace: _, path: _, total, ids, expires_in_ms, retain_ms, description, metadata } = create;
        (self.first_total, self.ids) == (*total, *ids)
            && (self.expires_in_ms, self.retain_ms) == (*expires_in_ms, *retain_ms)
            && self.description == *description
            && self.metadata == EncodedMetadata::of(metadata)
    }
}

fn check_creation(limits: &Limits, create: &CreateLatch) -> Result<(), CommandError> {
    check_path(limits, &create.path)?;
    let within = |what: &str, value: u64, range: std::ops::RangeInclusive<u64>| match range.contains(&value) {
        true => Ok(()),
        false => Err(invalid(format!("{what} is from {} to {} milliseconds", range.start(), range.end()))),
    };
    within("expires_in_ms", create.expires_in_ms, LATCH_EXPIRES_IN_MS)?;
    within("retain_ms", create.retain_ms, LATCH_RETAIN_MS)?;
    check_total(limits, create.ids, create.total)
}

fn check_total(limits: &Limits, ids: LatchIds, total: u64) -> Result<(), CommandError> {
    let (what, max) = match ids {
        LatchIds::Named => ("the total of a latch that counts ids", limits.max_latch_ids),
        LatchIds::Indexed => ("the total of a latch that counts numbers", limits.max_latch_indexes),
    };
    if total <= max { Ok(()) } else { Err(quota_exceeded(what, max, "use several latches or have the limit raised")) }
}

/// Frontends validate too; this check bounds what one command costs.
fn check_jobs(jobs: &Jobs) -> Result<(), CommandError> {
    let (count, fits) = match jobs {
        Jobs::Named(ids) => (ids.len(), ids.iter().all(|id| (1..=MAX_NAME_BYTES).contains(&id.len()))),
        Jobs::Indexed(ranges) => (ranges.len(), ranges.iter().all(|(from, to)| from <= to)),
    };
    if !(1..=MAX_IDS_PER_COUNT_DOWN).contains(&count) {
        return Err(invalid(format!("a count-down has 1 to {MAX_IDS_PER_COUNT_DOWN} ids or ranges")));
    }
    if fits { Ok(()) } else { Err(invalid("an id is too long or empty, or a range ends before it begins".to_owned())) }
}

fn invalid(what: String) -> CommandError {
    CommandError::InvalidArgument(what)
}

/// Returns whether a latch with one id is meant where another was created since.
fn fits_id(wanted: Option<Revision>, id: Revision) -> bool {
    wanted.is_none_or(|wanted| wanted == id) || is_enabled(Mutation::LatchOldId)
}
