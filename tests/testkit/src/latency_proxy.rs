//! A TCP proxy that delays everything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Of one direction of a connection; a sender of more has to wait.
const MAX_IN_FLIGHT_CHUNKS: usize = 1_024;
const CHUNK_BYTES: usize = 16 * 1024;

/// A proxy to one address.
pub struct LatencyProxy {
    address: SocketAddr,
    delay_us: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl LatencyProxy {
    /// A proxy to that address, without delay at first.
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("a listener need not block");
        let listener = TcpListener::from_std(listener).expect("the runtime takes it");
        let address = listener.local_addr().expect("it has an address");
        let delay_us = Arc::<AtomicU64>::default();
        let delay = Arc::clone(&delay_us);
        let task = tokio::spawn(async move {
            while let Ok((inbound, _)) = listener.accept().await {
                tokio::spawn(proxy_connection(inbound, target, Arc::clone(&delay)));
            }
        });
        Self { address, delay_us, task }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the delay of each direction from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.delay_us.store(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Drop for LatencyProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// If the target refuses the connection, the proxy closes it.
async fn proxy_connection(inbound: TcpStream, target: SocketAddr, delay_us: Arc<AtomicU64>) {
    let Ok(outbound) = TcpStream::connect(target).await else { return };
    for stream in [&inbound, &outbound] {
        // A connection that has ended already says so when it is used.
        let _ = stream.set_nodelay(true);
    }
    let (in_read, in_write) = inbound.into_split();
    let (out_read, out_write) = outbound.into_split();
    tokio::join!(forward(in_read, out_write, Arc::clone(&delay_us)), forward(out_read, in_write, delay_us));
}

/// Forwards one direction until it ends.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay_us: Arc<AtomicU64>) {
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(MAX_IN_FLIGHT_CHUNKS);
    let reading = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + Duration::from_micros(delay_us.load(Ordering::Relaxed));
            if sender.send((due, buffer[..read].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let writing = async {
        while let Some((due, chunk)) = chunks.recv().await {
            tokio::time::sleep_until(due.into()).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        // If that fails, the connection has ended.
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}
