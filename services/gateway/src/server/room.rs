//! The places of a listener. Whoever comes when all are taken gets that of a connection that gives way: the one that has
//! been idle longest, those that never brought a good credential first; and when all are busy, one of an account that
//! has more than half of them. So neither idle connections nor one tenant's keep the others out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_core::AccountId;
use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Of so many places one is made free ahead of need: looking for who gives way takes a look at all.
const AT_ONCE: usize = 100;
/// How soon it is looked again for somebody to give way, when all were busy.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// All places.
pub(super) struct Room {
    limit: usize,
    free: Arc<Semaphore>,
    seats: Mutex<HashMap<u64, Arc<Seat>>>,
    next: AtomicU64,
    since: Instant,
}

/// What is known of the connection in a place.
struct Seat {
    /// Calls that are not answered to the end.
    busy: AtomicUsize,
    /// When the last of them ended, in milliseconds since the room was opened.
    idle_since_ms: AtomicU64,
    whose: Mutex<Whose>,
    give_way: CancellationToken,
}

/// Who calls over a connection, as far as its latest good credential says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Unknown,
    Operator,
    Account(AccountId),
}

/// The place of one connection, free again when this and every [`Stay`] is dropped.
#[derive(Clone)]
pub(super) struct Place {
    open: Arc<Open>,
}

struct Open {
    room: Arc<Room>,
    number: u64,
    seat: Arc<Seat>,
    _permit: OwnedSemaphorePermit,
    /// A process that stops waits for it.
    _awaited: TaskTrackerToken,
}

/// Held by whatever runs on a connection, also when that is no longer HTTP: until then the connection is busy, keeps its
/// place, and a process that stops waits for it. Comes with every request as an extension. A cheap clone.
#[derive(Clone)]
pub(crate) struct Stay {
    busy: Arc<Busy>,
}

struct Busy {
    open: Arc<Open>,
}

impl Room {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            free: Arc::new(Semaphore::new(limit)),
            seats: Mutex::default(),
            next: AtomicU64::new(0),
            since: Instant::now(),
        })
    }

    /// A place, as soon as there is one.
    pub(super) async fn place(self: &Arc<Self>, tasks: &TaskTracker) -> Place {
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                break permit;
            }
            self.ask_to_give_way();
            // It fails when the semaphore is closed, which nobody does.
            if let Ok(Ok(permit)) = timeout(LOOK_AGAIN_AFTER, Arc::clone(&self.free).acquire_owned()).await {
                break permit;
            }
        };
        gauge!("holdfast_connections").increment(1.0);
        let seat = Arc::new(Seat {
            busy: AtomicUsize::new(0),
            idle_since_ms: AtomicU64::new(self.now_ms()),
            whose: Mutex::new(Whose::Unknown),
            give_way: CancellationToken::new(),
        });
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.seats.lock().insert(number, Arc::clone(&seat));
        let room = Arc::clone(self);
        Place { open: Arc::new(Open { room, number, seat, _permit: permit, _awaited: tasks.token() }) }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn ask_to_give_way(&self) {
        let wanted = (self.limit / AT_ONCE).max(1);
        let seats: Vec<(u64, Arc<Seat>)> = {
            let seats = self.seats.lock();
            let staying = seats.iter().filter(|(_, seat)| !seat.give_way.is_cancelled());
            staying.map(|(number, seat)| (*number, Arc::clone(seat))).collect()
        };
        let leaving = match idle(&seats, wanted) {
            found if found.is_empty() => of_the_greatest(&seats, self.limit / 2, wanted),
            found => found,
        };
        counter!("holdfast_connections_given_way_total").increment(leaving.len() as u64);
        leaving.iter().for_each(|seat| seat.give_way.cancel());
    }
}

/// Those that are idle, strangers first, and then who has been longest.
fn idle(seats: &[(u64, Arc<Seat>)], wanted: usize) -> Vec<Arc<Seat>> {
    let idle = seats.iter().filter(|(_, seat)| seat.busy.load(Ordering::Acquire) == 0);
    let mut idle: Vec<_> = idle
        .map(|(number, seat)| {
            let is_known = *seat.whose.lock() != Whose::Unknown;
            ((is_known, seat.idle_since_ms.load(Ordering::Relaxed), *number), seat)
        })
        .collect();
    idle.sort_unstable_by_key(|(order, _)| *order);
    idle.into_iter().take(wanted).map(|(_, seat)| Arc::clone(seat)).collect()
}

