//! Keeps a connection to another process open.

use std::future::pending;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::ClientConnection;
use crate::dialer::{ConnectError, Dialer};
use crate::identity::{Identity, identify};
use crate::protocol::Protocol;

/// Shortest delay between attempts.
const MIN_DELAY: Duration = Duration::from_millis(20);
/// Shortest delay after a lasting connection ended and one attempt has failed. A killed process may still accept
/// connections while the system frees its resources; its death is known only when its address refuses one.
const FAST_DELAY: Duration = Duration::from_millis(2);
/// A connection that lived this long was stable: the next attempt follows at once.
const STABLE_AFTER: Duration = Duration::from_millis(500);

/// How to reach a process.
#[derive(Clone)]
pub struct ChannelOptions {
    /// The process's node id, for the log.
    pub node: String,
    /// `host:port`.
    pub address: String,
    /// Opens connections.
    pub dialer: Arc<dyn Dialer>,
    /// This process.
    pub identity: Arc<Identity>,
    /// Timeout of a connection attempt, handshake included.
    pub connect_timeout: Duration,
    /// Longest delay between attempts.
    pub max_backoff: Duration,
}

/// The owner of a channel, which uses its connections.
pub trait Link<P: Protocol>: Send + Sync {
    /// Returns this process's handshake.
    ///
    /// # Errors
    /// Why it can't connect now.
    fn handshake(&self) -> Result<P::Handshake, String>;

    /// Checks the handshake of the other process.
    ///
    /// # Errors
    /// Why this process does not use the connection.
    fn admit(&self, theirs: &P::Handshake) -> impl Future<Output = Result<(), String>> + Send;

    /// Uses a connection until it ends; returns the reason.
    fn serve(&self, connection: ClientConnection<P>, theirs: P::Handshake) -> impl Future<Output = String> + Send;

    /// Notes that there is no connection: the last one ended, or an attempt failed.
    fn disconnected(&self, error: &ConnectError, was_connected: bool);

    /// Completes when the other process is known to be back, so that the next attempt is made at once.
    fn retry_now(&self) -> impl Future<Output = ()> + Send {
        pending()
    }
}

/// Connects once. The handshake of the other process is not checked.
///
/// # Errors
/// When the process is not reached in time, or rejects this one.
pub async fn connect<P: Protocol>(
    options: &ChannelOptions,
    ours: &P::Handshake,
) -> Result<(ClientConnection<P>, P::Handshake), ConnectError> {
    let connecting = async {
        let stream = options.dialer.connect(&options.address).await?;
        identify::<P>(stream, &options.identity, ours).await
    };
    timeout(options.connect_timeout, connecting).await.unwrap_or_else(|_| Err(ConnectError::timed_out()))
}

/// Connects, lets the owner use the connection until it ends, and connects again. Never returns.
pub async fn run<P: Protocol>(options: &ChannelOptions, link: &impl Link<P>) {
    let mut delays = delays(MIN_DELAY, options.max_backoff);
    let mut reported = String::new();
    loop {
        let mut attempt = Attempt::<P, _>::new(link);
        let began = Instant::now();
        attempt.error = match attempt.run(options).await {
            Ok(reason) => ConnectError::new(reason),
            Err(error) => error,
        };
        let (error, was_connected) = (attempt.error.clone(), attempt.was_connected);
        drop(attempt);
        if error.to_string() != reported {
            // Logged once per new reason, not per attempt.
            let (protocol, ChannelOptions { node, address, .. }) = (P::NAME, options);
            tracing::warn!(protocol, node, address, reason = %error, "no connection to the node");
            reported = error.to_string();
        }
        if was_connected && began.elapsed() >= STABLE_AFTER {
            // Even a zero timer would take up to two milliseconds.
            delays = self::delays(FAST_DELAY, options.max_backoff);
            continue;
        }
        // The delays are endless; if they ended, the longest one would apply.
        let delay = delays.next().unwrap_or(options.max_backoff);
        tokio::select! {
            biased;
            () = link.retry_now() => {}
            () = sleep(delay) => {}
        }
    }
}

fn delays(min: Duration, max: Duration) -> ExponentialBackoff {
    let delays = ExponentialBuilder::default().with_min_delay(min).with_max_delay(max).with_factor(2.0);
    delays.without_max_times().build()
}

/// One connection or failed attempt. Its end is noted however it comes, so that no caller waits for a reply that can't
/// arrive.
struct Attempt<'a, P: Protocol, L: Link<P>> {
    link: &'a L,
    error: ConnectError,
    was_connected: bool,
    protocol: PhantomData<P>,
}

impl<'a, P: Protocol, L: Link<P>> Attempt<'a, P, L> {
    fn new(link: &'a L) -> Self {
        let error = ConnectError::new("its connection was given up");
        Self { link, error, was_connected: false, protocol: PhantomData }
    }

    async fn run(&mut self, options: &ChannelOptions) -> Result<String, ConnectError> {
        let ours = self.link.handshake().map_err(ConnectError::new)?;
        let (connection, theirs) = connect::<P>(options, &ours).await?;
        self.link.admit(&theirs).await.map_err(ConnectError::new)?;
        self.was_connected = true;
        Ok(self.link.serve(connection, theirs).await)
    }
}

impl<P: Protocol, L: Link<P>> Drop for Attempt<'_, P, L> {
    fn drop(&mut self) {
        self.link.disconnected(&self.error, self.was_connected);
    }
}
