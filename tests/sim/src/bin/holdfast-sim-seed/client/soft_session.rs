//! A connected session, as its client keeps it: the requests and what they hold, over all connections, and for how long
//! the client counts on the session. Its locks are in the memory of a leader, or in the log.

mod messages;

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::session_message::{
    ClientMessage, ClientPayload, GrantedLock, Lock, LockInfo, Open, Pending, QueueTicket, Release, ServerMessage,
};
use holdfast_api::{Code, Resource};
use holdfast_backend::CallContext;
use holdfast_backend::session::{ConnectionOptions, Outbound, SessionReceiver, SessionSender};
use holdfast_core::{Claim, FencingToken, Metadata, Path, Receipt, ReportedHold, Revision};
use tokio::time::timeout;

use super::stream_gateway::StreamGateway;
use crate::ask_calls::{AskOp, ObservedAsk, call_of_reason};
use crate::history::Op;
use crate::things::ThingOp;
use crate::told_log::{Connected, Told, What};
use crate::world::{Tenant, World, now};

/// The namespace of tenants with such sessions.
pub(crate) const SOFT_NAMESPACE: &str = "soft";
/// How long a client waits for its session on a new connection. The opening waits for the epoch of the leader.
const OPEN_PATIENCE: Duration = Duration::from_millis(1_500);

/// Before a message is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// A connection.
struct Link {
    to: SessionSender,
    from: SessionReceiver,
    seq: u64,
    /// When the keep-alives without an answer were sent.
    keep_alives: VecDeque<Duration>,
}

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestState {
    Waits,
    Holds(FencingToken),
    /// It was released, and there is no answer yet.
    Ends,
}

struct Request {
    claims: Vec<Claim>,
    only_try: bool,
    asked_at: Duration,
    state: RequestState,
    /// All that it was granted, with its receipt.
    granted: Option<GrantedLock>,
    /// Its last place, with the receipt of that.
    place: Option<QueueTicket>,
}

/// The terms of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct SoftTerms {
    pub(super) ttl: Duration,
    pub(super) transition: Duration,
}

/// The client's side of a session.
pub(super) struct SoftSession {
    world: Arc<World>,
    gateway: Arc<StreamGateway>,
    tenant: Tenant,
    namespace: &'static str,
    process: String,
    terms: SoftTerms,
    /// Absent before it is opened and when it is over, and the epoch in which it was opened.
    opened: Option<(String, Option<Revision>)>,
    link: Option<Link>,
    /// The same connection once its session was opened; it has not ended.
    connected: Option<Connected>,
    requests: BTreeMap<String, Request>,
    asked: usize,
    /// The requests whose locks somebody asks for, since this was last taken.
    wanted: Vec<String>,
}

