//! A test peer: one node that leads the only group and runs the real state machines, without Raft or storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_api::{CreateAccount, CreateApiKey};
use holdfast_auth::{ClusterSecret, OperatorToken};
use holdfast_cluster::{ClusterConfig, ShardMap};
use holdfast_core::{
    Application, Command, CommandError, EntryContext, KeepAliveOutcome, LocksCommand, Query, Reply, Response, Rules,
    Subscribe, TableCommand, TableReport, Topic, codec,
};
use holdfast_proto::internal::{Call, answer, call};
use holdfast_testkit::core_shards::{CoreShards, TERM, application_of, outcome_of};
use holdfast_testkit::fake_node::{Action, FakeNode, config_of, not_leader};
use holdfast_testkit::subscriptions::subscription_of;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{AuthContext, Backend, BackendOptions, CallContext, Service};

/// The epoch of the leader that takes reports.
pub(super) const NEXT_EPOCH: u64 = 1 << 30;
/// The wall clock of every entry.
pub(super) const WALL_MS: u64 = 1_700_000_000_000;

/// A gateway on one node, and its operator.
pub(super) struct TestGateway {
    pub(super) service: Service,
    pub(super) node: FakeNode,
    pub(super) operator_token: OperatorToken,
    pub(super) secret: ClusterSecret,
    pub(super) config: ClusterConfig,
    shards: Arc<Mutex<CoreShards>>,
    clock_ms: Arc<AtomicU64>,
}

impl TestGateway {
    pub(super) async fn start() -> Self {
        let secret = ClusterSecret::generate().unwrap();
        let operator_token = OperatorToken::generate().unwrap();
        let node = FakeNode::start(&secret).await;
        let config = config_of(std::slice::from_ref(&node));
        let clock_ms = Arc::new(AtomicU64::new(1_000));
        let clock = clock_ms.clone();
        let now =
            move || EntryContext { now_ms: clock.load(Ordering::SeqCst), wall_ms: WALL_MS, rules: Rules::HIGHEST };
        let shards = Arc::new(Mutex::new(CoreShards::new(ShardMap::new(config.clone()).unwrap(), now)));
        let (running, publishing) = (shards.clone(), shards.clone());
        node.rules.store(Rules::HIGHEST.0.into(), Ordering::Relaxed);
        node.on_call(as_leader(move |call| running.lock().serve(call)));
        node.on_page(move |_, subscribe| publishing.lock().page(subscribe));
        let service = start(&config, &secret, &operator_token);
        Self { service, node, operator_token, secret, config, shards, clock_ms }
    }

    /// Starts another gateway of the same cluster.
    pub(super) fn another_gateway(&self) -> Service {
        start(&self.config, &self.secret, &self.operator_token)
    }

    /// Advances the shard clocks; due items end with the next command.
    pub(super) fn advance_clock(&self, ms: u64) {
        self.clock_ms.fetch_add(ms, Ordering::SeqCst);
        self.shards.lock().advance_all();
    }

    /// Delays every following reply about locks by this much after it is made, while the shard clocks advance.
    pub(super) fn delay_lock_answers(&self, by: Duration) {
        let (running, clock_ms) = (self.shards.clone(), self.clock_ms.clone());
        let by_ms = u64::try_from(by.as_millis()).unwrap();
        self.on_call(move |call| {
            let mut shards = running.lock();
            let act = shards.serve(call);
            if application_of(call) == Application::Locks {
                wait_artificial_delay(by);
                clock_ms.fetch_add(by_ms, Ordering::SeqCst);
            }
            act
        });
    }

    /// Pauses or resumes the delivery of the shards' outboxes.
    pub(super) fn set_outboxes_paused(&self, are_kept: bool) {
        let mut shards = self.shards.lock();
        shards.outboxes_paused = are_kept;
        shards.deliver_all();
    }

    /// Drops the matching queries from now on; all other calls still get replies.
    pub(super) fn drop_queries(&self, drops: impl Fn(&Query) -> bool + Send + Sync + 'static) {
        let running = self.shards.clone();
        self.on_call(move |call| match &call.body {
            Some(call::Body::Query(bytes)) if codec::decode(bytes).is_ok_and(|query| drops(&query)) => Action::Silent,
            _ => running.lock().serve(call),
        });
    }

