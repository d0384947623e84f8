//! Scheduling groups: the tasks of an account take turns, so that accounts share the runtime.
//!
//! A runtime polls tasks in the order in which they became ready: hundreds of connections of one account, ready at once,
//! would all be ahead of a call of another account, and once more at each of its steps. Few tasks of a group are in the
//! queue of the runtime at a time. The others wait for their turn here, first in, first out. No processor is idle for
//! that: a group has several turns for each thread of the runtime, and is given new ones before it has used all.
//!
//! A task has a turn from the time at which it is woken, or spawned, to the end of its poll. A group whose polls are long
//! has fewer turns: it leaves one thread of the runtime to the others.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Turns of a group for each thread of the runtime. With one, the threads would sleep between the polls of a group. So
/// many polls of a group may be ahead of a task of another group.
const TURNS_PER_THREAD: usize = 4;

/// From this mean time of its polls on, a group has one turn for each thread but one.
const LONG_POLL: Duration = Duration::from_micros(250);
/// The mean follows the last polls that were measured, about so many. Each counts as so much at most: one that waited
/// for a processor makes no group long.
const MEAN_POLLS: u32 = 8;
const MAX_POLL_TIME: Duration = Duration::from_micros(1_000);
/// One in so many polls of a task is measured, the first among them: reading the clock twice costs as much as all the
/// rest of a turn.
const POLLS_PER_MEASURE: u8 = 8;

thread_local! {
    /// The group of the task that this thread polls.
    static CURRENT: RefCell<Option<SharedGroup>> = const { RefCell::new(None) };
}

/// Tasks of all groups of this process that wait for a turn.
static WAITING_TASKS: AtomicUsize = AtomicUsize::new(0);

/// Returns whether tasks of any group of this process wait for a turn.
pub(crate) fn do_tasks_wait() -> bool {
    WAITING_TASKS.load(Ordering::Relaxed) > 0
}

/// The tasks of one account.
#[derive(Debug)]
pub struct SchedulingGroup {
    limit: usize,
    /// While its polls are long.
    limit_of_long: usize,
    state: Mutex<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    granted: usize,
    /// Of a poll.
    mean_time: Duration,
    /// Tasks that wait for a turn. One may be here twice; it gets a turn only if it still waits.
    ready: VecDeque<Arc<ScheduledTask>>,
}

impl GroupState {
    fn is_long(&self) -> bool {
        self.mean_time >= LONG_POLL
    }
}

/// The group of some tasks, which may change. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SharedGroup(Arc<Mutex<Arc<SchedulingGroup>>>);

/// One task of a group.
#[derive(Debug)]
struct ScheduledTask {
    group: SharedGroup,
    state: Mutex<TaskState>,
}

#[derive(Debug)]
struct TaskState {
    phase: Phase,
    /// Wakes the task itself. None before its first poll.
    waker: Option<Waker>,
    /// The group that gave it the turn that it has.
    granted_by: Option<Arc<SchedulingGroup>>,
    /// Whether it goes to the end of the runtime's queue before it uses that turn.
    yields: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It was not polled yet, and has no turn.
    New,
    /// It was polled, and not woken since.
    Idle,
    /// It waits for a turn.
    Ready,
    /// It has a turn, and will be polled.
    Granted,
    Polling,
    /// It was woken in its poll.
    PollingAndWoken,
    Done,
}

impl Default for SchedulingGroup {
    fn default() -> Self {
        let threads = Handle::try_current().map_or(1, |runtime| runtime.metrics().num_workers());
        Self::new(TURNS_PER_THREAD * threads, threads.saturating_sub(1).max(1))
    }
}

impl SchedulingGroup {
    /// Has so many turns at a time, and so many while its polls are long.
    fn new(limit: usize, limit_of_long: usize) -> Self {
        Self { limit, limit_of_long, state: Mutex::default() }
    }

    /// Returns how many turns there are.
    fn limit(&self, state: &GroupState) -> usize {
        if state.is_long() { self.limit_of_long } else { self.limit }
    }

    /// Takes a turn for a task, or has it wait for one. Returns whether it has one.
    fn request(&self, task: &Arc<ScheduledTask>) -> bool {
        let mut state = self.state.lock();
        if state.granted >= self.limit(&state) || !state.ready.is_empty() {
            WAITING_TASKS.fetch_add(1, Ordering::Relaxed);
            state.ready.push_back(Arc::clone(task));
            return false;
        }
        state.granted += 1;
        true
    }

    /// Ends a turn, in which a poll took so long. The runtime polls the task that was woken last ahead of all others. So
    /// turns are given only once half of them are free, and then all at once: one task of each lot goes ahead, not each
    /// task. Long polls follow at once, so that no processor is idle for a whole one, and yield first.
    fn finish(self: &Arc<Self>, poll_time: Option<Duration>) {
        {
            let mut state = self.state.lock();
            state.granted -= 1;
            if let Some(time) = poll_time {
                state.mean_time = (state.mean_time * (MEAN_POLLS - 1) + time.min(MAX_POLL_TIME)) / MEAN_POLLS;
            }
            if state.ready.is_empty() || (!state.is_long() && 2 * state.granted > self.limit) {
                return;
            }
        }
        while let Some((next, yields)) = self.take_ready() {
            if !next.grant(self, yields) {
                self.state.lock().granted -= 1;
            }
        }
    }

    /// Takes the next task that may wait for a turn, and a turn for it; returns also whether it has to yield first.
    fn take_ready(&self) -> Option<(Arc<ScheduledTask>, bool)> {
        let mut state = self.state.lock();
        let next = if state.granted < self.limit(&state) { state.ready.pop_front()? } else { return None };
        state.granted += 1;
        WAITING_TASKS.fetch_sub(1, Ordering::Relaxed);
        Some((next, state.is_long()))
    }
}

