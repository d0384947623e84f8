//! Conditions on the connections of sessions: one await, one signal, and a signal of an await that ended reaches the
//! next one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::session_message::{ClientPayload, CountDown, Signal};
use holdfast_core::{Path, Woken};
use tokio::time::sleep;

use super::Client;
use super::lost_answers::{FIRST, SECOND};
use super::stream::Stream;
use super::stream_gateway::StreamGateway;
use super::stream_messages::Told;
use crate::history::{Answer, Op};
use crate::world::Tenant;

const SIGNALLER: &str = "signaller";
/// More than it takes until both await the condition, and neither does any more.
const MAX_SIGNALS: usize = 2_000;
/// How long one of two awaits the condition at most: much longer than it takes while no message is lost.
const AWAIT_MS: u64 = 2_000;
/// Before the first signal, and between two of them. Longer than it takes until both await the condition, as a rule.
const SIGNAL_DELAY: Duration = Duration::from_millis(30);

/// How an await ends without its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AwaitEnd {
    /// Its request is released, unheard.
    Unheard,
    /// Its session is closed.
    Close,
    /// Everything is released.
    ReleaseAll,
    /// Its client does not list it when it resumes.
    Forget,
}

/// Sessions with one lock, as their clients know it.
struct OneLock<'a> {
    path: &'a Path,
    holders: AtomicUsize,
    /// How many have ended that awaited its condition.
    ended: AtomicUsize,
}

/// How many were woken by signals: so many at least, and so many more may have been.
#[derive(Default)]
struct Signalled {
    known: u64,
    unknown: u64,
}

impl<'a> OneLock<'a> {
    fn new(path: &'a Path) -> Self {
        Self { path, holders: AtomicUsize::new(0), ended: AtomicUsize::new(0) }
    }

    /// Locks it for a request. Whoever gives it up calls [`Self::leave`] first.
    async fn lock(&self, stream: &mut Stream<'_>, request_id: &str) -> Option<u64> {
        let token = stream.lock(request_id, self.path).await?;
        self.enter(stream);
        Some(token)
    }

    fn enter(&self, stream: &Stream<'_>) {
        if self.holders.fetch_add(1, Ordering::Relaxed) > 0 {
            stream.violated(&format!("it has {:?}, which another one has too", self.path));
        }
    }

