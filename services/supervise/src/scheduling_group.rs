//! Scheduling groups: the tasks of an account take turns, so that accounts share the runtime.
//!
//! A runtime polls tasks in the order in which they became ready: hundreds of connections of one account, ready at once,
//! would all be ahead of a call of another account, and once more at each of its steps. Few tasks of a group are in the
//! queue of the runtime at a time. The others wait for their turn here, first in, first out. No processor is idle for
//! that: a group has several turns for each thread of the runtime, and is given new ones before it has used all.
//!
//! A task has a turn from the time at which it is woken to the end of its poll.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::Instant;

/// Turns of a group for each thread of the runtime. With one, the threads would sleep between the polls of a group. So
/// many polls of a group may be ahead of a task of another group.
const TURNS_PER_THREAD: usize = 4;

/// Limits of [`YieldToReady`]. The time stands still in a simulation, where the tasks that wait may be those of another
/// host.
const MAX_YIELD_TIME: Duration = Duration::from_millis(2);
const MAX_YIELDS: u32 = 64;

thread_local! {
    /// The group of the task that this thread polls.
    static CURRENT: RefCell<Option<SharedGroup>> = const { RefCell::new(None) };
}

/// Tasks of all groups of this process that wait for a turn.
static WAITING_TASKS: AtomicUsize = AtomicUsize::new(0);

/// Lets ready tasks run, so that one message has what many of them make.
#[derive(Debug)]
pub struct YieldToReady {
    began: Instant,
    yields_left: u32,
}

impl Default for YieldToReady {
    fn default() -> Self {
        Self { began: Instant::now(), yields_left: MAX_YIELDS }
    }
}

impl YieldToReady {
    /// Yields once, and again in later calls while tasks of any group wait for a turn: at most 64 times, and not after
    /// 2 ms. Returns whether it has yielded.
    pub async fn again(&mut self) -> bool {
        let is_first = self.yields_left == MAX_YIELDS;
        let are_more = || WAITING_TASKS.load(Ordering::Relaxed) > 0 && self.began.elapsed() < MAX_YIELD_TIME;
        let yields = is_first || self.yields_left > 0 && are_more();
        if yields {
            self.yields_left -= 1;
            yield_now().await;
        }
        yields
    }
}

/// The tasks of one account.
#[derive(Debug)]
pub struct SchedulingGroup {
    limit: usize,
    state: Mutex<GroupState>,
}

#[derive(Debug, Default)]
struct GroupState {
    granted: usize,
    /// Tasks that wait for a turn. One may be here twice; it gets a turn only if it still waits.
    ready: VecDeque<Arc<ScheduledTask>>,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
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
        Self::new(TURNS_PER_THREAD * threads)
    }
}

impl SchedulingGroup {
    /// Has so many turns at a time.
    fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// Gives a task a turn, at once or later.
    fn request(self: &Arc<Self>, task: &Arc<ScheduledTask>) {
        {
            let mut state = self.state.lock();
            if state.granted >= self.limit || !state.ready.is_empty() {
                WAITING_TASKS.fetch_add(1, Ordering::Relaxed);
                return state.ready.push_back(Arc::clone(task));
            }
            state.granted += 1;
        }
        if !task.grant(self) {
            self.finish();
        }
    }

    /// Ends a turn. Turns are given only once half of them are free, and then all at once: the runtime polls the task that
    /// was woken last ahead of all others, so one task of each lot goes ahead, not each task.
    fn finish(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            state.granted -= 1;
            if 2 * state.granted > self.limit {
                return;
            }
        }
        while let Some(next) = self.take_ready() {
            if !next.grant(self) {
                self.state.lock().granted -= 1;
            }
        }
    }

    /// Takes the next task that may wait for a turn, and a turn for it.
    fn take_ready(&self) -> Option<Arc<ScheduledTask>> {
        let mut state = self.state.lock();
        let next = if state.granted < self.limit { state.ready.pop_front() } else { None };
        if next.is_some() {
            state.granted += 1;
            WAITING_TASKS.fetch_sub(1, Ordering::Relaxed);
        }
        next
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
        let state = TaskState { phase: Phase::Idle, waker: None, granted_by: None };
        let task = Arc::new(ScheduledTask { group: self.clone(), state: Mutex::new(state) });
        InGroup { work: Box::pin(work), waker: Waker::from(Arc::clone(&task)), task }
    }

    fn group(&self) -> Arc<SchedulingGroup> {
        Arc::clone(&self.0.lock())
    }
}

