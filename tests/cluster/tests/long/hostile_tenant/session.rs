//! A session over the gRPC stream, which sends many messages before it reads their answers.

use std::collections::HashSet;
use std::time::Duration;

use holdfast_proto::v1::client_message::{
    Close, KeepAlive, Lock, LockInfo, Message as Says, Open, Release, ReleaseAll,
};
use holdfast_proto::v1::server_message::Message as Told;
use holdfast_proto::v1::server_message::refused::Why;
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use holdfast_proto::v1::{self, ClientMessage, ServerMessage};
use holdfast_testkit::wait_out;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use super::grpc_client::{GrpcClient, RESPONSE_TIMEOUT};

/// Messages that are sent before their answers are read.
const MAX_IN_FLIGHT: usize = 256;
/// Time before what exceeded the rate of the account is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum entries of one `lock_info`.
const MAX_LOCK_INFO: usize = 10_000;

/// An open session.
pub(crate) struct Session {
    pub id: String,
    grpc: GrpcClient,
    outbound: mpsc::Sender<ClientMessage>,
    inbound: Streaming<ServerMessage>,
    seq: u64,
    unanswered: HashSet<String>,
    /// The token of the last grant.
    pub token: u64,
    /// The request that was granted last, until that is looked at.
    last_granted: Option<String>,
    /// How many requests were refused.
    pub refused: usize,
    /// The messages about losses and its end.
    pub lost: Vec<String>,
    /// How many its signals have woken.
    pub signalled: u64,
    /// What its arrivals were told of their generations, until that is looked at.
    met: Vec<i32>,
    /// Requests that exceeded the rate of the account.
    over_rate: HashSet<String>,
}

/// A path of one segment.
pub(crate) fn flat_path(name: impl Into<String>) -> Vec<String> {
    vec![name.into()]
}

/// A claim for writing.
pub(crate) fn write_claim(path: Vec<String>) -> v1::Resource {
    v1::Resource { path, mode: v1::Mode::Write.into() }
}

/// A claim for reading.
pub(crate) fn read_claim(path: Vec<String>) -> v1::Resource {
    v1::Resource { path, mode: v1::Mode::Read.into() }
}

/// A request of one of the session's threads.
pub(crate) fn lock_message(
    holder: impl Into<String>,
    request_id: impl Into<String>,
    resources: Vec<v1::Resource>,
) -> Lock {
    Lock { holder: Some(holder.into()), request_id: request_id.into(), resources, ..Lock::default() }
}

/// Opens a session in a namespace, or resumes one.
pub(crate) async fn open(
    grpc: &GrpcClient,
    namespace: &str,
    ttl: Duration,
    resumed: Option<&str>,
) -> Result<Session, String> {
    let (outbound, outgoing) = mpsc::channel(MAX_IN_FLIGHT * 4);
    let message = Open {
        namespace: namespace.to_owned(),
        process_id: "somebody".to_owned(),
        ttl_ms: ttl.as_millis() as u64,
        session_id: resumed.map(str::to_owned),
        ..Open::default()
    };
    let request: Request<_> = grpc.signed(ReceiverStream::new(outgoing));
    outbound.send(ClientMessage { seq: 1, message: Some(Says::Open(message)) }).await.expect("the queue is open");
    let connecting = SessionsServiceClient::new(grpc.channel.clone());
    let mut connecting = connecting.max_decoding_message_size(64 << 20);
    let answer = timeout(RESPONSE_TIMEOUT, connecting.connect(request)).await.map_err(|_| "no session opens")?;
    let inbound = answer.map_err(|status| format!("a session is refused: {status}"))?.into_inner();
    let (grpc, unanswered, lost) = (grpc.clone(), HashSet::new(), Vec::new());
    let mut session = Session {
        id: String::new(),
        grpc,
        outbound,
        inbound,
        seq: 1,
        unanswered,
        token: 0,
        last_granted: None,
        refused: 0,
        lost,
        signalled: 0,
        met: Vec::new(),
        over_rate: HashSet::new(),
    };
    match session.receive().await? {
        Told::Opened(opened) => session.id = opened.session_id,
        other => return Err(format!("the session was not opened: {other:?}")),
    }
    Ok(session)
}

