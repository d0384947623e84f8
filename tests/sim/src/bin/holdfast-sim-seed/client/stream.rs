//! A connected session as a client uses it: it sends a message, and sends it again while the answer is lost. On a new
//! connection it first lists what it has, and what it has no answer to.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_api::session_message::{
    AcquirePermits, Await, ClientMessage, ClientPayload, HeldPermits, Lock, LockInfo, Open, Pending, Release,
    ServerMessage,
};
use holdfast_api::{ApiError, Code, Resource};
use holdfast_backend::CallContext;
use holdfast_backend::session::{ConnectionOptions, Outbound, SessionReceiver, SessionSender};
use holdfast_core::{Kind, Metadata, Mode, Path, ReportedHold, ReportedPermits, Wanted};
use tokio::time::{sleep, timeout};

use super::Client;
use super::lost_answers::NAMESPACE;
use super::stream_gateway::StreamGateway;
use super::stream_messages::{Told, is_done_once, pending_of, request_id_of, told_by};
use crate::world::Tenant;

/// Longer than the calls of one path take, so that no session needs a keep-alive.
const SESSION_TTL_MS: u64 = 60_000;
/// How long a client waits for an answer before it takes its connection for lost. A command whose connection to the
/// node ended waits for another leader, in vain.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long a client that was told that it waits goes on waiting. Longer than its gateway needs to follow the session
/// again.
const MAX_WAIT: Duration = Duration::from_secs(30);
const RETRY_DELAY: Duration = Duration::from_millis(5);
const MAX_REPEATS: usize = 200;

/// A connection.
struct Link {
    to: SessionSender,
    from: SessionReceiver,
    seq: u64,
}

/// What a client was told that its session has.
enum KnownHold {
    Lock(ReportedHold),
    /// Permits, members or an arrival.
    Thing(HeldPermits),
}

/// The client of a session, over all its connections.
pub(super) struct Stream<'a> {
    client: &'a Client,
    gateway: &'a StreamGateway,
    tenant: &'a Tenant,
    process: String,
    session_id: Option<String>,
    link: Option<Link>,
    /// By request.
    held: BTreeMap<String, KnownHold>,
    /// What each request is about.
    paths: BTreeMap<String, (Kind, Path)>,
    /// The message that has no last answer.
    unanswered: Option<ClientPayload>,
    /// Whether it was sent, on this connection and on any.
    is_sent: bool,
    was_sent: bool,
    /// Whether the service has said that the request waits.
    has_begun: bool,
    requests: usize,
}

impl<'a> Stream<'a> {
    pub(super) fn new(client: &'a Client, gateway: &'a StreamGateway, tenant: &'a Tenant, process: &str) -> Self {
        Self {
            client,
            gateway,
            tenant,
            process: process.to_owned(),
            session_id: None,
            link: None,
            held: BTreeMap::new(),
            paths: BTreeMap::new(),
            unanswered: None,
            is_sent: false,
            was_sent: false,
            has_begun: false,
            requests: 0,
        }
    }

