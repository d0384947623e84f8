//! Locks: which owners hold and wait for which paths of which namespaces.
//!
//! Invariants: no two owners hold conflicting claims at once; no owner waits for an owner that waits for it; a request
//! is granted in the step that makes it grantable. Besides a small record for each open namespace, its sessions and its
//! latest events, memory is used only for holds and waits.
//!
//! Deliberately unknown here: which clients are connected. Effects of an entry on other owners are kept as
//! [`crate::Effect`]s until a caller takes them or the next entry begins.

mod acquire;
mod ask;
mod at_least;
mod attempts;
mod awaited_holds;
mod barriers;
mod bit_set;
mod blocked_index;
mod cancel;
mod capacity;
mod charge;
mod closure;
mod closure_builder;
mod conditions;
mod conflict;
mod deadlock;
mod delete;
mod deliver;
mod detached;
mod durability;
mod effects;
mod end;
mod evaluate;
mod event_block;
mod event_view;
mod expire;
mod free_pages;
mod grant;
mod grant_loop;
mod history;
mod hold;
mod holds;
mod idempotency;
mod jobs;
mod lock_info;
mod name;
mod named_requests;
mod namespace;
mod node_line;
mod owner;
mod owner_multiset;
mod path_table;
mod permits;
mod phase;
mod primitives;
mod purge;
mod quarantine;
mod queries;
mod queue;
mod queue_page;
mod quota;
mod refusal;
mod release;
mod reply_size;
mod report;
mod request;
mod reset;
mod restore;
mod restore_jobs;
mod restore_tables;
mod restore_waits;
mod session_commands;
mod session_end;
mod session_open;
mod sessions;
mod sight;
mod slab;
mod snapshot;
mod snapshot_items;
mod soft_table;
mod sweep;
mod table_commands;
mod table_log;
mod takeover;
mod tangle;
mod target;
mod tree;
mod txn;
mod units;
mod usage;
mod verify;
mod view;
mod wait_graph;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::shard_common::{CommandResult, ShardCommon};
use crate::{
    AccountId, CancelAttempts, CommandError, EntryContext, Incarnation, LocksCommand, NamespaceRef, Response, Revision,
    Rules, SessionNumber, TableEpoch, UsageTotals,
};
use durability::{absent, refusal_of, refusal_of_ask};
use effects::EffectBuffer;
use expire::FirstDue;
use holdfast_primitives::budget::Budget;
use jobs::JobQueue;
use namespace::Namespace;
use purge::ClosedNamespace;
use request::Request;
use slab::Slab;
use sweep::FinishedSweeps;
use txn::NamespaceTxn;
use units::Units;

pub use capacity::Charge;
pub use purge::Purged;
pub(crate) use queries::BegunQuery;
pub(crate) use snapshot::FrozenLocks;
pub(crate) use snapshot_items::delay_snapshot;
pub use soft_table::{SoftTable, TableGarbage};
pub use verify::Footprint;

/// Units that every command costs.
const COMMAND_COST: usize = 8;

