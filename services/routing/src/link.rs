//! One node: the calls to it that wait or are in flight, and the task that keeps a connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::Rules;
use holdfast_supervise::{Owner, TaskSet};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::RoutingOptions;
use crate::connection::{self, Caller};
use crate::leaders::Leader;
use crate::origin;

/// Calls to one node that may wait or be in flight; more are refused at once, with nothing done.
const MAX_OUTSTANDING: usize = 32_768;
/// Calls to one node whose answers it holds back; they take memory, and no turn from others.
const MAX_HELD: usize = 262_144;
/// Outcomes of a call with several that wait to be read; one that reads slower is given up.
const OUTCOMES_AHEAD: usize = 1_024;
/// Why a node can't be reached whose connection is to end for good.
const STOPPING: &str = "this gateway is stopping";

/// What to send.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// An encoded command.
    Command(Bytes),
    /// An encoded query.
    Query(Bytes),
    /// An encoded acquire, whose answer may be held back for so long.
    Waiting(Bytes, Duration),
    /// An encoded query of events, whose answer may be held back for so long.
    Watch(Bytes, Duration),
    /// An encoded follow.
    Follow(Bytes),
}

impl Body {
    /// Whether other answers may come before the last one.
    fn may_be_held(&self) -> bool {
        !matches!(self, Self::Command(_) | Self::Query(_))
    }

    /// Whether it changes nothing, so that it may be sent again freely.
    pub(super) fn is_query(&self) -> bool {
        !matches!(self, Self::Command(_) | Self::Waiting(..))
    }

    /// What asks a replica the same without being held back.
    pub(super) fn at_once(&self) -> Self {
        match self {
            Self::Waiting(bytes, _) => Self::Command(bytes.clone()),
            Self::Watch(bytes, _) => Self::Query(bytes.clone()),
            other => other.clone(),
        }
    }
}

/// The highest rules that a replica of a shard was heard to go by; 0 before any was. Rules never go back. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct HeardRules(Arc<AtomicU16>);

impl HeardRules {
    pub(super) fn hear(&self, rules: u32) {
        self.0.fetch_max(u16::try_from(rules).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Rules {
        Rules(self.0.load(Ordering::Relaxed))
    }
}

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An encoded reply; with the number of the attempt, when it was an acquire that might have waited.
    Reply(Bytes, u64),
    /// The node leads and holds the answer back.
    Held,
    /// Something happened to the session that is followed: an encoded effect.
    Notice(Bytes),
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
    pub(super) answer: Answered,
    pub(super) rules: HeardRules,
    /// Of the client's call that this is part of.
    pub(super) request_id: Option<Arc<str>>,
    pub(super) trace_parent: Option<String>,
}

/// Who waits for what a node answers.
pub(super) enum Answered {
    /// For one outcome.
    Once(oneshot::Sender<Outcome>),
    /// For any number of them.
    Many(mpsc::Sender<Outcome>),
}

impl Answered {
    /// The last outcome. A caller that is gone needs none.
    pub(super) fn end(self, outcome: Outcome) {
        match self {
            Self::Once(sender) => drop(sender.send(outcome)),
            Self::Many(sender) => drop(sender.try_send(outcome)),
        }
    }

