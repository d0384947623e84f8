//! A small real machine: it appends every command to a list.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use holdfast_replication::{
    Applied, ApplyFailure, ApplyStep, CommandCost, EntryHeader, Exception, FailedEntry, FailedShards, FrozenState,
    KnownRules, ReplyMode, StateMachine, StateMachineError,
};
use holdfast_storage::{PartUpdate, SnapshotPart, StorageError};
use parking_lot::Mutex;

const CHUNK: usize = 1024 * 1024;
/// The names of the parts of a snapshot.
const CLOCK: &str = "clock";
pub(crate) const COMMANDS: &str = "commands";
/// What a command is expected to cost: some hundred of them fill an entry.
const COMMAND_UNITS: u64 = 80;

#[derive(Default)]
struct State {
    clock_ms: u64,
    entries: u64,
    commands: Vec<(u64, Bytes)>,
    /// Of the entries that this process applied, as they came.
    rules: Vec<u16>,
}

/// Commands that begin so are known to nodes that know rules 3, and to no others.
pub(crate) const LATER: &str = "later: ";

/// Remembers every command with the clock at which it was applied.
#[derive(Default)]
pub(crate) struct Journal {
    state: Mutex<State>,
    knows_later: bool,
    /// Fails at the command [`POISON`], as a machine with a bug would.
    pub(crate) is_faulty: AtomicBool,
    /// Shards whose sections wait.
    stalled: Mutex<Vec<u32>>,
    /// Shards that it says do not serve.
    failed_shards: Mutex<FailedShards>,
    /// All checkpoints that this process applied.
    checkpoints: Mutex<Vec<AppliedCheckpoint>>,
    /// Its states at checkpoints differ from those of others.
    pub(crate) has_diverged: AtomicBool,
    exceptions: Mutex<Vec<Exception>>,
    /// Shards that were to be built again without what is left out, each with the entry that said so.
    isolated: Mutex<Vec<(u32, u64)>>,
    ballast: Ballast,
}

/// Further parts of each snapshot, which never change and say nothing: no replica decodes them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ballast {
    pub(crate) parts: u32,
    /// Of each part.
    pub(crate) chunks: u32,
}

/// A shard of no entry: it is saved if there is a saved snapshot.
const BALLAST_SHARD: u32 = u32::MAX;

impl Ballast {
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.parts) * u64::from(self.chunks) * CHUNK as u64
    }

    fn part(self, number: u32) -> SnapshotPart {
        let chunk = move |chunk: u32| Ok(ballast_chunk(u64::from(number) << 32 | u64::from(chunk)));
        SnapshotPart::new(format!("ballast {number}"), move || Box::new((0..self.chunks).map(chunk)))
    }
}

/// Bytes that no other chunk has.
fn ballast_chunk(number: u64) -> Bytes {
    let words = (0..CHUNK as u64 / 8).map(|word| (number << 20 | word).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    words.flat_map(u64::to_be_bytes).collect()
}

/// A checkpoint, and what the machine says that it had there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppliedCheckpoint {
    pub(crate) shard: u32,
    pub(crate) index: u64,
    pub(crate) from: Option<u64>,
    pub(crate) chunks: Vec<Bytes>,
}

pub(crate) const POISON: &[u8] = b"poison";
/// At which such a machine panics.
pub(crate) const FATAL: &[u8] = b"fatal";

/// What a command is answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Place of the command in the list.
    pub(crate) position: u64,
    /// Shard clock when it was applied.
    pub(crate) clock_ms: u64,
}

impl Reply {
    fn encode(self) -> Bytes {
        [self.position.to_be_bytes(), self.clock_ms.to_be_bytes()].concat().into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self { position: number(0), clock_ms: number(8) }
    }
}