/// The newest of the account that has most, if it has more than `share`.
fn of_the_greatest(seats: &[(u64, Arc<Seat>)], share: usize, wanted: usize) -> Vec<Arc<Seat>> {
    let mut of_accounts: HashMap<AccountId, Vec<&(u64, Arc<Seat>)>> = HashMap::new();
    for entry in seats {
        if let Whose::Account(account) = *entry.1.whose.lock() {
            of_accounts.entry(account).or_default().push(entry);
        }
    }
    let Some(mut greatest) = of_accounts.into_values().max_by_key(Vec::len) else { return Vec::new() };
    if greatest.len() <= share {
        return Vec::new();
    }
    greatest.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
    greatest.into_iter().take(wanted).map(|(_, seat)| Arc::clone(seat)).collect()
}

impl Place {
    /// For a call that begins.
    pub(super) fn stay(&self) -> Stay {
        self.open.seat.busy.fetch_add(1, Ordering::AcqRel);
        Stay { busy: Arc::new(Busy { open: Arc::clone(&self.open) }) }
    }

    /// Ends when the connection has to make room for another.
    pub(super) async fn gives_way(&self) {
        self.open.seat.give_way.cancelled().await;
    }
}

impl Stay {
    /// A good credential came over the connection: the operator's, when there is no account.
    pub(crate) fn is_used_by(&self, account: Option<AccountId>) {
        *self.busy.open.seat.whose.lock() = account.map_or(Whose::Operator, Whose::Account);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let seat = &self.open.seat;
        seat.idle_since_ms.store(self.open.room.now_ms(), Ordering::Relaxed);
        seat.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.room.seats.lock().remove(&self.number);
        gauge!("holdfast_connections").decrement(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn full(count: usize) -> (Arc<Room>, TaskTracker, Vec<Place>) {
        let (room, tasks) = (Room::new(count), TaskTracker::new());
        let mut places = Vec::new();
        for _ in 0..count {
            places.push(room.place(&tasks).await);
        }
        (room, tasks, places)
    }

    fn leaving(places: &[Place]) -> Vec<usize> {
        let is_leaving = |place: &Place| place.open.seat.give_way.is_cancelled();
        places.iter().enumerate().filter(|(_, place)| is_leaving(place)).map(|(at, _)| at).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_that_are_idle_give_way_before_those_who_are_known_and_nobody_who_is_busy() {
        let (room, tasks, mut places) = full(4).await;
        let busy = places[0].stay();
        places[1].stay().is_used_by(Some(AccountId(1)));
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(places[2].stay());
        for expected in [vec![3], vec![2, 3], vec![1, 2, 3]] {
            room.ask_to_give_way();
            assert_eq!(leaving(&places), expected);
        }
        room.ask_to_give_way();
        assert_eq!(leaving(&places), [1, 2, 3], "who is busy stays");
        drop(busy);
        places.remove(3);
        room.place(&tasks).await;
    }

    #[tokio::test]
    async fn an_account_with_more_than_half_of_all_places_gives_way_when_all_are_busy() {
        let (room, _tasks, places) = full(5).await;
        let stays: Vec<Stay> = places.iter().map(Place::stay).collect();
        for (stay, account) in stays.iter().zip([1, 2, 1, 2, 3]) {
            stay.is_used_by(Some(AccountId(account)));
        }
        room.ask_to_give_way();
        assert_eq!(leaving(&places), [0; 0], "nobody has more than half");
        stays[3].is_used_by(Some(AccountId(1)));
        room.ask_to_give_way();
        assert_eq!(leaving(&places), [3], "the newest");
    }

    #[tokio::test]
    async fn a_place_is_free_when_all_that_runs_on_the_connection_has_ended() {
        let (room, tasks, mut places) = full(1).await;
        let stay = places[0].stay();
        places.clear();
        assert!(room.free.try_acquire().is_err() && !tasks.is_empty());
        drop(stay);
        assert!(room.free.try_acquire().is_ok() && tasks.is_empty() && room.seats.lock().is_empty());
    }
}
