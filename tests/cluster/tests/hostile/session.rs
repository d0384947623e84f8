//! A session over the gRPC stream, which says many things before it reads what they came to.

use std::collections::HashSet;
use std::time::Duration;

use holdfast_proto::v1::client_message::{
    Close, KeepAlive, Lock, LockInfo, Message as Says, Open, Release, ReleaseAll,
};
use holdfast_proto::v1::server_message::Message as Told;
use holdfast_proto::v1::server_message::refused::Why;
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use holdfast_proto::v1::{self, ClientMessage, ServerMessage};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use super::door::{ANSWERED_WITHIN, Door};

/// Messages that are sent before their answers are read.
const AT_ONCE: usize = 256;

/// An open session.
pub(crate) struct Session {
    pub id: String,
    door: Door,
    out: mpsc::Sender<ClientMessage>,
    told: Streaming<ServerMessage>,
    seq: u64,
    unanswered: HashSet<String>,
    /// What was granted last: which token.
    pub token: u64,
    /// What it was told of losses and of its end.
    pub lost: Vec<String>,
}

/// A path of one segment.
pub(crate) fn flat(name: impl Into<String>) -> Vec<String> {
    vec![name.into()]
}

/// A claim for writing.
pub(crate) fn write(path: Vec<String>) -> v1::Resource {
    v1::Resource { path, mode: v1::Mode::Write.into() }
}

/// A claim for reading.
pub(crate) fn read(path: Vec<String>) -> v1::Resource {
    v1::Resource { path, mode: v1::Mode::Read.into() }
}

/// A request of one of the session's threads.
pub(crate) fn lock(holder: impl Into<String>, request_id: impl Into<String>, resources: Vec<v1::Resource>) -> Lock {
    Lock { holder: Some(holder.into()), request_id: request_id.into(), resources, ..Lock::default() }
}

/// Opens a session in a namespace, or resumes one.
pub(crate) async fn open(
    door: &Door,
    namespace: &str,
    ttl: Duration,
    resumed: Option<&str>,
) -> Result<Session, String> {
    let (out, outgoing) = mpsc::channel(AT_ONCE * 4);
    let message = Open {
        namespace: namespace.to_owned(),
        process_id: "somebody".to_owned(),
        ttl_ms: ttl.as_millis() as u64,
        session_id: resumed.map(str::to_owned),
        ..Open::default()
    };
    let request: Request<_> = door.signed(ReceiverStream::new(outgoing));
    out.send(ClientMessage { seq: 1, message: Some(Says::Open(message)) }).await.expect("the queue is open");
    let connecting = SessionsServiceClient::new(door.channel.clone());
    let mut connecting = connecting.max_decoding_message_size(64 << 20);
    let answer = timeout(ANSWERED_WITHIN, connecting.connect(request)).await.map_err(|_| "no session opens")?;
    let told = answer.map_err(|status| format!("a session is refused: {status}"))?.into_inner();
    let (door, unanswered, lost) = (door.clone(), HashSet::new(), Vec::new());
    let mut session = Session { id: String::new(), door, out, told, seq: 1, unanswered, token: 0, lost };
    match session.hear().await? {
        Told::Opened(opened) => session.id = opened.session_id,
        other => return Err(format!("the session was not opened: {other:?}")),
    }
    Ok(session)
}

impl Session {
    /// Says something that has an answer, or none that is waited for.
    pub(crate) async fn say(&mut self, says: Says) -> Result<(), String> {
        self.seq += 1;
        self.door.calls.count();
        let message = ClientMessage { seq: self.seq, message: Some(says) };
        let sent = timeout(ANSWERED_WITHIN, self.out.send(message)).await.map_err(|_| "nothing is read any more")?;
        sent.map_err(|_| "the connection has ended".to_owned())
    }

    /// The next that it is told.
    pub(crate) async fn hear(&mut self) -> Result<Told, String> {
        let next = timeout(ANSWERED_WITHIN, self.told.message()).await.map_err(|_| "no answer comes".to_owned())?;
        let message = next.map_err(|status| format!("the connection ended: {status}"))?;
        let told = message.and_then(|message| message.message).ok_or("the connection ended")?;
        self.note(&told);
        Ok(told)
    }

