//! A TCP proxy that can be cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What happens to what comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is passed on.
    Open,
    /// It is passed on after [`DELAY`].
    Slow,
    /// Connections are closed, and new ones are refused.
    Closed,
    /// Nothing is passed on, and nobody is told.
    Silent,
}

/// One way through a slow proxy.
const DELAY: Duration = Duration::from_millis(20);

pub(crate) struct Proxy {
    address: SocketAddr,
    target: watch::Sender<Option<SocketAddr>>,
    mode: watch::Sender<Mode>,
    traffic: Arc<Traffic>,
    task: JoinHandle<()>,
}

/// What goes through towards the target.
#[derive(Default)]
struct Traffic {
    bytes: AtomicU64,
    /// Bytes per second of each connection; 0 if there is no limit.
    limit: AtomicU64,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let (target, targets) = watch::channel(None);
        let (mode, modes) = watch::channel(Mode::Open);
        let traffic = Arc::<Traffic>::default();
        let task = tokio::spawn(accept(listener, targets, modes, Arc::clone(&traffic)));
        Self { address, target, mode, traffic, task }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn set_target(&self, target: Option<SocketAddr>) {
        self.target.send_replace(target);
    }

    /// The bytes that went through towards the target.
    pub(crate) fn forwarded(&self) -> u64 {
        self.traffic.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn limit_rate(&self, bytes_per_second: u64) {
        self.traffic.limit.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Ends what goes through, and lets nobody listen here any more.
    pub(crate) fn refuse(&self) {
        self.set_mode(Mode::Closed);
        self.task.abort();
    }

    /// Listens again after it refused.
    pub(crate) async fn listen_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("nobody took the port meanwhile");
        self.set_mode(Mode::Open);
        let traffic = Arc::clone(&self.traffic);
        self.task = tokio::spawn(accept(listener, self.target.subscribe(), self.mode.subscribe(), traffic));
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    targets: watch::Receiver<Option<SocketAddr>>,
    modes: watch::Receiver<Mode>,
    traffic: Arc<Traffic>,
) {
    while let Ok((inbound, _)) = listener.accept().await {
        tokio::spawn(forward(inbound, targets.clone(), modes.clone(), Arc::clone(&traffic)));
    }
}

async fn forward(
    inbound: TcpStream,
    mut targets: watch::Receiver<Option<SocketAddr>>,
    mut modes: watch::Receiver<Mode>,
    traffic: Arc<Traffic>,
) {
    let Some(target) = *targets.borrow_and_update() else { return };
    // A connection attempt into silence is neither answered nor refused.
    if modes.wait_for(|mode| *mode != Mode::Silent).await.is_err() || *modes.borrow() == Mode::Closed {
        return;
    }
    let Ok(outbound) = TcpStream::connect(target).await else { return };
    for stream in [&inbound, &outbound] {
        let _ = stream.set_nodelay(true);
    }
    let (mut in_read, mut in_write) = inbound.into_split();
    let (mut out_read, mut out_write) = outbound.into_split();
    let (mut cut, back) = (modes.clone(), Traffic::default());
    tokio::select! {
        () = copy(&mut in_read, &mut out_write, modes.clone(), &traffic) => {}
        () = copy(&mut out_read, &mut in_write, modes.clone(), &back) => {}
        _ = cut.wait_for(|mode| *mode == Mode::Closed) => {}
        _ = targets.changed() => {}
    }
}

async fn wait_as_a_slow_network_does() {
    tokio::time::sleep(DELAY).await;
}

async fn wait_until_the_limit_allows(next: Instant) {
    tokio::time::sleep_until(next).await;
}

async fn copy(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut modes: watch::Receiver<Mode>,
    traffic: &Traffic,
) {
    let mut next = Instant::now();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        // What is read after a cut is not passed on, though this task has not been told to end yet.
        let Ok(mode) = modes.wait_for(|mode| *mode != Mode::Silent).await.map(|mode| *mode) else { return };
        match mode {
            Mode::Open => {}
            Mode::Slow => wait_as_a_slow_network_does().await,
            Mode::Closed | Mode::Silent => return,
        }
        let limit = traffic.limit.load(Ordering::Relaxed);
        if limit > 0 {
            next = next.max(Instant::now()) + Duration::from_secs_f64(length as f64 / limit as f64);
            wait_until_the_limit_allows(next).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
        traffic.bytes.fetch_add(length as u64, Ordering::Relaxed);
    }
}
