//! Encodes a frozen locks shard chunk by chunk: at most a few encoded chunks wait to be taken.

use std::sync::Arc;

use holdfast_primitives::ask::Asks;
use holdfast_primitives::attempts::Attempts;
use holdfast_primitives::barriers::BarrierCursor;
use holdfast_primitives::chunks::{ChunkWriter, first_after};
use holdfast_primitives::latches::LatchCursor;
use holdfast_primitives::permits::SourceCursor;

use super::{FrozenLocks, FrozenNamespace, session_item};
use crate::locks::hold::Hold;
use crate::locks::owner::{OwnerId, OwnerName};
use crate::locks::queue::QueuePosition;
use crate::locks::report::Report;
use crate::locks::snapshot_items::Item;
use crate::locks::sweep::Sweep;
use crate::locks::tree::NodeId;
use crate::locks::waiting::WaitingRequest;
use crate::{Application, Durability, FencingToken, Revision, SessionNumber, TableEpoch, UsageTotals, codec};

/// Number of process ids in one item.
const OLD_PROCESSES_PER_ITEM: usize = 256;
/// Number of waits, requests or tokens in one item.
const WAITS_PER_ITEM: usize = 4_096;

/// The chunks of a frozen state.
pub(crate) struct FrozenChunks {
    frozen: Arc<FrozenLocks>,
    writer: ItemWriter,
    section: Section,
}

/// The section to write next.
enum Section {
    Common,
    /// The namespace at this position.
    Namespace(usize, NamespaceSection),
    /// What follows the namespaces.
    Last,
    /// Nothing.
    End,
}

/// The section of a namespace to write next.
enum NamespaceSection {
    Head,
    /// The session at this position.
    Session(usize),
    /// What the log of a lock table has of the session that follows this one.
    TableSessionAfter(Option<SessionNumber>),
    /// The report that follows that of this session.
    ReportAfter(Option<SessionNumber>),
    /// The ending session at this position.
    Ending(usize),
    /// The sweep that follows the one of this revision.
    SweepAfter(Option<Revision>),
    /// The lock at this position among the held locks.
    Lock(usize, Vec<NodeId>),
    /// The granted request at this position, of their numbers in order of their ids.
    Granted(usize, Vec<u32>),
    /// The waiting request at this position.
    Wait(usize),
    /// The await at this position.
    Await(usize),
    /// The item of a latch at this place.
    Latch(LatchCursor),
    /// The item of a semaphore or a pool at this place.
    Permits(SourceCursor),
    /// The item of a barrier at this place.
    Barriers(BarrierCursor),
    /// What is bounded for each namespace.
    Rest,
}

#[derive(Default)]
struct ItemWriter(ChunkWriter);

impl ItemWriter {
    fn push(&mut self, item: &Item<&str>) {
        self.0.push(item);
    }
}

impl FrozenLocks {
    /// Returns the chunks, each of which is encoded when it is taken.
    pub(crate) fn chunks(self: Arc<Self>) -> FrozenChunks {
        FrozenChunks { frozen: self, writer: ItemWriter::default(), section: Section::Common }
    }

    /// Returns all chunks.
    pub(crate) fn encode(self) -> Vec<Vec<u8>> {
        Arc::new(self).chunks().collect()
    }

    fn write_common(&self, writer: &mut ItemWriter) {
        for item in self.common.items(Application::Locks) {
            writer.push(&Item::Common(item));
        }
        for (account, usage) in &self.ended_usage {
            writer.push(&Item::EndedUsage(*account, *usage));
        }
        // Before the namespaces: restoring one depends on whether it stands still.
        for (namespace, since_ms) in &self.quarantined {
            writer.push(&Item::Quarantined(namespace.clone(), *since_ms));
        }
        if self.table_epoch != TableEpoch::default() {
            writer.push(&Item::TableEpoch(self.table_epoch));
        }
    }
}

impl Iterator for FrozenChunks {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(chunk) = self.writer.0.take_chunk() {
                return Some(chunk);
            }
            let section = std::mem::replace(&mut self.section, Section::End);
            self.section = self.write(section)?;
        }
    }
}

impl FrozenChunks {
    /// Writes a part of a section. Returns the section to write next; `None` at the end.
    fn write(&mut self, section: Section) -> Option<Section> {
        let Self { frozen, writer, .. } = self;
        Some(match section {
            Section::Common => {
                frozen.write_common(writer);
                Section::Namespace(0, NamespaceSection::Head)
            }
            Section::Namespace(index, section) => match frozen.namespaces.get(index) {
                None => Section::Last,
                Some(namespace) => match namespace.write(writer, section) {
                    Some(next) => Section::Namespace(index, next),
                    None => Section::Namespace(index + 1, NamespaceSection::Head),
                },
            },
            Section::Last => {
                if let Some(turns) = &frozen.job_cursors {
                    writer.push(&Item::JobCursors(turns.clone()));
                }
                writer.0.end();
                Section::End
            }
            Section::End => return None,
        })
    }
}

