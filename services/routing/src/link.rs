//! One node: the calls to it that wait or are in flight, and the task that keeps a connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::RoutingOptions;
use crate::connection::{self, Caller};
use crate::leaders::Leader;

/// Calls to one node that may wait or be in flight; more are refused at once, with nothing done.
const MAX_OUTSTANDING: usize = 32_768;

/// What to send.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// An encoded command.
    Command(Bytes),
    /// An encoded query.
    Query(Bytes),
}

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An encoded reply.
    Reply(Bytes),
    /// Nothing was done; that is the leader, if it is known.
    NotLeader(Option<Leader>),
    /// Nothing was done, as the node says.
    NotProposed(String),
    /// Nothing was done: it never left this process.
    NotSent(String),
    /// It may have been done.
    Unknown(String),
}

/// A call that waits to be sent.
pub(super) struct Queued {
    pub(super) id: u64,
    pub(super) replica: u64,
    pub(super) term: u64,
    pub(super) deadline: Instant,
    pub(super) body: Body,
    pub(super) stage: Arc<Stage>,
    pub(super) answer: oneshot::Sender<Outcome>,
}

/// Where a call is, between the caller that may give up and the connection that may send it: whoever moves first
/// decides, so that "not sent" is always true.
#[derive(Default)]
pub(super) struct Stage(AtomicU8);

const WAITING: u8 = 0;
const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Stage {
    /// Before it is put into a frame; false when the caller gave up.
    pub(super) fn send(&self) -> bool {
        self.0.compare_exchange(WAITING, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// False when it was sent already.
    fn give_up(&self) -> bool {
        self.0.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) != Err(SENT)
    }
}

/// What the callers, the connection and its outgoing stream share.
pub(super) struct Shared {
    pub(super) node_id: String,
    queue: mpsc::Sender<Queued>,
    pub(super) waiting: Mutex<mpsc::Receiver<Queued>>,
    pub(super) in_flight: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
    outstanding: AtomicUsize,
    next_id: AtomicU64,
    /// Why the node cannot be reached; absent while connected, and at first.
    down: Mutex<Option<String>>,
}

/// The way to one node.
pub(super) struct NodeLink {
    shared: Arc<Shared>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl NodeLink {
    /// Begins to connect.
    pub(super) fn start(node_id: &str, address: &str, caller: Arc<Caller>, options: &RoutingOptions) -> Self {
        let (queue, waiting) = mpsc::channel(MAX_OUTSTANDING);
        let shared = Arc::new(Shared {
            node_id: node_id.to_owned(),
            queue,
            waiting: Mutex::new(waiting),
            in_flight: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            down: Mutex::new(None),
        });
        let stop = CancellationToken::new();
        let keep = connection::keep(shared.clone(), address.to_owned(), caller, options.clone());
        let (stopped, left) = (stop.clone(), shared.clone());
        let task = tokio::spawn(async move {
            stopped.run_until_cancelled(keep).await;
            left.set_down("this gateway is stopping");
            left.end_in_flight("this gateway is stopping");
        });
        Self { shared, stop, task: Mutex::new(Some(task)) }
    }

    /// Sends a call to a replica of the node. The node learns how much of the deadline is left.
    pub(super) fn send(&self, to: Leader, body: Body, deadline: Instant) -> Attempt {
        let shared = &self.shared;
        if let Some(reason) = shared.down.lock().clone() {
            return Attempt::refused(shared, format!("node {} cannot be reached: {reason}", shared.node_id));
        }
        let before = shared.outstanding.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let stage = Arc::<Stage>::default();
        let queued = Queued { id, replica: to.replica, term: to.term, deadline, body, stage: stage.clone(), answer };
        let attempt = Attempt { shared: shared.clone(), id, stage, state: State::Waiting(answered) };
        if before >= MAX_OUTSTANDING || shared.queue.try_send(queued).is_err() {
            drop(attempt);
            return Attempt::refused(shared, format!("too many calls to node {} are in flight", shared.node_id));
        }
        attempt
    }

    /// Ends the connection. What is in flight has an unknown outcome.
    pub(super) async fn shutdown(&self) {
        self.stop.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task {
            // It was cancelled; how it ended says nothing more.
            let _ = task.await;
        }
    }
}

impl Shared {
    pub(super) fn set_up(&self) {
        *self.down.lock() = None;
        metrics::gauge!("holdfast_gateway_node_connected", "node" => self.node_id.clone()).set(1.0);
    }

    /// From now on calls are refused at once, and those that wait are too.
    pub(super) fn set_down(&self, reason: &str) {
        *self.down.lock() = Some(reason.to_owned());
        metrics::gauge!("holdfast_gateway_node_connected", "node" => self.node_id.clone()).set(0.0);
        let mut waiting = self.waiting.lock();
        while let Ok(queued) = waiting.try_recv() {
            // A caller that is gone needs no answer.
            let _ = queued.answer.send(Outcome::NotSent(format!("node {} cannot be reached: {reason}", self.node_id)));
        }
    }

    /// The connection ended: nobody will answer what was sent on it.
    pub(super) fn end_in_flight(&self, reason: &str) {
        let ended = std::mem::take(&mut *self.in_flight.lock());
        for (_, answer) in ended {
            // A caller that is gone needs no answer.
            let _ = answer.send(Outcome::Unknown(format!("the connection to node {} ended: {reason}", self.node_id)));
        }
    }
}

/// One sending of one call. Dropping it forgets the call, which may be done all the same.
pub(super) struct Attempt {
    shared: Arc<Shared>,
    id: u64,
    stage: Arc<Stage>,
    state: State,
}

enum State {
    Waiting(oneshot::Receiver<Outcome>),
    /// Never sent, for that reason.
    Refused(String),
}

impl Attempt {
    fn refused(shared: &Arc<Shared>, reason: String) -> Self {
        Self { shared: shared.clone(), id: 0, stage: Arc::default(), state: State::Refused(reason) }
    }

    /// Waits for the outcome. May be called again when it was cancelled, until it returned.
    pub(super) async fn outcome(&mut self) -> Outcome {
        match &mut self.state {
            State::Refused(reason) => Outcome::NotSent(reason.clone()),
            State::Waiting(answered) => match answered.await {
                Ok(outcome) => outcome,
                Err(_) => self.give_up("the call was dropped"),
            },
        }
    }

    /// Stops waiting, and says whether it was sent.
    pub(super) fn give_up(&self, reason: &str) -> Outcome {
        if self.stage.give_up() {
            Outcome::NotSent(format!("not sent to node {}: {reason}", self.shared.node_id))
        } else {
            Outcome::Unknown(format!("node {} did not answer: {reason}", self.shared.node_id))
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if matches!(self.state, State::Waiting(_)) {
            self.stage.give_up();
            self.shared.in_flight.lock().remove(&self.id);
            self.shared.outstanding.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
