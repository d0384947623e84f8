//! A TCP proxy that can be cut, silenced, slowed down and moved.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Of one direction of a delayed connection; a sender of more has to wait.
const MAX_IN_FLIGHT_BYTES: usize = 16 * 1024 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;

/// What happens to what comes through a [`TcpProxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// It is passed on.
    Open,
    /// Connections are closed, new ones too.
    Cut,
    /// Connections stay open, nothing is passed on, and nobody is told.
    Silent,
}

/// A proxy to one address at a time. It ends all connections when it is dropped.
///
/// A connection ends as soon as either side has ended it, and what that side sent before is passed on.
pub struct TcpProxy {
    address: SocketAddr,
    settings: Arc<Settings>,
    task: JoinHandle<()>,
}

/// What connections go by.
struct Settings {
    target: watch::Sender<Option<SocketAddr>>,
    mode: watch::Sender<ProxyMode>,
    delay_us: AtomicU64,
    /// Bytes a second of each connection towards the target; 0 if there is no limit.
    bytes_per_second: AtomicU64,
    /// What went through towards the target.
    forwarded_bytes: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToTarget,
    FromTarget,
}

impl TcpProxy {
    /// Starts a proxy to that address, on a free port of loopback; it runs in the runtime of the caller.
    ///
    /// # Panics
    /// If no port is free.
    pub fn to(target: SocketAddr) -> Self {
        Self::start(Some(target))
    }

    /// Starts a proxy that closes every connection until it has a target.
    ///
    /// # Panics
    /// If no port is free.
    pub fn without_target() -> Self {
        Self::start(None)
    }

    fn start(target: Option<SocketAddr>) -> Self {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let settings = Arc::new(Settings {
            target: watch::Sender::new(target),
            mode: watch::Sender::new(ProxyMode::Open),
            delay_us: AtomicU64::new(0),
            bytes_per_second: AtomicU64::new(0),
            forwarded_bytes: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&settings)));
        Self { address, settings, task }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as clients get it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends all connections. New ones go to that address, or are closed if there is none.
    pub fn set_target(&self, target: Option<SocketAddr>) {
        self.settings.target.send_replace(target);
    }

    /// Sets what happens to what comes through from now on.
    pub fn set_mode(&self, mode: ProxyMode) {
        self.settings.mode.send_replace(mode);
    }

    /// Sets the delay of each direction from now on.
    pub fn set_delay(&self, delay: Duration) {
        let delay_us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.settings.delay_us.store(delay_us, Ordering::Relaxed);
    }

    /// Lets so many bytes a second pass towards the target, in each connection; any number if it is 0.
    pub fn limit_rate(&self, bytes_per_second: u64) {
        self.settings.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }

    /// The bytes that went through towards the target.
    pub fn forwarded_bytes(&self) -> u64 {
        self.settings.forwarded_bytes.load(Ordering::Relaxed)
    }

    /// Ends all connections, and lets nobody listen here: new connections are refused.
    pub fn refuse(&self) {
        self.set_mode(ProxyMode::Cut);
        self.task.abort();
    }

    /// Listens again after it refused.
    ///
    /// # Panics
    /// If another program has taken the port.
    pub fn listen_again(&mut self) {
        let listener = listen(self.address).expect("nobody took the port meanwhile");
        self.set_mode(ProxyMode::Open);
        self.task = tokio::spawn(accept(listener, Arc::clone(&self.settings)));
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.refuse();
    }
}

impl Settings {
    fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us.load(Ordering::Relaxed))
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn accept(listener: TcpListener, settings: Arc<Settings>) {
    while let Ok((inbound, _)) = listener.accept().await {
        tokio::spawn(pass_connection(inbound, Arc::clone(&settings)));
    }
}

async fn pass_connection(inbound: TcpStream, settings: Arc<Settings>) {
    let (mut targets, mut modes) = (settings.target.subscribe(), settings.mode.subscribe());
    let Some(target) = *targets.borrow_and_update() else { return };
    // A connection attempt into silence is neither answered nor refused.
    if !wait_until_passable(&mut modes).await {
        return;
    }
    // If the target refuses the connection, it is closed.
    let Ok(outbound) = TcpStream::connect(target).await else { return };
    for stream in [&inbound, &outbound] {
        // A connection that has ended already says so when it is used.
        let _ = stream.set_nodelay(true);
    }
    let (in_read, in_write) = inbound.into_split();
    let (out_read, out_write) = outbound.into_split();
    tokio::select! {
        () = pass_on(in_read, out_write, &settings, Direction::ToTarget) => {}
        () = pass_on(out_read, in_write, &settings, Direction::FromTarget) => {}
        _ = modes.wait_for(|mode| *mode == ProxyMode::Cut) => {}
        _ = targets.changed() => {}
    }
}

/// Passes on one direction until its sender ends it.
async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, settings: &Settings, direction: Direction) {
    let mut modes = settings.mode.subscribe();
    let mut in_flight: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut in_flight_bytes: usize = 0;
    let (mut has_ended, mut next_allowed) = (false, Instant::now());
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        // Without a delay nothing is read ahead: a sender notices a receiver that is slow.
        let max_bytes = if settings.delay().is_zero() { 1 } else { MAX_IN_FLIGHT_BYTES };
        let due = in_flight.front().map(|(due, _)| *due);
        tokio::select! {
            biased;
            () = wait_until_due(due), if due.is_some() => {
                let Some((_, chunk)) = in_flight.pop_front() else { return };
                in_flight_bytes -= chunk.len();
                // What is read after a cut is not passed on, though this task has not been told to end yet.
                if !wait_until_passable(&mut modes).await {
                    return;
                }
                if direction == Direction::ToTarget {
                    next_allowed = wait_until_allowed(settings, next_allowed, chunk.len()).await;
                }
                if to.write_all(&chunk).await.is_err() {
                    return;
                }
                if direction == Direction::ToTarget {
                    settings.forwarded_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                }
            }
            read = from.read(&mut buffer), if !has_ended && in_flight_bytes < max_bytes => match read {
                Ok(length @ 1..) => {
                    in_flight.push_back((Instant::now() + settings.delay(), buffer[..length].to_vec()));
                    in_flight_bytes += length;
                }
                _ => has_ended = true,
            },
            else => return,
        }
    }
}

/// Waits out a silence. Returns false if connections are cut.
async fn wait_until_passable(modes: &mut watch::Receiver<ProxyMode>) -> bool {
    modes.wait_for(|mode| *mode != ProxyMode::Silent).await.is_ok_and(|mode| *mode == ProxyMode::Open)
}

async fn wait_until_due(due: Option<Instant>) {
    if let Some(due) = due.filter(|due| *due > Instant::now()) {
        tokio::time::sleep_until(due).await;
    }
}

/// Waits until the limit of the rate allows so many bytes more. Returns when it allows others.
async fn wait_until_allowed(settings: &Settings, next_allowed: Instant, bytes: usize) -> Instant {
    let limit = settings.bytes_per_second.load(Ordering::Relaxed);
    if limit == 0 {
        return next_allowed;
    }
    let next = next_allowed.max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / limit as f64);
    tokio::time::sleep_until(next).await;
    next
}