/// The state of a locks shard.
#[derive(Clone, Debug)]
pub struct LocksState {
    pub(crate) common: ShardCommon,
    /// The open incarnation of each name.
    names: BTreeMap<(AccountId, String), Incarnation>,
    slots: BTreeMap<NamespaceKey, u32>,
    namespaces: Slab<Namespace>,
    /// The first deadline of each namespace.
    due: BTreeSet<FirstDue>,
    /// Namespaces with unfinished work.
    jobs: JobQueue,
    /// The clock by which deadlines count as past: the clock of the previous entry while an entry expires items.
    visible_clock_ms: u64,
    /// Finished sweeps. Not part of the state.
    finished: FinishedSweeps,
    /// The sweep that the response to the current command has to wait for. Not part of the state.
    awaits: Option<Revision>,
    /// The remaining budget of the current slice. Not part of the state.
    budget: Budget,
    /// The namespace slot and the id of each session, by its number.
    sessions: BTreeMap<SessionNumber, (u32, Arc<str>)>,
    /// Units spent in all namespaces, including deleted ones. Not part of the state.
    units: Units,
    /// Usage of accounts in namespaces that are gone.
    ended_usage: BTreeMap<AccountId, UsageTotals>,
    /// The charge of each account's namespaces, as last updated.
    charged: BTreeMap<AccountId, u64>,
    /// Accounts whose charge changed since the last query. Not part of the state.
    changed_charges: BTreeSet<AccountId>,
    /// Namespaces whose charge may have changed since; empty between entries.
    touched: Vec<u32>,
    to_shrink: BTreeSet<NamespaceKey>,
    /// Namespaces in quarantine, with the clock at which each stands still; some may not be open.
    quarantined: BTreeMap<NamespaceRef, u64>,
    /// Namespaces whose lock tables are in the leader's memory.
    session_durable: BTreeSet<NamespaceKey>,
    /// The epoch of these tables that was begun last.
    table_epoch: TableEpoch,
    /// The rules of the current entry.
    rules: Rules,
    /// Effects of the current entry on other owners. Not part of the state.
    effects: EffectBuffer,
    /// Whether a caller receives the response to the current command. Not part of the state.
    with_views: bool,
    /// Closed namespaces that the indexes still refer to. Not part of the state.
    closed: Vec<ClosedNamespace>,
    /// Completely purged namespaces, until a caller takes them or the next entry begins. Not part of the state.
    purged: Purged,
}

/// Identifies an open namespace; an incarnation is unique within its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NamespaceKey {
    account: AccountId,
    incarnation: Incarnation,
}

impl NamespaceKey {
    fn of(namespace: &NamespaceRef) -> Self {
        Self { account: namespace.account, incarnation: namespace.incarnation }
    }
}

/// Two shards are equal if their snapshots are; everything else is derived from the snapshot.
impl PartialEq for LocksState {
    fn eq(&self, other: &Self) -> bool {
        self.freeze().encode() == other.freeze().encode()
    }
}

impl Eq for LocksState {}

impl LocksState {
    pub(crate) fn new(common: ShardCommon) -> Self {
        Self {
            common,
            names: BTreeMap::new(),
            slots: BTreeMap::new(),
            namespaces: Slab::default(),
            due: BTreeSet::new(),
            jobs: JobQueue::default(),
            visible_clock_ms: 0,
            finished: FinishedSweeps::default(),
            awaits: None,
            budget: Budget::default(),
            sessions: BTreeMap::new(),
            units: Units::default(),
            ended_usage: BTreeMap::new(),
            charged: BTreeMap::new(),
            changed_charges: BTreeSet::new(),
            touched: Vec::new(),
            to_shrink: BTreeSet::new(),
            quarantined: BTreeMap::new(),
            session_durable: BTreeSet::new(),
            table_epoch: TableEpoch::default(),
            rules: Rules::LOWEST,
            effects: EffectBuffer::default(),
            with_views: true,
            closed: Vec::new(),
            purged: Purged::default(),
        }
    }

    /// Continues unfinished work, then expires items that are due at the clock of the entry, one slice each. Drops
    /// effects of the previous entry that no caller took.
    pub(crate) fn begin_entry(&mut self, context: &EntryContext) {
        self.drop_effects();
        self.purge_indexes(usize::MAX);
        self.purged = Purged::default();
        self.apply_new_bounds();
        self.rules = context.rules;
        self.begin_slice();
        self.run_jobs(context);
        self.begin_slice();
        self.expire_due(context);
        self.visible_clock_ms = self.common.clock_ms;
        self.enforce_byte_limits();
    }

    fn begin_slice(&mut self) {
        self.budget = Budget::of(&self.common.bounds);
    }

