//! A stream of events to one reader.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code, EventPage};
use holdfast_supervise::spawn_alongside;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a reader may take for a page before its stream is closed.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A source of pages.
pub(super) trait PageSource: Send {
    /// Returns the next page, after all that were fetched before.
    fn next(&mut self) -> impl Future<Output = ApiResult<EventPage>> + Send;
}

/// The pages of one watcher. A separate task fetches them one by one, and only when the reader requests one. So a
/// reader that stops reading costs one page, and is detected.
pub struct EventStream {
    next_revision: u64,
    /// Whether a requested page has not arrived yet.
    is_requested: bool,
    demand: mpsc::Sender<()>,
    pages: mpsc::Receiver<EventPage>,
    /// Returns the reason why the stream ended.
    task: JoinHandle<ApiError>,
}

impl EventStream {
    /// Starts the task; it fetches when the first page is requested. The permits are released at its end.
    pub(super) fn start(
        next_revision: u64,
        pages: impl PageSource + 'static,
        refused: impl Future<Output = ApiError> + Send + 'static,
        permits: impl Send + 'static,
        stopping: CancellationToken,
    ) -> Self {
        let (demand, demanded) = mpsc::channel(1);
        let (delivery, delivered) = mpsc::channel(1);
        let task = spawn_alongside("event_stream", async move {
            let reason = tokio::select! {
                () = stopping.cancelled() => resumable_end("this gateway stops"),
                () = delivery.closed() => resumable_end("the reader is gone"),
                reason = refused => reason,
                reason = deliver(pages, demanded, &delivery) => reason,
            };
            drop(permits);
            reason
        });
        Self { next_revision, is_requested: false, demand, pages: delivered, task }
    }

    /// Returns where a reader continues that has taken every page so far.
    pub fn next_revision(&self) -> u64 {
        self.next_revision
    }

    /// Returns the next page; it may have no events. A dropped call loses nothing.
    ///
    /// # Errors
    /// The reason why the stream has ended; the reader must not call this again after it.
    pub async fn next(&mut self) -> ApiResult<EventPage> {
        if !self.is_requested {
            // If the task has ended, no page will arrive.
            self.is_requested = self.demand.send(()).await.is_ok();
        }
        match self.pages.recv().await {
            Some(page) => {
                self.is_requested = false;
                self.next_revision = page.next_revision;
                Ok(page)
            }
            None => match (&mut self.task).await {
                Ok(reason) => Err(reason),
                Err(error) => {
                    tracing::error!(%error, "event stream task failed");
                    Err(ApiError::internal("the stream ended by a fault of the service"))
                }
            },
        }
    }
}

/// Fetches a page for each request of the reader.
async fn deliver(
    mut pages: impl PageSource,
    mut demanded: mpsc::Receiver<()>,
    delivery: &mpsc::Sender<EventPage>,
) -> ApiError {
    loop {
        match timeout(READ_TIMEOUT, demanded.recv()).await {
            Err(_) => return resumable_end("the reader did not take its events within 30 s"),
            Ok(None) => return resumable_end("the reader is gone"),
            Ok(Some(())) => {}
        }
        match pages.next().await {
            Ok(page) => {
                if delivery.send(page).await.is_err() {
                    return resumable_end("the reader is gone");
                }
            }
            Err(error) => return error,
        }
    }
}

/// The error for an end after which the reader can resume at its position.
fn resumable_end(reason: &str) -> ApiError {
    ApiError::new(Code::Unavailable, format!("{reason}; watch again from after the last event to miss nothing"))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt;
    use holdfast_types::AccountId;

    use super::*;
    use crate::events::WatcherLimiter;
    use crate::events::watcher_limiter::WatcherPermit;

    /// An endless source of pages without events; counts the fetches.
    struct Endless(tokio::sync::watch::Sender<u64>);

    impl PageSource for Endless {
        async fn next(&mut self) -> ApiResult<EventPage> {
            self.0.send_modify(|fetched| *fetched += 1);
            Ok(EventPage { events: Vec::new(), next_revision: *self.0.borrow() })
        }
    }

    fn permit() -> WatcherPermit {
        WatcherLimiter::default().acquire(AccountId(1)).unwrap()
    }

    /// Returns the reason for the end, after all remaining pages.
    async fn end_of(stream: &mut EventStream) -> ApiError {
        loop {
            if let Err(reason) = stream.next().await {
                return reason;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_come_back_is_cut_off_and_no_page_is_fetched_for_it() {
        let (fetched, mut seen) = tokio::sync::watch::channel(0);
        let mut stream = EventStream::start(1, Endless(fetched), pending(), permit(), CancellationToken::new());
        for page in 1..=3 {
            assert_eq!(stream.next().await.unwrap().next_revision, page);
        }
        let before = tokio::time::Instant::now();
        // The task drops its source when it ends.
        while seen.changed().await.is_ok() {}
        assert_eq!((before.elapsed(), *seen.borrow()), (READ_TIMEOUT, 3));
        let reason = stream.next().await.unwrap_err();
        assert_eq!(reason.code, Code::Unavailable);
        assert!(reason.detail.starts_with("the reader did not take its events"), "{reason}");
        assert_eq!(stream.next_revision(), 3);
    }

    #[tokio::test]
    async fn a_question_that_is_given_up_loses_no_page() {
        let (fetched, _seen) = tokio::sync::watch::channel(0);
        let mut stream = EventStream::start(1, Endless(fetched), pending(), permit(), CancellationToken::new());
        for page in 1..=100 {
            assert!(stream.next().now_or_never().is_none(), "it was asked for this moment");
            assert_eq!(stream.next().await.unwrap().next_revision, page);
        }
    }

    #[tokio::test]
    async fn a_stream_ends_with_the_reason_when_its_credential_is_refused_or_the_process_stops() {
        let (fetched, _seen) = tokio::sync::watch::channel(0);
        let refused = std::future::ready(ApiError::denied("the account is suspended"));
        let mut stream = EventStream::start(1, Endless(fetched), refused, permit(), CancellationToken::new());
        assert_eq!(end_of(&mut stream).await.code, Code::PermissionDenied);
        let (fetched, _seen) = tokio::sync::watch::channel(0);
        let stopping = CancellationToken::new();
        let mut stream = EventStream::start(1, Endless(fetched), pending(), permit(), stopping.clone());
        stream.next().await.unwrap();
        stopping.cancel();
        let reason = end_of(&mut stream).await;
        assert!(reason.detail.starts_with("this gateway stops"), "{reason}");
    }
}
