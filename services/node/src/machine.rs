//! A shard's state in memory, between the group that applies and the node that asks.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::locks::Footprint;
use holdfast_core::outbox::Outgoing;
use holdfast_core::shard::{Application, PendingReply, ShardCore};
use holdfast_core::{Command, Context, Query, Refusal, Reply, Rules, codec};
use holdfast_replication::{Frozen, Machine, MachineError, Replies, Stamp};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::leader::Table;
use crate::planted;

/// What the leader's duties wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Signals {
    /// When the next hold ends, on the shard clock in milliseconds.
    pub next_deadline_ms: Option<u64>,
    /// The number that the next message in the outbox gets.
    pub outbox_next: u64,
    /// Messages in the outbox.
    pub outbox_len: usize,
}

/// Sees what replicas apply, as they apply it. For checks of a whole cluster; it must not call back.
pub trait Observer: Send + Sync + 'static {
    /// A replica's state is new and empty.
    fn began(&self, shard: &str, state: &ShardCore);
    /// An entry was applied: its commands, one reply for each, and the state after it.
    fn applied(&self, shard: &str, stamp: Stamp, commands: &[Bytes], replies: &[Bytes], state: &ShardCore);
    /// The state was replaced by that of a snapshot.
    fn restored(&self, shard: &str, state: &ShardCore);
}

/// The state of one shard on this node.
pub struct ShardMachine {
    shard: String,
    observer: Option<Arc<dyn Observer>>,
    inner: Mutex<Inner>,
    signals: watch::Sender<Signals>,
    /// The table of the leader has something new to wait for.
    table_changed: Notify,
    /// What became of sessions that were judged is known.
    judged: Notify,
}

/// The state and, while this replica leads, what a leader keeps besides. One lock, so that they are never apart.
struct Inner {
    core: ShardCore,
    /// Those of the last entry.
    rules: Rules,
    table: Option<Table>,
}

impl ShardMachine {
    /// An empty state.
    pub fn new(application: Application, shard: &str, observer: Option<Arc<dyn Observer>>) -> Self {
        let core = ShardCore::new(application, shard);
        let (signals, _) = watch::channel(signals_of(&core));
        if let Some(observer) = &observer {
            observer.began(shard, &core);
        }
        let inner = Mutex::new(Inner { core, rules: Rules::LOWEST, table: None });
        Self { shard: shard.to_owned(), observer, inner, signals, table_changed: Notify::new(), judged: Notify::new() }
    }

    /// Works with the state and the table of the leader of that term; nothing when it no longer leads. Duties are woken
    /// when they have to look earlier than they meant to.
    pub(crate) fn as_leader<T>(&self, term: u64, work: impl FnOnce(&ShardCore, &mut Table) -> T) -> Option<T> {
        self.look_as_leader(term, |core, table| {
            let done = work(core, table);
            if table.wakes_duties() {
                self.table_changed.notify_waiters();
            }
            done
        })
    }

    /// The same for duties that look what there is to do: a look wakes nobody, least of all themselves.
    pub(crate) fn look_as_leader<T>(&self, term: u64, look: impl FnOnce(&ShardCore, &mut Table) -> T) -> Option<T> {
        let mut inner = self.inner.lock();
        let Inner { core, table, .. } = &mut *inner;
        let table = table.as_mut().filter(|table| table.term == term)?;
        Some(look(core, table))
    }

    /// Wakes the duties that wait for something in the table.
    pub(crate) fn table_changed(&self) -> &Notify {
        &self.table_changed
    }

    /// Wakes those who wait for what becomes of a session that is being judged. Not the same as a change of the table: a
    /// look at it may wake duties, and whoever looks again whenever it changed would wake itself without end.
    pub(crate) fn judged(&self) -> &Notify {
        &self.judged
    }

    /// Follows what the duties wait for.
    pub fn signals(&self) -> watch::Receiver<Signals> {
        self.signals.subscribe()
    }

    /// Answers a query from the last applied entry. `clock_ms` is the running clock.
    pub fn query(&self, clock_ms: u64, query: &Query) -> Reply {
        self.begin_query(clock_ms, query).finish()
    }

    /// The same as far as it takes the lock of the state.
    pub(crate) fn begin_query(&self, clock_ms: u64, query: &Query) -> PendingReply {
        planted::query(&self.inner.lock().core, clock_ms, query)
    }