impl FrozenNamespace {
    /// Writes a part of a section. Returns the section to write next; `None` at the end of the namespace.
    fn write(&self, writer: &mut ItemWriter, section: NamespaceSection) -> Option<NamespaceSection> {
        use NamespaceSection::{
            Await, Barriers, Ending, Granted, Head, Latch, Lock, Permits, ReportAfter, Rest, Session, SweepAfter,
            TableSessionAfter, Wait,
        };
        Some(match section {
            Head => {
                self.write_head(writer);
                Session(0)
            }
            Session(index) => match self.sessions.get(index) {
                Some((session_id, facts)) => {
                    writer.push(&Item::Session(session_item(session_id, facts)));
                    Session(index + 1)
                }
                None => TableSessionAfter(None),
            },
            TableSessionAfter(last) => self.write_table_session(writer, last),
            ReportAfter(last) => match first_after(&self.reports, last) {
                Some((number, report)) => {
                    write_report(writer, *number, report);
                    ReportAfter(Some(*number))
                }
                None => Ending(0),
            },
            Ending(index) => match self.ending_sessions.get(index) {
                Some(ending) => {
                    writer.push(&Item::EndingSession(Box::new(ending.item())));
                    Ending(index + 1)
                }
                None => SweepAfter(None),
            },
            SweepAfter(last) => match first_after(&self.sweeps, last) {
                Some((began, sweep)) => {
                    writer.push(&Item::Sweep(*began, Box::new(sweep.clone())));
                    SweepAfter(Some(*began))
                }
                None => Lock(0, self.held_nodes()),
            },
            Lock(index, nodes) => match nodes.get(index) {
                Some(node) => {
                    self.write_lock(writer, *node);
                    Lock(index + 1, nodes)
                }
                None => Granted(0, self.granted_numbers()),
            },
            Granted(index, numbers) => match numbers.get(index) {
                Some(number) => {
                    self.write_granted(writer, *number);
                    Granted(index + 1, numbers)
                }
                None => Wait(0),
            },
            Wait(index) => match self.waits.get(index) {
                Some((position, waiting)) => {
                    self.write_wait(writer, *position, waiting);
                    Wait(index + 1)
                }
                None => Await(0),
            },
            Await(index) => self.write_await(writer, index),
            Latch(cursor) => self.write_latch(writer, cursor),
            Permits(cursor) => self.write_permits(writer, cursor),
            Barriers(cursor) => self.write_barriers(writer, cursor),
            Rest => {
                self.write_rest(writer);
                return None;
            }
        })
    }

    /// Writes what the log of the lock table has of the session after this one; what follows all of them after the last.
    fn write_table_session(&self, writer: &mut ItemWriter, last: Option<SessionNumber>) -> NamespaceSection {
        let Some((number, session)) = first_after(self.table_log.sessions(), last) else {
            return NamespaceSection::ReportAfter(None);
        };
        writer.push(&Item::TableSession(*number, session.clone()));
        NamespaceSection::TableSessionAfter(Some(*number))
    }

    /// Writes the await at this position; what follows all awaits after the last.
    fn write_await(&self, writer: &mut ItemWriter, index: usize) -> NamespaceSection {
        let Some((wait, awaits)) = self.awaits.get(index) else {
            self.write_events(writer);
            return NamespaceSection::Latch(LatchCursor::default());
        };
        writer.push(&Item::Await(self.await_item(*wait, awaits)));
        write_attempts(writer, &awaits.attempts, &[]);
        NamespaceSection::Await(index + 1)
    }

    fn write_head(&self, writer: &mut ItemWriter) {
        writer.push(&Item::Namespace {
            account: self.id.account,
            name: self.id.name.clone(),
            incarnation: self.id.incarnation,
            limits: self.limits.clone(),
            compacted: self.history.compacted_revision(),
        });
        if !self.limits.are_first() {
            writer.push(&Item::Limits(Box::new(self.limits.clone())));
        }
        if self.durability != Durability::Full {
            writer.push(&Item::Durability(self.durability));
            if self.table_log.epoch > 0 {
                writer.push(&Item::EpochOf(self.table_log.epoch));
            }
        }
    }

    fn write_lock(&self, writer: &mut ItemWriter, node: NodeId) {
        let lock = self.paths.get(node);
        writer.push(&Item::Lock { path: self.paths.segments(node), revision: lock.revision });
        for hold in lock.holds.as_slice() {
            if let Some(past) = self.past_item(hold.came_from(), hold.signals()) {
                writer.push(&Item::Past(past));
            }
            writer.push(&Item::Hold(self.hold_item(hold)));
            write_marks(writer, hold);
            let (is_listed, is_claimed) = self.reported(node, hold);
            if is_listed || is_claimed {
                writer.push(&Item::Reported { is_listed, is_claimed });
            }
            write_attempts(writer, &hold.attempts(), hold.reader_attempts());
        }
    }

