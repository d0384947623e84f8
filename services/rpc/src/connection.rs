//! One connection after its handshake: frames in both directions, and pings while it is idle.
//!
//! A connection has no task of its own. Its owner takes turns between what it has to send and [`Connection::next`],
//! which writes and reads. Messages stay in their owner's queue until the connection has room, so that urgent ones can
//! overtake, and all that are queued by then share a frame and a write.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Sink, Stream};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};
use tokio_util::codec::Framed;

use crate::dialer::ByteStream;
use crate::frames::{EncodesAs, FrameCodec};
use crate::protocol::Protocol;

/// Interval of pings: an idle end sends an empty frame. At most twice this time passes between two frames.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// A peer that sends nothing for this long is unreachable: TCP alone would notice only after minutes.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes read from a peer that is told why its connection ends.
const MAX_DRAINED_BYTES: u64 = 64 << 20;

/// The end of the process that connected.
pub type ClientConnection<P> = Connection<<P as Protocol>::Reply, <P as Protocol>::Request>;
/// The end of the process that was connected to.
pub type ServerConnection<P> = Connection<<P as Protocol>::Request, <P as Protocol>::Reply>;

/// What happened on a connection.
#[derive(Debug)]
pub enum Event<In> {
    /// A frame arrived.
    Received(In),
    /// The system has taken all frames that were sent: there is room for another one.
    Flushed,
}

/// A connection that receives messages of type `In` and sends those of type `Out`.
pub struct Connection<In, Out> {
    framed: Framed<ByteStream, FrameCodec<In, Out>>,
    ticks: Interval,
    received_at: Instant,
    has_sent: bool,
    /// Whether everything has left this process. An empty buffer does not say so: TLS has one of its own.
    is_flushed: bool,
    /// The bytes that had not left this process at the last tick, and since when there are so many.
    stalled: (usize, Instant),
    stall_timeout: Duration,
}

impl<In: Message + Default, Out: Message + Default> Connection<In, Out> {
    /// Wraps a stream. A peer that takes in nothing of a frame for `stall_timeout` is not waited for.
    pub(crate) fn new(framed: Framed<ByteStream, FrameCodec<In, Out>>, stall_timeout: Duration) -> Self {
        let mut ticks = interval(KEEP_ALIVE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let now = Instant::now();
        let (has_sent, is_flushed, stalled) = (false, true, (0, now));
        Self { framed, ticks, received_at: now, has_sent, is_flushed, stalled, stall_timeout }
    }

    /// Returns true if the system has taken all frames so far. Otherwise, [`Connection::next`] reports when it has.
    pub fn is_flushed(&self) -> bool {
        self.is_flushed
    }

    /// Encodes a frame, which [`Connection::next`] writes.
    ///
    /// # Errors
    /// When the frame is too large.
    pub fn send(&mut self, frame: impl EncodesAs<Out>) -> io::Result<()> {
        (self.has_sent, self.is_flushed) = (true, false);
        // Another frame of the same size is no stall.
        self.stalled.0 = 0;
        Sink::start_send(Pin::new(&mut self.framed), frame)
    }

    /// Writes the frames that were sent, and waits for the next event. With `reads` false it takes in no frame: the peer
    /// then can't send for long, and its silence does not end the connection. Cancellation-safe.
    ///
    /// # Errors
    /// When the connection ends, the peer is silent, or what it sends is no frame.
    pub async fn next(&mut self, reads: bool) -> io::Result<Event<In>> {
        poll_fn(|context| self.poll_next(context, reads)).await
    }

    /// Waits until the frames that were sent are written, and takes in nothing meanwhile.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn flush(&mut self) -> io::Result<()> {
        while !self.is_flushed() {
            self.next(false).await?;
        }
        Ok(())
    }

    /// Ends the connection after a last frame: what the peer has sent meanwhile is read and dropped, since the system
    /// would else discard the frame.
    pub async fn close(mut self, last: Out) {
        if self.send(last).is_err() || self.flush().await.is_err() {
            return;
        }
        let mut stream = self.framed.into_inner();
        let drain = async {
            stream.shutdown().await?;
            tokio::io::copy(&mut stream.take(MAX_DRAINED_BYTES), &mut tokio::io::sink()).await
        };
        // The peer may be gone.
        let _ = timeout(SILENCE_TIMEOUT, drain).await;
    }

    fn poll_next(&mut self, context: &mut Context<'_>, reads: bool) -> Poll<io::Result<Event<In>>> {
        let mut has_ticked = false;
        while self.ticks.poll_tick(context).is_ready() {
            has_ticked = true;
        }
        if has_ticked {
            self.on_tick()?;
        }
        let was_flushed = self.is_flushed;
        if !was_flushed {
            self.is_flushed = Sink::<Out>::poll_flush(Pin::new(&mut self.framed), context)?.is_ready();
        }
        let before = self.framed.read_buffer().len();
        if !reads {
            self.received_at = Instant::now();
        } else if let Poll::Ready(received) = self.poll_received(context) {
            return Poll::Ready(received.map(Event::Received));
        } else if self.framed.read_buffer().len() != before {
            // A part of a frame: a large one may take longer than silence may last.
            self.received_at = Instant::now();
        } else if self.received_at.elapsed() >= SILENCE_TIMEOUT {
            return Poll::Ready(Err(timed_out(format!("it sent nothing for {SILENCE_TIMEOUT:?}"))));
        }
        if self.is_flushed && !was_flushed { Poll::Ready(Ok(Event::Flushed)) } else { Poll::Pending }
    }

    /// Sends a ping if this end is idle, and checks that the peer reads the sent frames.
    fn on_tick(&mut self) -> io::Result<()> {
        let unsent = if self.is_flushed { 0 } else { self.framed.write_buffer().len().max(1) };
        let now = Instant::now();
        if unsent == 0 || unsent != self.stalled.0 {
            self.stalled = (unsent, now);
        } else if now - self.stalled.1 >= self.stall_timeout {
            return Err(timed_out(format!("it read nothing for {:?}", self.stall_timeout)));
        }
        if !std::mem::take(&mut self.has_sent) && unsent == 0 {
            self.is_flushed = false;
            Sink::<Out>::start_send(Pin::new(&mut self.framed), Out::default())?;
        }
        Ok(())
    }

    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<io::Result<In>> {
        loop {
            let received = ready!(Pin::new(&mut self.framed).poll_next(context));
            self.received_at = Instant::now();
            match received {
                Some(Ok(Some(frame))) => return Poll::Ready(Ok(frame)),
                Some(Ok(None)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other end closed it")));
                }
            }
        }
    }
}

fn timed_out(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, reason)
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
