//! Configures semaphores, and deletes semaphores and pools.

use std::sync::Arc;

use super::key::Name;
use super::key::WaitEnd;
use super::source::{Source, Stock};
use super::{PermitTable, charge};
use crate::item_bytes::ItemBytes;
use crate::kit::{Kit, Notice, check_path, quota_exceeded};
use crate::metadata::EncodedMetadata;
use crate::{
    CommandError, ConfigureSemaphore, EventKind, Kind, MAX_PERMITS, Path, PermitsEnd, Reason, Response, SemaphoreView,
};

impl PermitTable {
    /// Creates or changes a semaphore. Nobody loses permits; what waits for more than there are is refused.
    pub fn configure(&mut self, kit: &mut Kit<'_>, configure: &ConfigureSemaphore) -> Result<Response, CommandError> {
        if configure.permits > MAX_PERMITS {
            return Err(CommandError::InvalidArgument(format!("a semaphore has at most {MAX_PERMITS} permits")));
        }
        let name = Arc::new(Name::new(Kind::Semaphore, &configure.path));
        if self.by_name.get(&name).is_some_and(|source| source.is_configured_as(configure)) {
            return Ok(self.semaphore(kit, &name));
        }
        self.check_configured(kit, &name, charge::of_configured(configure))?;
        let revision = kit.record(EventKind::SemaphoreConfigured, &configure.path);
        let stock = Stock::Units { permits: configure.permits, is_configured: true };
        if !self.by_name.contains_key(&name) {
            self.insert_source(Arc::clone(&name), Source::new(stock.clone(), revision));
        }
        self.recharge(&name, |source| {
            (source.stock, source.revision) = (stock, revision);
            source.description.clone_from(&configure.description);
            source.metadata = EncodedMetadata::of(&configure.metadata);
        });
        self.unsettle(&name);
        self.settle(kit);
        Ok(self.semaphore(kit, &name))
    }

    fn semaphore(&self, kit: &Kit<'_>, name: &Name) -> Response {
        let absent = || SemaphoreView::absent(&name.path, 0);
        let view = if kit.with_views { self.semaphore_view(name) } else { None };
        Response::Semaphore(view.unwrap_or_else(absent))
    }

    /// Checks whether a source may be created or changed, given its bytes as configured.
    pub(super) fn check_configured(&self, kit: &Kit<'_>, name: &Name, bytes: ItemBytes) -> Result<(), CommandError> {
        let present = self.by_name.get(name);
        if present.is_some_and(|source| source.deleting.is_some()) {
            return Err(CommandError::Busy(format!("the {} is being deleted", name.kind.name())));
        }
        if present.is_none() {
            check_path(kit.limits, &name.path)?;
            self.check_count(kit, name.kind)?;
        }
        let present = present.map_or(ItemBytes::default(), |source| source.bytes(&name.path));
        kit.check_bytes(bytes.saturating_sub(present))
    }

    pub(super) fn check_count(&self, kit: &Kit<'_>, kind: Kind) -> Result<(), CommandError> {
        let (max, what, hint) = match kind {
            Kind::Pool => {
                let hint = "delete pools or have the limit raised";
                (kit.limits.max_pools_per_namespace, "the number of pools in a namespace", hint)
            }
            Kind::Lock | Kind::Semaphore | Kind::Latch | Kind::Barrier | Kind::Condition | Kind::Request => {
                let hint = "delete semaphores or have the limit raised";
                (kit.limits.max_semaphores_per_namespace, "the number of semaphores in a namespace", hint)
            }
        };
        if (self.count_of(kind) as u64) < max { Ok(()) } else { Err(quota_exceeded(what, max, hint)) }
    }

    /// Ends all holds and waits of a source, and then the source. What exceeds the slice ends in later ones.
    pub fn delete(&mut self, kit: &mut Kit<'_>, kind: Kind, path: &Path) -> Response {
        let found = self.by_name.get_key_value(&Name::new(kind, path));
        let Some((name, source)) = found else { return Response::Done };
        let (name, deleting) = (Arc::clone(name), source.deleting);
        if let Some(began) = deleting {
            kit.notify(Notice::Awaits(began));
            return Response::Done;
        }
        let began = kit.next_revision();
        self.change(&name, |source| source.deleting = Some(began));
        self.deleting.insert(began, name);
        if !self.continue_deletion(kit, began) {
            kit.notify(Notice::Awaits(began));
        }
        Response::Done
    }

    /// Ends a slice of a source that is being deleted. Returns whether it is gone.
    pub(super) fn continue_deletion(&mut self, kit: &mut Kit<'_>, began: u64) -> bool {
        let Some(name) = self.deleting.get(&began).map(Arc::clone) else { return true };
        while let Some(source) = self.by_name.get(&name) {
            let wait = source.queue.first_key_value().map(|(rank, _)| *rank);
            let hold = source.holds.first_key_value().map(|(token, hold)| (*token, hold.ends()));
            if wait.is_none() && hold.is_none() {
                break;
            }
            if kit.budget.ends == 0 {
                return false;
            }
            let ends =
                hold.filter(|_| wait.is_none()).map_or(1, |(_, ends)| usize::try_from(ends).unwrap_or(usize::MAX));
            kit.budget.ends = kit.budget.ends.saturating_sub(ends);
            match (wait, hold) {
                (Some(rank), _) => self.end_wait(kit, &name, rank, WaitEnd::Refused(Reason::Ended)),
                (None, Some((token, _))) => self.end_hold(kit, &name, token, PermitsEnd::Deleted),
                (None, None) => break,
            }
        }
        self.deleting.remove(&began);
        self.remove_source(&name);
        let is_pool = name.kind == Kind::Pool;
        let kind = if is_pool { EventKind::PoolDeleted } else { EventKind::SemaphoreDeleted };
        kit.record(kind, &name.path);
        true
    }
}

impl Source {
    fn is_configured_as(&self, configure: &ConfigureSemaphore) -> bool {
        matches!(self.stock, Stock::Units { permits, is_configured: true } if permits == configure.permits)
            && self.deleting.is_none()
            && self.description == configure.description
            && self.metadata == EncodedMetadata::of(&configure.metadata)
    }
}