    /// Counts the matching queries from now on.
    pub(super) fn count_queries(&self, counts: impl Fn(&Query) -> bool + Send + Sync + 'static) -> Arc<AtomicU64> {
        self.count_calls(move |call| match &call.body {
            Some(call::Body::Query(bytes)) => codec::decode(bytes).is_ok_and(|query| counts(&query)),
            _ => false,
        })
    }

    /// Counts subscriptions to events from now on.
    pub(super) fn count_event_subscriptions(&self) -> Arc<AtomicU64> {
        let is_one = |subscribe: Subscribe| matches!(subscribe.topic, Topic::Events { .. });
        self.count_calls(move |call| subscription_of(call).is_some_and(is_one))
    }

    /// Counts subscriptions to sessions from now on.
    pub(super) fn count_session_subscriptions(&self) -> Arc<AtomicU64> {
        let is_one = |subscribe: Subscribe| matches!(subscribe.topic, Topic::Session { .. });
        self.count_calls(move |call| subscription_of(call).is_some_and(is_one))
    }

    /// Takes the next command about locks for a copy, and proposes none after it.
    pub(super) fn ignore_next_lock_command(&self) {
        let (running, is_next) = (self.shards.clone(), AtomicBool::new(true));
        self.on_call(move |call| match call.body {
            Some(call::Body::Command(_)) if application_of(call) == Application::Locks => {
                if is_next.swap(false, Ordering::SeqCst) {
                    return answer_with(Ok(Response::Ignored));
                }
                Action::Answer(answer::Outcome::NotProposed("the queue is full".to_owned()))
            }
            _ => running.lock().serve(call),
        });
    }

    /// Takes the next matching command for a copy. Serves all others.
    pub(super) fn ignore_next(&self, is_it: impl Fn(&LocksCommand) -> bool + Send + Sync + 'static) {
        let (running, is_next) = (self.shards.clone(), AtomicBool::new(true));
        let matches = move |bytes: &[u8]| match codec::decode(bytes) {
            Ok(Command::Locks(command)) => is_it(&command),
            _ => false,
        };
        self.on_call(move |call| match &call.body {
            Some(call::Body::Command(bytes)) if matches(bytes) && is_next.swap(false, Ordering::SeqCst) => {
                answer_with(Ok(Response::Ignored))
            }
            _ => running.lock().serve(call),
        });
    }

    /// From now on, opens sessions of a lock table in memory. Until that table is complete, decides no acquire of these
    /// sessions, and compares no list. Returns the number of lists that were not compared.
    pub(super) fn serve_as_table(&self, is_complete: &Arc<AtomicBool>) -> watch::Receiver<u64> {
        let (running, is_complete) = (self.shards.clone(), Arc::clone(is_complete));
        let (refused, lists) = watch::channel(0);
        self.on_call(move |call| {
            let mut shards = running.lock();
            match &call.body {
                Some(call::Body::Command(bytes)) if application_of(call) == Application::Locks => {
                    let Ok(Command::Locks(command)) = codec::decode(bytes) else { return shards.serve(call) };
                    let is_complete = is_complete.load(Ordering::SeqCst);
                    if !is_complete && matches!(command, LocksCommand::LockInfo(_) | LocksCommand::LockInfoPart(_)) {
                        refused.send_modify(|count| *count += 1);
                    }
                    let reply = serve_table(&mut shards, call, &command, is_complete);
                    Action::Answer(outcome_of(&reply))
                }
                _ => shards.serve(call),
            }
        });
        lists
    }