    fn leave(&self) {
        self.holders.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Client {
    /// Two give a lock up and await a condition of it, and a third one signals it until both have the lock again. As
    /// many are woken as signals found somebody.
    pub(super) async fn signal_each_on_streams(&self, gateway: &StreamGateway, tenant: &Tenant, path: &Path) {
        let lock = OneLock::new(path);
        let stream = |process| Stream::new(self, gateway, tenant, process);
        let (first, second, signalled) = tokio::join!(
            await_once(stream(FIRST), &lock, None),
            await_once(stream(SECOND), &lock, Some(AWAIT_MS)),
            signal_until(stream(SIGNALLER), &lock),
        );
        let woken = [first, second].iter().filter(|woken| **woken == Some(Woken::Signalled)).count() as u64;
        let Signalled { known, unknown } = signalled;
        if !(known..=known + unknown).contains(&woken) {
            self.violated(format!(
                "{woken} of {first:?} and {second:?} were woken by {known} signals, or {unknown} more"
            ));
        }
        self.expect_free(tenant, path).await;
    }

    /// Two await a condition. The first one ends while it is signalled, and the second one is woken by that signal.
    pub(super) async fn end_await_on_stream(
        &self,
        gateway: &StreamGateway,
        tenant: &Tenant,
        path: &Path,
        end: AwaitEnd,
    ) {
        let lock = OneLock::new(path);
        let [mut first, mut second, mut signaller] =
            [FIRST, SECOND, SIGNALLER].map(|process| Stream::new(self, gateway, tenant, process));
        let Some((awaiting, _)) = begin_await(&mut first, &lock).await else { return };
        let Some((request_id, given_up)) = begin_await(&mut second, &lock).await else { return };
        let signalling = signaller.next_request();
        if lock.lock(&mut signaller, &signalling).await.is_none() {
            return;
        }
        let signal = signal_message(&signalling, Some("once".to_owned()));
        let (told, ()) = tokio::join!(signaller.call(signal), end_await(&mut first, &awaiting, end));
        if told != Told::Signalled(1) {
            signaller.violated(&format!("one awaits the condition, and the signal is answered {told:?}"));
        }
        lock.leave();
        signaller.release(&signalling, false).await;
        match second.finish().await {
            Told::Acquired { token, woken: Some(Woken::Signalled), .. } if token > given_up => lock.enter(&second),
            told => second.violated(&format!("the first await ended by {end:?}, and the next one is told {told:?}")),
        }
        lock.leave();
        second.release(&request_id, false).await;
        for stream in [&mut first, &mut second, &mut signaller] {
            stream.close().await;
        }
        self.expect_free(tenant, path).await;
    }

    async fn expect_free(&self, tenant: &Tenant, path: &Path) {
        match self.until_answered(tenant, &Op::Get { path: path.clone() }).await {
            Answer::Lock(lock) if lock.holders.is_empty() => {}
            answer => self.violated(format!("{path:?} should be free: {answer:?}")),
        }
    }
}

/// Takes the lock and gives it up to await its condition. Returns the request, and the token that it gave up.
async fn begin_await(stream: &mut Stream<'_>, lock: &OneLock<'_>) -> Option<(String, u64)> {
    let request_id = stream.next_request();
    let token = lock.lock(stream, &request_id).await?;
    lock.leave();
    let told = stream.start(Stream::await_message(&request_id, None, token)).await;
    if told != Told::Begun {
        stream.violated(&format!("nobody has signalled, and its await is answered {told:?}"));
        return None;
    }
    Some((request_id, token))
}

async fn end_await(stream: &mut Stream<'_>, request_id: &str, end: AwaitEnd) {
    match end {
        AwaitEnd::Unheard => stream.release(request_id, true).await,
        AwaitEnd::Close => stream.close().await,
        AwaitEnd::ReleaseAll => {
            let told = stream.call(ClientPayload::ReleaseAll).await;
            if told != Told::Ready {
                stream.violated(&format!("it releases everything and is told {told:?}"));
            }
        }
        AwaitEnd::Forget => {
            stream.forget();
            // Its answer comes after the list of what the client has.
            let (request_id, path) = (stream.next_request(), vec!["no such latch".to_owned()]);
            let count = CountDown { request_id, path, id: None, ids: Some(vec!["job".to_owned()]), ranges: None };
            let told = stream.call(ClientPayload::CountDown(count)).await;
            if !matches!(told, Told::Refused(_)) {
                stream.violated(&format!("there is no such latch: {told:?}"));
            }
        }
    }
}

/// Returns why it was woken, if it was.
async fn await_once(mut stream: Stream<'_>, lock: &OneLock<'_>, wait_ms: Option<u64>) -> Option<Woken> {
    let request_id = stream.next_request();
    let given_up = lock.lock(&mut stream, &request_id).await?;
    lock.leave();
    let woken = match stream.call(Stream::await_message(&request_id, wait_ms, given_up)).await {
        Told::Acquired { token, woken, .. } if token > given_up => {
            lock.enter(&stream);
            woken
        }
        told => {
            stream.violated(&format!("it gave up {given_up} and is told {told:?}"));
            return None;
        }
    };
    lock.leave();
    stream.release(&request_id, false).await;
    stream.close().await;
    lock.ended.fetch_add(1, Ordering::Relaxed);
    woken
}

/// Signals until both awaits have ended, once under each hold, with and without an id in turn.
async fn signal_until(mut stream: Stream<'_>, lock: &OneLock<'_>) -> Signalled {
    let mut signalled = Signalled::default();
    sleep(SIGNAL_DELAY).await;
    for number in 0..MAX_SIGNALS {
        if lock.ended.load(Ordering::Relaxed) == 2 {
            stream.close().await;
            return signalled;
        }
        let request_id = stream.next_request();
        if lock.lock(&mut stream, &request_id).await.is_none() {
            return signalled;
        }
        let signal_id = number.is_multiple_of(2).then(|| "once".to_owned());
        match stream.call(signal_message(&request_id, signal_id)).await {
            Told::Signalled(count) => signalled.known += count,
            Told::Unknown => signalled.unknown += 1,
            told => stream.violated(&format!("it holds {:?} and signals: {told:?}", lock.path)),
        }
        lock.leave();
        stream.release(&request_id, false).await;
        sleep(SIGNAL_DELAY).await;
    }
    stream.violated(&format!("{MAX_SIGNALS} signals did not end two awaits"));
    signalled
}

fn signal_message(request_id: &str, signal_id: Option<String>) -> ClientPayload {
    let (request_id, condition, all) = (request_id.to_owned(), String::new(), false);
    ClientPayload::Signal(Signal { request_id, condition, all, signal_id })
}
