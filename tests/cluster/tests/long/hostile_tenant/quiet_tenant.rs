//! The quiet account: 8 locks, 50 calls a second, one session, one watcher, and it expects all of it to go well.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_cluster_tests::{DiskProbe, overlap};
use holdfast_proto::v1;
use holdfast_testkit::wait_out;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::grpc_client::{GrpcClient, error_code};
use super::session::{self, flat_path, write_claim};

const LOCKS: usize = 8;
const CALLS_PER_SECOND: u32 = 50;
/// The session expires after this time without a keep-alive, and sends one five times as often.
const SESSION_TTL: Duration = Duration::from_secs(10);
const TTL_MS: u64 = 600_000;
const SESSION_LOCK: &str = "kept";
/// A call that takes longer is printed.
const SLOW_CALL: Duration = Duration::from_millis(80);
/// How long a window may wait for the answers to what was asked in it.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(45);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What became of the calls of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    /// From the time at which a call was due to its answer, in order of size.
    pub times: Vec<Duration>,
    /// The same without the time in which the disk itself stood still, in order of size.
    pub times_without_stalls: Vec<Duration>,
    /// How long the disk stood still, each time.
    pub disk_stalls: Vec<Duration>,
    /// Codes of those that failed.
    pub errors: Vec<String>,
    /// What was lost: holds, the session, the watcher.
    pub lost: Vec<String>,
    /// What no slice of apply took more processor time than, in ms; of a calm window.
    pub slice_ms: f64,
}

impl Window {
    fn new(calls: &[(Instant, Duration)], stalls: &[(std::time::Instant, std::time::Instant)]) -> Self {
        let mut times: Vec<Duration> = calls.iter().map(|(_, took)| *took).collect();
        let own = |(due, took): &(Instant, Duration)| {
            let due = due.into_std();
            *took - overlap(stalls, due, due + *took).min(*took)
        };
        let mut times_without_stalls: Vec<Duration> = calls.iter().map(own).collect();
        times.sort_unstable();
        times_without_stalls.sort_unstable();
        let disk_stalls = stalls.iter().map(|(from, to)| *to - *from).collect();
        Self { times, times_without_stalls, disk_stalls, ..Self::default() }
    }
}

#[derive(Default)]
struct Observed {
    /// When each call was due, and how long its answer took from then.
    times: Mutex<Vec<(Instant, Duration)>>,
    refused: Mutex<Vec<String>>,
    lost: Mutex<Vec<String>>,
    /// Calls that each worker has had answered.
    answered: [AtomicU64; LOCKS],
    /// The last token granted in the watched namespace, and the last revision that the watcher saw.
    granted: AtomicU64,
    watched: AtomicU64,
    paused: AtomicBool,
    stopped: AtomicBool,
}

/// The account while it calls.
pub(crate) struct QuietTenant {
    callers: Callers,
    /// Of its own: what delays the hostile account's thousands of tasks here is no fault of the service.
    runtime: Option<Runtime>,
}

/// What runs for the account.
struct Callers {
    seen: Arc<Observed>,
    disk: DiskProbe,
    grpc: GrpcClient,
    namespaces: Vec<String>,
    session_token: u64,
    _tasks: JoinSet<()>,
}

impl QuietTenant {
    /// Begins. The first namespace is the one that is watched and in which the session holds something.
    pub(crate) async fn start(gateways: Vec<SocketAddr>, key: String, namespaces: Vec<String>) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let callers = runtime.spawn(async move {
            let frontends = GrpcClient::connect_to_all(&gateways, &key).await?;
            Callers::start(&frontends, namespaces).await
        });
        match callers.await.map_err(|error| error.to_string()).and_then(|started| started) {
            Ok(callers) => Ok(Self { callers, runtime: Some(runtime) }),
            Err(reason) => {
                runtime.shutdown_background();
                Err(reason)
            }
        }
    }

    /// Forgets what was before, once it is answered.
    pub(crate) async fn begin_window(&self) {
        self.callers.end_window().await;
    }

    /// What became of everything asked since the last window.
    pub(crate) async fn end_window(&self) -> Window {
        self.callers.end_window().await
    }

    /// Lets the account call nothing from now on, or call again.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        self.callers.seen.paused.store(is_paused, Ordering::Relaxed);
    }
}