    /// Passes changed bounds to the namespaces.
    fn apply_new_bounds(&mut self) {
        let first = self.slots.values().next().map(|slot| self.namespaces.get(*slot));
        if first.is_none_or(|namespace| Arc::ptr_eq(&namespace.bounds, &self.common.bounds)) {
            return;
        }
        for slot in self.slots.values() {
            let namespace = self.namespaces.get_mut(*slot);
            let looked_freely = !namespace.bounds.limits_visits();
            namespace.bounds = Arc::clone(&self.common.bounds);
            // As long as visits are unlimited, the recorded blockers decide nothing, so replicas may differ in them.
            if looked_freely && namespace.bounds.limits_visits() {
                namespace.recompute_blocked_on();
            }
        }
    }

    pub(crate) fn apply(&mut self, context: &EntryContext, command: &LocksCommand) -> CommandResult {
        self.begin_slice();
        self.awaits = None;
        self.evict_events(command);
        let answer = self.execute(context, command);
        self.enforce_byte_limits();
        let answer = answer?;
        self.count_operation(command);
        Ok((answer, self.awaits.take()))
    }

    fn execute(&mut self, context: &EntryContext, command: &LocksCommand) -> Result<Response, CommandError> {
        Ok(match command {
            LocksCommand::Deliver { source, number, message } => self.deliver(source, *number, message),
            LocksCommand::Acquire(_) | LocksCommand::Reattach(_) | LocksCommand::AcquireAtLeast(_) => {
                self.acquire(context, command)?
            }
            LocksCommand::Release(request) => {
                self.txn(&request.namespace, context, refusal_of(&request.owner))?.release(request)?
            }
            LocksCommand::Delete { namespace, path } => {
                self.txn(namespace, context, absent::FORCED_END)?.delete(path)?
            }
            LocksCommand::Cancel(cancel) => {
                self.txn(&cancel.namespace, context, refusal_of(&cancel.owner))?.cancel(cancel, &[])
            }
            LocksCommand::Reset(reset) => self.any_txn(&reset.namespace, context)?.reset(reset)?,
            LocksCommand::OpenSession(open) => {
                self.txn(&open.namespace, context, absent::NO_TABLE)?.open_session(open)?
            }
            LocksCommand::CloseSession { namespace, session_id, message } => {
                self.any_txn(namespace, context)?.close_session(session_id, *message)?
            }
            LocksCommand::ExpireSessions { ids, known_revision } => self.expire_sessions(context, ids, *known_revision),
            LocksCommand::LockInfo(info) => self.txn(&info.namespace, context, absent::ELSEWHERE)?.lock_info(info)?,
            LocksCommand::LockInfoPart(info) => {
                self.txn(&info.namespace, context, absent::ELSEWHERE)?.lock_info_part(info)?
            }
            LocksCommand::Batch(commands) => self.apply_batch(context, commands)?,
            LocksCommand::Session(command) => self.session_command(context, command)?,
            LocksCommand::CancelAttempts(CancelAttempts { cancel, abandoned }) => {
                self.txn(&cancel.namespace, context, refusal_of(&cancel.owner))?.cancel(cancel, abandoned)
            }
            LocksCommand::Latch(command) => self.any_txn(command.namespace(), context)?.latch(command)?,
            LocksCommand::Permit(command) => {
                self.txn(command.namespace(), context, absent::PERMITS)?.permit_command(command)?
            }
            LocksCommand::ReportPermits(report) => {
                self.txn(&report.namespace, context, absent::PERMITS)?.report_permits(report)?
            }
            LocksCommand::AskRelease(ask) => {
                self.txn(&ask.namespace, context, refusal_of_ask(ask))?.ask_release(ask)?
            }
            LocksCommand::Barrier(command) => {
                self.txn(command.namespace(), context, absent::BARRIERS)?.barrier_command(command)?
            }
            LocksCommand::Condition(command) => {
                self.txn(command.namespace(), context, absent::CONDITIONS)?.condition(command)?
            }
            LocksCommand::Table(command) => self.table_command(context, command)?,
        })
    }

    fn acquire(&mut self, context: &EntryContext, command: &LocksCommand) -> Result<Response, CommandError> {
        let Some((acquire, abandoned)) = command.as_acquire() else { return Ok(Response::Ignored) };
        let request = Request::of(acquire, command.at_least_ms());
        self.txn(&acquire.namespace, context, refusal_of(&acquire.owner))?.acquire(&request, abandoned)
    }