impl Journal {
    pub(crate) fn commands(&self) -> Vec<Bytes> {
        self.state.lock().commands.iter().map(|(_, command)| command.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().commands.len()
    }

    /// Of a node that knows rules up to those.
    pub(crate) fn with_rules(known: KnownRules) -> Self {
        Self { knows_later: known.contains(3), ..Self::default() }
    }

    #[must_use]
    pub(crate) fn with_ballast(mut self, ballast: Ballast) -> Self {
        self.ballast = ballast;
        self
    }

    /// The rules by which the entries were applied that this process applied.
    pub(crate) fn rules(&self) -> Vec<u16> {
        self.state.lock().rules.clone()
    }

    /// Sections for these shards wait from now on, and those for others no more.
    pub(crate) fn stall(&self, shards: &[u32]) {
        *self.stalled.lock() = shards.to_vec();
    }

    /// Says from now on that these shards failed at these entries, and no others.
    pub(crate) fn fail_shards(&self, failed: impl Into<FailedShards>) {
        *self.failed_shards.lock() = failed.into();
    }

    pub(crate) fn checkpoints(&self) -> Vec<AppliedCheckpoint> {
        self.checkpoints.lock().clone()
    }

    /// Returns what is left out.
    pub(crate) fn exceptions(&self) -> Vec<Exception> {
        self.exceptions.lock().clone()
    }

    pub(crate) fn isolated(&self) -> Vec<(u32, u64)> {
        self.isolated.lock().clone()
    }

    fn checkpoint_at(&self, shard: u32, index: u64) -> Option<AppliedCheckpoint> {
        let checkpoints = self.checkpoints.lock();
        checkpoints.iter().find(|applied| (applied.shard, applied.index) == (shard, index)).cloned()
    }

    fn read(&self, command: &[u8]) -> Result<(), StateMachineError> {
        if command.starts_with(LATER.as_bytes()) && !self.knows_later {
            return Err(StateMachineError("a command of a later release".into()));
        }
        Ok(())
    }

    /// Entries with commands that were applied by this process.
    pub(crate) fn entries(&self) -> u64 {
        self.state.lock().entries
    }
}

impl StateMachine for Journal {
    fn assess(&self, _: u16, _: u32, command: &[u8]) -> Result<CommandCost, StateMachineError> {
        // Whatever it ends with is its account.
        let account = command.last().map(|last| u64::from(*last));
        self.read(command).map(|()| CommandCost { account, kind: 0, units: COMMAND_UNITS })
    }

    fn failed_shards(&self) -> FailedShards {
        self.failed_shards.lock().clone()
    }

    /// A bug stops the replica: only what is left out concerns one shard alone.
    fn isolate(&self, shard: u32, failed_entry: &FailedEntry) -> bool {
        if !self.exceptions.lock().iter().any(|exception| exception.shard == shard) {
            return false;
        }
        self.isolated.lock().push((shard, failed_entry.index));
        true
    }

    fn set_exceptions(&self, exceptions: &[Exception]) -> Result<(), StateMachineError> {
        *self.exceptions.lock() = exceptions.to_vec();
        Ok(())
    }

    fn checkpoint(&self, shard: u32, index: u64, from: Option<u64>) {
        let own = if self.has_diverged.load(Ordering::Relaxed) { "other commands" } else { "commands" };
        let chunks = vec![Bytes::from_static(own.as_bytes()), Bytes::from(self.len().to_string())];
        self.checkpoints.lock().push(AppliedCheckpoint { shard, index, from, chunks });
    }

    fn checkpoint_digest(&self, shard: u32, index: u64) -> Option<Bytes> {
        Some(self.checkpoint_at(shard, index)?.chunks.concat().into())
    }

    fn checkpoint_state(&self, shard: u32, index: u64) -> Option<SnapshotPart> {
        Some(SnapshotPart::from_chunks("a checkpoint", self.checkpoint_at(shard, index)?.chunks))
    }

    fn price(&self, _: u32, _: u64, _: u8, min_units: u64) -> u64 {
        min_units
    }

