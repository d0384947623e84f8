//! Queries about latches.

use std::ops::Bound;

use super::done_jobs::DoneJobs;
use super::{Latch, Latches, fits_id};
use crate::{CommandError, JobCursor, Jobs, Kind, LatchCommand, LatchQuery, LatchRef, LatchView, Path, Response, page};

impl Latches {
    /// Answers a query.
    ///
    /// # Errors
    /// When there is no such latch, or the page token is invalid.
    pub fn query(&self, query: &LatchQuery) -> Result<Response, CommandError> {
        match query {
            LatchQuery::Get { latch, after, limit } => {
                let found = self.get(latch)?;
                let (done, more) = found.page_of_done(after.as_ref(), *limit);
                Ok(Response::LatchJobs { latch: found.view(&latch.path), done, more })
            }
            LatchQuery::List { prefix, after, limit, .. } => Ok(self.list(prefix, after.as_ref(), *limit)),
            LatchQuery::Wait { latch, .. } => Ok(Response::Latch(self.get(latch)?.view(&latch.path))),
        }
    }

    /// Returns the latch that a command or query names.
    pub(super) fn get(&self, wanted: &LatchRef) -> Result<&Latch, CommandError> {
        let latch = self.by_path.get(&wanted.path).filter(|latch| fits_id(wanted.id, latch.facts.id));
        latch
            .map(AsRef::as_ref)
            .ok_or_else(|| CommandError::PrimitiveNotFound { kind: Kind::Latch, path: wanted.path.clone() })
    }

    fn list(&self, prefix: &Path, after: Option<&Path>, limit: u32) -> Response {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let rows = self.by_path.range::<Path, _>((start, Bound::Unbounded));
        let rows = rows.take_while(|(path, _)| prefix.is_prefix_of(path));
        let (latches, more) = page::collect(rows, limit, |(path, latch)| latch.view(path));
        Response::Latches { latches, more }
    }

    /// Returns whether a command would create state; repeats do not.
    pub fn creates_state(&self, command: &LatchCommand) -> bool {
        match command {
            LatchCommand::Create(create) => !self.by_path.contains_key(&create.path),
            LatchCommand::CountDown(count) => {
                self.get(&count.latch).is_ok_and(|latch| latch.done.bytes_of_new(&count.jobs) > 0)
            }
            LatchCommand::SetTotal { latch, total, .. } => {
                self.get(latch).is_ok_and(|latch| latch.bytes_of_total(*total) > 0)
            }
            LatchCommand::Delete(_) => false,
        }
    }
}

impl Latch {
    pub(super) fn view(&self, path: &Path) -> LatchView {
        let facts = &self.facts;
        LatchView {
            path: path.clone(),
            id: facts.id,
            status: facts.status,
            total: facts.total,
            done: self.done.len(),
            ids: facts.ids,
            deadline_ms: facts.deadline_ms,
            finished_at_ms: facts.finished_at_ms,
            retain_ms: facts.retain_ms,
            description: facts.description.clone(),
            metadata: facts.metadata.get(),
            revision: facts.revision,
            waiters: None,
        }
    }

    fn page_of_done(&self, after: Option<&JobCursor>, limit: u32) -> (Jobs, bool) {
        match (&self.done, after) {
            (DoneJobs::Named(names), after) => {
                let after = if let Some(JobCursor::Named(after)) = after { after.as_str() } else { "" };
                let (ids, more) = page::collect(names.iter_after(after), limit, str::to_owned);
                (Jobs::Named(ids), more)
            }
            (DoneJobs::Indexed(numbers), after) => {
                let from = if let Some(JobCursor::Indexed(after)) = after { after.saturating_add(1) } else { 0 };
                let (ranges, more) = page::collect(numbers.ranges_from(from), limit, |range| range);
                (Jobs::Indexed(ranges), more)
            }
        }
    }
}
