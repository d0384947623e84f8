//! Test peers: nodes that speak the internal protocol over real sockets and do what the test tells them.
#![allow(missing_docs, clippy::disallowed_methods, reason = "a test peer")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use futures::stream;
use holdfast_auth::{ClusterSecret, ServiceVerifier};
use holdfast_cluster::ClusterConfig;
use holdfast_proto::internal::{Answer, AnswerFrame, Call, Deferred, NotLeader, answer, call};
use holdfast_rpc::{Acceptor, CallerId, Calls, Event, Incoming, Server, ServerConnection};
use holdfast_types::{Page, Reply, Response as CoreAnswer, Subscribe, codec};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::subscriptions::{self, Subscriptions, is_about_config, subscription_of};

/// What a node does with a call.
pub enum Action {
    Answer(answer::Outcome),
    /// Takes the call and says nothing.
    Silent,
    /// Takes the call and ends the connection.
    HangUp,
    /// Says these things one after the other, with that number of the attempt.
    Sequence(Vec<answer::Outcome>, u64),
    /// Says that it holds the answer back, and ends the connection.
    DeferAndHangUp,
    /// Serves the subscription with the pages of `on_page`.
    Publish,
}

type Script = Arc<dyn Fn(&Call) -> Action + Send + Sync>;
type OnPage = Arc<dyn Fn(u64, &Subscribe) -> Result<Page, answer::Outcome> + Send + Sync>;
type OnCancelled = Arc<dyn Fn(u64) -> Option<Answer> + Send + Sync>;

/// A call as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedCall {
    pub replica: u64,
    pub term: u64,
    pub is_command: bool,
}

#[derive(Clone)]
pub struct FakeNode {
    pub address: String,
    script: Arc<Mutex<Script>>,
    on_cancelled: Arc<Mutex<OnCancelled>>,
    on_page: Arc<Mutex<OnPage>>,
    received: Arc<Mutex<Vec<ReceivedCall>>>,
    /// How many calls came in each frame.
    pub frames: Arc<Mutex<Vec<usize>>>,
    /// Caller and number of each connection.
    pub connections: Arc<Mutex<Vec<(String, u64)>>>,
    /// The rules by which it says that its replicas go.
    pub rules: Arc<AtomicU32>,
    /// How many further pages its subscribers asked for.
    pub credits: Arc<AtomicUsize>,
    /// The same for the cluster config, which the gateway subscribes to by itself.
    pub config_credits: Arc<AtomicUsize>,
}

impl FakeNode {
    pub async fn start(secret: &ClusterSecret) -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.expect("a test peer on loopback with a config of its own making");
        let node = Self {
            address: listener
                .local_addr()
                .expect("a test peer on loopback with a config of its own making")
                .to_string(),
            script: Arc::new(Mutex::new(Arc::new(|_: &Call| Action::Silent))),
            on_cancelled: Arc::new(Mutex::new(Arc::new(|_| None))),
            on_page: Arc::new(Mutex::new(Arc::new(|_, subscribe| {
                Ok(Page::new::<()>(&[], subscribe.from.unwrap_or(1)))
            }))),
            received: Arc::default(),
            frames: Arc::default(),
            connections: Arc::default(),
            rules: Arc::new(AtomicU32::new(1)),
            credits: Arc::default(),
            config_credits: Arc::default(),
        };
        let acceptor = Acceptor::new(Arc::new(ServiceVerifier::new(secret)), Arc::default()).with(node.clone());
        serve_frames(listener, acceptor);
        node
    }

    /// What it says to a call, with that number of the attempt, and whether the connection goes on.
    fn act(&self, call: &Call, subscriptions: &mut Subscriptions) -> (Vec<answer::Outcome>, u64, bool) {
        let is_command = matches!(call.body, Some(call::Body::Command(_)));
        self.received.lock().push(ReceivedCall { replica: call.replica, term: call.term, is_command });
        let script = self.script.lock().clone();
        match script(call) {
            Action::Silent => (Vec::new(), 0, true),
            Action::HangUp => (Vec::new(), 0, false),
            Action::Answer(outcome) => (vec![outcome], 0, true),
            Action::Sequence(outcomes, attempt) => (outcomes, attempt, true),
            Action::DeferAndHangUp => (vec![deferred()], 0, false),
            Action::Publish => {
                subscriptions.open(call, subscription_of(call).expect("only a subscription is served with pages"));
                (Vec::new(), 0, true)
            }
        }
    }

    pub fn on_call(&self, script: impl Fn(&Call) -> Action + Send + Sync + 'static) {
        *self.script.lock() = Arc::new(script);
    }

    /// What it answers when a caller gives a call up.
    pub fn on_cancelled(&self, script: impl Fn(u64) -> Option<Answer> + Send + Sync + 'static) {
        *self.on_cancelled.lock() = Arc::new(script);
    }

    /// What is in the page of a replica that a subscriber asks for, or the last answer to the subscriber.
    pub fn on_page(&self, script: impl Fn(u64, &Subscribe) -> Result<Page, answer::Outcome> + Send + Sync + 'static) {
        *self.on_page.lock() = Arc::new(script);
    }

    /// Calls that were addressed to a term, without the questions who leads.
    pub fn addressed(&self) -> Vec<ReceivedCall> {
        self.received.lock().iter().filter(|seen| seen.term > 0 || !seen.is_command).cloned().collect()
    }

    pub fn probe_count(&self) -> usize {
        self.received.lock().iter().filter(|seen| seen.term == 0).count()
    }
}

