//! Turns at the shards: how many calls of this process are under way at a time, and whose is next.
//!
//! Whatever is under way takes time from what comes after it, in this process, on the nodes, on their disks. So there is
//! a bound on it, and accounts whose calls wait take turns: one that calls much waits for its own calls. While one that
//! calls little is there, the others get so much less at a time that its calls take about as long as ever. What waits for
//! too long is refused, with nothing done, and costs the nodes nothing; what ends or keeps a hold goes first and is never
//! refused.
//!
//! A call that takes long gives its turn back: it waits for something else, a leader maybe, that others do not need.

mod pace;

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::AccountId;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::{ApiError, ApiResult, Code};
use pace::{FEW, Lane as Seen, Pace};

/// Calls of one account that wait for their turn.
const MAX_WAITING: usize = 4_096;
/// The same of those that wait at the shard after that.
const MAX_PATIENT: usize = 16_384;
/// How long a call waits for its turn: whoever asks is better off asking again later.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a call keeps its turn.
const KEEPS_FOR: Duration = Duration::from_millis(500);

/// Whether a call can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Something new, or a look.
    Usual,
    /// It is to wait at the shard, and may as well wait here.
    Patient,
    /// It ends or keeps what its owner has.
    Urgent,
}

/// The turns of a process.
#[derive(Default)]
pub(crate) struct Turns {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lanes: HashMap<AccountId, Lane>,
    /// Accounts with calls that wait, the next one first.
    ring: VecDeque<AccountId>,
    under_way: usize,
    pace: Pace,
}

#[derive(Default)]
struct Lane {
    under_way: usize,
    urgent: VecDeque<oneshot::Sender<Turn>>,
    usual: VecDeque<oneshot::Sender<Turn>>,
    is_in_ring: bool,
    seen: Seen,
}

/// A turn, given back when this is dropped.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    account: AccountId,
    begun: Instant,
    /// Whether it was for a command, and that was done.
    is_done: bool,
    /// Whether few calls were under way when it began, itself included, and none waited.
    is_easy: bool,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its call was answered, or its caller went away.
    Over,
    /// Its call takes long.
    Late,
    /// It was never taken.
    Void,
}

/// What the figures mean.
pub(crate) fn describe() {
    describe_gauge!("holdfast_calls_under_way", "Calls that have a turn at the shards.");
    describe_gauge!("holdfast_calls_waiting", "Calls that wait for a turn at the shards.");
    describe_counter!("holdfast_calls_shed_total", "Calls that were refused because too many wait.");
}

impl Turns {
    /// Waits for a turn of the account.
    ///
    /// # Errors
    /// `UNAVAILABLE` when there is none in time, or too many wait already.
    pub(crate) async fn take(
        self: &Arc<Self>,
        account: AccountId,
        urgency: Urgency,
        deadline: Instant,
    ) -> ApiResult<Turn> {
        let now = Instant::now();
        let waiting = {
            let mut state = self.state.lock();
            state.roll(now);
            let (share, limit) = (state.pace.share(), state.pace.limit());
            let lane = state.lanes.entry(account).or_default();
            let nobody_waits = lane.urgent.is_empty() && lane.usual.is_empty();
            if nobody_waits && lane.has_room(share) && state.under_way < limit {
                return Ok(state.begin(self, account, now));
            }
            state.queue(account, urgency).ok_or_else(shed)?
        };
        let until = if urgency == Urgency::Usual { deadline.min(now + PATIENCE) } else { deadline };
        match timeout_at(until, waiting).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(shed()),
        }
    }

    /// Does the work of a call in its turn, and gives that back when it takes long, or when it waits at the shard.
    pub(crate) async fn during<T>(
        mut turn: Turn,
        is_command: bool,
        deferred: Option<CancellationToken>,
        work: impl Future<Output = ApiResult<T>>,
    ) -> ApiResult<T> {
        let mut work = pin!(work);
        let is_deferred = async {
            match &deferred {
                Some(deferred) => deferred.cancelled().await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            answered = &mut work => {
                turn.is_done = is_command && answered.is_ok();
                return answered;
            }
            () = is_deferred => turn.is_done = true,
            () = sleep(KEEPS_FOR) => turn.end = End::Late,
        }
        drop(turn);
        work.await
    }
}

fn shed() -> ApiError {
    counter!("holdfast_calls_shed_total").increment(1);
    ApiError::new(Code::Unavailable, "too many calls wait at this gateway; nothing was done, try again later")
}