impl Drop for QuietTenant {
    fn drop(&mut self) {
        self.callers.seen.stopped.store(true, Ordering::Relaxed);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Callers {
    async fn start(frontends: &[GrpcClient], namespaces: Vec<String>) -> Result<Self, String> {
        let (seen, disk) = (Arc::new(Observed::default()), DiskProbe::start(&std::env::temp_dir())?);
        let mut tasks = JoinSet::new();
        let watched = namespaces[0].clone();
        let message = v1::WatchRequest { namespace: watched.clone(), ..v1::WatchRequest::default() };
        let mut events = frontends[0].watch(message).await.map_err(|status| status.to_string())?;
        let seeing = Arc::clone(&seen);
        tasks.spawn(async move {
            while let Ok(Some(event)) = events.message().await {
                seeing.watched.store(event.revision, Ordering::Relaxed);
            }
            seeing.lost.lock().push("the stream of events ended".to_owned());
        });
        let mut session = session::open(&frontends[0], &watched, SESSION_TTL, None).await?;
        session
            .request_locks([session::lock_message("main", SESSION_LOCK, vec![write_claim(flat_path(SESSION_LOCK))])])
            .await?;
        let (session_token, living) = (session.token, Arc::clone(&seen));
        tasks.spawn(async move {
            let end = session.keep_alive_until_lost(SESSION_TTL / 5).await;
            living.lost.lock().push(format!("session: {end}"));
        });
        let begin = Instant::now();
        for number in 0..LOCKS {
            let grpc = frontends[number % frontends.len()].clone();
            let worker = Worker {
                grpc,
                namespace: namespaces[number % namespaces.len()].clone(),
                is_watched: number % namespaces.len() == 0,
                number,
                seen: Arc::clone(&seen),
                token: None,
            };
            tasks.spawn(worker.run(begin));
        }
        Ok(Self { seen, disk, grpc: frontends[0].clone(), namespaces, session_token, _tasks: tasks })
    }

    async fn end_window(&self) -> Window {
        let before: Vec<u64> = self.seen.answered.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let is_behind =
            || self.seen.answered.iter().zip(&before).any(|(now, before)| now.load(Ordering::Relaxed) == *before);
        while is_behind() && Instant::now() < deadline {
            wait_out(POLL_INTERVAL).await;
        }
        let mut lost = std::mem::take(&mut *self.seen.lost.lock());
        if is_behind() {
            lost.push("calls are not answered at all".to_owned());
        }
        lost.extend(self.lost_hold().await);
        lost.extend(self.lost_events().await);
        let calls = std::mem::take(&mut *self.seen.times.lock());
        Window {
            errors: std::mem::take(&mut *self.seen.refused.lock()),
            lost,
            ..Window::new(&calls, &self.disk.take())
        }
    }

    async fn lost_hold(&self) -> Option<String> {
        let message = v1::CheckLockRequest {
            namespace: self.namespaces[0].clone(),
            path: flat_path(SESSION_LOCK),
            fencing_token: self.session_token,
            ..v1::CheckLockRequest::default()
        };
        match self.grpc.check(message).await {
            Ok(answer) if answer.current => None,
            Ok(_) => Some("the session's hold".to_owned()),
            Err(status) => Some(format!("the session's hold can't be checked: {}", error_code(&status))),
        }
    }

    /// Waits until the watcher has received all grants so far.
    async fn lost_events(&self) -> Option<String> {
        let (granted, deadline) = (self.seen.granted.load(Ordering::Relaxed), Instant::now() + SETTLE_TIMEOUT);
        while self.seen.watched.load(Ordering::Relaxed) < granted {
            if Instant::now() > deadline {
                return Some("events are not told".to_owned());
            }
            wait_out(POLL_INTERVAL).await;
        }
        None
    }
}

async fn wait_until(due: Instant) {
    tokio::time::sleep_until(due).await;
}

/// Who uses one of the locks.
struct Worker {
    grpc: GrpcClient,
    namespace: String,
    is_watched: bool,
    number: usize,
    seen: Arc<Observed>,
    /// Of what it holds.
    token: Option<u64>,
}

impl Worker {
    async fn run(mut self, begin: Instant) {
        let period = Duration::from_secs(1) * LOCKS as u32 / CALLS_PER_SECOND;
        let mut due = begin + period * self.number as u32 / LOCKS as u32;
        for step in 0.. {
            wait_until(due).await;
            while self.seen.paused.load(Ordering::Relaxed) {
                wait_out(POLL_INTERVAL).await;
                due += if due.elapsed() > period { period } else { Duration::ZERO };
            }
            if self.seen.stopped.load(Ordering::Relaxed) {
                return;
            }
            let done = self.call(step % 4).await;
            self.seen.times.lock().push((due, due.elapsed()));
            if due.elapsed() > SLOW_CALL {
                self.print_slow_call(step, due.elapsed());
            }
            if let Err(code) = done {
                self.seen.refused.lock().push(code);
            }
            self.seen.answered[self.number].fetch_add(1, Ordering::Relaxed);
            due += period;
            // What was due meanwhile could not be asked, and would have waited as long.
            while due.elapsed() > period {
                self.seen.times.lock().push((due, due.elapsed()));
                due += period;
            }
        }
    }

    /// With the time of day, so that the logs of the nodes and the disk can be searched for what went on then.
    fn print_slow_call(&self, step: u32, took: Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let call = ["acquire", "check", "get", "release"][step as usize % 4];
        println!("a quiet {call} of lock-{} took {took:.1?} until {now:.3}", self.number);
    }

    async fn call(&mut self, step: u32) -> Result<(), String> {
        let path = flat_path(format!("lock-{}", self.number));
        let namespace = self.namespace.clone();
        let refused = |status: tonic::Status| format!("{}: {}", error_code(&status), status.message());
        let owner = Some(format!("worker-{}", self.number));
        match (step, self.token) {
            (0, _) | (_, None) => {
                let ttl_ms = Some(TTL_MS);
                let message =
                    v1::AcquireLockRequest { namespace, path, process_id: owner, ttl_ms, ..Default::default() };
                // Without an answer nobody knows which hold there is.
                self.token = None;
                let answer = self.grpc.acquire(message).await.map_err(refused)?;
                self.token = answer.fencing_token;
                let token = answer.fencing_token.ok_or_else(|| format!("not granted: {:?}", answer.reason))?;
                if self.is_watched {
                    self.seen.granted.fetch_max(token, Ordering::Relaxed);
                }
            }
            (1, Some(fencing_token)) => {
                let message = v1::CheckLockRequest { namespace, path, fencing_token, ..Default::default() };
                let answer = self.grpc.check(message).await.map_err(refused)?;
                if !answer.current {
                    self.seen.lost.lock().push(format!("the hold of lock-{}", self.number));
                }
            }
            (2, Some(_)) => {
                let message = v1::GetLockRequest { namespace, path, ..Default::default() };
                self.grpc.get(message).await.map_err(refused)?;
            }
            (_, Some(_)) => {
                let message = v1::ReleaseLockRequest { namespace, path, process_id: owner, ..Default::default() };
                self.token = None;
                self.grpc.release(message).await.map_err(refused)?;
            }
        }
        Ok(())
    }
}