impl Server<Calls> for FakeNode {
    async fn admit(&self, caller: &CallerId, (): &()) -> Result<(), String> {
        self.connections.lock().push((caller.name.clone(), caller.connection));
        Ok(())
    }

    async fn serve(&self, mut connection: ServerConnection<Calls>, (): ()) {
        let mut subscriptions = Subscriptions::default();
        let mut ticks = tokio::time::interval(subscriptions::TICK);
        loop {
            let event = tokio::select! {
                event = connection.next(true) => event,
                _ = ticks.tick() => {
                    let on_page = self.on_page.lock().clone();
                    for answer in subscriptions.answers(|replica, subscribe| on_page(replica, subscribe)) {
                        send(&mut connection, answer).await;
                    }
                    continue;
                }
            };
            let frame = match event {
                Ok(Event::Received(frame)) => frame,
                Ok(Event::Flushed) => continue,
                Err(_) => return,
            };
            let (about_config, calls): (Vec<Call>, Vec<Call>) = frame.calls.into_iter().partition(is_about_config);
            for call in about_config {
                subscriptions.open(&call, subscription_of(&call).expect("it is one"));
            }
            if !calls.is_empty() {
                self.frames.lock().push(calls.len());
            }
            for call in calls {
                let (outcomes, attempt, goes_on) = self.act(&call, &mut subscriptions);
                for outcome in outcomes {
                    let rules = self.rules.load(Ordering::Relaxed);
                    let answer = Answer { id: call.id, outcome: Some(outcome), attempt, rules };
                    send(&mut connection, answer).await;
                }
                if !goes_on {
                    return;
                }
            }
            for id in frame.credits {
                let credits = if subscriptions.credit(id) { &self.credits } else { &self.config_credits };
                credits.fetch_add(1, Ordering::SeqCst);
            }
            frame.cancelled.iter().for_each(|id| subscriptions.close(*id));
            let on_cancelled = self.on_cancelled.lock().clone();
            for answer in frame.cancelled.into_iter().filter_map(|id| on_cancelled(id)) {
                send(&mut connection, answer).await;
            }
        }
    }
}

/// Serves connections of frames, and answers no HTTP.
pub fn serve_frames(listener: TcpListener, acceptor: Acceptor) {
    let accepting = stream::unfold(listener, |listener| async {
        let (stream, _) = listener.accept().await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some((Incoming { stream: Box::new(stream), peer: (), has_cert: true, counted: None }, listener))
    });
    tokio::spawn(Arc::new(acceptor).serve(accepting, |_, ()| async {}));
}

/// Sends one answer in a frame. The gateway may be gone.
async fn send(connection: &mut ServerConnection<Calls>, answer: Answer) {
    let _ = connection.send(AnswerFrame { answers: vec![answer] });
    let _ = connection.flush().await;
}

pub fn not_leader(leader: u64, term: u64) -> Action {
    Action::Answer(answer::Outcome::NotLeader(NotLeader { leader, term }))
}

pub fn not_proposed() -> Action {
    Action::Answer(answer::Outcome::NotProposed("the queue is full".to_owned()))
}

pub fn deferred() -> answer::Outcome {
    answer::Outcome::Deferred(Deferred {})
}

pub fn unknown() -> Action {
    Action::Answer(answer::Outcome::Unknown("leadership was lost".to_owned()))
}

pub fn done_reply() -> Reply {
    Reply { outcome: Ok(CoreAnswer::Done), clock_ms: 7, awaits: None }
}

pub fn done() -> Action {
    Action::Answer(answer::Outcome::Reply(codec::encode(&done_reply()).into()))
}

/// What a replica does that leads in `term`: commands of that term and queries are done, else it names itself.
pub fn leads(call: &Call, replica: u64, term: u64) -> Action {
    let is_query = matches!(call.body, Some(call::Body::Query(_)));
    if is_query || call.term == term { done() } else { not_leader(replica, term) }
}

/// A config of these nodes with one locks shard, and a group for each application if there are enough nodes.
pub fn config_of(nodes: &[FakeNode]) -> ClusterConfig {
    let named = nodes.iter().enumerate().map(|(index, node)| (format!("nd_{}", index + 1), node.address.clone()));
    ClusterConfig::generate(
        named.collect(),
        1,
        u32::try_from(nodes.len()).expect("a test peer on loopback with a config of its own making"),
    )
    .expect("a test peer on loopback with a config of its own making")
}
