//! One node that leads the only group, and defers replies to acquires until their waits end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdfast_cluster::{ClusterConfig, ShardMap};
use holdfast_core::Application;
use holdfast_core::outbox::OutboxMessage;
use holdfast_core::shard::ShardState;
use holdfast_core::{
    Acquire, AcquireOutcome, Cancel, Command, Effect, EntryContext, LocksCommand, Page, Query, Reply,
    Response as CoreAnswer, Rules, Subscribe, Topic, WaitId, codec,
};
use holdfast_proto::internal::{self, Answer, AnswerFrame, Call, Held, NotLeader, answer::Outcome, call::Body};
use holdfast_rpc::{CallerId, Calls, Event, Server, ServerConnection};
use holdfast_testkit::subscriptions::{self, Subscriptions, rejected, subscription_of};
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedSender};

/// The only term: no other node ever leads.
const TERM: u64 = 1;
/// How often the shards expire due items.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub(super) struct TestNode {
    state: Arc<Mutex<State>>,
    connections: Arc<AtomicU64>,
}

struct State {
    shards: BTreeMap<Application, ShardState>,
    deferred: Vec<DeferredAcquire>,
    attempts: u64,
    started: Instant,
}

/// An acquire whose reply is deferred.
struct DeferredAcquire {
    reply_to: ReplyHandle,
    acquire: Acquire,
    wait: WaitId,
    poll_deadline: Instant,
}

/// The call of a reply.
#[derive(Clone)]
struct ReplyHandle {
    connection: u64,
    id: u64,
    answers: UnboundedSender<Answer>,
}

impl ReplyHandle {
    fn answer(&self, outcome: Outcome, attempt: u64) {
        let answer = Answer { id: self.id, outcome: Some(outcome), attempt, rules: Rules::HIGHEST.0.into() };
        // The gateway may be gone.
        let _ = self.answers.send(answer);
    }
}

impl TestNode {
    pub(super) fn new(config: &ClusterConfig) -> Self {
        let map = ShardMap::new(config.clone()).unwrap();
        let shards = Application::ALL.map(|application| {
            let shard = map.shards(application).next().unwrap();
            (application, ShardState::new(application, &shard.id))
        });
        let state = State { shards: shards.into(), deferred: Vec::new(), attempts: 0, started: Instant::now() };
        let state = Arc::new(Mutex::new(state));
        tokio::spawn(run_clock(Arc::downgrade(&state)));
        Self { state, connections: Arc::default() }
    }

    fn serve_call(&self, call: &Call, from: ReplyHandle) {
        let application = application_of(call);
        let mut state = self.state.lock();
        let reply = match call.body.as_ref().unwrap() {
            Body::Query(bytes) => {
                let query: Query = codec::decode(bytes).unwrap();
                state.shards[&application].query(state.context().now_ms, &query)
            }
            _ if call.term != TERM => {
                from.answer(Outcome::NotLeader(NotLeader { leader: call.replica, term: TERM }), 0);
                return;
            }
            Body::Command(bytes) => match codec::decode(bytes).unwrap() {
                Command::Locks(LocksCommand::Acquire(acquire)) if call.hold_ms > 0 => {
                    return state.acquire(acquire, Duration::from_millis(call.hold_ms.into()), from);
                }
                command => state.run(application, &command),
            },
            other => panic!("not asked in these tests: {other:?}"),
        };
        from.answer(Outcome::Reply(codec::encode(&reply).into()), 0);
    }

    fn page(&self, subscribe: &Subscribe) -> Result<Page, Outcome> {
        let state = self.state.lock();
        let application = match subscribe.topic {
            Topic::AccountChanges => Application::Accounts,
            _ => Application::Locks,
        };
        let Some(query) = subscribe.topic.query(subscribe.from) else {
            // Nothing happens to a session in these tests.
            return Ok(Page::new::<()>(&[], subscribe.from.unwrap_or(1)));
        };
        Page::of_reply(&state.shards[&application].query(state.context().now_ms, &query)).map_err(rejected)
    }
}

/// Returns the application of the shard that a call is for. Each application has one shard.
fn application_of(call: &Call) -> Application {
    match call.application() {
        internal::Application::Accounts => Application::Accounts,
        internal::Application::Namespaces => Application::Namespaces,
        internal::Application::Locks => Application::Locks,
        internal::Application::Unspecified => panic!("no shard is named: {call:?}"),
    }
}

async fn run_clock(state: std::sync::Weak<Mutex<State>>) {
    let mut ticks = tokio::time::interval(TICK);
    while let Some(state) = state.upgrade() {
        state.lock().tick();
        ticks.tick().await;
    }
}

impl State {
    fn context(&self) -> EntryContext {
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        EntryContext { now_ms, wall_ms: u64::try_from(wall.as_millis()).unwrap(), rules: Rules::HIGHEST }
    }

    /// Runs a command and delivers the shard's messages to other shards, before it replies.
    fn run(&mut self, application: Application, command: &Command) -> Reply {
        let (reply, mut messages) = self.apply(application, command);
        let mut told = vec![application];
        while let Some(source) = told.pop() {
            for (number, message) in std::mem::take(&mut messages) {
                let (delivered, _) = self.apply(message.application, &message.command);
                delivered.outcome.unwrap();
                self.apply(source, &Command::OutboxConfirm { numbers: vec![number] });
                told.push(message.application);
            }
            if let Some(next) = told.last() {
                messages = self.apply(*next, &Command::OutboxConfirm { numbers: Vec::new() }).1;
            }
        }
        reply
    }

