//! A TCP proxy that can be cut.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

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
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let (target, targets) = watch::channel(None);
        let (mode, modes) = watch::channel(Mode::Open);
        let task = tokio::spawn(accept(listener, targets, modes));
        Self { address, target, mode, task }
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn set_target(&self, target: Option<SocketAddr>) {
        self.target.send_replace(target);
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
        self.task = tokio::spawn(accept(listener, self.target.subscribe(), self.mode.subscribe()));
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

async fn accept(listener: TcpListener, targets: watch::Receiver<Option<SocketAddr>>, modes: watch::Receiver<Mode>) {
    while let Ok((inbound, _)) = listener.accept().await {
        tokio::spawn(forward(inbound, targets.clone(), modes.clone()));
    }
}

async fn forward(
    inbound: TcpStream,
    mut targets: watch::Receiver<Option<SocketAddr>>,
    mut modes: watch::Receiver<Mode>,
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
    let mut cut = modes.clone();
    tokio::select! {
        () = copy(&mut in_read, &mut out_write, modes.clone()) => {}
        () = copy(&mut out_read, &mut in_write, modes.clone()) => {}
        _ = cut.wait_for(|mode| *mode == Mode::Closed) => {}
        _ = targets.changed() => {}
    }
}

async fn wait_as_a_slow_network_does() {
    tokio::time::sleep(DELAY).await;
}

async fn copy(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut modes: watch::Receiver<Mode>,
) {
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
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