impl Session {
    /// Sends a message without waiting for an answer.
    pub(crate) async fn send(&mut self, says: Says) -> Result<(), String> {
        self.seq += 1;
        self.grpc.calls.record_call();
        let message = ClientMessage { seq: self.seq, message: Some(says) };
        let sent = timeout(RESPONSE_TIMEOUT, self.outbound.send(message))
            .await
            .map_err(|_| "the service reads nothing any more")?;
        sent.map_err(|_| "the connection has ended".to_owned())
    }

    /// Receives the next message.
    pub(crate) async fn receive(&mut self) -> Result<Told, String> {
        let next = timeout(RESPONSE_TIMEOUT, self.inbound.message()).await.map_err(|_| "no answer comes".to_owned())?;
        let message = next.map_err(|status| format!("the connection ended: {status}"))?;
        let told = message.and_then(|message| message.message).ok_or("the connection ended")?;
        self.on_message(&told);
        Ok(told)
    }

    fn on_message(&mut self, told: &Told) {
        match told {
            Told::State(state) => {
                self.token = state.fencing_token.unwrap_or(self.token);
                if let Some(id) = &state.request_id {
                    self.unanswered.remove(id);
                    if state.state() == v1::server_message::state::Value::Acquired {
                        self.last_granted = Some(id.clone());
                    }
                }
            }
            Told::Refused(refused) => {
                self.refused += 1;
                self.unanswered.remove(&refused.request_id);
                if let Some(Why::Fault(fault)) = &refused.why {
                    self.grpc.calls.record_error(&fault.code);
                    self.note_rate(&fault.code, Some(&refused.request_id));
                }
            }
            Told::Error(error) => {
                self.grpc.calls.record_error(&error.code);
                self.note_rate(&error.code, error.request_id.as_ref());
                match &error.request_id {
                    Some(id) => _ = self.unanswered.remove(id),
                    None => self.unanswered.clear(),
                }
            }
            Told::Revoked(revoked) => self.lost.push(format!("{revoked:?}")),
            Told::SessionEnded(ended) => self.lost.push(format!("{ended:?}")),
            Told::Counted(counted) => _ = self.unanswered.remove(&counted.request_id),
            Told::Signalled(signalled) => {
                self.signalled += signalled.count;
                self.unanswered.remove(&signalled.request_id);
            }
            Told::Tripped(tripped) => {
                self.met.push(tripped.outcome);
                self.unanswered.remove(&tripped.request_id);
            }
            Told::Opened(_) | Told::KeptAlive(_) | Told::ReleaseRequested(_) => {}
        }
    }

    /// Sends all requests, and waits until each is answered; a waiting one is.
    pub(crate) async fn request_locks(&mut self, locks: impl IntoIterator<Item = Lock>) -> Result<(), String> {
        self.request(locks.into_iter().map(|lock| (lock.request_id.clone(), Says::Lock(lock)))).await
    }

    /// Releases these requests.
    pub(crate) async fn release(&mut self, requests: impl IntoIterator<Item = String>) -> Result<(), String> {
        let release = |request_id: String| (request_id.clone(), Says::Release(Release { request_id, unheard: false }));
        self.request(requests.into_iter().map(release)).await
    }

    /// Sends messages about requests, each with the request's id, and waits until each is answered.
    pub(crate) async fn request(&mut self, messages: impl IntoIterator<Item = (String, Says)>) -> Result<(), String> {
        for (request_id, says) in messages {
            while self.unanswered.len() >= MAX_IN_FLIGHT {
                self.receive().await?;
            }
            self.unanswered.insert(request_id);
            self.send(says).await?;
        }
        self.wait_answered().await
    }

    fn note_rate(&mut self, code: &str, request_id: Option<&String>) {
        if code == "RATE_LIMITED" {
            self.over_rate.extend(request_id.cloned());
        }
    }

