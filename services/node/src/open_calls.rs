//! The calls in progress at one shard.

use std::sync::atomic::{AtomicUsize, Ordering};

use holdfast_core::limit;

/// Maximum number of calls to one shard in progress here, without waiting calls: four gateways may have their share at
/// once. Further calls are rejected, so that a stalled shard does not use up the node's memory.
const MAX_OPEN_CALLS: usize = limit::MAX_SHARD_CALLS as usize;

/// The number of calls in progress.
#[derive(Debug, Default)]
pub(crate) struct OpenCalls(AtomicUsize);

/// A call that counts for its shard until it is dropped.
pub(crate) struct OpenCall<'a>(&'a AtomicUsize);

impl OpenCalls {
    /// Counts a call; `None` if there are too many.
    pub(crate) fn open(&self) -> Option<OpenCall<'_>> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let open = OpenCall(&self.0);
        (before < MAX_OPEN_CALLS).then_some(open)
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::limit::{Limit, Reached};
    use holdfast_replication::QUEUE_LIMITS;
    use holdfast_rpc::CALL_LIMITS;

    use super::*;

    #[test]
    fn a_shard_has_so_many_calls_and_another_has_its_own() {
        let (full, other) = (OpenCalls::default(), OpenCalls::default());
        let mut open: Vec<_> = (0..MAX_OPEN_CALLS).map(|_| full.open().unwrap()).collect();
        assert!(full.open().is_none());
        assert!(other.open().is_some());
        open.pop();
        assert!(full.open().is_some(), "the one that was refused does not count");
    }

    #[test]
    fn what_queues_and_connections_refuse_is_in_the_table_of_limits() {
        let of_queue = [&limit::COMMANDS_OF_ACCOUNT, &limit::COMMANDS_OF_SHARD, &limit::COMMANDS_OF_GROUP];
        let of_calls = [&limit::CALLS_OF_ACCOUNT_AT_NODE, &limit::CALLS_AT_NODE, &limit::CALLS_HELD_AT_NODE];
        let told = QUEUE_LIMITS.map(|limit| limit.to_string()).into_iter();
        let told = told.chain(CALL_LIMITS.map(|limit| limit.to_string()));
        let listed = of_queue.into_iter().chain(of_calls);
        let reached = |limit: &'static Limit| Some(Reached { limit, max: limit.default_value() });
        assert!(told.map(|reason| Reached::of_text(&reason)).eq(listed.map(reached)));
    }
}
