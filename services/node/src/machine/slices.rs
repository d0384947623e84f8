//! Applying an entry, slice by slice. The lock of the state is let go after each, so that nobody who looks at the state
//! waits for a long entry. When that is decides nothing: a command is done as a whole, and all see it done or not.

use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::vec;

use bytes::Bytes;
use holdfast_core::locks::Purged;
use holdfast_core::shard::ShardCore;
use holdfast_core::{Command, Context, Rules, codec};
use holdfast_plant::{Plant, is_planted, panics_at};
use holdfast_replication::{Applied, MachineFailure, Stamp, Step};
use holdfast_supervise::catch;
use tokio::time::{Duration, Instant};

use super::{Inner, ShardMachine, signals_of};
use crate::leader::Table;
use crate::{failure, planted};

/// Commands in a slice.
pub(super) const SLICE_COMMANDS: usize = 128;
/// Things that the leader's table is told in a slice, and that are taken out of indexes: more than the commands of one do,
/// but for the end of a namespace.
const SLICE_EFFECTS: usize = 1_024;
/// No further command is begun in a slice that has taken so long.
const SLICE: Duration = Duration::from_millis(1);

/// An entry, and how far it was applied.
pub(super) struct Entry<'a> {
    stamp: Stamp,
    commands: &'a [Bytes],
    /// Those that are left.
    read: vec::IntoIter<Command>,
    /// Whether replies are made.
    encodes: bool,
    replies: Vec<Bytes>,
    has_advanced: bool,
    /// The one at hand.
    step: Step,
    /// Whether all is carried out and told.
    is_done: bool,
}

impl<'a> Entry<'a> {
    pub(super) fn new(stamp: Stamp, commands: &'a [Bytes], read: Vec<Command>, encodes: bool) -> Self {
        let replies = Vec::with_capacity(read.len());
        let read = read.into_iter();
        Self { stamp, commands, read, encodes, replies, has_advanced: false, step: Step::Due, is_done: false }
    }
}

impl ShardMachine {
    /// Does the next slice.
    pub(super) fn go_on<'a>(&'a self, mut entry: Entry<'a>) -> Result<Applied<'a>, MachineFailure> {
        let mut inner = self.inner.lock();
        let began = Instant::now();
        let Inner { core, table, .. } = &mut *inner;
        let Some(core) = core else { return Err(failure::of_nothing()) };
        match catch(|| self.do_slice(core, table.as_mut(), &mut entry, began)) {
            Ok(()) => {
                let (signals, purged, recharged) = (signals_of(core), core.take_purged(), core.take_recharged());
                drop(inner);
                free(purged);
                self.memory.tell(&recharged);
                self.slice_seconds.record(began.elapsed());
                self.signals.send_if_modified(|current| {
                    let changed = *current != signals;
                    *current = signals;
                    changed
                });
                if entry.is_done {
                    return Ok(Applied::Done(entry.replies));
                }
                Ok(Applied::Part(Box::new(move || self.go_on(entry))))
            }
            Err(_) if is_planted(Plant::PanicInApply) => Ok(Applied::Done(vec![Bytes::new(); entry.commands.len()])),
            Err(panicked) => {
                self.fail(&mut inner);
                Err(failure::of_panic(entry.step, entry.commands, panicked))
            }
        }
    }

    fn do_slice(&self, core: &mut ShardCore, mut table: Option<&mut Table>, entry: &mut Entry<'_>, began: Instant) {
        let Stamp { rules, now_ms, wall_ms } = entry.stamp;
        let context = Context { now_ms, wall_ms, rules: Rules(rules) };
        // What comes next is carried out once all is told of what came before.
        let commands = if core.has_effects() { 0 } else { SLICE_COMMANDS };
        let mut has_done_some = false;
        if !entry.has_advanced {
            panics_at("apply");
            core.advance(&context);
            (entry.has_advanced, has_done_some) = (true, true);
        }
        for _ in 0..commands {
            if has_done_some && entry.read.len() > 0 && began.elapsed() >= SLICE {
                break;
            }
            let Some(command) = entry.read.next() else { break };
            entry.step = Step::Command(u32::try_from(entry.replies.len()).unwrap_or(u32::MAX));
            let reply = carry_out(core, table.as_deref_mut(), &context, command, entry.encodes);
            entry.replies.push(reply);
            has_done_some = true;
        }
        match &mut table {
            // Under the same lock, so that the table is never behind the state by more than it is told next.
            Some(table) => {
                let clock_ms = core.clock_ms();
                core.take_some_effects(SLICE_EFFECTS).into_iter().for_each(|effect| table.tell(effect, clock_ms));
            }
            None => core.drop_effects(),
        }
        entry.is_done = entry.read.len() == 0 && !core.has_effects() && !core.tidy(SLICE_EFFECTS);
        if let Some(observer) = self.observer.as_ref().filter(|_| entry.is_done) {
            observer.applied(&self.shard, entry.stamp, entry.commands, &entry.replies, core);
        }
        if table.is_some_and(Table::wakes_duties) {
            self.table_changed.notify_waiters();
        }
    }
}

/// Frees what was purged on a thread that has nothing else to do. A task of the runtime would not do: where time is
/// simulated it stands still while one blocks.
fn free(purged: Purged) {
    static FREED: LazyLock<Option<Sender<Purged>>> = LazyLock::new(|| {
        let (sender, purged) = channel::<Purged>();
        let thread = Builder::new().name("purged".into()).spawn(move || purged.into_iter().for_each(drop));
        thread.ok().map(|_| sender)
    });
    if let (Some(sender), false) = (&*FREED, purged.is_empty()) {
        // What can't be sent is freed here.
        drop(sender.send(purged));
    }
}

/// The reply to one command; empty unless it is to be encoded.
fn carry_out(
    core: &mut ShardCore,
    table: Option<&mut Table>,
    context: &Context,
    command: Command,
    encodes: bool,
) -> Bytes {
    panics_at("apply");
    let command = planted::command(core, command);
    let reply = if encodes { core.apply(context, &command) } else { core.apply_unseen(context, &command) };
    if let Some(table) = table {
        table.replied(&command, &reply);
    }
    if encodes { codec::encode(&reply).into() } else { Bytes::new() }
}
