//! Reads of a connection that end a poll of its task in time.
//!
//! HTTP/2 takes in frames for as long as there are any: a thousand heads of calls in one poll, before any other task.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::http::Version;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// Bytes that one read takes in at most: some 30 heads of calls.
const MAX_READ_BYTES: u64 = 4 * 1_024;
/// After this time, a poll reads nothing further.
const MAX_POLL_TIME: Duration = Duration::from_micros(100);

/// A connection with paced reads.
pub(super) struct PacedReads<S> {
    /// Its limit is set before each read.
    stream: Take<S>,
    /// When the reads of this poll began; none since the last read that had to wait.
    began: Option<Instant>,
    spoken: Arc<OnceLock<Version>>,
}

impl<S: AsyncRead> PacedReads<S> {
    /// `spoken` says what the peer speaks. HTTP/1.1 has one call at a time and no need to be paced; what it has not read
    /// when it refuses a call may end the connection.
    pub(super) fn new(stream: S, spoken: Arc<OnceLock<Version>>) -> Self {
        Self { stream: stream.take(MAX_READ_BYTES), began: None, spoken }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PacedReads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.spoken.get() != Some(&Version::HTTP_2) {
            self.stream.set_limit(u64::MAX);
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let began = *self.began.get_or_insert_with(Instant::now);
        if began.elapsed() >= MAX_POLL_TIME {
            self.began = None;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.stream.set_limit(MAX_READ_BYTES);
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_pending() {
            self.began = None;
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PacedReads<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_read_of_http_2_is_bounded_and_a_poll_that_has_read_for_long_ends() {
        const SENT: usize = 3 * MAX_READ_BYTES as usize;
        let (mut peer, stream) = duplex(SENT);
        peer.write_all(&[7; SENT]).await.unwrap();
        let spoken = Arc::<OnceLock<Version>>::default();
        let (mut reads, mut buffer) = (PacedReads::new(stream, Arc::clone(&spoken)), vec![0; SENT]);
        reads.began = Some(Instant::now() - MAX_POLL_TIME);
        assert_eq!(reads.read(&mut buffer).await.unwrap(), SENT, "it is of HTTP/1.1");
        spoken.set(Version::HTTP_2).unwrap();
        reads.began = None;
        peer.write_all(&[7; SENT]).await.unwrap();
        assert_eq!(reads.read(&mut buffer).await.unwrap() as u64, MAX_READ_BYTES);
        reads.began = reads.began.map(|began| began - MAX_POLL_TIME);
        assert!(reads.read(&mut buffer).now_or_never().is_none(), "another task has its turn");
        // The rest, and the answer.
        assert_eq!(reads.read_exact(&mut buffer[..SENT - MAX_READ_BYTES as usize]).await.unwrap(), SENT - 4_096);
        reads.write_all(b"answer").await.unwrap();
        reads.shutdown().await.unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    }
}