    /// Returns the name of a new request.
    pub(super) fn next_request(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.process, self.requests)
    }

    /// Locks a path to write. Returns the token.
    pub(super) async fn lock(&mut self, request_id: &str, path: &Path) -> Option<u64> {
        let lock = Lock {
            request_id: request_id.to_owned(),
            resources: vec![Resource { path: path.0.clone(), mode: Mode::Write }],
            holder: None,
            transition_ms: 0,
            at_least_ms: 0,
            metadata: Metadata::new(),
            allow_upgrade: false,
            only_try: false,
        };
        match self.call(ClientPayload::Lock(lock)).await {
            Told::Acquired { token, .. } => Some(token),
            told => {
                self.violated(&format!("it locks {path:?} and is told {told:?}"));
                None
            }
        }
    }

    /// Acquires permits or takes members.
    pub(super) async fn acquire(&mut self, request_id: &str, path: &Path, wanted: Wanted) -> Told {
        let (request_id, path, holder) = (request_id.to_owned(), path.0.clone(), None);
        let (priority, transition_ms, only_try) = (0, 0, false);
        let acquire = AcquirePermits { request_id, path, wanted, holder, priority, transition_ms, only_try };
        self.call(ClientPayload::AcquirePermits(acquire)).await
    }

    /// Returns the message that awaits a condition of a lock that a request holds.
    pub(super) fn await_message(request_id: &str, wait_ms: Option<u64>, token: u64) -> ClientPayload {
        let (request_id, condition, fencing_token) = (request_id.to_owned(), String::new(), Some(token));
        ClientPayload::Await(Await { request_id, condition, wait_ms, fencing_token })
    }

    /// Ends a request.
    pub(super) async fn release(&mut self, request_id: &str, unheard: bool) {
        let request_id = request_id.to_owned();
        let told = self.call(ClientPayload::Release(Release { request_id, unheard })).await;
        if told != Told::Ready {
            self.violated(&format!("it releases a request and is told {told:?}"));
        }
    }

    /// Ends the session.
    pub(super) async fn close(&mut self) {
        if self.session_id.is_none() && self.link.is_none() {
            return;
        }
        let told = self.call(ClientPayload::Close).await;
        if told != Told::Ended {
            self.violated(&format!("it closes its session and is told {told:?}"));
        }
    }

    /// Forgets what it has and waits for. With its next message it resumes its session.
    pub(super) fn forget(&mut self) {
        self.held.clear();
        (self.link, self.unanswered) = (None, None);
    }

    /// Sends a message, and the same again while its answer is lost. Returns its last answer.
    pub(super) async fn call(&mut self, message: ClientPayload) -> Told {
        self.begin(message);
        self.finish().await
    }

    /// Sends a message, and returns as soon as its request waits.
    pub(super) async fn start(&mut self, message: ClientPayload) -> Told {
        self.begin(message);
        self.answer(true).await
    }

    /// Returns the last answer to the message.
    pub(super) async fn finish(&mut self) -> Told {
        self.answer(false).await
    }

    fn begin(&mut self, message: ClientPayload) {
        match &message {
            ClientPayload::Lock(lock) => {
                let path = lock.resources.first().map(|resource| Path(resource.path.clone())).unwrap_or_default();
                self.paths.insert(lock.request_id.clone(), (Kind::Lock, path));
            }
            ClientPayload::AcquirePermits(acquire) => {
                let is_semaphore = matches!(acquire.wanted, Wanted::Permits { .. });
                let kind = if is_semaphore { Kind::Semaphore } else { Kind::Pool };
                self.paths.insert(acquire.request_id.clone(), (kind, Path(acquire.path.clone())));
            }
            ClientPayload::Arrive(arrive) => {
                self.paths.insert(arrive.request_id.clone(), (Kind::Barrier, Path(arrive.path.clone())));
            }
            ClientPayload::Release(Release { request_id, .. }) | ClientPayload::Await(Await { request_id, .. }) => {
                self.held.remove(request_id);
            }
            ClientPayload::ReleaseAll => self.held.clear(),
            _ => {}
        }
        self.unanswered = Some(message);
        (self.is_sent, self.was_sent, self.has_begun) = (false, false, false);
    }

    async fn answer(&mut self, until_begun: bool) -> Told {
        let told = timeout(MAX_WAIT, self.next_answer(until_begun)).await;
        told.unwrap_or_else(|_| {
            self.violated(&format!("within {MAX_WAIT:?} it had no answer to {:?}", self.unanswered));
            Told::Unknown
        })
    }

    async fn next_answer(&mut self, until_begun: bool) -> Told {
        for _ in 0..MAX_REPEATS {
            if self.link.is_none() {
                if self.was_sent && self.unanswered.as_ref().is_some_and(is_done_once) {
                    self.unanswered = None;
                    return Told::Unknown;
                }
                if let Some(told) = self.connect().await {
                    self.unanswered = None;
                    return told;
                }
                continue;
            }
            self.send_unanswered().await;
            let patience = if self.has_begun { MAX_WAIT } else { PATIENCE };
            let received = timeout(patience, self.receive()).await;
            let Ok(Some(message)) = received else {
                self.link = None;
                continue;
            };
            match self.on_message(message).await {
                None => {}
                Some(Told::Begun) if !until_begun => self.has_begun = true,
                Some(Told::Begun) => {
                    self.has_begun = true;
                    return Told::Begun;
                }
                Some(told) => {
                    self.unanswered = None;
                    return told;
                }
            }
        }
        self.violated(&format!("{:?} had no answer, {MAX_REPEATS} times", self.unanswered));
        Told::Unknown
    }

    async fn send_unanswered(&mut self) {
        if self.is_sent {
            return;
        }
        let Some(message) = self.unanswered.clone() else { return };
        (self.is_sent, self.was_sent) = (true, true);
        self.send(message).await;
    }

    async fn send(&mut self, payload: ClientPayload) {
        let Some(link) = &mut self.link else { return };
        link.seq += 1;
        // Whether it arrives shows in what comes back.
        let _ = link.to.send(ClientMessage { seq: link.seq, payload }).await;
    }

    /// Returns the next message, unless the connection has ended.
    async fn receive(&mut self) -> Option<ServerMessage> {
        let lost = &self.client.world.lost;
        let link = self.link.as_mut()?;
        let next = tokio::select! {
            biased;
            () = lost.goes_away() => None,
            next = link.from.next() => Some(next),
        };
        if self.gateway.fall() {
            return None;
        }
        match next? {
            Outbound::Message(message) => Some(message),
            Outbound::End(_) => None,
        }
    }

    /// Opens the session, or resumes it and lists what it has. Returns what that says of the message without an answer.
    async fn connect(&mut self) -> Option<Told> {
        self.gateway.fall();
        (self.is_sent, self.has_begun) = (false, false);
        let service = self.gateway.service();
        let context = CallContext::new("stream").with_timeout(PATIENCE);
        let Ok(caller) = service.authenticate(Some(&self.tenant.api_key), &context).await else {
            sleep(RETRY_DELAY).await;
            return None;
        };
        let (to, from) = service.connect(caller, ConnectionOptions::default());
        self.link = Some(Link { to, from, seq: 0 });
        let open = Open {
            namespace: NAMESPACE.to_owned(),
            session_id: self.session_id.clone(),
            process_id: self.process.clone(),
            ttl_ms: SESSION_TTL_MS,
            metadata: Metadata::new(),
            keeps_table: true,
            transition_ms: 0,
        };
        self.send(ClientPayload::Open(open)).await;
        match timeout(PATIENCE, self.receive()).await {
            Ok(Some(ServerMessage::Opened { session_id, resumed, .. })) => {
                if self.session_id.is_some() && !resumed {
                    self.violated("it resumes its session and gets another one");
                }
                self.session_id = Some(session_id);
                if resumed {
                    let info = self.lock_info();
                    self.send(ClientPayload::LockInfo(info)).await;
                }
                None
            }
            Ok(Some(ServerMessage::Error { error, .. })) if error.code == Code::SessionNotFound => {
                self.link = None;
                self.ended_with(&error)
            }
            _ => {
                self.link = None;
                sleep(RETRY_DELAY).await;
                None
            }
        }
    }

    fn ended_with(&mut self, error: &ApiError) -> Option<Told> {
        self.session_id = None;
        if matches!(self.unanswered, Some(ClientPayload::Close)) {
            return Some(Told::Ended);
        }
        self.violated(&format!("its session is gone: {error:?}"));
        Some(Told::Unknown)
    }

    fn lock_info(&mut self) -> LockInfo {
        let (mut held, mut permits) = (Vec::new(), Vec::new());
        for hold in self.held.values() {
            match hold {
                KnownHold::Lock(lock) => held.push(lock.clone()),
                KnownHold::Thing(thing) => permits.push(thing.clone()),
            }
        }
        let is_known = |id: &str| self.held.contains_key(id);
        let pending: Vec<Pending> = match &self.unanswered {
            // What became of an arrival is told again.
            Some(ClientPayload::Arrive(arrive)) if is_known(&arrive.request_id) => {
                self.is_sent = true;
                Vec::new()
            }
            message => message.as_ref().and_then(pending_of).into_iter().collect(),
        };
        if !pending.is_empty() {
            (self.is_sent, self.was_sent) = (true, true);
        }
        LockInfo { held, permits, pending, ..LockInfo::default() }
    }

    /// Returns what a message says of the one without an answer.
    async fn on_message(&mut self, message: ServerMessage) -> Option<Told> {
        if let ServerMessage::Revoked { path, reason, fencing_token, .. } = &message {
            self.violated(&format!("it lost {path:?} with token {fencing_token}: {reason:?}"));
            return None;
        }
        let unanswered = self.unanswered.as_ref()?;
        let told = told_by(unanswered, &message)?;
        let request_id = request_id_of(unanswered).map(str::to_owned);
        match &told {
            Told::Again => {
                sleep(RETRY_DELAY).await;
                self.is_sent = false;
                return None;
            }
            Told::Acquired { token, .. } => self.has(request_id?, *token),
            Told::Begun => {
                if let ServerMessage::Arrived { generation, .. } = message {
                    self.has(request_id?, generation);
                }
            }
            Told::Tripped(_) => {
                self.held.remove(&request_id?);
            }
            Told::Ended => {
                if !matches!(unanswered, ClientPayload::Close) {
                    self.violated(&format!("its session ended: {message:?}"));
                }
                (self.link, self.session_id) = (None, None);
                self.held.clear();
            }
            _ => {}
        }
        Some(told)
    }

    /// The session has what a request was about, under that token or in that generation.
    fn has(&mut self, request_id: String, fencing_token: u64) {
        let Some((kind, path)) = self.paths.get(&request_id).cloned() else { return };
        let held = match kind {
            Kind::Lock => KnownHold::Lock(ReportedHold { path, mode: Mode::Write, fencing_token }),
            kind => {
                let reported = ReportedPermits { kind, path, request_id: request_id.clone(), fencing_token };
                KnownHold::Thing(HeldPermits { reported, holder: None })
            }
        };
        self.held.insert(request_id, held);
    }

    pub(super) fn violated(&self, what: &str) {
        self.client.violated(format!("{} of a connected session: {what}", self.process));
    }
}
