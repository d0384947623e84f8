//! What a group has still to apply of entries that it has passed: sections of shards with long work, shard by shard.
//!
//! A section whose first slice is its last is applied at once and never comes here. The rest of a longer one waits here
//! with what its shard gets meanwhile, and its group goes on with the entries of all other shards. The sections of one
//! shard are applied in the order of the log. Those of different shards take turns, a slice each.
//!
//! What waits here was answered to nobody, so a read of the state needs not wait for it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_supervise::{catch_panic, spawn_temporary, survive_panic};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::yield_now;

use crate::applied::AppliedIndex;
use crate::entry::Section;
use crate::error::ProposeError;
use crate::reply_sinks::ReplySinks;
use crate::section_applier::SectionReplies;

/// Commands that wait in the queue of a shard. Its group applies nothing more until a shard with so many has fewer.
const MAX_COMMANDS_OF_SHARD: usize = 1_024;
/// Their bytes.
const MAX_BYTES_OF_SHARD: usize = 4 * 1024 * 1024;

/// A section that is applied, or that waits for that.
pub(crate) struct QueuedSection {
    pub(crate) shard: u32,
    /// The index of its entry.
    pub(crate) index: u64,
    /// Its commands, and their bytes.
    pub(crate) size: SectionSize,
    /// Applies one slice each time it is polled; it wakes nobody in between.
    pub(crate) apply: BoxFuture<'static, Result<SectionReplies, io::Error>>,
    pub(crate) callers: SectionCallers,
}

/// What a section takes in the queue.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SectionSize {
    pub(crate) commands: usize,
    pub(crate) bytes: usize,
}

impl SectionSize {
    /// A section without commands counts as one: it moves the clock.
    pub(crate) fn of(section: &Section) -> Self {
        Self { commands: section.commands.len().max(1), bytes: section.commands.iter().map(Bytes::len).sum() }
    }
}

/// The callers of a section, by its position in its entry; none on a replica that did not propose it.
pub(crate) struct SectionCallers(pub(crate) Option<(Arc<ReplySinks>, usize)>);

impl SectionCallers {
    /// Answers them.
    pub(crate) fn answer(mut self, replies: SectionReplies) {
        let Some((sinks, position)) = self.0.take() else { return };
        match replies {
            Ok(replies) => sinks.answer(position, replies),
            Err(error) => sinks.fail_section(position, &error),
        }
    }
}

/// The log may still hold the entry with its callers.
impl Drop for SectionCallers {
    fn drop(&mut self) {
        if let Some((sinks, position)) = self.0.take() {
            sinks.fail_section(position, &ProposeError::Unknown("the replica stopped"));
        }
    }
}

impl QueuedSection {
    /// Applies the next slice. Returns the replies after the last.
    pub(crate) fn apply_slice(&mut self) -> Option<Result<SectionReplies, io::Error>> {
        catch_panic(|| (&mut self.apply).now_or_never())
            .unwrap_or_else(|panicked| Some(Err(io::Error::other(panicked.to_string()))))
    }
}

/// The queues of a group's shards. Clones share them. A task works on them while there is something, and so does whoever
/// applies entries while it waits.
#[derive(Clone)]
pub(crate) struct ApplyQueues(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Changes after each slice, and at the end.
    progress: watch::Sender<()>,
    applied_index: AppliedIndex,
}

#[derive(Default)]
struct State {
    /// Shards that have something to apply.
    shards: HashMap<u32, ShardQueue>,
    /// Those of them whose next slice nobody applies right now, in turn.
    waiting: VecDeque<u32>,
    /// Entries of which something is left, with the number of sections.
    unfinished: BTreeMap<u64, usize>,
    /// The last entry of which no section is still to come.
    dispatched: u64,
    /// Why nothing is applied any more.
    failed: Option<String>,
    is_closed: bool,
    /// Whether there is a task that applies what waits.
    has_worker: bool,
}

