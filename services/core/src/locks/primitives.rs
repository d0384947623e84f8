//! Where the tables of other kinds of things meet a namespace: its limits, its history, its deadlines and its effects.

use holdfast_primitives::barriers::Barriers;
use holdfast_primitives::kit::{FreeBytes, Kit, Means, Notice, Sight, TableEvent};
use holdfast_primitives::latches::Latches;
use holdfast_primitives::permits::{PermitItem, PermitTable};

use super::event_view::{EventRecord, OwnerView};
use super::namespace::Namespace;
use super::owner::{NO_OWNER, Owners};
use super::sight::sweep_mark;
use super::txn::NamespaceTxn;
use crate::{CommandError, EventKind, LatchCommand, Mode, Path, Response};

/// The tables of a namespace, and the owners of locks.
pub(super) struct Tables<'a> {
    pub(super) latches: &'a mut Latches,
    pub(super) permits: &'a mut PermitTable,
    pub(super) barriers: &'a mut Barriers,
    pub(super) owners: &'a Owners,
}

impl NamespaceTxn<'_> {
    /// Executes a command for a latch.
    pub(super) fn latch(&mut self, command: &LatchCommand) -> Result<Response, CommandError> {
        if let LatchCommand::CountDown(count) = command {
            self.ns.spend(usize::try_from(count.jobs.units()).unwrap_or(usize::MAX));
        }
        self.with_latches(|latches, kit| latches.apply(kit, command))
    }

    /// Ends the latch that is due first.
    pub(super) fn end_due_latch(&mut self) {
        self.with_latches(Latches::end_first_due);
    }

    /// Runs an operation on the latches, and publishes its effects.
    fn with_latches<T>(&mut self, work: impl FnOnce(&mut Latches, &mut Kit<'_>) -> T) -> T {
        self.with_tables(|tables, kit| work(tables.latches, kit))
    }

    /// Runs an operation on the semaphores and pools, and publishes its effects.
    pub(super) fn with_permits<T>(&mut self, work: impl FnOnce(&mut PermitTable, &mut Kit<'_>) -> T) -> T {
        self.with_tables(|tables, kit| work(tables.permits, kit))
    }

    /// Runs an operation on the tables, and publishes its effects.
    pub(super) fn with_tables<T>(&mut self, work: impl FnOnce(Tables<'_>, &mut Kit<'_>) -> T) -> T {
        let (free, visits) = (self.ns.free_bytes(self.other_namespaces_bytes), self.budget.visits);
        let (is_frozen, waiting_elsewhere) = (self.ns.is_frozen(), self.ns.waiting_count() - self.ns.permits.waiting());
        let (limits, sweeps, sessions) = (&self.ns.limits, &self.ns.sweeps, &self.ns.sessions);
        let sweep_of = |permits: &PermitItem<'_>| sweep_mark(sweeps, sessions, permits);
        let (visible_ms, max_queue_position) = (self.ns.now_ms.get(), self.ns.max_queue_position());
        let has_sweeps = !sweeps.is_empty();
        let sight = Sight { visible_ms, max_queue_position, has_sweeps, sweep_of: &sweep_of };
        let (wall_ms, with_views) = (self.wall_ms, self.with_views);
        let means = Means { limits, wall_ms, sight, with_views, is_frozen, waiting_elsewhere };
        let mut kit = Kit::new(self.common.clock_ms, &mut self.common.revision, self.budget, means, free);
        let (latches, permits, barriers) = (&mut self.ns.latches, &mut self.ns.permits, &mut self.ns.barriers);
        let result = work(Tables { latches, permits, barriers, owners: &self.ns.owners }, &mut kit);
        let (notices, units) = kit.finish();
        self.ns.spend(units.saturating_add(visits.saturating_sub(self.budget.visits)));
        self.publish(notices);
        self.update_first_due();
        self.update_jobs();
        result
    }

    fn publish(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Event(event) => self.record_table_event(&event),
                Notice::LatchSettled(path) => self.effects.latch_settled(&self.ns.id, path),
                Notice::PermitsResolved(settled) => self.effects.permits_resolved(&self.ns.id, settled),
                Notice::PermitsRevoked { number, session_id, hold, reason } => {
                    // A session that ended was already notified of its end.
                    if !self.ns.ending_sessions.contains_key(&number) {
                        self.effects.permits_revoked(&self.ns.id, session_id, hold, reason);
                    }
                }
                Notice::ReleaseRequested { number, session_id, asked } => {
                    // A session that ended is not asked.
                    if self.ns.sessions.get(&session_id).is_some_and(|session| session.facts.number == number) {
                        self.effects.release_requested(&self.ns.id, session_id, asked);
                    }
                }
                Notice::Awaits(began) => *self.awaits = Some(began),
                Notice::Finished(began) => self.finished.push_deletion(began),
                Notice::Queued => self.ns.count_wait(),
                Notice::BarrierSettled(path) => self.effects.barrier_settled(&self.ns.id, path),
                Notice::MetAtBarrier { number, session_id, request_id, answer, inside } => {
                    if !self.ns.ending_sessions.contains_key(&number) {
                        self.effects.met_at_barrier(&self.ns.id, session_id, request_id, (answer, inside));
                    }
                }
                Notice::SweptArrival(began) => {
                    if let Some(sweep) = self.ns.sweeps.get_mut(&began) {
                        sweep.ended_holds += 1;
                    }
                }
                Notice::SweptWait(began) => {
                    if let Some(sweep) = self.ns.sweeps.get_mut(&began) {
                        sweep.ended_waits += 1;
                    }
                }
            }
        }
    }

    pub(super) fn record_table_event(&mut self, event: &TableEvent) {
        // The units of the thing, its places in the indexes, its owner and the event; those of each member are its own
        // and its part of the event.
        self.ns.spend(4 + 2 * event.members.len());
        if matches!(event.kind, EventKind::PermitsAcquired { .. } | EventKind::MembersTaken) {
            self.ns.count_grant();
        }
        let owner = event.owner.as_ref();
        let record = EventRecord {
            revision: event.revision,
            at_ms: self.wall_ms,
            kind: event.kind,
            owner_id: NO_OWNER,
            owner: owner.map_or(OwnerView::Process(""), |it| (&it.owner).into()),
            process_id: owner.map_or("", |it| &it.process_id),
            fencing_token: event.token,
        };
        let members: Vec<Path> = event.members.iter().map(|member| Path::flat(&**member)).collect();
        let paths: Vec<&Path> = std::iter::once(&event.path).chain(&members).collect();
        let claims = paths.into_iter().map(|path| (path, Mode::Write));
        self.ns.history.push(&record, claims, self.ns.bounds.retained_events, self.ns.limits.max_event_bytes);
        self.effects.event(&self.ns.id, event.revision);
    }
}

impl Namespace {
    /// Returns the bytes of its tables that count against their limit.
    pub(super) fn table_bytes(&self) -> u64 {
        let tables = [self.latches.bytes(), self.permits.bytes(), self.barriers.bytes(), self.conditions.bytes()];
        tables.into_iter().map(|bytes| bytes.counted).sum()
    }

    /// Returns how much its tables may grow, given the charge of the account's other namespaces.
    pub(super) fn free_bytes(&self, other_namespaces_bytes: u64) -> FreeBytes {
        let of_account = other_namespaces_bytes.saturating_add(self.state_bytes().total());
        FreeBytes {
            of_account: self.limits.max_state_bytes.saturating_sub(of_account),
            of_tables: self.limits.max_primitive_bytes.saturating_sub(self.table_bytes()),
        }
    }
}
