//! Configures barriers.

use std::sync::Arc;

use super::arrive::{check_parties, first_generation, invalid};
use super::barrier::BarrierFacts;
use super::{Barriers, charge};
use crate::item_bytes::ItemBytes;
use crate::kit::{Kit, check_path};
use crate::metadata::EncodedMetadata;
use crate::{BARRIER_RETAIN_MS, BarrierView, CommandError, ConfigureBarrier, Path, Response};

impl Barriers {
    /// Creates or changes a barrier. Nobody's arrival ends; fewer parties than have come trip it.
    pub fn configure(&mut self, kit: &mut Kit<'_>, configure: &ConfigureBarrier) -> Result<Response, CommandError> {
        let known = self.end_what_is_over(kit, &configure.path);
        let present = known.as_ref().and_then(|path| self.by_path.get(path)).map(|barrier| &barrier.facts);
        if present.is_some_and(|facts| facts.is_configured_as(configure)) {
            return Ok(self.barrier(kit, &configure.path));
        }
        check_path(kit.limits, &configure.path)?;
        check_parties(kit.limits, configure.parties)?;
        if configure.retain_ms > 0 && !BARRIER_RETAIN_MS.contains(&configure.retain_ms) {
            let (least, most) = (BARRIER_RETAIN_MS.start(), BARRIER_RETAIN_MS.end());
            return Err(invalid(format!("retain_ms is 0, or from {least} to {most} milliseconds")));
        }
        if present.is_none() {
            self.check_count(kit)?;
        }
        let before = present.map_or(ItemBytes::default(), |facts| charge::of_facts(&configure.path, facts));
        kit.check_bytes(charge::of_configured(configure).saturating_sub(before))?;
        let generation = present.filter(|facts| !facts.is_deleted).map(|facts| facts.generation);
        let (generation, revision) = match generation {
            Some(generation) => (generation, kit.next_revision()),
            None => (first_generation(kit), kit.revision()),
        };
        let path = known.unwrap_or_else(|| Arc::new(configure.path.clone()));
        let facts = BarrierFacts {
            parties: configure.parties,
            is_double: configure.double,
            on_loss: configure.on_loss,
            retain_ms: configure.retain_ms,
            is_configured: true,
            is_deleted: false,
            description: configure.description.clone(),
            metadata: EncodedMetadata::of(&configure.metadata),
            revision,
            generation,
            active_ms: kit.clock_ms(),
        };
        self.revive(Arc::clone(&path), facts);
        self.settle(kit, &path, None);
        Ok(self.barrier(kit, &configure.path))
    }

    fn barrier(&self, kit: &Kit<'_>, path: &Path) -> Response {
        Response::Barrier(self.view(kit, path).unwrap_or_else(|| BarrierView::absent(path, 0)))
    }
}

impl BarrierFacts {
    fn is_configured_as(&self, configure: &ConfigureBarrier) -> bool {
        let ConfigureBarrier { namespace: _, path: _, parties, double, on_loss, retain_ms, description, metadata } =
            configure;
        (self.is_configured, self.is_deleted) == (true, false)
            && (self.parties, self.is_double) == (*parties, *double)
            && (self.on_loss, self.retain_ms) == (*on_loss, *retain_ms)
            && self.description == *description
            && self.metadata == EncodedMetadata::of(metadata)
    }
}