    fn apply_batch(&mut self, context: &EntryContext, commands: &[LocksCommand]) -> Result<Response, CommandError> {
        if commands.iter().any(|command| matches!(command, LocksCommand::Batch(_))) {
            return Err(CommandError::Malformed("a list of commands in a list of commands".to_owned()));
        }
        let mut last = None;
        let answers = commands.iter().map(|command| {
            let (answer, awaits) = self.apply(context, command)?;
            last = last.max(awaits);
            Ok(answer)
        });
        let answers = answers.collect();
        // Within one session, the sweep that began last finishes last.
        self.awaits = last;
        Ok(Response::Batch(answers))
    }

    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        if self.has_backlog() { Some(self.common.clock_ms) } else { self.due.first().map(|first| first.at_ms) }
    }

    /// Returns whether work is unfinished, or a deadline is due and not yet handled.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.jobs.is_empty() || self.due.first().is_some_and(|first| first.at_ms <= self.common.clock_ms)
    }

    fn slot(&self, wanted: &NamespaceRef) -> Result<u32, CommandError> {
        if self.is_quarantined(wanted) {
            return Err(CommandError::Quarantined);
        }
        self.slot_of(wanted).ok_or(CommandError::NamespaceNotFound)
    }

    /// Returns the slot of a namespace, even if it is in quarantine.
    fn slot_of(&self, wanted: &NamespaceRef) -> Option<u32> {
        let slot = self.slots.get(&NamespaceKey::of(wanted)).copied();
        slot.filter(|slot| self.namespaces.get(*slot).id.name == wanted.name)
    }

    /// Returns the open namespace of a query.
    fn find(&self, wanted: &NamespaceRef) -> Result<&Namespace, CommandError> {
        let namespace = self.namespaces.get(self.slot(wanted)?);
        namespace.now_ms.set(self.visible_clock_ms);
        Ok(namespace)
    }

    /// Returns the open namespace of a query about its lock table, or refuses it with this text.
    fn find_table(&self, wanted: &NamespaceRef, refused: &'static str) -> Result<&Namespace, CommandError> {
        let namespace = self.find(wanted)?;
        namespace.check_table(refused)?;
        Ok(namespace)
    }

    /// Opens a transaction on the namespace of a command that changes its lock table, or refuses it with this text if
    /// that is not in the log.
    fn txn(
        &mut self,
        wanted: &NamespaceRef,
        context: &EntryContext,
        refused: &'static str,
    ) -> Result<NamespaceTxn<'_>, CommandError> {
        self.namespaces.get(self.slot(wanted)?).check_table(refused)?;
        self.any_txn(wanted, context)
    }

    /// Opens a transaction on the namespace of a command that changes nothing of its lock table.
    fn any_txn(&mut self, wanted: &NamespaceRef, context: &EntryContext) -> Result<NamespaceTxn<'_>, CommandError> {
        let work = self.txn_in(self.slot(wanted)?, context);
        work.ns.spend(COMMAND_COST);
        Ok(work)
    }

    fn txn_in(&mut self, slot: u32, context: &EntryContext) -> NamespaceTxn<'_> {
        self.update_charges();
        self.touched.push(slot);
        let namespace = self.namespaces.get(slot);
        let charged = self.charged.get(&namespace.id.account).copied().unwrap_or_default();
        let other_namespaces_bytes = charged - namespace.accounted_bytes;
        namespace.now_ms.set(self.visible_clock_ms);
        NamespaceTxn {
            common: &mut self.common,
            due: &mut self.due,
            jobs: &mut self.jobs,
            budget: &mut self.budget,
            awaits: &mut self.awaits,
            finished: &mut self.finished,
            sessions: &mut self.sessions,
            effects: &mut self.effects,
            ns: self.namespaces.get_mut(slot),
            slot,
            wall_ms: context.wall_ms,
            rules: context.rules,
            with_views: self.with_views,
            other_namespaces_bytes,
        }
    }
}