impl From<Arc<SchedulingGroup>> for SharedGroup {
    fn from(group: Arc<SchedulingGroup>) -> Self {
        Self(Arc::new(Mutex::new(group)))
    }
}

impl SharedGroup {
    /// Returns the group of the task that is polled now; `None` if it has none.
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Moves the tasks to a group.
    pub fn set(&self, group: Arc<SchedulingGroup>) {
        *self.0.lock() = group;
    }

    /// Makes a future, which is all of a task, one of the group. A poll of it should be short.
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let state = TaskState { phase: Phase::New, waker: None, granted_by: None, yields: false };
        let task = Arc::new(ScheduledTask { group: self.clone(), state: Mutex::new(state) });
        let (work, waker, group) = (Box::pin(work), Waker::from(Arc::clone(&task)), Some(self.clone()));
        InGroup { work, task, group, waker, unmeasured_polls: 0 }
    }

    fn group(&self) -> Arc<SchedulingGroup> {
        Arc::clone(&self.0.lock())
    }
}

impl ScheduledTask {
    /// Asks for a turn, and wakes the task if it has one. The lock of the group is taken under that of the task, and
    /// never the other way round.
    fn request_turn(self: &Arc<Self>, mut state: MutexGuard<'_, TaskState>) {
        let group = self.group.group();
        if group.request(self) {
            Self::begin_turn(state, group, false);
        } else {
            state.phase = Phase::Ready;
        }
    }

    /// Takes a turn and wakes the task. Returns false if it does not wait for one.
    fn grant(&self, group: &Arc<SchedulingGroup>, yields: bool) -> bool {
        let state = self.state.lock();
        let waits = state.phase == Phase::Ready;
        if waits {
            Self::begin_turn(state, Arc::clone(group), yields);
        }
        waits
    }

    fn begin_turn(mut state: MutexGuard<'_, TaskState>, group: Arc<SchedulingGroup>, yields: bool) {
        (state.phase, state.granted_by, state.yields) = (Phase::Granted, Some(group), yields);
        let waker = state.waker.clone();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns false if the task has to wait for its first turn, or has to yield.
    fn begin_poll(self: &Arc<Self>, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
        if state.phase == Phase::New {
            // All tasks that were spawned at once are in the queue of the runtime already: one that went on here would be
            // ahead of all others.
            self.request_turn(state);
            return false;
        }
        if std::mem::take(&mut state.yields) {
            // The runtime puts a task that wakes itself behind all others.
            waker.wake_by_ref();
            return false;
        }
        state.phase = Phase::Polling;
        true
    }

    /// Ends the turn, and asks for the next one if the task was woken meanwhile.
    fn end_poll(self: &Arc<Self>, poll_time: Option<Duration>, is_done: bool) {
        let mut state = self.state.lock();
        let wants_more = !is_done && state.phase == Phase::PollingAndWoken;
        state.phase = match (is_done, wants_more) {
            (true, _) => Phase::Done,
            (false, true) => Phase::Ready,
            (false, false) => Phase::Idle,
        };
        let granted_by = state.granted_by.take();
        drop(state);
        // Those who waited go first.
        if let Some(group) = granted_by {
            group.finish(poll_time);
        }
        if wants_more {
            let state = self.state.lock();
            // It may be in a queue from before, and have got a turn meanwhile.
            if state.phase == Phase::Ready {
                self.request_turn(state);
            }
        }
    }
}

impl Wake for ScheduledTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let phase = state.phase;
        match phase {
            Phase::Idle => self.request_turn(state),
            Phase::Polling => state.phase = Phase::PollingAndWoken,
            Phase::New | Phase::Ready | Phase::Granted | Phase::PollingAndWoken | Phase::Done => {}
        }
    }
}

/// A task that waits for its turn before each poll.
struct InGroup<F> {
    work: Pin<Box<F>>,
    task: Arc<ScheduledTask>,
    /// That of the task; `None` while it is the current one.
    group: Option<SharedGroup>,
    /// Asks for a turn.
    waker: Waker,
    /// Polls until the next one that is measured.
    unmeasured_polls: u8,
}

impl<F: Future> Future for InGroup<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { work, task, group, waker, unmeasured_polls } = &mut *self;
        if !task.begin_poll(context.waker()) {
            return Poll::Pending;
        }
        let began = (*unmeasured_polls == 0).then(Instant::now);
        *unmeasured_polls = unmeasured_polls.checked_sub(1).unwrap_or(POLLS_PER_MEASURE - 1);
        let polled = {
            let _current = CurrentGroup::enter(group);
            work.as_mut().poll(&mut Context::from_waker(waker))
        };
        task.end_poll(began.map(|began| began.elapsed()), polled.is_ready());
        polled
    }
}

/// Names the group of the task that is polled, and the one before when it is dropped. It moves them: the counts of a
/// group's handles are shared by all threads.
struct CurrentGroup<'a> {
    /// Where the group is while it is not the current one.
    place: &'a mut Option<SharedGroup>,
    before: Option<SharedGroup>,
}

impl<'a> CurrentGroup<'a> {
    fn enter(place: &'a mut Option<SharedGroup>) -> Self {
        let before = CURRENT.replace(place.take());
        Self { place, before }
    }
}

impl Drop for CurrentGroup<'_> {
    fn drop(&mut self) {
        *self.place = CURRENT.replace(self.before.take());
    }
}

impl<F> Drop for InGroup<F> {
    fn drop(&mut self) {
        // It may have a turn that was not used, or end in a panic.
        self.task.end_poll(None, true);
    }
}

#[cfg(test)]
pub(crate) mod tests;