impl State {
    fn begin(&mut self, turns: &Arc<Turns>, account: AccountId, now: Instant) -> Turn {
        self.under_way += 1;
        let lane = self.lanes.entry(account).or_default();
        lane.under_way += 1;
        lane.note();
        let is_easy = self.under_way <= FEW && self.ring.is_empty();
        Turn { turns: Arc::clone(turns), account, begun: now, is_done: false, is_easy, end: End::Over }
    }

    /// A place in the account's own queue, unless that is full.
    fn queue(&mut self, account: AccountId, urgency: Urgency) -> Option<oneshot::Receiver<Turn>> {
        let lane = self.lanes.entry(account).or_default();
        let (turn, waiting) = oneshot::channel();
        match urgency {
            Urgency::Urgent => lane.urgent.push_back(turn),
            Urgency::Usual | Urgency::Patient => {
                let max = if urgency == Urgency::Patient { MAX_PATIENT } else { MAX_WAITING };
                if lane.usual.len() >= max {
                    // Those that were given up are found here at the latest.
                    lane.usual.retain(|waiting| !waiting.is_closed());
                }
                if lane.usual.len() >= max {
                    return None;
                }
                lane.usual.push_back(turn);
            }
        }
        lane.note();
        if !lane.is_in_ring {
            lane.is_in_ring = true;
            self.ring.push_back(account);
        }
        Some(waiting)
    }

    /// Gives turns to whoever waits, one of each account after the other.
    fn hand_out(&mut self, turns: &Arc<Turns>, now: Instant) {
        let mut passed_over = 0;
        while self.under_way < self.pace.limit() && passed_over < self.ring.len() {
            let Some(account) = self.ring.pop_front() else { return };
            let share = self.pace.share();
            let Some(lane) = self.lanes.get_mut(&account) else { continue };
            if !lane.has_room(share) {
                self.ring.push_back(account);
                passed_over += 1;
                continue;
            }
            let Some(next) = lane.next() else {
                lane.is_in_ring = false;
                continue;
            };
            self.ring.push_back(account);
            passed_over = 0;
            let turn = self.begin(turns, account, now);
            if let Err(mut unwanted) = next.send(turn) {
                // Its caller went away just now. It must not be given back by itself: that needs this very state.
                unwanted.end = End::Void;
                self.give_back(account);
            }
        }
    }

    fn give_back(&mut self, account: AccountId) {
        self.under_way -= 1;
        if let Some(lane) = self.lanes.get_mut(&account) {
            lane.under_way -= 1;
        }
    }

    /// Looks again, now and then, at how much may be under way.
    fn roll(&mut self, now: Instant) {
        if !self.pace.is_due(now) {
            return;
        }
        self.lanes.retain(|_, lane| lane.is_in_ring || lane.under_way > 0 || lane.seen.is_remembered());
        self.pace.roll(now, self.lanes.values_mut().map(|lane| &mut lane.seen));
        for lane in self.lanes.values_mut() {
            lane.note();
        }
        self.show();
    }

    fn show(&self) {
        let waiting: usize = self.lanes.values().map(|lane| lane.urgent.len() + lane.usual.len()).sum();
        gauge!("holdfast_calls_under_way").set(self.under_way as f64);
        gauge!("holdfast_calls_waiting").set(waiting as f64);
    }
}

impl Lane {
    /// Whether another call of it may be under way. Who calls little is not held back for the sake of others like it.
    fn has_room(&self, share: usize) -> bool {
        self.under_way < share || (self.under_way < FEW && self.seen.calls_little())
    }

    /// The next call whose caller still waits.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let waiting = [&mut self.urgent, &mut self.usual];
        waiting.into_iter().find_map(|queue| std::iter::from_fn(|| queue.pop_front()).find(|next| !next.is_closed()))
    }

    fn note(&mut self) {
        self.seen.note(self.under_way + self.urgent.len() + self.usual.len());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.end == End::Void {
            return;
        }
        let now = Instant::now();
        let turns = Arc::clone(&self.turns);
        let mut state = turns.state.lock();
        state.give_back(self.account);
        match self.end {
            End::Late => state.pace.took_long(),
            _ => state.pace.took(now - self.begun, self.is_done, self.is_easy),
        }
        state.roll(now);
        state.hand_out(&turns, now);
        if state.under_way == 0 {
            // Nobody may call for long, and what is shown is to be right all the same.
            state.show();
        }
    }
}

#[cfg(test)]
mod tests;
