//! Events of a session for its handlers.
//!
//! Handlers run on a separate task, one after the other, in the order of the events, so that a slow handler delays no
//! keep-alive. Events that handlers are too slow for are dropped and counted, and the handlers receive the count.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use tokio::sync::mpsc;

use crate::error::{EndReason, LossReason};
use crate::locks::LockStatus;
use crate::view::{Path, ReleaseRequest};

/// Events buffered for slow handlers.
const QUEUE_CAPACITY: usize = 10_000;

/// Receives the events of a session. All methods default to doing nothing. Handlers may block: only other handlers wait
/// for them.
///
/// ```
/// use holdfast_client::{LossReason, Path, SessionHandler};
///
/// struct Alarm;
///
/// impl SessionHandler for Alarm {
///     fn unexpected_unlock(&self, path: &Path, reason: &LossReason) {
///         eprintln!("{path} was lost: {reason}");
///     }
/// }
///
/// Alarm.unexpected_unlock(&Path::from("invoices"), &LossReason::Deleted);
/// ```
pub trait SessionHandler: Send + Sync + 'static {
    /// A hold was lost for a reason outside this client. Its guard reports the loss too.
    fn unexpected_unlock(&self, path: &Path, reason: &LossReason) {
        let _ = (path, reason);
    }

    /// A lock was granted after its caller cancelled. It is being released.
    fn unexpected_lock(&self, path: &Path, fencing_token: u64) {
        let _ = (path, fencing_token);
    }

    /// The service revoked a hold. Precedes [`SessionHandler::unexpected_unlock`], which also reports holds lost with
    /// their session.
    fn revoked(&self, path: &Path, reason: &LossReason) {
        let _ = (path, reason);
    }

    /// Somebody asks for a hold of this session. [`Hold::release_requested`](crate::Hold::release_requested) reports it
    /// too. Nothing happens by itself, except that a forced request ends the hold when its time is over.
    fn release_requested(&self, request: &ReleaseRequest) {
        let _ = request;
    }

    /// No gateway responds. All holds are lost at `until` unless one responds earlier.
    fn jeopardy(&self, until: Instant) {
        let _ = until;
    }

    /// A gateway responds again, in time.
    fn safe(&self) {}

    /// The session has ended, and with it all its holds.
    fn ended(&self, reason: &EndReason) {
        let _ = reason;
    }

    /// This many events were dropped because handlers were too slow.
    fn missed(&self, events: u64) {
        let _ = events;
    }
}

/// Receives the status changes of locks of a [`LockService`](crate::LockService).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use holdfast_client::{LockListener, LockStatus, Path};
/// use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
///
/// struct Changes(UnboundedSender<(LockStatus, LockStatus)>);
///
/// impl LockListener for Changes {
///     fn status_changed(&self, _path: &Path, before: LockStatus, now: LockStatus) {
///         self.0.send((before, now)).expect("somebody listens");
///     }
/// }
///
/// let (sender, mut told) = unbounded_channel();
/// let locks = session.lock_service();
/// locks.add_listener(Changes(sender));
/// locks.lock("invoices").await?;
/// locks.unlock("invoices").await;
/// assert_eq!(told.recv().await, Some((LockStatus::None, LockStatus::Holding)));
/// assert_eq!(told.recv().await, Some((LockStatus::Holding, LockStatus::None)));
/// # Ok(())
/// # }
/// ```
pub trait LockListener: Send + Sync + 'static {
    /// Called for each change, in order.
    fn status_changed(&self, path: &Path, before: LockStatus, now: LockStatus);
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Revoked { path: Path, reason: LossReason },
    Lost { path: Path, reason: LossReason },
    UnexpectedLock { path: Path, fencing_token: u64 },
    ReleaseRequested(ReleaseRequest),
    Jeopardy(Instant),
    Safe,
    Ended(EndReason),
    Status { path: Path, before: LockStatus, now: LockStatus },
}

type Handlers = RwLock<Vec<Arc<dyn SessionHandler>>>;
type Listeners = RwLock<Vec<Arc<dyn LockListener>>>;

/// Accepts events.
pub(crate) struct EventDispatcher {
    queue: mpsc::Sender<Event>,
    missed: Arc<AtomicU64>,
    handlers: Arc<Handlers>,
    listeners: Arc<Listeners>,
}