#[derive(Default)]
struct ShardQueue {
    /// Without the one that is applied right now.
    sections: VecDeque<QueuedSection>,
    /// Of all.
    size: SectionSize,
}

impl ShardQueue {
    fn admits(&self, next: SectionSize) -> bool {
        self.size.commands + next.commands <= MAX_COMMANDS_OF_SHARD
            && self.size.bytes + next.bytes <= MAX_BYTES_OF_SHARD
    }
}

impl State {
    fn push(&mut self, section: QueuedSection) {
        let (shard, size) = (section.shard, section.size);
        *self.unfinished.entry(section.index).or_default() += 1;
        let queue = self.shards.entry(shard).or_insert_with(|| {
            self.waiting.push_back(shard);
            ShardQueue::default()
        });
        queue.size =
            SectionSize { commands: queue.size.commands + size.commands, bytes: queue.size.bytes + size.bytes };
        queue.sections.push_back(section);
    }

    fn take_next(&mut self) -> Option<QueuedSection> {
        if self.failed.is_some() {
            return None;
        }
        let shard = self.waiting.pop_front()?;
        self.shards.get_mut(&shard)?.sections.pop_front()
    }

    /// Puts a section back that has slices left.
    fn put_back(&mut self, section: QueuedSection) {
        let shard = section.shard;
        if let Some(queue) = self.shards.get_mut(&shard) {
            queue.sections.push_front(section);
            self.waiting.push_back(shard);
        }
    }

    /// Counts a section as applied.
    fn finish(&mut self, section: &QueuedSection) {
        if let Some(left) = self.unfinished.get_mut(&section.index) {
            *left -= 1;
            if *left == 0 {
                self.unfinished.remove(&section.index);
            }
        }
        let Some(queue) = self.shards.get_mut(&section.shard) else { return };
        queue.size.commands -= section.size.commands;
        queue.size.bytes -= section.size.bytes;
        if queue.sections.is_empty() {
            self.shards.remove(&section.shard);
        } else {
            self.waiting.push_back(section.shard);
        }
    }

    /// Returns true once nothing more is applied.
    fn is_over(&self) -> bool {
        self.is_closed || self.failed.is_some()
    }

    /// Returns the last entry that is applied as a whole, and so is all before it.
    fn applied(&self) -> u64 {
        self.unfinished.first_key_value().map_or(self.dispatched, |(first, _)| self.dispatched.min(first - 1))
    }
}

