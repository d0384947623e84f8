//! A connection whose session is open: one task that hears everybody and lets one command run at a time.

use std::collections::{BTreeSet, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_core::{Reply, SessionEnd};
use holdfast_routing::Notice;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::channel::{Ending, Incoming, Outgoing, too_slow};
use super::checks::Order;
use super::follow::{Ear, Heard};
use super::jobs::{Job, Running};
use super::keeping::Keeping;
use super::ledger::Ledger;
use super::message::{ClientSays, EndReason, ServerMessage};
use super::opening::{Rules, stopped};
use super::place::Place;
use crate::error::ApiResult;
use crate::service::{Caller, Standing, is_definite};

/// Messages of the client that wait for those before them. With more, the client is not read.
const QUEUE: usize = 1_024;
/// How long what a client said before it went away may take to be done.
const FINISH_WITHIN: Duration = Duration::from_secs(10);
/// How long the leader may take to say how a session ended that is found gone.
const SAY_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Live<'a> {
    pub(super) place: Arc<Place>,
    standing: Standing,
    /// The caller when its credential was last looked at, or why nobody can tell whether it is good.
    pub(super) caller: ApiResult<Caller>,
    order: Order,
    incoming: Option<mpsc::Receiver<Incoming>>,
    outgoing: &'a Outgoing,
    pub(super) queue: VecDeque<Job>,
    pub(super) running: Option<Running>,
    /// The number of the last command of this epoch.
    pub(super) seq: u64,
    pub(super) ledger: Ledger,
    /// The requests that a resumed client has no answer to.
    pub(super) taken_up: BTreeSet<String>,
    /// What was heard of the running request before the answer to it.
    pub(super) early: Vec<Notice>,
    keeping: Keeping,
    pub(super) ear: Ear,
    looking: Option<BoxFuture<'static, ApiResult<Caller>>>,
    /// The client is gone: what it said is done until then.
    finish_by: Option<Instant>,
    /// The session is gone, and the leader has until then to say how it ended.
    gone_by: Option<Instant>,
    stopping: CancellationToken,
}

/// What happens next.
enum Next {
    Stop,
    Heard(Heard),
    Replied(ApiResult<Reply>),
    Kept(usize, ApiResult<Reply>),
    Looked(ApiResult<Caller>),
    Look,
    Said(Option<Incoming>),
    ClientGone,
    Finish,
    SessionGone,
}

impl<'a> Live<'a> {
    pub(super) fn new(
        place: Arc<Place>,
        standing: Standing,
        caller: Caller,
        rules: Rules,
        order: Order,
        incoming: mpsc::Receiver<Incoming>,
        outgoing: &'a Outgoing,
    ) -> Self {
        Self {
            standing,
            caller: Ok(caller),
            order,
            incoming: Some(incoming),
            outgoing,
            queue: VecDeque::new(),
            running: None,
            seq: 0,
            ledger: Ledger::new(&place.session_id),
            taken_up: BTreeSet::new(),
            early: Vec::new(),
            keeping: Keeping::new(Arc::clone(&place), rules.keep_alive),
            ear: Ear::new(Arc::clone(&place)),
            looking: None,
            finish_by: None,
            gone_by: None,
            stopping: place.service.stopping(),
            place,
        }
    }

    /// Runs to its end.
    pub(super) async fn run(mut self, opened: ServerMessage) -> Ending {
        match self.live(opened).await {
            Err(ending) => ending,
            Ok(never) => match never {},
        }
    }

    async fn live(&mut self, opened: ServerMessage) -> Result<std::convert::Infallible, Ending> {
        self.tell(opened).await?;
        loop {
            self.start_next().await?;
            if self.incoming.is_none() && self.running.is_none() && self.queue.is_empty() {
                return Err(Ending::Done);
            }
            let next = self.next().await;
            self.take(next).await?;
        }
    }