    /// The state as it is now, to look at.
    pub(crate) fn as_it_is(&self) -> holdfast_core::shard::Frozen {
        self.inner.lock().core.freeze()
    }

    /// How much the state keeps.
    pub fn footprint(&self) -> Footprint {
        self.inner.lock().core.footprint()
    }

    /// The oldest messages of the outbox.
    pub fn outbox(&self, at_most: usize) -> Vec<(u64, Outgoing)> {
        let core = &self.inner.lock().core;
        core.outbox().messages().iter().take(at_most).map(|(number, message)| (*number, message.clone())).collect()
    }

    /// Whether a reply that awaits this message may be given.
    pub fn is_settled(&self, number: u64) -> bool {
        self.inner.lock().core.outbox().is_settled(number)
    }
}

fn signals_of(core: &ShardCore) -> Signals {
    Signals {
        next_deadline_ms: core.next_deadline_ms(),
        outbox_next: core.outbox().next_number(),
        outbox_len: core.outbox().messages().len(),
    }
}

impl Machine for ShardMachine {
    fn apply(&self, stamp: Stamp, commands: &[Bytes], replies: Replies) -> Vec<Bytes> {
        let encodes = replies == Replies::Wanted || self.observer.is_some();
        let context = Context { now_ms: stamp.now_ms, wall_ms: stamp.wall_ms, rules: Rules::ONE };
        let mut inner = self.inner.lock();
        let Inner { core, rules, table } = &mut *inner;
        *rules = context.rules;
        if let Some(table) = table.as_mut() {
            table.go_by(context.rules);
        }
        core.advance(&context);
        let replies = commands.iter().map(|bytes| {
            let reply = match codec::decode::<Command>(bytes) {
                Ok(command) => {
                    let command = planted::command(core, command);
                    let reply = core.apply(&context, &command);
                    if let Some(table) = table.as_mut() {
                        table.replied(&command, &reply);
                    }
                    reply
                }
                // The same on every replica, so it is a refusal like any other.
                Err(error) => Reply {
                    outcome: Err(Refusal::Malformed(error.to_string())),
                    clock_ms: core.clock_ms(),
                    awaits_outbox: None,
                },
            };
            if encodes { Bytes::from(codec::encode(&reply)) } else { Bytes::new() }
        });
        let replies: Vec<Bytes> = replies.collect();
        if let Some(table) = table.as_mut() {
            let clock_ms = core.clock_ms();
            for effect in core.take_effects() {
                table.tell(effect, clock_ms);
            }
        }
        if let Some(observer) = &self.observer {
            observer.applied(&self.shard, stamp, commands, &replies, core);
        }
        let signals = signals_of(core);
        if table.as_mut().is_some_and(Table::wakes_duties) {
            self.table_changed.notify_waiters();
        }
        drop(inner);
        self.signals.send_if_modified(|current| {
            let changed = *current != signals;
            *current = signals;
            changed
        });
        replies
    }

    fn lead(&self, term: Option<u64>) {
        let mut inner = self.inner.lock();
        inner.table = term.map(|term| Table::begin(term, inner.rules, &inner.core));
        drop(inner);
        self.table_changed.notify_waiters();
        self.judged.notify_waiters();
    }

    fn clock_ms(&self) -> u64 {
        self.inner.lock().core.clock_ms()
    }

    fn freeze(&self) -> Frozen {
        let frozen = planted::to_save(&self.inner.lock().core).freeze();
        Box::new(move || frozen.encode().into_iter().map(Bytes::from).collect())
    }

    fn restore(&self, chunks: &[Bytes]) -> Result<(), MachineError> {
        if planted::keeps_nothing() {
            return Ok(());
        }
        let application = self.inner.lock().core.application();
        let restored = ShardCore::restore(application, &self.shard, chunks)
            .map_err(|error| MachineError(format!("the snapshot of shard {} can't be read: {error}", self.shard)))?;
        if let Some(observer) = &self.observer {
            observer.restored(&self.shard, &restored);
        }
        let mut inner = self.inner.lock();
        inner.core = restored;
        let signals = signals_of(&inner.core);
        drop(inner);
        self.signals.send_replace(signals);
        Ok(())
    }
}