    fn apply(&mut self, application: Application, command: &Command) -> (Reply, BTreeMap<u64, OutboxMessage>) {
        let context = self.context();
        let shard = self.shards.get_mut(&application).unwrap();
        shard.advance(&context);
        let reply = shard.apply(&context, command);
        let messages = shard.outbox().messages().clone();
        self.resolve_waits();
        (reply, messages)
    }

    /// Expires due items, and replies to ended waits.
    fn tick(&mut self) {
        let context = self.context();
        self.shards.get_mut(&Application::Locks).unwrap().advance(&context);
        self.resolve_waits();
        let now = Instant::now();
        let shard = &self.shards[&Application::Locks];
        for over in self.deferred.extract_if(.., |waiting| waiting.poll_deadline <= now) {
            let query = Query::WaitStatus { namespace: over.acquire.namespace.clone(), wait: over.wait };
            let reply = shard.query(shard.clock_ms(), &query);
            over.reply_to.answer(Outcome::Reply(codec::encode(&reply).into()), over.acquire.attempt);
        }
    }

    fn resolve_waits(&mut self) {
        let shard = self.shards.get_mut(&Application::Locks).unwrap();
        let clock_ms = shard.clock_ms();
        for effect in shard.take_effects() {
            let Effect::WaitResolved { wait, outcome, locks, .. } = effect else { continue };
            let reply = Reply { outcome: Ok(CoreAnswer::Acquired { outcome, locks }), clock_ms, awaits: None };
            for told in self.deferred.extract_if(.., |waiting| waiting.wait == wait) {
                told.reply_to.answer(Outcome::Reply(codec::encode(&reply).into()), told.acquire.attempt);
            }
        }
    }

    fn acquire(&mut self, acquire: Acquire, hold: Duration, reply_to: ReplyHandle) {
        self.attempts += 1;
        let acquire = Acquire { attempt: self.attempts, ..acquire };
        let reply = self.run(Application::Locks, &Command::Locks(LocksCommand::Acquire(acquire.clone())));
        let Ok(CoreAnswer::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) = &reply.outcome else {
            return reply_to.answer(Outcome::Reply(codec::encode(&reply).into()), acquire.attempt);
        };
        reply_to.answer(Outcome::Held(Held {}), 0);
        let poll_deadline = Instant::now() + hold;
        self.deferred.push(DeferredAcquire { reply_to, acquire, wait: enqueued.wait, poll_deadline });
    }

    fn cancel(&mut self, connection: u64, id: u64) {
        let is_it =
            |waiting: &mut DeferredAcquire| waiting.reply_to.connection == connection && waiting.reply_to.id == id;
        let given_up: Vec<DeferredAcquire> = self.deferred.extract_if(.., is_it).collect();
        for DeferredAcquire { reply_to, acquire, .. } in given_up {
            let Acquire { namespace, owner, request_id, claims, attempt, .. } = acquire;
            let cancel = Cancel { namespace, owner, request_id, claims, attempt };
            self.run(Application::Locks, &Command::Locks(LocksCommand::Cancel(cancel)));
            reply_to.answer(Outcome::NotProposed("the caller gave up".to_owned()), 0);
        }
    }
}

impl Server<Calls> for TestNode {
    async fn admit(&self, _: &CallerId, (): &()) -> Result<(), String> {
        Ok(())
    }

    async fn serve(&self, mut wire: ServerConnection<Calls>, (): ()) {
        let (answers, mut answered) = mpsc::unbounded_channel();
        let connection = self.connections.fetch_add(1, Ordering::Relaxed);
        let mut subscriptions = Subscriptions::default();
        let mut ticks = tokio::time::interval(subscriptions::TICK);
        loop {
            let event = tokio::select! {
                _ = ticks.tick(), if wire.is_flushed() => {
                    let pages = subscriptions.answers(|_, subscribe| self.page(subscribe));
                    if !pages.is_empty() {
                        wire.send(AnswerFrame { answers: pages }).unwrap();
                    }
                    continue;
                }
                Some(answer) = answered.recv(), if wire.is_flushed() => {
                    wire.send(AnswerFrame { answers: vec![answer] }).unwrap();
                    continue;
                }
                event = wire.next(true) => event,
            };
            match event {
                Ok(Event::Received(frame)) => {
                    for call in &frame.calls {
                        match subscription_of(call) {
                            Some(subscribe) => subscriptions.open(call, subscribe),
                            None => {
                                let reply_to = ReplyHandle { connection, id: call.id, answers: answers.clone() };
                                self.serve_call(call, reply_to);
                            }
                        }
                    }
                    for id in frame.credits {
                        subscriptions.credit(id);
                    }
                    for id in frame.given_up {
                        subscriptions.close(id);
                        self.state.lock().cancel(connection, id);
                    }
                }
                Ok(Event::Flushed) => {}
                Err(_) => return,
            }
        }
    }
}
