//! One connection after its handshake: frames in both directions, and signs of life.
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
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::codec::Framed;

use crate::dialer::ByteStream;
use crate::frames::FrameCodec;
use crate::protocol::Protocol;

/// How often an idle end shows that it is alive; at most twice this time passes between two frames.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(500);
/// A peer that sends nothing for this long is unreachable: TCP alone would notice only after minutes.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(2);
/// A peer that takes in nothing of a frame for this long is not waited for.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// The bytes that the system had not taken at the last tick, and since when there are so many.
    stalled: (usize, Instant),
}

impl<In: Message + Default, Out: Message + Default> Connection<In, Out> {
    pub(crate) fn new(framed: Framed<ByteStream, FrameCodec<In, Out>>) -> Self {
        let mut ticks = interval(KEEP_ALIVE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let now = Instant::now();
        Self { framed, ticks, received_at: now, has_sent: false, stalled: (0, now) }
    }

    /// Returns true if the system has taken all frames so far. Otherwise, [`Connection::next`] reports when it has.
    pub fn has_room(&self) -> bool {
        self.framed.write_buffer().is_empty()
    }

    /// Encodes a frame, which [`Connection::next`] writes.
    ///
    /// # Errors
    /// When the frame is too large.
    pub fn send(&mut self, frame: Out) -> io::Result<()> {
        self.has_sent = true;
        Sink::<Out>::start_send(Pin::new(&mut self.framed), frame)
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
        while !self.has_room() {
            self.next(false).await?;
        }
        Ok(())
    }

    fn poll_next(&mut self, context: &mut Context<'_>, reads: bool) -> Poll<io::Result<Event<In>>> {
        let mut has_ticked = false;
        while self.ticks.poll_tick(context).is_ready() {
            has_ticked = true;
        }
        if has_ticked {
            self.on_tick()?;
        }
        let mut has_flushed = false;
        if !self.has_room() {
            has_flushed = Sink::<Out>::poll_flush(Pin::new(&mut self.framed), context)?.is_ready();
        }
        if !reads {
            self.received_at = Instant::now();
        } else if let Poll::Ready(received) = self.poll_received(context) {
            return Poll::Ready(received.map(Event::Received));
        } else if self.received_at.elapsed() >= SILENCE_TIMEOUT {
            return Poll::Ready(Err(timed_out(format!("it sent nothing for {SILENCE_TIMEOUT:?}"))));
        }
        if has_flushed { Poll::Ready(Ok(Event::Flushed)) } else { Poll::Pending }
    }

    /// Shows that this end is alive, and checks that the peer takes in what is sent.
    fn on_tick(&mut self) -> io::Result<()> {
        let (unsent, now) = (self.framed.write_buffer().len(), Instant::now());
        if unsent == 0 || unsent != self.stalled.0 {
            self.stalled = (unsent, now);
        } else if now - self.stalled.1 >= STALL_TIMEOUT {
            return Err(timed_out(format!("it read nothing for {STALL_TIMEOUT:?}")));
        }
        if !std::mem::take(&mut self.has_sent) && unsent == 0 {
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