    async fn next(&mut self) -> Next {
        let has_room = self.queue.len() < QUEUE;
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Next::Stop,
            heard = self.ear.next() => Next::Heard(heard),
            reply = answer(&mut self.running) => Next::Replied(reply),
            (owed, reply) = self.keeping.next() => Next::Kept(owed, reply),
            looked = look(&mut self.looking) => Next::Looked(looked),
            () = self.standing.due(), if self.looking.is_none() => Next::Look,
            said = receive(&mut self.incoming), if has_room => Next::Said(said),
            () = self.outgoing.gone(), if self.finish_by.is_none() => Next::ClientGone,
            () = at(self.finish_by) => Next::Finish,
            () = at(self.gone_by) => Next::SessionGone,
        }
    }

    async fn take(&mut self, next: Next) -> Result<(), Ending> {
        match next {
            Next::Stop => Err(Ending::Failed(stopped())),
            Next::Heard(heard) => self.heard(heard).await,
            Next::Replied(reply) => self.replied(reply).await,
            Next::Kept(owed, reply) => self.kept(owed, reply).await,
            Next::Looked(looked) => {
                self.looking = None;
                match looked {
                    Err(error) if is_definite(&error) => Err(Ending::Failed(error)),
                    looked => {
                        if looked.is_err() {
                            self.standing.doubt();
                        }
                        self.caller = looked;
                        Ok(())
                    }
                }
            }
            Next::Look => {
                self.looking = Some(self.standing.look().boxed());
                Ok(())
            }
            Next::Said(Some(incoming)) => {
                self.said(incoming)?;
                self.hear_more().await
            }
            Next::Said(None) => {
                self.incoming = None;
                self.client_is_gone();
                Ok(())
            }
            Next::ClientGone => {
                self.client_is_gone();
                Ok(())
            }
            Next::Finish => Err(Ending::Done),
            Next::SessionGone => self.end(EndReason::Ended(SessionEnd::Expired)).await,
        }
    }

    fn said(&mut self, incoming: Incoming) -> Result<(), Ending> {
        let message = match incoming {
            Incoming::Message(message) => message,
            Incoming::Malformed(error) => {
                self.queue.push_back(Job::Malformed(error));
                return Ok(());
            }
        };
        if !self.order.counts(message.seq) {
            return Ok(());
        }
        if let Err(error) = self.order.check(&message.said) {
            self.queue.push_back(Job::Malformed(error));
            return Ok(());
        }
        let job = match message.said {
            ClientSays::KeepAlive => {
                self.keeping.ask();
                return Ok(());
            }
            ClientSays::Lock(lock) => Job::Lock(Arc::new(lock)),
            ClientSays::Release(release) => Job::Release(release),
            ClientSays::ReleaseAll => Job::ReleaseAll,
            ClientSays::LockInfo(info) => Job::LockInfo(info),
            ClientSays::Close | ClientSays::Open(_) => Job::Close,
        };
        self.queue.push_back(job);
        Ok(())
    }

    /// Before the next command begins: what the client has said with it goes along. That is the release of one thread and
    /// the next request of another, when both were told at once: two commands would be two rounds, one after the other.
    async fn hear_more(&mut self) -> Result<(), Ending> {
        if self.running.is_some() || self.queue.is_empty() {
            return Ok(());
        }
        yield_now().await;
        while self.queue.len() < QUEUE
            && let Some(Some(incoming)) = receive(&mut self.incoming).now_or_never()
        {
            self.said(incoming)?;
        }
        Ok(())
    }

    /// What it said is still done, since its answers may have been lost on their way only.
    fn client_is_gone(&mut self) {
        self.finish_by.get_or_insert_with(|| Instant::now() + FINISH_WITHIN);
    }

    /// Tells the client something, unless it is gone.
    pub(super) async fn tell(&mut self, message: ServerMessage) -> Result<(), Ending> {
        if self.outgoing.send(message).await {
            return Ok(());
        }
        if !self.outgoing.is_gone() {
            return Err(Ending::Failed(too_slow()));
        }
        self.client_is_gone();
        Ok(())
    }

    /// The connection has no session any more.
    pub(super) async fn end(&mut self, reason: EndReason) -> Result<(), Ending> {
        self.tell(ServerMessage::SessionEnded { reason }).await?;
        Err(Ending::Done)
    }

    /// The session was found gone: the leader says why, if it can be heard.
    pub(super) fn session_is_gone(&mut self) {
        self.gone_by.get_or_insert_with(|| Instant::now() + SAY_WITHIN);
        self.queue.clear();
    }

    /// Whether the session was found gone.
    pub(super) fn is_gone(&self) -> bool {
        self.gone_by.is_some()
    }
}

async fn answer(running: &mut Option<Running>) -> ApiResult<Reply> {
    match running {
        Some(running) => (&mut running.answer).await,
        None => pending().await,
    }
}

async fn look(looking: &mut Option<BoxFuture<'static, ApiResult<Caller>>>) -> ApiResult<Caller> {
    match looking {
        Some(looking) => looking.await,
        None => pending().await,
    }
}

async fn receive(incoming: &mut Option<mpsc::Receiver<Incoming>>) -> Option<Incoming> {
    match incoming {
        Some(incoming) => incoming.recv().await,
        None => pending().await,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
