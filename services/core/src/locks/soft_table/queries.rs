//! Queries about lock tables in the leader's memory.

use super::SoftTable;
use crate::locks::{LocksState, NamespaceKey};
use crate::shard::{PendingReply, ShardState};
use crate::{Durability, NamespaceRef, Query, Reply, Response, SessionView};

impl SoftTable {
    /// Answers a query about the lock tables. `None` if it is about something else.
    pub fn query(&self, log: &ShardState, running_clock_ms: u64, query: &Query) -> Option<Reply> {
        self.begin_query(log, running_clock_ms, query).map(PendingReply::finish)
    }

    /// As [`Self::query`]: the part that needs the state.
    pub fn begin_query(&self, log: &ShardState, running_clock_ms: u64, query: &Query) -> Option<PendingReply> {
        let log = log.locks()?;
        let namespace = log.find(query.lock_table()?).ok()?;
        if namespace.durability == Durability::Full {
            return None;
        }
        let clock_ms = running_clock_ms.max(self.core.common.clock_ms);
        let checked = self.check_epoch(log).and_then(|()| match query {
            // They tell what has been decided so far, whatever the table is to get yet.
            Query::Events { from_revision, .. } => self.check_start(*from_revision),
            _ => self.check_complete(namespace),
        });
        let outcome = match (checked, self.core.slot_of(&namespace.id)) {
            (Err(rejected), _) => self.reconcile_early(log, namespace, query).unwrap_or(Err(rejected)),
            // It had no requests and no events.
            (Ok(()), None) => LocksState::new(self.core.common.clone()).query_empty(namespace, query, self.epoch)?,
            (Ok(()), Some(_)) => match self.core.begin_query(query) {
                Some(Ok(begun)) => return Some(PendingReply::of_locks(clock_ms, begun)),
                Some(Err(rejected)) => Err(rejected),
                None => self.core.query(query)?,
            },
        };
        Some(Reply { outcome, clock_ms, awaits: None }.into())
    }

    /// Returns the holds and waits in a namespace, and its sessions in the log. `None` if the log has its table.
    pub fn usage(&self, log: &ShardState, running_clock_ms: u64, namespace: &NamespaceRef) -> Option<Reply> {
        let of_log = log.locks()?.find(namespace).ok().filter(|it| it.durability == Durability::Session)?;
        let there = self.core.slot_of(namespace).map(|slot| self.core.namespaces.get(slot));
        let (holds, waiting) = there.map_or((0, 0), |there| (there.hold_count, there.waits.len() as u64));
        let outcome = Ok(Response::Usage { holds, waiting, sessions: of_log.sessions.len() as u64 });
        Some(Reply { outcome, clock_ms: running_clock_ms, awaits: None })
    }

    /// Adds the contents of these tables to the log's views of sessions, namespaces and accounts.
    pub fn add_counts(&self, log: &ShardState, query: &Query, response: &mut Response) {
        match (query, response) {
            (Query::Session { namespace, .. }, Response::Session(view)) => {
                self.add_to_sessions(namespace, std::slice::from_mut(view));
            }
            (Query::Sessions { namespace, .. }, Response::Sessions { sessions, .. }) => {
                self.add_to_sessions(namespace, sessions);
            }
            (Query::AccountUsage { account }, Response::AccountUsage { namespaces, .. }) => {
                for usage in namespaces {
                    let key = NamespaceKey { account: *account, incarnation: usage.incarnation };
                    let Some(slot) = self.core.slots.get(&key) else { continue };
                    let namespace = self.core.namespaces.get(*slot);
                    usage.holds += namespace.hold_count;
                    usage.waiting += namespace.waits.len() as u64;
                    usage.totals.add(&namespace.usage);
                }
            }
            (Query::AccountState { account }, Response::AccountState(namespaces)) => {
                let Some(log) = log.locks() else { return };
                for (name, bytes) in namespaces {
                    // These tables may still have an earlier namespace of that name.
                    let Some(incarnation) = log.names.get(&(*account, name.clone())) else { continue };
                    let key = NamespaceKey { account: *account, incarnation: *incarnation };
                    if let Some(slot) = self.core.slots.get(&key) {
                        // Copies of those of the log are among them: both are kept, and charged.
                        bytes.events += self.core.namespaces.get(*slot).history.bytes();
                    }
                }
            }
            _ => {}
        }
    }

    fn add_to_sessions(&self, namespace: &NamespaceRef, views: &mut [SessionView]) {
        let Some(namespace) = self.core.slot_of(namespace).map(|slot| self.core.namespaces.get(slot)) else { return };
        for view in views {
            let session = namespace.sessions.get(view.session_id.as_str());
            if let Some(session) = session.filter(|session| session.facts.number == view.number) {
                view.holds += session.holds;
                view.waiting += session.waiting;
            }
        }
    }
}
