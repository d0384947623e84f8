//! What waits in a locks shard, for its leader. Other shards have nothing that waits.

use super::ShardState;
use crate::locks::LocksState;
use crate::{
    AccountId, Acquire, AcquirePermits, AdoptedWait, AwaitCondition, AwaitRecord, Incarnation, PermitWaitRecord,
    SessionNumber, WaitId, WaitRecord,
};

impl ShardState {
    /// Returns the sessions of a locks shard after one, in order of opening, each with its account and its time to live
    /// in milliseconds, for a new leader that starts to track their keep-alives.
    pub fn session_times(&self, after: Option<SessionNumber>) -> impl Iterator<Item = (SessionNumber, AccountId, u64)> {
        self.locks().into_iter().flat_map(move |core| core.session_times(after))
    }

    /// Returns the namespaces of a locks shard after one, and the waits in each that may have callers, for a new leader
    /// that expects gateways to reattach to them.
    pub fn adopted_waits(
        &self,
        after: Option<(AccountId, Incarnation)>,
    ) -> impl Iterator<Item = ((AccountId, Incarnation), Vec<AdoptedWait>)> {
        self.locks().into_iter().flat_map(move |core| core.adopted_waits(after))
    }

    /// Returns all waiting requests of a locks shard, for a new leader that expects gateways to reattach to them.
    pub fn waits(&self) -> impl Iterator<Item = WaitRecord> {
        self.locks().into_iter().flat_map(LocksState::waits)
    }

    /// Returns the wait of an acquire's request, if it waits, and the attempts that rely on it and may leave, in
    /// ascending order.
    pub fn queued_wait(&self, acquire: &Acquire) -> Option<(WaitId, Vec<u64>)> {
        self.locks().and_then(|core| core.queued_wait(acquire))
    }

    /// Returns all requests of a locks shard that wait for permits, for a new leader that expects gateways to reattach
    /// to them.
    pub fn permit_waits(&self) -> impl Iterator<Item = PermitWaitRecord> {
        self.locks().into_iter().flat_map(LocksState::permit_waits)
    }

    /// Returns the wait of an acquire of permits, if it waits, and the attempts that rely on it and may leave, in
    /// ascending order.
    pub fn queued_permits(&self, acquire: &AcquirePermits) -> Option<(WaitId, Vec<u64>)> {
        self.locks().and_then(|core| core.queued_permits(acquire))
    }

    /// Returns the awaits of conditions and the waits for locks that were given up, for a new leader; none in other
    /// shards.
    pub fn await_records(&self) -> impl Iterator<Item = AwaitRecord> {
        self.locks().into_iter().flat_map(LocksState::await_records)
    }

    /// Returns the wait of an await, and the attempts that rely on it and may leave.
    pub fn queued_await(&self, awaits: &AwaitCondition) -> Option<(WaitId, Vec<u64>)> {
        self.locks().and_then(|core| core.queued_await(awaits))
    }
}
