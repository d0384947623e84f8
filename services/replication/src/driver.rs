//! openraft's state machine, over a [`Machine`] in memory and snapshots in the store.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use holdfast_plant::{Plant, is_planted};
use holdfast_storage::ReplicaStore;
use metrics::histogram;
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Mutex, watch};
use tokio::task::{block_in_place, yield_now};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::applied::AppliedIndex;
use crate::entry::{Body, EntryData, GroupCommand};
use crate::error::{WireError, to_io};
use crate::log_bytes::{LogBytes, LogLimits, Shortening};
use crate::machine::{Applied, Frozen, Machine, MachineError, MachineFailure, Replies, Stamp};
use crate::rules::{GroupState, KnownRules};
use crate::types::{
    Entry, LogId, Snapshot, SnapshotMeta, State, StoredMembership, TypeConfig, decode_meta, encode_meta,
};

/// Applies committed entries, makes and installs snapshots.
pub struct Driver {
    machine: Arc<dyn Machine>,
    snapshots: Snapshots,
    applied: Option<LogId>,
    applied_index: AppliedIndex,
    membership: StoredMembership,
    established: watch::Sender<Established>,
    log_bytes: LogBytes,
    known: KnownRules,
    group: GroupState,
    group_state: watch::Sender<GroupState>,
    broken: watch::Sender<Option<Broken>>,
    gone: CancellationToken,
    _goes: DropGuard,
}

/// What others see of a driver, also when it is gone.
#[derive(Clone)]
pub(crate) struct Driven {
    /// Of which index the machine's state is.
    pub(crate) applied_index: AppliedIndex,
    /// How old the snapshot is.
    pub(crate) snapshot_age: SnapshotAge,
    /// Becomes `Some` when the machine has failed.
    pub(crate) broken: watch::Receiver<Option<Broken>>,
    /// What is replicated of the group itself.
    pub(crate) group_state: watch::Receiver<GroupState>,
    snapshots: Snapshots,
    gone: CancellationToken,
}

impl Driven {
    /// Ends what the driver and its builders do: nothing is applied or saved after this. Waits for what is under way.
    pub(crate) async fn ended(&self) {
        self.snapshots.newest.lock().await.is_over = true;
        self.gone.cancelled().await;
    }
}

/// Where the machine has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The term of the entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// What happened.
    pub failure: MachineFailure,
}

/// The highest term of which an entry has been applied, and the term of the entry before the first such one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Established {
    pub(crate) term: u64,
    pub(crate) term_before: u64,
}

/// The one snapshot that is kept. Builder and installer share it, so that an older one never replaces a newer one.
#[derive(Clone)]
struct Snapshots {
    store: ReplicaStore,
    newest: Arc<Mutex<Newest>>,
    age: SnapshotAge,
}

/// Bytes of an entry in the log besides its block, roughly.
const ENTRY_BYTES: usize = 16;

#[derive(Default)]
struct Newest {
    last: Option<LogId>,
    /// The replica has stopped: what is saved from now on, another run of it saves.
    is_over: bool,
}

/// How old the snapshot is, as far as this process can tell.
#[derive(Clone)]
pub(crate) struct SnapshotAge(Arc<parking_lot::Mutex<Instant>>);

impl SnapshotAge {
    fn starts_now() -> Self {
        Self(Arc::new(parking_lot::Mutex::new(Instant::now())))
    }

