//! Configures and deletes semaphores.

use std::sync::Arc;

use super::end::WaitEnd;
use super::{Semaphore, Semaphores, charge};
use crate::kit::{Kit, Notice, check_path, quota_exceeded};
use crate::locks::EncodedMetadata;
use crate::{CommandError, ConfigureSemaphore, EventKind, MAX_PERMITS, Path, PermitsEnd, Reason, Response};

impl Semaphores {
    /// Creates or changes a semaphore. Nobody loses permits; what waits for more than there are is refused.
    pub(crate) fn configure(
        &mut self,
        kit: &mut Kit<'_>,
        configure: &ConfigureSemaphore,
    ) -> Result<Response, CommandError> {
        let path = &configure.path;
        if configure.permits > MAX_PERMITS {
            return Err(CommandError::InvalidArgument(format!("a semaphore has at most {MAX_PERMITS} permits")));
        }
        let present = self.by_path.get(path);
        if present.is_some_and(|semaphore| semaphore.deleting.is_some()) {
            return Err(CommandError::Busy("the semaphore is being deleted".to_owned()));
        }
        if present.is_some_and(|semaphore| semaphore.is_configured_as(configure)) {
            return Ok(Response::Semaphore(self.view(kit, path)));
        }
        let before = present.map_or(0, |semaphore| semaphore.charge(path));
        if present.is_none() {
            check_path(kit.limits, path)?;
            self.check_count(kit)?;
        }
        kit.check_bytes(charge::of_configured(configure).saturating_sub(before))?;
        let revision = kit.record(EventKind::SemaphoreConfigured, path);
        if !self.by_path.contains_key(path) {
            self.insert_semaphore(Arc::new(path.clone()), Semaphore::new(configure.permits, true, revision));
        }
        let charges = self.change(path, |semaphore| {
            let before = semaphore.charge(path);
            (semaphore.permits, semaphore.is_configured) = (configure.permits, true);
            semaphore.description.clone_from(&configure.description);
            semaphore.metadata = EncodedMetadata::of(&configure.metadata);
            semaphore.revision = revision;
            (before, semaphore.charge(path))
        });
        let (before, after) = charges.unwrap_or_default();
        self.bytes = self.bytes - before + after;
        self.unsettle(path);
        self.settle(kit);
        Ok(Response::Semaphore(self.view(kit, path)))
    }

    pub(super) fn check_count(&self, kit: &Kit<'_>) -> Result<(), CommandError> {
        let max = kit.limits.max_semaphores_per_namespace;
        if (self.by_path.len() as u64) < max {
            return Ok(());
        }
        let hint = "delete semaphores or have the limit raised";
        Err(quota_exceeded("the number of semaphores in a namespace", max, hint))
    }

    /// Ends all holds and waits of a semaphore, and then the semaphore. What exceeds the slice ends in later ones.
    pub(crate) fn delete(&mut self, kit: &mut Kit<'_>, path: &Path) -> Response {
        let Some((path, semaphore)) = self.by_path.get_key_value(path) else { return Response::Done };
        let (path, deleting) = (Arc::clone(path), semaphore.deleting);
        if let Some(began) = deleting {
            kit.notify(Notice::Awaits(began));
            return Response::Done;
        }
        let began = kit.next_revision();
        self.change(&path, |semaphore| semaphore.deleting = Some(began));
        self.deleting.insert(began, path);
        if !self.continue_deletion(kit, began) {
            kit.notify(Notice::Awaits(began));
        }
        Response::Done
    }

    /// Ends a slice of a semaphore that is being deleted. Returns whether it is gone.
    pub(super) fn continue_deletion(&mut self, kit: &mut Kit<'_>, began: u64) -> bool {
        let Some(path) = self.deleting.get(&began).map(Arc::clone) else { return true };
        while let Some(semaphore) = self.by_path.get(&path) {
            let wait = semaphore.queue.first_key_value().map(|(rank, _)| *rank);
            let hold = semaphore.holds.first_key_value().map(|(token, _)| *token);
            if wait.is_none() && hold.is_none() {
                break;
            }
            if kit.budget.ends == 0 {
                return false;
            }
            kit.budget.ends -= 1;
            match (wait, hold) {
                (Some(rank), _) => self.end_wait(kit, &path, rank, WaitEnd::Refused(Reason::Ended)),
                (None, Some(token)) => self.end_hold(kit, &path, token, PermitsEnd::Deleted),
                (None, None) => break,
            }
        }
        self.deleting.remove(&began);
        self.remove_semaphore(&path);
        kit.record(EventKind::SemaphoreDeleted, &path);
        true
    }
}

impl Semaphore {
    fn is_configured_as(&self, configure: &ConfigureSemaphore) -> bool {
        self.is_configured
            && self.permits == configure.permits
            && self.description == configure.description
            && self.metadata == EncodedMetadata::of(&configure.metadata)
    }
}
