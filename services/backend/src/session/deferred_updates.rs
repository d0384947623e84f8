//! Updates of a session that wait for the reply to its command in flight.

use holdfast_types::{SessionUpdate, codec};

/// Encoded bytes of updates that wait. Beyond them, the connection queries the affected state, as after a lost
/// subscription.
const MAX_DEFERRED_BYTES: usize = 256 * 1_024;
/// What an update counts as besides its encoded bytes.
const UPDATE_OVERHEAD: usize = 512;

/// The updates, in order.
#[derive(Debug, Default)]
pub(super) struct DeferredUpdates {
    updates: Vec<SessionUpdate>,
    bytes: usize,
    has_missed: bool,
}

impl DeferredUpdates {
    /// Keeps an update. Once one did not fit, none is kept: a query tells of all.
    pub(super) fn push(&mut self, update: SessionUpdate) {
        if self.has_missed {
            return;
        }
        self.bytes += UPDATE_OVERHEAD + codec::size(&update);
        if self.bytes > MAX_DEFERRED_BYTES {
            *self = Self { has_missed: true, ..Self::default() };
        } else {
            self.updates.push(update);
        }
    }

    /// Returns the updates, or `None` if some did not fit.
    pub(super) fn into_updates(self) -> Option<Vec<SessionUpdate>> {
        (!self.has_missed).then_some(self.updates)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{AccountId, Effect, Incarnation, NamespaceRef};

    use super::*;

    fn update(name: &str) -> SessionUpdate {
        let namespace = NamespaceRef { account: AccountId(1), name: name.into(), incarnation: Incarnation(1) };
        SessionUpdate { clock_ms: 7, effect: Effect::NamespaceClosed { namespace } }
    }

    #[test]
    fn updates_that_fit_are_returned_in_order() {
        let mut deferred = DeferredUpdates::default();
        ["a", "b"].into_iter().for_each(|name| deferred.push(update(name)));
        assert_eq!(deferred.into_updates(), Some(vec![update("a"), update("b")]));
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_never_forgotten_in_part() {
        let mut many = DeferredUpdates::default();
        (0..2 * MAX_DEFERRED_BYTES / UPDATE_OVERHEAD).for_each(|_| many.push(update("a")));
        assert!(many.updates.is_empty() && many.bytes == 0);
        many.push(update("b"));
        assert_eq!(many.into_updates(), None, "the query tells of the last one too");
        let mut long = DeferredUpdates::default();
        long.push(update(&"x".repeat(MAX_DEFERRED_BYTES)));
        assert_eq!(long.into_updates(), None);
    }
}