    /// One of several; false when nobody takes it.
    pub(super) fn tell(&self, outcome: Outcome) -> bool {
        match self {
            Self::Once(_) => true,
            Self::Many(sender) => sender.try_send(outcome).is_ok(),
        }
    }
}

/// Calls that were given up and that the node is to be told of.
#[derive(Default)]
pub(super) struct GivenUp {
    pub(super) ids: Vec<u64>,
    pub(super) waker: Option<Waker>,
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
    pub(super) in_flight: Mutex<HashMap<u64, (Answered, HeardRules)>>,
    pub(super) given_up: Mutex<GivenUp>,
    outstanding: AtomicUsize,
    held: AtomicUsize,
    next_id: AtomicU64,
    /// Why the node cannot be reached; absent while connected, and at first.
    down: Mutex<Option<String>>,
}

/// The way to one node.
pub(super) struct NodeLink {
    shared: Arc<Shared>,
    tasks: TaskSet,
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
            given_up: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            down: Mutex::new(None),
        });
        let tasks = TaskSet::new(Owner::process());
        let (kept, address, options) = (shared.clone(), address.to_owned(), options.clone());
        tasks.keep("route", move || connection::keep(kept.clone(), address.clone(), caller.clone(), options.clone()));
        Self { shared, tasks }
    }

    /// Sends a call to a replica of the node. The node learns how much of the deadline is left, and this process by which
    /// rules the shard goes.
    pub(super) fn send(&self, to: Leader, body: Body, rules: &HeardRules, deadline: Instant) -> Attempt {
        let shared = &self.shared;
        if let Some(reason) = shared.down.lock().clone() {
            return Attempt::refused(shared, format!("node {} cannot be reached: {reason}", shared.node_id));
        }
        let before = shared.outstanding.fetch_add(1, Ordering::Relaxed);
        let is_full = before >= MAX_OUTSTANDING || shared.held.load(Ordering::Relaxed) >= MAX_HELD;
        let (answer, state) = if body.may_be_held() {
            let (answer, answered) = mpsc::channel(OUTCOMES_AHEAD);
            (Answered::Many(answer), State::Several(answered))
        } else {
            let (answer, answered) = oneshot::channel();
            (Answered::Once(answer), State::Waiting(answered))
        };
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let stage = Arc::<Stage>::default();
        let queued = Queued {
            id,
            replica: to.replica,
            term: to.term,
            deadline,
            body,
            stage: stage.clone(),
            answer,
            rules: rules.clone(),
            request_id: origin::request_id(),
            trace_parent: holdfast_telemetry::trace_parent(),
        };
        let attempt = Attempt { shared: shared.clone(), id, stage, state, is_held: false, is_over: false };
        if is_full || shared.queue.try_send(queued).is_err() {
            drop(attempt);
            return Attempt::refused(shared, format!("too many calls to node {} are in flight", shared.node_id));
        }
        attempt
    }

    /// The tasks that go with the link: none outlives it.
    pub(super) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    /// Ends the connection. What is in flight has an unknown outcome.
    pub(super) async fn shutdown(&self) {
        self.tasks.ended().await;
        self.shared.set_down(STOPPING);
        self.shared.end_in_flight(STOPPING);
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
            queued.answer.end(Outcome::NotSent(format!("node {} cannot be reached: {reason}", self.node_id)));
        }
    }

    /// The connection ended: nobody will answer what was sent on it.
    pub(super) fn end_in_flight(&self, reason: &str) {
        let ended = std::mem::take(&mut *self.in_flight.lock());
        for (answer, _) in ended.into_values() {
            answer.end(Outcome::Unknown(format!("the connection to node {} ended: {reason}", self.node_id)));
        }
    }

    /// Tells the node that nobody waits for that call any more.
    fn tell_given_up(&self, id: u64) {
        let mut given_up = self.given_up.lock();
        given_up.ids.push(id);
        if let Some(waker) = given_up.waker.take() {
            waker.wake();
        }
    }
}

/// One sending of one call. Dropping it forgets the call, which may be done all the same; one whose answer may be held
/// back is given up at the node as well.
pub(super) struct Attempt {
    shared: Arc<Shared>,
    id: u64,
    stage: Arc<Stage>,
    state: State,
    /// The node said that it holds the answer back.
    is_held: bool,
    /// The last outcome was seen.
    is_over: bool,
}

enum State {
    Waiting(oneshot::Receiver<Outcome>),
    Several(mpsc::Receiver<Outcome>),
    /// Never sent, for that reason.
    Refused(String),
}

impl Attempt {
    fn refused(shared: &Arc<Shared>, reason: String) -> Self {
        let (stage, state) = (Arc::default(), State::Refused(reason));
        Self { shared: shared.clone(), id: 0, stage, state, is_held: false, is_over: true }
    }

    /// Waits for the outcome, or the next one. May be called again when it was cancelled.
    pub(super) async fn outcome(&mut self) -> Outcome {
        let outcome = match &mut self.state {
            State::Refused(reason) => return Outcome::NotSent(reason.clone()),
            State::Waiting(answered) => answered.await.ok(),
            State::Several(answered) => answered.recv().await,
        };
        let Some(outcome) = outcome else { return self.give_up("the call was dropped") };
        if outcome == Outcome::Held && !self.is_held {
            self.is_held = true;
            self.shared.outstanding.fetch_sub(1, Ordering::Relaxed);
            self.shared.held.fetch_add(1, Ordering::Relaxed);
        }
        self.is_over = !matches!(outcome, Outcome::Held | Outcome::Notice(_));
        outcome
    }

    /// Tells the node that the caller is gone; the outcome may be waited for all the same.
    pub(super) fn abandon(&self) {
        if !self.is_over && !self.stage.give_up() {
            self.shared.tell_given_up(self.id);
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
        match self.state {
            State::Refused(_) => return,
            State::Waiting(_) => {
                self.stage.give_up();
            }
            State::Several(_) => self.abandon(),
        }
        self.shared.in_flight.lock().remove(&self.id);
        let counted = if self.is_held { &self.shared.held } else { &self.shared.outstanding };
        counted.fetch_sub(1, Ordering::Relaxed);
    }
}