impl ScheduledTask {
    /// Takes a turn and wakes the task. Returns false if it does not wait for one.
    fn grant(&self, group: &Arc<SchedulingGroup>) -> bool {
        let mut state = self.state.lock();
        if state.phase != Phase::Ready {
            return false;
        }
        (state.phase, state.granted_by) = (Phase::Granted, Some(Arc::clone(group)));
        let waker = state.waker.clone();
        drop(state);
        waker.inspect(Waker::wake_by_ref);
        true
    }

    fn begin_poll(&self, waker: &Waker) {
        let mut state = self.state.lock();
        state.phase = Phase::Polling;
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            state.waker = Some(waker.clone());
        }
    }

    /// Ends the turn, and asks for the next one if the task was woken meanwhile.
    fn end_poll(self: &Arc<Self>, is_done: bool) {
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
            group.finish();
        }
        if wants_more {
            self.group.group().request(self);
        }
    }
}

impl Wake for ScheduledTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Idle => state.phase = Phase::Ready,
            Phase::Polling => return state.phase = Phase::PollingAndWoken,
            Phase::Ready | Phase::Granted | Phase::PollingAndWoken | Phase::Done => return,
        }
        drop(state);
        self.group.group().request(self);
    }
}

/// A task that waits for its turn before each poll.
struct InGroup<F> {
    work: Pin<Box<F>>,
    task: Arc<ScheduledTask>,
    /// Asks for a turn.
    waker: Waker,
}

impl<F: Future> Future for InGroup<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { work, task, waker } = &mut *self;
        task.begin_poll(context.waker());
        let polled = {
            let _current = CurrentGroup::enter(&task.group);
            work.as_mut().poll(&mut Context::from_waker(waker))
        };
        task.end_poll(polled.is_ready());
        polled
    }
}

/// Names the group of the task that is polled, and the one before when it is dropped.
struct CurrentGroup(Option<SharedGroup>);

impl CurrentGroup {
    fn enter(group: &SharedGroup) -> Self {
        Self(CURRENT.replace(Some(group.clone())))
    }
}