impl EventDispatcher {
    /// Starts the task that calls the handlers. It ends when this value is dropped and all events are delivered.
    pub(crate) fn start(handlers: Vec<Arc<dyn SessionHandler>>) -> Self {
        let (queue, events) = mpsc::channel(QUEUE_CAPACITY);
        let missed = Arc::new(AtomicU64::new(0));
        let (handlers, listeners) = (Arc::new(RwLock::new(handlers)), Arc::default());
        tokio::spawn(run_handlers(events, Arc::clone(&missed), Arc::clone(&handlers), Arc::clone(&listeners)));
        Self { queue, missed, handlers, listeners }
    }

    pub(crate) fn add_handler(&self, handler: Arc<dyn SessionHandler>) {
        self.handlers.write().push(handler);
    }

    pub(crate) fn add_listener(&self, listener: Arc<dyn LockListener>) {
        self.listeners.write().push(listener);
    }

    /// Queues an event. Never waits.
    pub(crate) fn push(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn run_handlers(
    mut events: mpsc::Receiver<Event>,
    missed: Arc<AtomicU64>,
    handlers: Arc<Handlers>,
    listeners: Arc<Listeners>,
) {
    while let Some(event) = events.recv().await {
        let told = (missed.swap(0, Ordering::Relaxed), handlers.read().clone(), listeners.read().clone());
        // Handlers may block, which a task must not.
        let done = tokio::task::spawn_blocking(move || {
            let (missed, handlers, listeners) = told;
            if missed > 0 {
                handlers.iter().for_each(|handler| catch_panic(|| handler.missed(missed)));
            }
            match &event {
                Event::Status { path, before, now } => {
                    listeners.iter().for_each(|listener| catch_panic(|| listener.status_changed(path, *before, *now)));
                }
                other => handlers.iter().for_each(|handler| catch_panic(|| notify_handler(&**handler, other))),
            }
        });
        // Panics are caught inside; the task is cancelled only when the runtime ends.
        let _ = done.await;
    }
}

fn notify_handler(handler: &dyn SessionHandler, event: &Event) {
    match event {
        Event::Revoked { path, reason } => handler.revoked(path, reason),
        Event::Lost { path, reason } => handler.unexpected_unlock(path, reason),
        Event::UnexpectedLock { path, fencing_token } => handler.unexpected_lock(path, *fencing_token),
        Event::ReleaseRequested(request) => handler.release_requested(request),
        Event::Jeopardy(until) => handler.jeopardy(*until),
        Event::Safe => handler.safe(),
        Event::Ended(reason) => handler.ended(reason),
        Event::Status { .. } => {}
    }
}

/// Runs a handler; its panic does not affect the others.
fn catch_panic(call: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        tracing::error!("a handler of a session panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::mpsc as blocking;

    /// Records its events; panics at the first, and waits at the second until it may continue.
    struct FaultyHandler {
        seen: Arc<Mutex<Vec<String>>>,
        calls: AtomicU64,
        proceed: Mutex<blocking::Receiver<()>>,
    }

    impl SessionHandler for FaultyHandler {
        fn safe(&self) {
            self.seen.lock().push("safe".to_owned());
            match self.calls.fetch_add(1, Ordering::Relaxed) {
                0 => panic!("as handlers may"),
                1 => self.proceed.lock().recv().unwrap(),
                _ => {}
            }
        }

        fn ended(&self, reason: &EndReason) {
            self.seen.lock().push(reason.to_string());
        }

        fn missed(&self, events: u64) {
            self.seen.lock().push(format!("missed {events}"));
        }
    }

    #[tokio::test]
    async fn handlers_are_told_in_order_and_how_much_they_missed_whatever_they_do() {
        let (told, (go_on, may_go_on)) = (Arc::default(), blocking::channel());
        let strange =
            FaultyHandler { seen: Arc::clone(&told), calls: AtomicU64::new(0), proceed: Mutex::new(may_go_on) };
        let events = EventDispatcher::start(vec![Arc::new(strange)]);
        events.push(Event::Safe);
        events.push(Event::Safe);
        let wait_until = async |count| {
            while told.lock().len() != count {
                tokio::task::yield_now().await;
            }
        };
        wait_until(2).await;
        // The handler is busy: the queue fills up, and further events are dropped.
        for _ in 0..QUEUE_CAPACITY + 3 {
            events.push(Event::Ended(EndReason::Closed));
        }
        go_on.send(()).unwrap();
        wait_until(2 + QUEUE_CAPACITY + 1).await;
        let closed = EndReason::Closed.to_string();
        let told = told.lock();
        assert_eq!(told[..4], ["safe".to_owned(), "safe".to_owned(), "missed 3".to_owned(), closed.clone()]);
        assert_eq!(told.last(), Some(&closed));
    }
}