    /// Returns the numbers of all granted requests, in the order in which they are written.
    fn granted_numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.granted.iter().map(|(number, _)| number).collect();
        numbers.sort_unstable_by_key(|number| {
            let granted = self.granted.get(*number);
            let (session_id, session) = self.session_of(granted);
            (session_id, granted.request_id.as_bytes(), session)
        });
        numbers
    }

    fn write_granted(&self, writer: &mut ItemWriter, number: u32) {
        let granted = self.granted.get(number);
        let (session, item) = (self.session_of(granted).1, self.granted_item(granted));
        let is_ending = self.ending_sessions.binary_search_by_key(&session, |ending| ending.facts.number).is_ok();
        writer.push(&if is_ending { Item::GrantedToEnding(session, Box::new(item)) } else { Item::Granted(item) });
        write_attempts(writer, &granted.attempts, &[]);
    }

    fn write_wait(&self, writer: &mut ItemWriter, position: QueuePosition, waiting: &WaitingRequest) {
        if let Some(past) = self.past_item(waiting.came_from.as_deref().map_or(&[], std::slice::from_ref), &[]) {
            writer.push(&Item::Past(past));
        }
        writer.push(&Item::Wait(self.wait_item(position, waiting)));
        if waiting.terms.at_least_ms > 0 {
            writer.push(&Item::WaitAtLeast(waiting.terms.at_least_ms));
        }
        write_attempts(writer, &waiting.attempts, &[]);
        if let Some(watch) = self.blocked_on_item(waiting).filter(|_| self.has_slices) {
            writer.push(&Item::BlockedOn(watch));
        }
    }

    fn write_events(&self, writer: &mut ItemWriter) {
        for event in self.history.iter() {
            writer.push(&Item::Event { revision: event.revision, bytes: codec::encode(&event) });
        }
    }

    fn write_latch(&self, writer: &mut ItemWriter, mut cursor: LatchCursor) -> NamespaceSection {
        match self.latches.next_item(&mut cursor) {
            Some(item) => {
                writer.push(&Item::Latch(item));
                NamespaceSection::Latch(cursor)
            }
            None => NamespaceSection::Permits(SourceCursor::default()),
        }
    }

    fn write_permits(&self, writer: &mut ItemWriter, mut cursor: SourceCursor) -> NamespaceSection {
        match self.permits.next_item(&mut cursor) {
            Some(item) => {
                writer.push(&Item::Permits(item));
                NamespaceSection::Permits(cursor)
            }
            None => NamespaceSection::Barriers(BarrierCursor::default()),
        }
    }

    fn write_barriers(&self, writer: &mut ItemWriter, mut cursor: BarrierCursor) -> NamespaceSection {
        match self.barriers.next_item(&mut cursor) {
            Some(item) => {
                writer.push(&Item::Barrier(item));
                NamespaceSection::Barriers(cursor)
            }
            None => NamespaceSection::Rest,
        }
    }

    fn write_rest(&self, writer: &mut ItemWriter) {
        for (began, sweep) in &self.sweeps {
            self.write_old_processes(writer, *began, sweep);
        }
        if let Some(woken) = &self.pending_grants {
            let woken: Vec<_> = woken.iter().map(|position| (position.wait().0, position.is_upgrade())).collect();
            write_pieces(&woken, |woken| writer.push(&Item::PendingGrants(woken)));
        }
        // Last, because restoring the preceding items counts them again.
        if self.usage != UsageTotals::default() {
            writer.push(&Item::Usage(self.usage));
        }
    }

    /// Written in order of name and in several items, because there may be as many names as owners.
    fn write_old_processes(&self, writer: &mut ItemWriter, began: Revision, sweep: &Sweep) {
        let old = self.owners.iter().filter(|(id, _)| sweep.is_old(OwnerId(*id)));
        let names =
            old.filter_map(|(_, name)| if let OwnerName::Process(id) = name { Some(id.as_str()) } else { None });
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        for names in names.chunks(OLD_PROCESSES_PER_ITEM) {
            writer.push(&Item::OldProcesses(began, names.to_vec()));
        }
    }
}

fn write_report(writer: &mut ItemWriter, number: SessionNumber, report: &Report) {
    let pending: Vec<&str> = report.pending().collect();
    write_pieces(&pending, |pending| writer.push(&Item::Report(number, pending)));
    let permits: Vec<FencingToken> = report.permits().collect();
    if !permits.is_empty() {
        write_pieces(&permits, |permits| writer.push(&Item::ReportedPermits(number, permits)));
    }
}

/// Writes a list that may be long in several items, and an empty one in one item.
fn write_pieces<T: Clone>(things: &[T], mut write: impl FnMut(Vec<T>)) {
    let none = things.is_empty().then(Vec::new);
    things.chunks(WAITS_PER_ITEM).map(<[T]>::to_vec).chain(none).for_each(&mut write);
}

/// Writes how long a hold is kept from others, and requests to release it.
fn write_marks(writer: &mut ItemWriter, hold: &Hold) {
    if hold.at_least().is_some() || hold.asks().is_some() {
        let asks = hold.asks().map(Asks::item).unwrap_or_default();
        writer.push(&Item::HoldMarks(hold.at_least(), asks));
    }
}

fn write_attempts(writer: &mut ItemWriter, attempts: &Attempts, as_reader: &[u64]) {
    if !attempts.lower().is_empty() || !as_reader.is_empty() {
        writer.push(&Item::Attempts { lower: attempts.lower().to_vec(), as_reader: as_reader.to_vec() });
    }
}
