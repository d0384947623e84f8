//! What each lock, semaphore, pool or latch was, and since when.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{NamespaceRef, Path};

/// What there was, if anything, from which place on.
pub(crate) type Timeline<T> = Vec<(usize, Option<T>)>;

/// The timelines of all paths.
pub(crate) struct Timelines<T>(BTreeMap<(NamespaceRef, Path), Timeline<T>>);

impl<T> Default for Timelines<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: PartialEq + Clone> Timelines<T> {
    /// Records what a step changed in a namespace.
    pub(crate) fn record(
        &mut self,
        place: usize,
        life: &NamespaceRef,
        before: &BTreeMap<&Path, T>,
        after: &BTreeMap<&Path, T>,
    ) {
        let paths: BTreeSet<&Path> = before.keys().chain(after.keys()).copied().collect();
        for path in paths {
            let (was, is) = (before.get(path), after.get(path));
            if was != is {
                let changes = self.0.entry((life.clone(), path.clone())).or_default();
                // An earlier command of the same slice may have changed it already.
                changes.pop_if(|(from, _)| *from == place);
                changes.push((place, is.cloned()));
            }
        }
    }

    /// Returns what there was at a place.
    pub(crate) fn at(&self, place: usize, life: &NamespaceRef, path: &Path) -> Option<&T> {
        let changes = self.0.get(&(life.clone(), path.clone())).map(Vec::as_slice).unwrap_or_default();
        changes[..changes.partition_point(|(from, _)| *from <= place)].last()?.1.as_ref()
    }
}