impl SoftSession {
    pub(super) fn new(
        world: Arc<World>,
        gateway: Arc<StreamGateway>,
        (tenant, namespace): (Tenant, &'static str),
        process: String,
        terms: SoftTerms,
    ) -> Self {
        let (opened, link, connected, requests, wanted) = (None, None, None, BTreeMap::new(), Vec::new());
        Self { world, gateway, tenant, namespace, process, terms, opened, link, connected, requests, asked: 0, wanted }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn request_count(&self) -> usize {
        self.requests.len()
    }

    /// Whether a request holds what it asked for.
    pub(super) fn holds(&self, request_id: &str) -> bool {
        self.requests.get(request_id).is_some_and(|request| matches!(request.state, RequestState::Holds(_)))
    }

    /// Whether a request is about a lock, or one above or below it.
    pub(super) fn has_asked_for(&self, path: &Path) -> bool {
        self.requests.values().flat_map(|request| &request.claims).any(|claim| !is_apart(&claim.path, path))
    }

    /// The requests that were not released.
    pub(super) fn live_requests(&self) -> Vec<String> {
        let live = self.requests.iter().filter(|(_, request)| request.state != RequestState::Ends);
        live.map(|(request_id, _)| request_id.clone()).collect()
    }

    /// Opens the session, or resumes it and lists what it has. Returns whether it is connected.
    pub(super) async fn connect(&mut self, terms: SoftTerms) -> bool {
        if self.opened.is_none() {
            self.terms = terms;
        }
        let service = self.gateway.service();
        let context = CallContext::new("soft session").with_timeout(OPEN_PATIENCE);
        let Ok(caller) = service.authenticate(Some(&self.tenant.api_key), &context).await else { return false };
        let (to, from) = service.connect(caller, ConnectionOptions::default());
        let mut link = Link { to, from, seq: 0, keep_alives: VecDeque::new() };
        let session_id = self.opened.as_ref().map(|(session_id, _)| session_id.clone());
        let open = Open {
            namespace: self.namespace.to_owned(),
            session_id,
            process_id: self.process.clone(),
            ttl_ms: self.terms.ttl.as_millis() as u64,
            metadata: Metadata::new(),
            keeps_table: true,
            transition_ms: self.terms.transition.as_millis() as u64,
        };
        let sent = time();
        link.send(ClientPayload::Open(open)).await;
        let Ok(Outbound::Message(answer)) = timeout(OPEN_PATIENCE, link.from.next()).await else { return false };
        match answer {
            ServerMessage::Opened { session_id, resumed, table_epoch, .. } => {
                self.link = Some(link);
                self.on_opened(session_id, resumed, table_epoch, sent).await
            }
            ServerMessage::Error { error, .. } => {
                self.expect_code(error.code, &format!("it opens a session: {error:?}"));
                if error.code == Code::SessionNotFound {
                    self.expect_over("its session is gone");
                    self.forget();
                }
                false
            }
            _ => false,
        }
    }

    async fn on_opened(
        &mut self,
        session_id: String,
        resumed: bool,
        table_epoch: Option<Revision>,
        sent: Duration,
    ) -> bool {
        let SoftTerms { ttl, transition } = self.terms;
        let known = self.opened.clone();
        if resumed != known.is_some() || known.as_ref().is_some_and(|(known, _)| *known != session_id) {
            self.violated(&format!("it has {known:?} and gets {session_id}, resumed: {resumed}"));
        }
        let opened_in = known.map_or(table_epoch, |(_, epoch)| epoch);
        // A resume at a later leader does not count as a keep-alive.
        if !resumed || opened_in == table_epoch {
            self.world.claims.lives(&session_id, sent, ttl, transition);
        }
        let listed = self.requests.values().filter_map(|request| match request.state {
            RequestState::Holds(token) => Some(token),
            _ => None,
        });
        let (from, listed) = (time(), listed.collect());
        self.connected = Some(Connected { session: session_id.clone(), from, until: from, listed });
        self.opened = Some((session_id, opened_in));
        if resumed {
            let info = self.lock_info();
            self.record(&format!("resumes with {info:?}"));
            self.send(ClientPayload::LockInfo(info)).await;
        }
        self.keep_alive().await;
        true
    }

    fn lock_info(&self) -> LockInfo {
        let mut info = LockInfo::default();
        for (request_id, request) in &self.requests {
            match request.state {
                RequestState::Waits => {
                    info.pending.push(Pending::Lock(request.message(request_id)));
                    info.places.extend(request.place.map(|place| (request_id.clone(), place)));
                }
                RequestState::Ends => info.pending.push(Pending::Release(release_of(request_id))),
                RequestState::Holds(fencing_token) => {
                    let holds = request.claims.iter().map(|claim| ReportedHold {
                        path: claim.path.clone(),
                        mode: claim.mode,
                        fencing_token,
                    });
                    info.held.extend(holds);
                    info.granted.extend(request.granted.clone());
                }
            }
        }
        info
    }

    /// Leaves the connection without a word.
    pub(super) fn disconnect(&mut self) {
        self.link = None;
        if let Some(connected) = self.connected.take().filter(|_| self.namespace != SOFT_NAMESPACE) {
            self.world.told.add_connection(Connected { until: time(), ..connected });
        }
    }

    /// Forgets the session: it is over, or left to itself.
    pub(super) fn forget(&mut self) {
        self.disconnect();
        self.opened = None;
        self.requests.clear();
    }

    /// Forgets the session when its client does not count on it any more. Returns whether it does.
    pub(super) fn check_life(&mut self) -> bool {
        let counts = |(session_id, _): &(String, _)| self.world.claims.counts(session_id, time());
        let is_over = self.opened.as_ref().is_some_and(|opened| !counts(opened));
        if is_over {
            self.record("counts on its session no more");
            self.forget();
        }
        !is_over
    }

    pub(super) async fn keep_alive(&mut self) {
        let sent = time();
        if let Some(link) = &mut self.link {
            link.keep_alives.push_back(sent);
        }
        self.send(ClientPayload::KeepAlive).await;
    }

    /// Asks for locks. Returns the name of the request.
    pub(super) async fn lock(&mut self, claims: Vec<Claim>, only_try: bool) -> String {
        self.asked += 1;
        let request_id = format!("r{}", self.asked);
        self.record(&format!("asks for {claims:?} as {request_id}"));
        let (state, granted, place) = (RequestState::Waits, None, None);
        let request = Request { claims, only_try, asked_at: time(), state, granted, place };
        let message = request.message(&request_id);
        self.requests.insert(request_id.clone(), request);
        self.send(ClientPayload::Lock(message)).await;
        request_id
    }

    /// Ends a request: from now on its client claims nothing of it.
    pub(super) async fn release(&mut self, request_id: &str) {
        let Some(request) = self.requests.get_mut(request_id) else { return };
        request.state = RequestState::Ends;
        if let Some((session_id, _)) = &self.opened {
            self.world.claims.release(session_id, request_id);
        }
        self.send(ClientPayload::Release(release_of(request_id))).await;
    }

    pub(super) async fn release_all(&mut self) {
        self.requests.clear();
        if let Some((session_id, _)) = &self.opened {
            self.world.claims.give_all_up(session_id);
        }
        self.send(ClientPayload::ReleaseAll).await;
    }

    /// Ends the session.
    pub(super) async fn close(&mut self) {
        if let Some((session_id, _)) = &self.opened {
            self.world.claims.close(session_id);
        }
        self.send(ClientPayload::Close).await;
        self.forget();
    }

    async fn send(&mut self, payload: ClientPayload) {
        if let Some(link) = &mut self.link {
            link.send(payload).await;
        }
    }

    /// Returns the next message; nothing without a connection. Cancel-safe.
    pub(super) async fn next(&mut self) -> Outbound {
        match &mut self.link {
            Some(link) => link.from.next().await,
            None => pending().await,
        }
    }

    pub(super) async fn on_outbound(&mut self, message: Outbound) {
        match message {
            Outbound::End(reason) => {
                self.record(&format!("is disconnected: {reason:?}"));
                self.disconnect();
            }
            Outbound::Message(message) => self.on_message(message).await,
        }
    }

    /// Returns the session and one of its holds.
    pub(super) fn one_hold(&self, number: usize) -> Option<(String, Path, FencingToken)> {
        let (session, _) = self.opened.clone()?;
        let (path, token) = self.world.claims.hold_of(&session, number)?;
        Some((session, path, token))
    }

    /// Somebody asks for a hold.
    fn hear_of_ask(&mut self, path: &Path, token: FencingToken, asked: &ObservedAsk) {
        self.record(&format!("is asked for {path:?} with {token}: {asked:?}"));
        let call = call_of_reason(&asked.reason);
        let op = match call.and_then(|call| self.world.history.op(call)) {
            Some(Op::Thing(ThingOp::Ask(op))) => Some(op),
            _ => None,
        };
        // A hold that an earlier request ends by force shows that with each later one.
        let is_meant = |op: &AskOp| {
            op.concerns_lock(path) && op.shown_within_ms() == asked.within_ms && (asked.force || !op.force)
        };
        // Without room for its texts, one with force is kept without them.
        let has_text = !asked.force || !asked.reason.is_empty();
        if has_text && !op.as_ref().is_some_and(is_meant) {
            self.violated(&format!("it is asked for {path:?} with {token} by {asked:?}, which is {op:?}"));
        }
        if let Some(call) = call {
            let (within_ms, force) = (asked.within_ms, asked.force);
            self.was_told(&path.0, token, What::Asked { call, within_ms, force });
        }
        for (request_id, request) in &self.requests {
            let RequestState::Holds(own) = request.state else { continue };
            if request.claims.iter().all(|claim| claim.path != *path) {
                continue;
            }
            if own != token {
                self.violated(&format!("{request_id} holds {path:?} with {own} and is asked for {token}"));
            }
            self.wanted.push(request_id.clone());
        }
    }

    /// Returns the requests whose locks somebody asks for.
    pub(super) fn take_wanted(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wanted)
    }

    /// Notes what has to be in the log. Nothing is there of locks in the memory of a leader.
    fn was_told(&self, path: &[String], token: FencingToken, what: What) {
        if self.namespace != SOFT_NAMESPACE {
            let (account, namespace, path) = (self.tenant.account, self.namespace, Path(path.to_vec()));
            self.world.told.add(Told { account, namespace, path, token, what });
        }
    }

    /// Only these go wrong here.
    fn expect_code(&self, code: Code, what: &str) {
        let is_full = code == Code::QuotaExceeded && self.world.plan.bounds.is_some();
        if !(is_full || matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::SessionNotFound)) {
            self.violated(what);
        }
    }

