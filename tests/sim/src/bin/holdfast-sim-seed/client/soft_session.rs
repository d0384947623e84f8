//! A connected session whose locks are in the memory of a leader, as its client keeps it: the requests and what they
//! hold, over all connections, and for how long the client counts on the session.

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
use holdfast_core::{Claim, FencingToken, Metadata, Path, Receipt, ReportedHold, Revision, RevokedReason};
use tokio::time::{sleep, timeout};

use super::stream_gateway::StreamGateway;
use crate::soft_claims::Grant;
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
    process: String,
    terms: SoftTerms,
    /// Absent before it is opened and when it is over, and the epoch in which it was opened.
    opened: Option<(String, Option<Revision>)>,
    link: Option<Link>,
    requests: BTreeMap<String, Request>,
    asked: usize,
}

impl SoftSession {
    pub(super) fn new(
        world: Arc<World>,
        gateway: Arc<StreamGateway>,
        tenant: Tenant,
        process: String,
        terms: SoftTerms,
    ) -> Self {
        let (opened, link, requests) = (None, None, BTreeMap::new());
        Self { world, gateway, tenant, process, terms, opened, link, requests, asked: 0 }
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
            namespace: SOFT_NAMESPACE.to_owned(),
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
        // A resume at a later leader is no sign of life.
        if !resumed || opened_in == table_epoch {
            self.world.claims.lives(&session_id, sent, ttl, transition);
        }
        self.opened = Some((session_id, opened_in));
        if resumed {
            let info = self.lock_info();
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
    }

    /// Forgets the session: it is over, or left to itself.
    pub(super) fn forget(&mut self) {
        (self.link, self.opened) = (None, None);
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
            Outbound::End(_) => self.link = None,
            Outbound::Message(message) => self.on_message(message).await,
        }
    }

    fn is_ending(&self, request_id: &str) -> bool {
        self.requests.get(request_id).is_some_and(|request| request.state == RequestState::Ends)
    }

    async fn on_message(&mut self, message: ServerMessage) {
        match message {
            ServerMessage::Acquired { request_id, fencing_token, receipt, .. } => {
                self.take(&request_id, fencing_token, receipt);
            }
            ServerMessage::Enqueued { request_id, place: Some(place), .. } => {
                if let Some(request) = self.requests.get_mut(&request_id) {
                    request.place = Some(place);
                }
            }
            ServerMessage::Refused { request_id, .. } => {
                if self.holds(&request_id) {
                    self.violated(&format!("{request_id} holds its locks and is refused"));
                }
                self.requests.remove(&request_id);
            }
            ServerMessage::Ready { request_id: Some(request_id) } if self.is_ending(&request_id) => {
                self.requests.remove(&request_id);
            }
            // It is in transition: others wait for the end of that.
            ServerMessage::Revoked { reason: RevokedReason::Expired, .. } => {}
            ServerMessage::Revoked { path, fencing_token, .. } => self.lose(Path(path), fencing_token),
            ServerMessage::KeptAlive { .. } => {
                let sent = self.link.as_mut().and_then(|link| link.keep_alives.pop_front());
                if let Some(((session_id, _), sent)) = self.opened.as_ref().zip(sent) {
                    self.world.claims.lives(session_id, sent, self.terms.ttl, self.terms.transition);
                }
            }
            ServerMessage::SessionEnded { reason } => {
                self.record(&format!("is told that its session ended, {reason:?}"));
                self.forget();
            }
            ServerMessage::Error { error, request_id } => {
                self.expect_code(error.code, &format!("{request_id:?}: {error:?}"));
                // What became of it is not known.
                if let Some(request_id) = request_id {
                    sleep(RETRY_DELAY).await;
                    self.release(&request_id).await;
                }
            }
            _ => {}
        }
    }

    /// Takes a grant, unless the client counts on its session no more, or has given the request up.
    fn take(&mut self, request_id: &str, token: FencingToken, receipt: Option<Receipt>) {
        if !self.check_life() {
            return;
        }
        let Some((session, _)) = &self.opened else { return };
        let Some(request) = self.requests.get_mut(request_id) else { return };
        match request.state {
            RequestState::Ends => {}
            RequestState::Holds(known) if known == token => {}
            RequestState::Holds(known) => {
                self.violated(&format!("{request_id} has the token {known} and is told {token}"));
            }
            RequestState::Waits => {
                request.state = RequestState::Holds(token);
                request.granted = receipt.map(|receipt| request.shown(request_id, token, receipt));
                let grant = Grant { session, request_id, claims: &request.claims, token, asked_at: request.asked_at };
                let found = self.world.claims.take(&grant, time());
                self.world.record(format!("{} of {session} takes {:?} with {token}", self.process, request.claims));
                found.into_iter().for_each(|what| self.world.record_violation(what));
            }
        }
    }

    fn lose(&mut self, path: Path, token: FencingToken) {
        self.record(&format!("is told that it lost {path:?} with {token}"));
        for request in self.requests.values_mut().filter(|request| request.state == RequestState::Holds(token)) {
            request.claims.retain(|claim| claim.path != path);
        }
        self.requests.retain(|_, request| !request.claims.is_empty());
        let Some((session, _)) = &self.opened else { return };
        let found = self.world.claims.lose(session, &path, token, time());
        found.into_iter().for_each(|what| self.world.record_violation(what));
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