    /// As [`Self::serve_as_table`] of a complete table, but subscriptions to sessions begin later, and no query what a
    /// session holds is answered before the other moment. Counts both.
    pub(super) fn reconcile_late(
        &self,
        begins: &Arc<AtomicBool>,
        answers: &Arc<AtomicBool>,
    ) -> (Arc<AtomicU64>, watch::Receiver<u64>) {
        let (running, begins, answers) = (self.shards.clone(), Arc::clone(begins), Arc::clone(answers));
        let (subscriptions, (queries, asked)) = (Arc::<AtomicU64>::default(), watch::channel(0));
        let counted = Arc::clone(&subscriptions);
        self.on_call(move |call| {
            let mut shards = running.lock();
            let is_session = |subscribe: Subscribe| matches!(subscribe.topic, Topic::Session { .. });
            match &call.body {
                Some(call::Body::Command(bytes)) if application_of(call) == Application::Locks => {
                    let Ok(Command::Locks(command)) = codec::decode(bytes) else { return shards.serve(call) };
                    let reply = serve_table(&mut shards, call, &command, true);
                    return Action::Answer(outcome_of(&reply));
                }
                Some(call::Body::Query(bytes)) => {
                    if matches!(codec::decode(bytes), Ok(Query::ReconcileHolds { .. })) {
                        queries.send_modify(|count| *count += 1);
                        if !answers.load(Ordering::SeqCst) {
                            return answer_with(Err(CommandError::Busy("the table is not complete".to_owned())));
                        }
                    }
                }
                _ if subscription_of(call).is_some_and(is_session) => {
                    if !begins.load(Ordering::SeqCst) {
                        return Action::Answer(answer::Outcome::NotProposed("not yet".to_owned()));
                    }
                    subscriptions.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
            shards.serve(call)
        });
        (counted, asked)
    }

    /// From now on, opens sessions of a lock table in memory. While the flag is set, the leader has a later epoch and
    /// accepts nothing of a session before its report; the report is kept. The first leader may end as soon as it has
    /// compared a list.
    pub(super) fn serve_as_leaders(
        &self,
        is_next: &Arc<AtomicBool>,
        ends_with_list: bool,
    ) -> Arc<Mutex<Vec<TableReport>>> {
        let (running, is_next) = (self.shards.clone(), Arc::clone(is_next));
        let reports = Arc::<Mutex<Vec<TableReport>>>::default();
        let taken = Arc::clone(&reports);
        self.on_call(move |call| {
            let mut shards = running.lock();
            let Some(call::Body::Command(bytes)) = &call.body else { return shards.serve(call) };
            let Ok(Command::Locks(command)) = codec::decode(bytes) else { return shards.serve(call) };
            let outcome = match command {
                LocksCommand::Table(TableCommand::Report(report)) => {
                    is_next.store(false, Ordering::SeqCst);
                    taken.lock().push(report);
                    Ok(Response::Done)
                }
                LocksCommand::Session(_)
                | LocksCommand::Release(_)
                | LocksCommand::LockInfo(_)
                | LocksCommand::LockInfoPart(_)
                    if is_next.load(Ordering::SeqCst) =>
                {
                    Err(CommandError::Unreported { table_epoch: NEXT_EPOCH })
                }
                LocksCommand::Batch(commands) if is_next.load(Ordering::SeqCst) => {
                    let unreported = Err(CommandError::Unreported { table_epoch: NEXT_EPOCH });
                    Ok(Response::Batch(vec![unreported; commands.len()]))
                }
                command => {
                    let reply = serve_table(&mut shards, call, &command, true);
                    if ends_with_list && matches!(command, LocksCommand::LockInfo(_)) {
                        is_next.store(true, Ordering::SeqCst);
                    }
                    return Action::Answer(outcome_of(&reply));
                }
            };
            let reply = Reply { outcome, clock_ms: shards.clock_ms(), awaits: None };
            Action::Answer(outcome_of(&reply))
        });
        reports
    }

    /// From now on, opens sessions of a lock table in memory. While the flag is set, their leader takes reports and
    /// asks for them again at each keep-alive, as a leader does whose epoch has not begun. Returns when reports came.
    pub(super) fn request_reports_again(&self, asks: &Arc<AtomicBool>) -> watch::Receiver<Vec<Instant>> {
        let (running, asks) = (self.shards.clone(), Arc::clone(asks));
        let (taken, reports) = watch::channel(Vec::new());
        self.on_call(move |call| {
            let mut shards = running.lock();
            let outcome = match &call.body {
                Some(call::Body::Command(bytes)) if application_of(call) == Application::Locks => {
                    match codec::decode(bytes) {
                        Ok(Command::Locks(LocksCommand::Table(TableCommand::Report(_)))) => {
                            taken.send_modify(|times| times.push(Instant::now()));
                            Ok(Response::Done)
                        }
                        Ok(Command::Locks(command)) => {
                            let reply = serve_table(&mut shards, call, &command, true);
                            return Action::Answer(outcome_of(&reply));
                        }
                        _ => return shards.serve(call),
                    }
                }
                Some(call::Body::Query(bytes)) if asks.load(Ordering::SeqCst) => match codec::decode(bytes) {
                    Ok(Query::KeepAlives { sessions }) => {
                        let unreported = CommandError::Unreported { table_epoch: NEXT_EPOCH };
                        Ok(Response::KeptAlive(vec![KeepAliveOutcome::Rejected(unreported); sessions.len()]))
                    }
                    _ => return shards.serve(call),
                },
                _ => return shards.serve(call),
            };
            let reply = Reply { outcome, clock_ms: shards.clock_ms(), awaits: None };
            Action::Answer(outcome_of(&reply))
        });
        reports
    }

    /// Acts on every call as told; the closure serves it.
    pub(super) fn intercept(&self, acts: impl Fn(&Call, &dyn Fn() -> Action) -> Action + Send + Sync + 'static) {
        let running = self.shards.clone();
        self.on_call(move |call| acts(call, &|| running.lock().serve(call)));
    }

    fn on_call(&self, script: impl Fn(&Call) -> Action + Send + Sync + 'static) {
        self.node.on_call(as_leader(script));
    }

    fn count_calls(&self, counts: impl Fn(&Call) -> bool + Send + Sync + 'static) -> Arc<AtomicU64> {
        let (running, count) = (self.shards.clone(), Arc::<AtomicU64>::default());
        let counting = count.clone();
        self.on_call(move |call| {
            if counts(call) {
                counting.fetch_add(1, Ordering::SeqCst);
            }
            running.lock().serve(call)
        });
        count
    }

    pub(super) async fn operator(&self) -> AuthContext {
        self.service.authenticate(Some(self.operator_token.reveal().expose()), &context()).await.unwrap()
    }

    /// Creates an account and returns its id.
    pub(super) async fn account(&self, email: &str) -> String {
        let request = CreateAccount { email: email.into(), full_name: "A".into(), max_number_of_namespaces: None };
        self.service.create_account(&self.operator().await, &context(), request).await.unwrap().id
    }

    /// Returns a caller with a new key that the operator created.
    pub(super) async fn caller(&self, account: &str, request: CreateApiKey) -> AuthContext {
        let operator = self.operator().await;
        let made = self.service.create_api_key(&operator, &context(), Some(account), request).await.unwrap();
        self.service.authenticate(Some(&made.api_key), &context()).await.unwrap()
    }

    /// Returns a tenant with all scopes.
    pub(super) async fn tenant(&self, email: &str) -> AuthContext {
        let account = self.account(email).await;
        self.caller(&account, CreateApiKey::default()).await
    }
}

fn start(config: &ClusterConfig, secret: &ClusterSecret, operator_token: &OperatorToken) -> Service {
    Backend::start(BackendOptions::new(config.clone(), secret.clone(), operator_token, "gateway test")).unwrap()
}

pub(super) fn context() -> CallContext {
    CallContext::new("test")
}

/// Answers a call with that outcome, at the beginning of the shard clock.
pub(super) fn answer_with(outcome: Result<Response, CommandError>) -> Action {
    let reply = Reply { outcome, clock_ms: 0, awaits: None };
    Action::Answer(outcome_of(&reply))
}

/// A leader applies no command of another term. Routers send such ones to hear by which rules it goes.
fn as_leader(script: impl Fn(&Call) -> Action) -> impl Fn(&Call) -> Action {
    move |call| match call.body {
        Some(call::Body::Command(_)) if call.term != TERM => not_leader(call.replica, TERM),
        _ => script(call),
    }
}

/// What a leader replies that has the lock table in memory.
fn serve_table(shards: &mut CoreShards, call: &Call, command: &LocksCommand, is_complete: bool) -> Reply {
    let shard = shards.shard_of(call);
    let mut decide = |command: &LocksCommand| match command {
        LocksCommand::Session(asked) if asked.as_acquire().is_some() && !is_complete => {
            Err(CommandError::Busy("the table is not complete".to_owned()))
        }
        LocksCommand::LockInfo(_) | LocksCommand::LockInfoPart(_) if !is_complete => {
            Err(CommandError::Busy("the table is not complete".to_owned()))
        }
        command => match shards.apply(&shard, &Command::Locks(command.clone())).outcome {
            Ok(Response::SessionOpened { session, resumed }) => {
                Ok(Response::TableSessionOpened { session, resumed, table_epoch: 1 })
            }
            outcome => outcome,
        },
    };
    let outcome = match command {
        LocksCommand::Batch(commands) => Ok(Response::Batch(commands.iter().map(decide).collect())),
        command => decide(command),
    };
    Reply { outcome, clock_ms: shards.clock_ms(), awaits: None }
}

/// The delay itself is under test.
fn wait_artificial_delay(by: Duration) {
    std::thread::sleep(by);
}