impl ApplyQueues {
    pub(crate) fn new(applied_index: AppliedIndex) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), progress: watch::Sender::default(), applied_index }))
    }

    /// Returns true if a shard has something to apply; then its next section is to be queued.
    pub(crate) fn is_busy(&self, shard: u32) -> bool {
        self.0.state.lock().shards.contains_key(&shard)
    }

    /// Returns the shards that have something to apply. A leader proposes nothing for them: what comes meanwhile shares
    /// one entry, and waits where its account has a share.
    pub(crate) fn busy_shards(&self) -> HashSet<u32> {
        self.0.state.lock().shards.keys().copied().collect()
    }

    /// Returns the number of commands in the queue of a shard.
    pub(crate) fn len_of(&self, shard: u32) -> usize {
        self.0.state.lock().shards.get(&shard).map_or(0, |queue| queue.size.commands)
    }

    /// Subscribes to changes of what is left to apply.
    pub(crate) fn progress(&self) -> watch::Receiver<()> {
        self.0.progress.subscribe()
    }

    /// Queues a section, once its shard has capacity.
    ///
    /// # Errors
    /// When a section has failed the replica.
    pub(crate) async fn push(&self, section: QueuedSection) -> Result<(), io::Error> {
        let (shard, size) = (section.shard, section.size);
        self.work_until(|state| state.shards.get(&shard).is_none_or(|queue| queue.admits(size))).await?;
        self.0.state.lock().push(section);
        self.ensure_worker();
        Ok(())
    }

    /// Records that every section of the entries up to this index is applied or queued.
    pub(crate) fn dispatched(&self, index: u64) {
        let mut state = self.0.state.lock();
        state.dispatched = index;
        self.0.applied_index.end(state.applied());
    }

    /// Waits until nothing is left to apply. Only what is queued before counts, since the caller queues nothing more.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(crate) async fn drain(&self) -> Result<(), io::Error> {
        self.work_until(|state| state.shards.is_empty()).await
    }

    /// Applies slices until `is_done`. Another task may apply some meanwhile.
    async fn work_until(&self, is_done: impl Fn(&State) -> bool + Send) -> Result<(), io::Error> {
        let mut progress = self.progress();
        loop {
            progress.borrow_and_update();
            {
                let state = self.0.state.lock();
                if let Some(failed) = &state.failed {
                    return Err(io::Error::other(failed.clone()));
                }
                if is_done(&state) {
                    return Ok(());
                }
            }
            if self.apply_slice() {
                yield_now().await;
            } else if progress.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// Waits until all entries up to this index are applied, or nothing is applied any more.
    pub(crate) async fn wait_applied(&self, index: u64) {
        let is_over = || {
            let state = self.0.state.lock();
            state.applied() >= index || state.is_over()
        };
        let mut progress = self.progress();
        while !is_over() && progress.changed().await.is_ok() {}
    }

    /// Starts a task that applies what waits, unless there is one. It ends when nothing waits.
    fn ensure_worker(&self) {
        if !std::mem::replace(&mut self.0.state.lock().has_worker, true) {
            let queues = self.clone();
            spawn_temporary("apply_queues", async move {
                if survive_panic("apply_queues", queues.clone().work()).await.is_none() {
                    // What it worked on may be in no queue any more, and would never end.
                    queues.fail("the task that applies queued sections panicked");
                }
            });
        }
    }

    async fn work(self) {
        loop {
            while self.apply_slice() {
                yield_now().await;
            }
            let mut state = self.0.state.lock();
            if state.waiting.is_empty() || state.is_over() {
                state.has_worker = false;
                return;
            }
        }
    }

    /// Applies the next slice of the shard whose turn it is. Returns false if there is none.
    fn apply_slice(&self) -> bool {
        let Some(mut section) = self.0.state.lock().take_next() else { return false };
        let applied = section.apply_slice();
        let mut state = self.0.state.lock();
        match applied {
            None => {
                state.put_back(section);
                drop(state);
                self.ensure_worker();
            }
            Some(Err(failed)) => {
                tracing::error!(shard = section.shard, index = section.index, %failed, "a queued section failed");
                state.failed = Some(failed.to_string());
            }
            Some(Ok(replies)) => {
                state.finish(&section);
                self.0.applied_index.end(state.applied());
                drop(state);
                section.callers.answer(replies);
            }
        }
        self.0.progress.send_replace(());
        true
    }

    /// Ends everything: the replica has to start again.
    fn fail(&self, reason: &str) {
        self.0.state.lock().failed.get_or_insert_with(|| reason.to_owned());
        self.0.progress.send_replace(());
    }

    /// Returns why nothing is applied any more, if a section has failed the replica.
    pub(crate) fn failed(&self) -> Option<String> {
        self.0.state.lock().failed.clone()
    }

    /// Drops what is left; nothing is applied after the slice in progress. Callers hear that the outcome is unknown.
    pub(crate) fn close(&self) {
        let left = {
            let mut state = self.0.state.lock();
            state.is_closed = true;
            state.waiting.clear();
            std::mem::take(&mut state.shards)
        };
        drop(left);
        self.0.progress.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::sync::oneshot;

    use super::*;
    use crate::proposal::ProposalResult;
    use crate::reply_sinks::SectionSinks;

    /// A section that takes so many slices, and its caller.
    fn section(shard: u32, index: u64, slices: usize) -> (QueuedSection, oneshot::Receiver<ProposalResult>) {
        let (sender, caller) = oneshot::channel();
        let sinks = vec![SectionSinks { commands: vec![sender], ticks: Vec::new() }];
        let callers = SectionCallers(Some((Arc::new(ReplySinks::new(sinks)), 0)));
        let apply = async move {
            for _ in 1..slices {
                futures::pending!();
            }
            Ok(Ok(vec![Bytes::from_static(b"done")]))
        };
        let size = SectionSize { commands: 1, bytes: 1 };
        (QueuedSection { shard, index, size, apply: apply.boxed(), callers }, caller)
    }

    #[tokio::test]
    async fn shards_take_turns_and_the_applied_index_waits_for_all() {
        let applied = AppliedIndex::default();
        let queues = ApplyQueues::new(applied.clone());
        let [(long, mut slow), (short, mut quick), (next, mut last)] =
            [section(1, 5, 4), section(2, 6, 1), section(1, 7, 1)];
        for one in [long, short, next] {
            queues.push(one).await.unwrap();
        }
        queues.dispatched(7);
        assert_eq!((applied.last(), queues.len_of(1), queues.len_of(2)), (4, 2, 1));
        assert!(queues.apply_slice() && queues.apply_slice(), "one slice of each shard");
        assert!(quick.try_recv().is_ok_and(|reply| reply.is_ok()), "it waits for another shard");
        assert_eq!((applied.last(), queues.is_busy(1), queues.is_busy(2)), (4, true, false));
        queues.drain().await.unwrap();
        assert!(slow.try_recv().is_ok_and(|reply| reply.is_ok()) && last.try_recv().is_ok_and(|reply| reply.is_ok()));
        assert_eq!((applied.last(), queues.len_of(1)), (7, 0));
    }

    #[tokio::test]
    async fn a_section_that_fails_the_replica_ends_the_queues_and_whoever_waits_for_them() {
        let queues = ApplyQueues::new(AppliedIndex::default());
        let (mut failing, mut caller) = section(1, 1, 1);
        failing.apply = ready(Err(io::Error::other("a command of a later release"))).boxed();
        queues.push(failing).await.unwrap();
        assert!(queues.drain().await.unwrap_err().to_string().contains("a later release"));
        assert!(queues.push(section(2, 2, 1).0).await.is_err());
        assert_eq!(caller.try_recv().unwrap(), Err(ProposeError::Unknown("the replica stopped")));
        queues.wait_applied(9).await;
    }

    #[tokio::test]
    async fn a_panic_in_a_section_fails_the_replica() {
        let queues = ApplyQueues::new(AppliedIndex::default());
        let (mut failing, _caller) = section(1, 1, 1);
        failing.apply = async { panic!("on purpose") }.boxed();
        queues.push(failing).await.unwrap();
        assert!(queues.drain().await.unwrap_err().to_string().contains("on purpose"));
    }

    #[tokio::test]
    async fn a_panic_of_the_worker_ends_the_queues_and_whoever_waits_for_them() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        let queues = ApplyQueues::new(AppliedIndex::default());
        let (mut failing, _caller) = section(1, 1, 1);
        let bomb = Bomb;
        failing.apply = Box::pin(std::future::poll_fn(move |_| {
            let _ = &bomb;
            std::task::Poll::Ready(Ok(Ok(Vec::new())))
        }));
        queues.push(failing).await.unwrap();
        let mut progress = queues.progress();
        while queues.failed().is_none() {
            progress.changed().await.unwrap();
        }
        assert!(queues.drain().await.unwrap_err().to_string().contains("panicked"));
    }

    #[tokio::test]
    async fn callers_of_what_is_dropped_at_the_end_are_told() {
        let queues = ApplyQueues::new(AppliedIndex::default());
        let (waiting, mut caller) = section(1, 1, 9);
        let (sinks, _) = waiting.callers.0.as_ref().unwrap();
        let in_the_log = Arc::clone(sinks);
        queues.push(waiting).await.unwrap();
        queues.close();
        assert_eq!(caller.try_recv().unwrap(), Err(ProposeError::Unknown("the replica stopped")));
        drop(in_the_log);
        queues.wait_applied(1).await;
    }
}