    /// As [`Self::request`]: what exceeds the rate of the account is sent again.
    pub(crate) async fn request_all(&mut self, mut messages: Vec<(String, Says)>) -> Result<(), String> {
        loop {
            self.over_rate.clear();
            self.request(messages.iter().cloned()).await?;
            if self.over_rate.is_empty() {
                return Ok(());
            }
            messages.retain(|(request_id, _)| self.over_rate.contains(request_id));
            wait_out(RETRY_DELAY).await;
        }
    }

    /// Waits until a request is granted that no earlier call of this function returned. Returns its id.
    pub(crate) async fn wait_granted(&mut self) -> Result<String, String> {
        loop {
            if let Some(request_id) = self.last_granted.take() {
                return Ok(request_id);
            }
            self.receive().await?;
        }
    }

    /// Waits until so many arrivals were told what became of their generations. Returns the outcomes.
    pub(crate) async fn wait_met(&mut self, count: usize) -> Result<Vec<i32>, String> {
        while self.met.len() < count {
            self.receive().await?;
        }
        Ok(std::mem::take(&mut self.met))
    }

    async fn wait_answered(&mut self) -> Result<(), String> {
        while !self.unanswered.is_empty() {
            self.receive().await?;
        }
        Ok(())
    }

    /// Sends many keep-alives, and waits until they are answered.
    pub(crate) async fn keep_alive(&mut self, times: usize) -> Result<(), String> {
        for some in (0..times).step_by(MAX_IN_FLIGHT) {
            let mut owed = MAX_IN_FLIGHT.min(times - some);
            for _ in 0..owed {
                self.send(Says::Keepalive(KeepAlive {})).await?;
            }
            while owed > 0 {
                owed -= usize::from(matches!(self.receive().await?, Told::KeptAlive(_) | Told::Error(_)));
            }
        }
        Ok(())
    }

    /// Reports its holds, as a client with a resumed session does, in as few messages as it may. Waits for the answer to
    /// a request behind.
    pub(crate) async fn lock_info(&mut self, held: &[v1::client_message::Held]) -> Result<(), String> {
        let pieces = held.chunks(MAX_LOCK_INFO);
        let parts = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        for (part, held) in (1..).zip(pieces) {
            self.send(Says::LockInfo(LockInfo { held: held.to_vec(), part, parts, ..LockInfo::default() })).await?;
        }
        // Keep-alives overtake ordered messages; a request does not.
        let none = lock_message("a", "behind the lock info", vec![write_claim(flat_path("behind the lock info"))]);
        self.request_locks([Lock { r#try: true, ..none }]).await
    }

    /// Releases everything that was requested on this connection.
    pub(crate) async fn release_all(&mut self) -> Result<(), String> {
        self.send(Says::ReleaseAll(ReleaseAll {})).await?;
        let behind = lock_message("a", "behind the release", vec![write_claim(flat_path("behind the release"))]);
        self.request_locks([Lock { r#try: true, ..behind }]).await
    }

    /// Ends the session, and waits until it has ended.
    pub(crate) async fn close(mut self) -> Result<(), String> {
        self.send(Says::Close(Close {})).await?;
        while !matches!(self.receive().await?, Told::SessionEnded(_)) {}
        Ok(())
    }

    /// Reads messages, and sends a keep-alive at each interval, until it has lost something.
    pub(crate) async fn keep_alive_until_lost(&mut self, every: Duration) -> String {
        let mut beat = tokio::time::interval(every);
        loop {
            let next = tokio::select! {
                _ = beat.tick() => {
                    if let Err(error) = self.send(Says::Keepalive(KeepAlive {})).await {
                        return error;
                    }
                    continue;
                }
                next = self.inbound.message() => next,
            };
            match next {
                Ok(Some(ServerMessage { message: Some(told) })) => self.on_message(&told),
                Ok(_) => return "the service ended the connection".to_owned(),
                Err(status) => return status.to_string(),
            }
            if let Some(lost) = self.lost.first() {
                return lost.clone();
            }
        }
    }
}