    fn note(&mut self, told: &Told) {
        match told {
            Told::State(state) => {
                self.token = state.fencing_token.unwrap_or(self.token);
                if let Some(id) = &state.request_id {
                    self.unanswered.remove(id);
                }
            }
            Told::Refused(refused) => {
                self.unanswered.remove(&refused.request_id);
                if let Some(Why::Fault(fault)) = &refused.why {
                    self.door.calls.refused(&fault.code);
                }
            }
            Told::Error(error) => {
                self.door.calls.refused(&error.code);
                match &error.request_id {
                    Some(id) => _ = self.unanswered.remove(id),
                    None => self.unanswered.clear(),
                }
            }
            Told::Revoked(revoked) => self.lost.push(format!("{revoked:?}")),
            Told::SessionEnded(ended) => self.lost.push(format!("{ended:?}")),
            Told::Opened(_) | Told::KeptAlive(_) => {}
        }
    }

    /// Says all of it, and waits until everything is answered (one that waits for its grant is).
    pub(crate) async fn ask(&mut self, locks: impl IntoIterator<Item = Lock>) -> Result<(), String> {
        for lock in locks {
            while self.unanswered.len() >= AT_ONCE {
                self.hear().await?;
            }
            self.unanswered.insert(lock.request_id.clone());
            self.say(Says::Lock(lock)).await?;
        }
        self.answered().await
    }

    /// Gives up what these requests have.
    pub(crate) async fn release(&mut self, requests: impl IntoIterator<Item = String>) -> Result<(), String> {
        for request_id in requests {
            while self.unanswered.len() >= AT_ONCE {
                self.hear().await?;
            }
            self.unanswered.insert(request_id.clone());
            self.say(Says::Release(Release { request_id })).await?;
        }
        self.answered().await
    }

    async fn answered(&mut self) -> Result<(), String> {
        while !self.unanswered.is_empty() {
            self.hear().await?;
        }
        Ok(())
    }

    /// Says many signs of life, and waits until they are answered.
    pub(crate) async fn keep_alive(&mut self, times: usize) -> Result<(), String> {
        for some in (0..times).step_by(AT_ONCE) {
            let mut owed = AT_ONCE.min(times - some);
            for _ in 0..owed {
                self.say(Says::Keepalive(KeepAlive {})).await?;
            }
            while owed > 0 {
                owed -= usize::from(matches!(self.hear().await?, Told::KeptAlive(_) | Told::Error(_)));
            }
        }
        Ok(())
    }

    /// Says what it holds, as a client does that has resumed its session; waits for the answer to a sign of life behind.
    pub(crate) async fn lock_info(&mut self, held: Vec<v1::client_message::Held>) -> Result<(), String> {
        self.say(Says::LockInfo(LockInfo { held, ..LockInfo::default() })).await?;
        // Signs of life go beside what is done in order; a request does not.
        let none = lock("a", "behind the lock info", vec![write(flat("behind the lock info"))]);
        self.ask([Lock { r#try: true, ..none }]).await
    }

    /// Gives everything up that was named on this connection.
    pub(crate) async fn release_all(&mut self) -> Result<(), String> {
        self.say(Says::ReleaseAll(ReleaseAll {})).await?;
        let behind = lock("a", "behind the release", vec![write(flat("behind the release"))]);
        self.ask([Lock { r#try: true, ..behind }]).await
    }

    /// Ends the session, and waits until it has ended.
    pub(crate) async fn close(mut self) -> Result<(), String> {
        self.say(Says::Close(Close {})).await?;
        while !matches!(self.hear().await?, Told::SessionEnded(_)) {}
        Ok(())
    }

    /// Reads what it is told, and shows a sign of life each time that `every` has passed, until it has lost something.
    pub(crate) async fn live(&mut self, every: Duration) -> String {
        let mut beat = tokio::time::interval(every);
        loop {
            let next = tokio::select! {
                _ = beat.tick() => {
                    if let Err(error) = self.say(Says::Keepalive(KeepAlive {})).await {
                        return error;
                    }
                    continue;
                }
                next = self.told.message() => next,
            };
            match next {
                Ok(Some(ServerMessage { message: Some(told) })) => self.note(&told),
                Ok(_) => return "the service ended the connection".to_owned(),
                Err(status) => return status.to_string(),
            }
            if let Some(lost) = self.lost.first() {
                return lost.clone();
            }
        }
    }
}
