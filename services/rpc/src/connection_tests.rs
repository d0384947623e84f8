use bytes::Bytes;
use futures::FutureExt;
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::{Answer, AnswerFrame, CallFrame};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

use super::*;
use crate::protocol::Calls;

/// Takes in everything at once, as TLS may, and passes it on when it is flushed.
struct Buffering {
    inner: DuplexStream,
    buffered: Vec<u8>,
}

impl AsyncRead for Buffering {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, into)
    }
}

impl AsyncWrite for Buffering {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.buffered.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, buffered } = &mut *self;
        while !buffered.is_empty() {
            let written = ready!(Pin::new(&mut *inner).poll_write(context, buffered))?;
            buffered.drain(..written);
        }
        Pin::new(inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_stream_holds_back_is_not_taken_for_sent_and_is_sent_as_soon_as_the_peer_reads() {
    let (inner, mut peer) = duplex(64);
    let stream: ByteStream = Box::new(Buffering { inner, buffered: Vec::new() });
    let framed = Framed::new(stream, FrameCodec::<CallFrame, AnswerFrame>::new(Calls::MAX_FRAME_BYTES));
    let mut connection = Connection::new(framed, Calls::STALL_TIMEOUT);
    let answer = Answer { id: 1, outcome: Some(Outcome::Reply(Bytes::from(vec![7; 1_000]))), ..Answer::default() };
    connection.send(AnswerFrame { answers: vec![answer] }).unwrap();
    assert!(connection.next(false).now_or_never().is_none(), "the peer reads nothing");
    assert!(!connection.is_flushed());

    let began = Instant::now();
    let mut read = [0; 1_000];
    let (event, _) = tokio::join!(connection.next(false), peer.read_exact(&mut read));
    assert!(matches!(event, Ok(Event::Flushed)) && connection.is_flushed());
    assert_eq!(began.elapsed(), Duration::ZERO, "no timer was needed");
}