    fn apply<'a>(
        &'a self,
        stamp: EntryHeader,
        shard: u32,
        commands: &'a [Bytes],
        _: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure> {
        if self.stalled.lock().contains(&shard) {
            return Ok(Applied::Part(Box::new(move || self.apply(stamp, shard, commands, ReplyMode::Encode))));
        }
        commands
            .iter()
            .try_for_each(|command| self.read(command))
            .map_err(|error| ApplyFailure::invalid_entry(error.0))?;
        let mut state = self.state.lock();
        state.rules.push(stamp.rules);
        state.clock_ms = state.clock_ms.max(stamp.now_ms);
        state.entries += u64::from(!commands.is_empty());
        let clock_ms = state.clock_ms;
        let mut replies = Vec::with_capacity(commands.len());
        for (command, number) in commands.iter().zip(0..) {
            assert!(command != FATAL || !self.is_faulty.load(Ordering::Relaxed), "on purpose");
            if command == POISON && self.is_faulty.load(Ordering::Relaxed) {
                let (namespace, command, backtrace) = Default::default();
                let (step, message) = (ApplyStep::Command(number), "a bug".into());
                return Err(ApplyFailure { step, namespace, command, message, backtrace });
            }
            replies.push(Reply { position: state.commands.len() as u64, clock_ms }.encode());
            state.commands.push((clock_ms, command.clone()));
        }
        Ok(Applied::Done(replies))
    }

    fn set_rules(&self, _: u16) {}

    fn on_leadership_change(&self, _: Option<u64>) {}

    fn clock_ms(&self) -> u64 {
        self.state.lock().clock_ms
    }

    /// Two parts, then the ballast: the clock, and the commands in as many chunks as they need.
    fn freeze(&self, is_saved: &dyn Fn(u32) -> bool) -> Result<FrozenState, StateMachineError> {
        let state = self.state.lock();
        let clock = Bytes::copy_from_slice(&state.clock_ms.to_be_bytes());
        let mut bytes = Vec::new();
        for (clock_ms, command) in &state.commands {
            bytes.extend_from_slice(&clock_ms.to_be_bytes());
            bytes.extend_from_slice(&(command.len() as u64).to_be_bytes());
            bytes.extend_from_slice(command);
        }
        let commands = bytes.chunks(CHUNK).map(Bytes::copy_from_slice).collect();
        let part = |name: &str, chunks| PartUpdate::Write(SnapshotPart::from_chunks(name, chunks));
        let ballast = |part: SnapshotPart| match is_saved(BALLAST_SHARD) {
            true => PartUpdate::Retain(part.name().to_owned()),
            false => PartUpdate::Write(part),
        };
        let ballast = (0..self.ballast.parts).map(|number| ballast(self.ballast.part(number)));
        Ok([part(CLOCK, vec![clock]), part(COMMANDS, commands)].into_iter().chain(ballast).collect())
    }

    fn restore(&self, _: u64, parts: &[SnapshotPart]) -> Result<(), StateMachineError> {
        let short = || StateMachineError("the snapshot is too short".into());
        let [clock, commands, ..] = parts else { return Err(StateMachineError("it has other parts".into())) };
        if (clock.name(), commands.name()) != (CLOCK, COMMANDS) {
            return Err(StateMachineError("its parts have other names".into()));
        }
        let read = |part: &SnapshotPart| part.chunks().collect::<Result<Vec<Bytes>, _>>().map(|chunks| chunks.concat());
        let unreadable = |error: StorageError| StateMachineError(error.to_string());
        let clock: Vec<u8> = read(clock).map_err(unreadable)?;
        let clock: [u8; 8] = clock.try_into().map_err(|_| short())?;
        let bytes: Vec<u8> = read(commands).map_err(unreadable)?;
        let mut rest = bytes.as_slice();
        let mut commands = Vec::new();
        while !rest.is_empty() {
            let (clock_ms, after) = rest.split_first_chunk::<8>().ok_or_else(short)?;
            let (length, after) = after.split_first_chunk::<8>().ok_or_else(short)?;
            let length = usize::try_from(u64::from_be_bytes(*length)).map_err(|_| short())?;
            let command = after.get(..length).ok_or_else(short)?;
            commands.push((u64::from_be_bytes(*clock_ms), Bytes::copy_from_slice(command)));
            rest = &after[length..];
        }
        let mut state = self.state.lock();
        state.clock_ms = u64::from_be_bytes(clock);
        state.commands = commands;
        Ok(())
    }
}
