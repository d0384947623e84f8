//! Gathers the keep-alives of sessions in the shards of one group, so that many share a call.
//!
//! One that arrives while no such call is in flight is sent at once. Those that arrive meanwhile share the next call,
//! which begins when one in flight ends, and after a millisecond at the latest. A call that fails does so for its own
//! keep-alives only. Each session has at most one in flight, so the sessions bound the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use holdfast_cluster::Application;
use holdfast_supervise::spawn_temporary;
use holdfast_types::{KeepAliveOutcome, MAX_KEEP_ALIVES, Query, Reply, Response, SessionKeepAlive, codec};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::call::{Destination, RoutedCall};
use crate::call_body::CallBody;
use crate::call_load::LoadKey;
use crate::leader_cache::GroupRoute;
use crate::router::Router;
use crate::{RetryPolicy, RouteError};

/// How long a keep-alive waits for others while a call is in flight.
const GATHERING_TIME: Duration = Duration::from_millis(1);
/// Maximum bytes of a call.
const MAX_CALL_BYTES: usize = 1 << 20;
/// Bytes of an encoded keep-alive besides its names, at most.
const FIXED_BYTES: usize = 48;

/// The keep-alives for one group that wait for the next call.
#[derive(Default)]
pub(super) struct KeepAliveQueue {
    state: Mutex<QueueState>,
    /// Notified when the queue is no longer empty.
    filled: Notify,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<QueuedKeepAlive>,
    /// Whether a task sends what waits.
    has_sender: bool,
}

struct QueuedKeepAlive {
    session: SessionKeepAlive,
    deadline: Instant,
    sink: oneshot::Sender<Result<KeepAliveOutcome, RouteError>>,
}

impl QueuedKeepAlive {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.session.namespace.name.len() + self.session.session_id.len()
    }
}

impl Router {
    /// Sends a keep-alive to the leader of the session's shard, together with others for shards of its group. Callers
    /// have about the same time: the earliest deadline applies to all keep-alives of a call.
    ///
    /// # Errors
    /// When there is no reply in time; the leader may have recorded the keep-alive.
    pub async fn keep_alive(
        &self,
        session: SessionKeepAlive,
        deadline: Instant,
    ) -> Result<KeepAliveOutcome, RouteError> {
        let key = session.key;
        let route = self.destination(Application::Locks, key, None).route;
        let (sink, reply) = oneshot::channel();
        if route.keep_alives.push(QueuedKeepAlive { session, deadline, sink }) {
            spawn_temporary("keep_alives", send_all(self.clone(), route));
        }
        let shard = || self.map().shard_for(Application::Locks, key).id.clone();
        match reply.await {
            Ok(outcome) => outcome.map_err(|error| error.of_shard(&shard())),
            Err(_) => Err(RouteError::Unavailable { shard: shard(), reason: "the call was dropped".to_owned() }),
        }
    }
}

impl KeepAliveQueue {
    /// Queues a keep-alive. Returns whether the caller has to start a task that sends it.
    fn push(&self, queued: QueuedKeepAlive) -> bool {
        let mut state = self.state.lock();
        state.waiting.push_back(queued);
        let starts = !std::mem::replace(&mut state.has_sender, true);
        let was_empty = state.waiting.len() == 1;
        drop(state);
        if was_empty && !starts {
            self.filled.notify_one();
        }
        starts
    }

    /// Takes the keep-alives of the next call; none if no caller waits.
    fn take_batch(&self) -> Vec<QueuedKeepAlive> {
        let mut state = self.state.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < MAX_KEEP_ALIVES
            && state.waiting.front().is_some_and(|next| batch.is_empty() || bytes + next.bytes() <= MAX_CALL_BYTES)
            && let Some(next) = state.waiting.pop_front()
        {
            if !next.sink.is_closed() {
                bytes += next.bytes();
                batch.push(next);
            }
        }
        batch
    }

    /// Waits until keep-alives were queued for long enough.
    async fn gathered(&self) {
        while self.state.lock().waiting.is_empty() {
            self.filled.notified().await;
        }
        sleep(GATHERING_TIME).await;
    }

    /// Ends the sending task if nothing waits; returns whether it does.
    fn try_end(&self) -> bool {
        let mut state = self.state.lock();
        state.has_sender = !state.waiting.is_empty();
        !state.has_sender
    }
}

/// Fails what is queued if the sending task panics; the next keep-alive starts another.
struct SenderGuard<'a>(&'a KeepAliveQueue);

impl Drop for SenderGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            *self.0.state.lock() = QueueState::default();
        }
    }
}

/// Sends the keep-alives for a group until none waits and each call has its reply.
async fn send_all(router: Router, route: Arc<GroupRoute>) {
    let queue = &route.keep_alives;
    let _guard = SenderGuard(queue);
    let mut calls = FuturesUnordered::new();
    loop {
        loop {
            let batch = queue.take_batch();
            if batch.is_empty() {
                break;
            }
            calls.push(send(&router, &route, batch));
        }
        if calls.is_empty() {
            if queue.try_end() {
                return;
            }
            continue;
        }
        tokio::select! {
            biased;
            _ = calls.next() => {}
            () = queue.gathered() => {}
        }
    }
}

/// Sends one call, and passes each caller the outcome of its keep-alive.
async fn send(router: &Router, route: &Arc<GroupRoute>, batch: Vec<QueuedKeepAlive>) {
    let Some(key) = batch.first().map(|first| first.session.key) else { return };
    let deadline = batch.iter().map(|queued| queued.deadline).min().unwrap_or_else(Instant::now);
    let (sessions, sinks): (Vec<_>, Vec<_>) = batch.into_iter().map(|queued| (queued.session, queued.sink)).unzip();
    let body = CallBody::Query(Bytes::from(codec::encode(&Query::KeepAlives { sessions })));
    // They are of several shards and accounts, and each session has at most one.
    let load = LoadKey::URGENT;
    let to = Destination { route: Arc::clone(route), application: Application::Locks, key, load };
    let mut call = RoutedCall::new(router, to, body, RetryPolicy::LaterTerm, deadline);
    let error = match call.reply().await {
        Ok(Reply { outcome: Ok(Response::KeptAlive(outcomes)), .. }) if outcomes.len() == sinks.len() => {
            for (sink, outcome) in sinks.into_iter().zip(outcomes) {
                // The caller may be gone.
                let _ = sink.send(Ok(outcome));
            }
            return;
        }
        Ok(_) => call.unexpected_reply(),
        Err(error) => error,
    };
    for sink in sinks {
        let _ = sink.send(Err(error.clone()));
    }
}

#[cfg(test)]
#[path = "keep_alive_tests.rs"]
mod tests;