    fn renew(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Since it was made or taken over; since the start of the replica when it is from before.
    pub(crate) fn get(&self) -> Duration {
        self.0.lock().elapsed()
    }
}

/// A state taken from the machine, to be encoded and saved outside of the apply loop.
pub struct Builder {
    snapshots: Snapshots,
    meta: SnapshotMeta,
    group: GroupState,
    frozen: Option<Result<Frozen, MachineError>>,
    log_bytes: LogBytes,
    /// Bytes of the log that it is of.
    begun: u64,
}

impl Driver {
    /// Wraps an empty machine; openraft brings it up to date from the saved snapshot and the log. The receiver shows
    /// the highest term whose leader's first entry has been applied.
    ///
    /// # Errors
    /// When the saved snapshot's description can't be read, or is of rules that are not among the known ones.
    pub fn new(
        machine: Arc<dyn Machine>,
        store: ReplicaStore,
        limits: LogLimits,
        known: KnownRules,
    ) -> Result<(Self, watch::Receiver<Established>), io::Error> {
        let saved = store.snapshot_meta().map_err(to_io)?.map(|bytes| decode_meta(&bytes)).transpose()?;
        if let Some((_, group)) = &saved {
            group.check(known).map_err(invalid)?;
        }
        let newest = Newest { last: saved.and_then(|(meta, _)| meta.last_log_id), is_over: false };
        let newest = Arc::new(Mutex::new(newest));
        let gone = CancellationToken::new();
        let (established, receiver) = watch::channel(Established::default());
        let driver = Self {
            machine,
            snapshots: Snapshots { store, newest, age: SnapshotAge::starts_now() },
            applied: None,
            applied_index: AppliedIndex::default(),
            membership: StoredMembership::default(),
            established,
            log_bytes: LogBytes::new(limits),
            known,
            group: GroupState::default(),
            group_state: watch::Sender::default(),
            broken: watch::Sender::new(None),
            _goes: gone.clone().drop_guard(),
            gone,
        };
        Ok((driver, receiver))
    }

    /// What others see of it.
    pub(crate) fn driven(&self) -> Driven {
        Driven {
            applied_index: self.applied_index.clone(),
            snapshot_age: self.snapshots.age.clone(),
            broken: self.broken.subscribe(),
            group_state: self.group_state.subscribe(),
            snapshots: self.snapshots.clone(),
            gone: self.gone.clone(),
        }
    }

    /// What keeps the log short in bytes.
    pub(crate) fn shortening(&self) -> Shortening {
        self.log_bytes.shortening()
    }

    async fn apply_one(&mut self, (entry, responder): EntryResponder<TypeConfig>) -> Result<(), io::Error> {
        let id = entry.log_id();
        self.applied_index.begin(id.index);
        let bytes = bytes_of(&entry);
        let replies = match entry.payload {
            EntryPayload::Blank => Vec::new(),
            EntryPayload::Membership(membership) => {
                self.membership = StoredMembership::new(Some(id), membership);
                Vec::new()
            }
            EntryPayload::Normal(data) => {
                let replies = if responder.is_some() { Replies::Wanted } else { Replies::Unwanted };
                match self.apply_block(id, &data, replies).await {
                    Err(_) if is_planted(Plant::UnknownCommandSkipped) => Vec::new(),
                    applied => applied.map_err(|failure| self.broke(id, failure))?,
                }
            }
        };
        let term_before = self.applied.map_or(0, |before| before.leader_id.term);
        self.applied = Some(id);
        self.applied_index.end(id.index);
        self.log_bytes.applied(id.index, bytes);
        let term = id.leader_id.term;
        // Only ever rises: each new leader's first entry, or the one after it that says by which rules a group begins.
        let has_rules = self.group.rules.is_some();
        self.established.send_if_modified(|highest| {
            let rises = term > highest.term && has_rules;
            if rises {
                *highest = Established { term, term_before };
            }
            rises
        });
        if let Some(responder) = responder {
            responder.send(replies);
        }
        Ok(())
    }

    async fn apply_block(
        &mut self,
        id: LogId,
        data: &EntryData,
        replies: Replies,
    ) -> Result<Vec<Bytes>, MachineFailure> {
        let block = data.read()?;
        let commands = match block.body {
            Body::Commands(commands) => commands,
            Body::Structural(GroupCommand::RaiseRules(next)) => {
                self.go_by(self.group.raised(next, self.known)?);
                return Ok(Vec::new());
            }
        };
        // An entry that was on its way when the rules were raised says the ones of before, and goes by the new ones.
        let group = self.group.raised(block.rules, self.known)?;
        let rules = group.rules.unwrap_or(block.rules);
        let stamp = Stamp { rules, now_ms: block.now_ms, wall_ms: block.wall_ms };
        if is_planted(Plant::DuplicateApply) && replies == Replies::Unwanted && id.index.is_multiple_of(16) {
            let _ = apply_slices(&*self.machine, stamp, &commands, replies).await;
        }
        let began = Instant::now();
        let replies = apply_slices(&*self.machine, stamp, &commands, replies).await?;
        histogram!("holdfast_apply_seconds").record(began.elapsed().as_secs_f64());
        self.go_by(group);
        Ok(replies)
    }