    fn record(&self, what: &str) {
        let session = self.opened.as_ref().map(|(session_id, _)| session_id);
        self.world.record(format!("{} of {session:?} {what}", self.process));
    }

    fn violated(&self, what: &str) {
        let session = self.opened.as_ref().map(|(session_id, _)| session_id);
        self.world.record_violation(format!("[soft sessions] {} of {session:?}: {what}", self.process));
    }
}

impl Link {
    async fn send(&mut self, payload: ClientPayload) {
        self.seq += 1;
        // Whether it arrives shows in what comes back.
        let _ = self.to.send(ClientMessage { seq: self.seq, payload }).await;
    }
}

impl Request {
    fn shown(&self, request_id: &str, fencing_token: FencingToken, receipt: Receipt) -> GrantedLock {
        let hold = |claim: &Claim| ReportedHold { path: claim.path.clone(), mode: claim.mode, fencing_token };
        let resources = self.claims.iter().map(hold).collect();
        GrantedLock { request_id: request_id.to_owned(), holder: None, resources, receipt }
    }

    fn message(&self, request_id: &str) -> Lock {
        let resource = |claim: &Claim| Resource { path: claim.path.0.clone(), mode: claim.mode };
        Lock {
            request_id: request_id.to_owned(),
            resources: self.claims.iter().map(resource).collect(),
            holder: None,
            transition_ms: 0,
            at_least_ms: 0,
            metadata: Metadata::new(),
            allow_upgrade: false,
            only_try: self.only_try,
        }
    }
}

/// Whether neither lock is part of the other.
pub(super) fn is_apart(one: &Path, other: &Path) -> bool {
    !one.0.starts_with(&other.0) && !other.0.starts_with(&one.0)
}

fn release_of(request_id: &str) -> Release {
    Release { request_id: request_id.to_owned(), unheard: false }
}

fn time() -> Duration {
    now().unwrap_or_default()
}