impl Drop for CurrentGroup {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl<F> Drop for InGroup<F> {
    fn drop(&mut self) {
        // It may have a turn that was not used, or end in a panic.
        self.task.end_poll(true);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use super::*;
    use crate::spawn_alongside;

    fn group_of(limit: usize) -> SharedGroup {
        Arc::new(SchedulingGroup::new(limit)).into()
    }

    /// Goes to the end of the queue, so often.
    async fn steps(count: usize, done: Arc<AtomicUsize>) {
        for _ in 0..count {
            poll_fn(|context| Poll::Ready(context.waker().clone())).await.wake();
            futures::pending!();
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn many_tasks_of_an_account_are_not_ahead_of_one_of_another() {
        let (busy, light) = (group_of(2), group_of(2));
        let [busy_steps, light_steps] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        for _ in 0..1_000 {
            tokio::spawn(busy.run(steps(10, Arc::clone(&busy_steps))));
        }
        // All have begun.
        yield_now().await;
        let before = busy_steps.load(Ordering::Relaxed);
        tokio::spawn(light.run(steps(10, Arc::clone(&light_steps)))).await.unwrap();
        let meanwhile = busy_steps.load(Ordering::Relaxed) - before;
        assert!(meanwhile <= 100, "{meanwhile}");
        while busy_steps.load(Ordering::Relaxed) < 10_000 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_a_task_spawns_alongside_is_of_its_group() {
        let shared = group_of(2);
        let is_same = |other: Option<SharedGroup>| other.is_some_and(|other| Arc::ptr_eq(&other.0, &shared.0));
        let spawned = shared.run(async {
            let inner = spawn_alongside("inner", async { SharedGroup::current() });
            (SharedGroup::current(), inner.await.unwrap())
        });
        let (outer, inner) = tokio::spawn(spawned).await.unwrap();
        assert!(is_same(outer) && is_same(inner));
        assert!(SharedGroup::current().is_none());
        assert!(spawn_alongside("outside", async { SharedGroup::current() }).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_turn_comes_back_however_its_task_ends() {
        let shared = group_of(1);
        let done = Arc::<AtomicUsize>::default();
        let panicking = tokio::spawn(shared.run(async {
            yield_now().await;
            panic!("on purpose");
        }));
        assert!(panicking.await.unwrap_err().is_panic());
        let woken = Arc::new(tokio::sync::Notify::new());
        let (left, waiting) = (Arc::clone(&woken), Arc::clone(&woken));
        let mut dropped = Box::pin(shared.run(async move { left.notified().await }));
        let never = tokio::spawn(shared.run(async move {
            waiting.notified().await;
            pending::<()>().await;
        }));
        assert!(futures::poll!(&mut dropped).is_pending());
        yield_now().await;
        // One gets the only turn and does not use it; the other waits.
        woken.notify_waiters();
        drop(dropped);
        tokio::spawn(shared.run(steps(3, Arc::clone(&done)))).await.unwrap();
        never.abort();
        assert!(never.await.unwrap_err().is_cancelled());
        tokio::spawn(shared.run(steps(3, Arc::clone(&done)))).await.unwrap();
        let group = shared.group();
        let state = group.state.lock();
        assert_eq!((done.load(Ordering::Relaxed), state.granted, state.ready.len()), (6, 0, 0));
    }

    async fn yield_to_ready() -> u32 {
        let mut ready = YieldToReady::default();
        while ready.again().await {}
        MAX_YIELDS - ready.yields_left
    }

    #[tokio::test(start_paused = true)]
    async fn who_yields_to_ready_tasks_yields_to_those_that_wait_for_a_turn() {
        let (shared, done) = (group_of(2), Arc::<AtomicUsize>::default());
        for _ in 0..60 {
            tokio::spawn(shared.run(steps(1, Arc::clone(&done))));
        }
        assert!(yield_to_ready().await >= 1);
        assert_eq!(done.load(Ordering::Relaxed), 60);
        // Tasks that are ready for ever keep nobody from going on.
        let endless = [(); 3].map(|()| tokio::spawn(shared.run(steps(usize::MAX, Arc::clone(&done)))));
        yield_now().await;
        assert_eq!(yield_to_ready().await, MAX_YIELDS);
        endless.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn a_task_goes_on_in_its_next_group() {
        let shared = group_of(1);
        let (first, second) = (shared.group(), Arc::new(SchedulingGroup::new(1)));
        let done = Arc::<AtomicUsize>::default();
        let task = tokio::spawn(shared.run(steps(100, Arc::clone(&done))));
        yield_now().await;
        shared.set(Arc::clone(&second));
        task.await.unwrap();
        assert_eq!([first, second].map(|group| group.state.lock().granted), [0, 0]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_task_is_forgotten_on_several_threads() {
        let shared = group_of(2);
        let done = Arc::<AtomicUsize>::default();
        let tasks: Vec<_> = (0..200)
            .map(|number| {
                let (next, done) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::clone(&done));
                let wakes = Arc::clone(&next);
                tokio::spawn(async move { wakes.add_permits(50) });
                tokio::spawn(shared.run(async move {
                    for _ in 0..50 {
                        next.acquire().await.unwrap().forget();
                        if number % 3 == 0 {
                            yield_now().await;
                        }
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let group = shared.group();
        assert_eq!((done.load(Ordering::Relaxed), group.state.lock().granted), (200, 0));
    }
}