    fn go_by(&mut self, group: GroupState) {
        if self.group == group {
            return;
        }
        self.group = group;
        if let Some(rules) = group.rules {
            self.snapshots.store.note_rules(rules);
            self.machine.go_by(rules);
        }
        self.group_state.send_replace(group);
    }

    /// The machine has failed in that entry. openraft stops with the error.
    fn broke(&self, id: LogId, failure: MachineFailure) -> io::Error {
        let error = io::Error::other(format!("entry {} of term {}, {failure}", id.index, id.leader_id.term));
        self.broken.send_replace(Some(Broken { term: id.leader_id.term, index: id.index, failure }));
        error
    }
}

/// Whoever asks the machine, and every other task of the thread, has a turn between two slices.
async fn apply_slices(
    machine: &dyn Machine,
    stamp: Stamp,
    commands: &[Bytes],
    replies: Replies,
) -> Result<Vec<Bytes>, MachineFailure> {
    let mut applied = machine.apply(stamp, commands, replies)?;
    loop {
        match applied {
            Applied::Done(replies) => return Ok(replies),
            Applied::Part(rest) => {
                yield_now().await;
                applied = rest()?;
            }
        }
    }
}

fn bytes_of(entry: &Entry) -> u64 {
    let block = match &entry.payload {
        EntryPayload::Normal(data) => data.block.len(),
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    };
    (block + ENTRY_BYTES) as u64
}

fn invalid(error: MachineError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl From<MachineError> for MachineFailure {
    fn from(error: MachineError) -> Self {
        Self::of_entry(error.0)
    }
}

impl From<WireError> for MachineFailure {
    fn from(error: WireError) -> Self {
        Self::of_entry(error.to_string())
    }
}

impl Snapshots {
    async fn save(&self, meta: &SnapshotMeta, state: State) -> Result<(), io::Error> {
        let mut newest = self.newest.lock().await;
        if newest.is_over {
            return Err(io::Error::other("the replica has stopped"));
        }
        if newest.last >= meta.last_log_id {
            return Ok(());
        }
        self.store.save_snapshot(encode_meta(meta, state.group), state.chunks).await.map_err(to_io)?;
        newest.last = meta.last_log_id;
        self.age.renew();
        Ok(())
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = State;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let frozen = self.frozen.take().ok_or_else(|| io::Error::other("a builder makes one snapshot"))?;
        let frozen = frozen.map_err(io::Error::other)?;
        // openraft would not learn of a panic of this task, and never make a snapshot again; an error stops the replica.
        let chunks = catch_unwind(AssertUnwindSafe(|| aside(frozen)));
        let chunks =
            chunks.map_err(|_| io::Error::other("the state can't be encoded; the panic before this says why"))?;
        let state = State { group: self.group, chunks };
        self.snapshots.save(&self.meta, state.clone()).await?;
        let index = self.meta.last_log_id.map_or(0, |id| id.index);
        self.log_bytes.snapshot_saved(index, self.begun);
        Ok(Snapshot { meta: self.meta.clone(), snapshot: state })
    }
}

/// Does what may take a second without holding up the other tasks of the thread, where there can be others to go on: a
/// runtime of one thread has none.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => block_in_place(work),
        _ => work(),
    }
}

impl RaftStateMachine<TypeConfig> for Driver {
    type SnapshotData = State;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.try_next().await? {
            self.apply_one(entry).await?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let meta = SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() };
        let (frozen, begun) = (Some(self.machine.freeze()), self.log_bytes.snapshot_begun());
        let (snapshots, log_bytes) = (self.snapshots.clone(), self.log_bytes.clone());
        Builder { snapshots, meta, group: self.group, frozen, log_bytes, begun }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: State) -> Result<(), io::Error> {
        snapshot.group.check(self.known).map_err(invalid)?;
        let index = meta.last_log_id.map_or(0, |id| id.index);
        self.applied_index.begin(index);
        self.machine.restore(&snapshot.chunks).map_err(invalid)?;
        self.go_by(snapshot.group);
        self.snapshots.save(meta, snapshot).await?;
        self.applied = meta.last_log_id;
        self.applied_index.end(index);
        self.membership = meta.last_membership.clone();
        self.log_bytes.restored();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let Some((meta, chunks)) = self.snapshots.store.snapshot().map_err(to_io)? else {
            return Ok(None);
        };
        let (meta, group) = decode_meta(&meta)?;
        Ok(Some(Snapshot { meta, snapshot: State { group, chunks } }))
    }
}
