//! One node that leads the only group, and defers replies to acquires until their waits end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdfast_cluster::{ClusterConfig, ShardMap};
use holdfast_core::{
    Acquire, AcquireOutcome, Application, Cancel, Command, Effect, EntryContext, LocksCommand, Query, Reply,
    Response as CoreAnswer, Rules, WaitId, codec,
};
use holdfast_proto::internal::{Answer, AnswerFrame, Call, Deferred, NotLeader, answer::Outcome, call::Body};
use holdfast_rpc::{CallerId, Calls, Event, Server, ServerConnection};
use holdfast_testkit::core_shards::{CoreShards, TERM, outcome_of};
use holdfast_testkit::fake_node::Action;
use holdfast_testkit::subscriptions::{self, Subscriptions, subscription_of};
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedSender};

/// How often the shards expire due items.
const TICK: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub(super) struct TestNode {
    state: Arc<Mutex<State>>,
    connections: Arc<AtomicU64>,
}

struct State {
    shards: CoreShards,
    deferred: Vec<DeferredAcquire>,
    attempts: u64,
}

/// An acquire whose reply is deferred.
struct DeferredAcquire {
    reply_to: ReplyHandle,
    shard: String,
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
        let started = Instant::now();
        let shards = CoreShards::new(ShardMap::new(config.clone()).unwrap(), move || context_after(started));
        let state = State { shards, deferred: Vec::new(), attempts: 0 };
        let state = Arc::new(Mutex::new(state));
        tokio::spawn(run_clock(Arc::downgrade(&state)));
        Self { state, connections: Arc::default() }
    }

    fn serve_call(&self, call: &Call, from: ReplyHandle) {
        let mut state = self.state.lock();
        if let Some(Body::Command(bytes)) = &call.body {
            if call.term != TERM {
                from.answer(Outcome::NotLeader(NotLeader { leader: call.replica, term: TERM }), 0);
                return;
            }
            if call.max_wait_ms > 0
                && let Command::Locks(LocksCommand::Acquire(acquire)) = codec::decode(bytes).unwrap()
            {
                return state.acquire(call, acquire, from);
            }
        }
        let Action::Answer(outcome) = state.shards.serve(call) else { panic!("not asked in these tests: {call:?}") };
        state.resolve_waits();
        from.answer(outcome, 0);
    }
}

/// What an entry has that is proposed now.
fn context_after(started: Instant) -> EntryContext {
    let now_ms = u64::try_from(started.elapsed().as_millis()).unwrap();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    EntryContext { now_ms, wall_ms: u64::try_from(wall.as_millis()).unwrap(), rules: Rules::HIGHEST }
}

async fn run_clock(state: std::sync::Weak<Mutex<State>>) {
    let mut ticks = tokio::time::interval(TICK);
    while let Some(state) = state.upgrade() {
        state.lock().tick();
        ticks.tick().await;
    }
}

impl State {
    /// Applies a command to a shard, and replies to ended waits.
    fn execute(&mut self, shard: &str, command: &Command) -> Reply {
        let reply = self.shards.execute(shard, command);
        self.resolve_waits();
        reply
    }

    /// Expires due items, and replies to ended waits.
    fn tick(&mut self) {
        let context = self.shards.context();
        self.shards.first_shard(Application::Locks).advance(&context);
        self.resolve_waits();
        let now = Instant::now();
        let shard = self.shards.first_shard(Application::Locks);
        for over in self.deferred.extract_if(.., |waiting| waiting.poll_deadline <= now) {
            let query = Query::WaitStatus { namespace: over.acquire.namespace.clone(), wait: over.wait };
            let reply = shard.query(shard.clock_ms(), &query);
            over.reply_to.answer(outcome_of(&reply), over.acquire.attempt);
        }
    }

    fn resolve_waits(&mut self) {
        let shard = self.shards.first_shard(Application::Locks);
        let clock_ms = shard.clock_ms();
        for effect in shard.take_effects() {
            let Effect::WaitResolved { wait, outcome, locks, .. } = effect else { continue };
            let reply = Reply { outcome: Ok(CoreAnswer::Acquired { outcome, locks }), clock_ms, awaits: None };
            for told in self.deferred.extract_if(.., |waiting| waiting.wait == wait) {
                told.reply_to.answer(outcome_of(&reply), told.acquire.attempt);
            }
        }
    }

    fn acquire(&mut self, call: &Call, acquire: Acquire, reply_to: ReplyHandle) {
        self.attempts += 1;
        let acquire = Acquire { attempt: self.attempts, ..acquire };
        let shard = self.shards.shard_of(call);
        let reply = self.execute(&shard, &Command::Locks(LocksCommand::Acquire(acquire.clone())));
        let Ok(CoreAnswer::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) = &reply.outcome else {
            return reply_to.answer(outcome_of(&reply), acquire.attempt);
        };
        reply_to.answer(Outcome::Deferred(Deferred {}), 0);
        let poll_deadline = Instant::now() + Duration::from_millis(call.max_wait_ms.into());
        self.deferred.push(DeferredAcquire { reply_to, shard, acquire, wait: enqueued.wait, poll_deadline });
    }

    fn cancel(&mut self, connection: u64, id: u64) {
        let is_it =
            |waiting: &mut DeferredAcquire| waiting.reply_to.connection == connection && waiting.reply_to.id == id;
        let cancelled: Vec<DeferredAcquire> = self.deferred.extract_if(.., is_it).collect();
        for DeferredAcquire { reply_to, shard, acquire, .. } in cancelled {
            let Acquire { namespace, owner, request_id, claims, attempt, .. } = acquire;
            let cancel = Cancel { namespace, owner, request_id, claims, attempt };
            self.execute(&shard, &Command::Locks(LocksCommand::Cancel(cancel)));
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
                    let pages = subscriptions.answers(|_, subscribe| self.state.lock().shards.page(subscribe));
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
                    for id in frame.cancelled {
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
