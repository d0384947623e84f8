//! A stream of events towards one reader.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code, EventPage};
use holdfast_supervise::spawn_temporary;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::watcher_limiter::WatcherPermit;

/// How long a reader may take for a page before it is cut off.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Where pages come from.
pub(super) trait PageSource: Send {
    /// The next one, after all that were fetched before.
    fn next(&mut self) -> impl Future<Output = ApiResult<EventPage>> + Send;
}

/// The pages of one watcher. A task of its own fetches them, one at a time and only when the reader comes for it; so a
/// reader that does not read costs one page, and is found out.
pub struct EventStream {
    next_revision: u64,
    /// Whether a page was asked for that has not come yet.
    is_requested: bool,
    demand: mpsc::Sender<()>,
    pages: mpsc::Receiver<EventPage>,
    /// Ends with the reason why the stream does.
    task: JoinHandle<ApiError>,
}

impl EventStream {
    /// Begins to fetch when the first page is asked for.
    pub(super) fn start(
        next_revision: u64,
        pages: impl PageSource + 'static,
        refused: impl Future<Output = ApiError> + Send + 'static,
        place: WatcherPermit,
        stopping: CancellationToken,
    ) -> Self {
        let (demand, demanded) = mpsc::channel(1);
        let (delivery, delivered) = mpsc::channel(1);
        let task = spawn_temporary("watcher", async move {
            let reason = tokio::select! {
                () = stopping.cancelled() => resumable_end("this gateway stops"),
                () = delivery.closed() => resumable_end("the reader is gone"),
                reason = refused => reason,
                reason = deliver(pages, demanded, &delivery) => reason,
            };
            drop(place);
            reason
        });
        Self { next_revision, is_requested: false, demand, pages: delivered, task }
    }

    /// From where a reader has to go on that has taken every page so far.
    pub fn next_revision(&self) -> u64 {
        self.next_revision
    }

    /// The next page; it may have no events. A call that is given up loses nothing.
    ///
    /// # Errors
    /// Why the stream has ended; it must not be asked again then.
    pub async fn next(&mut self) -> ApiResult<EventPage> {
        if !self.is_requested {
            // When the task has ended there is nobody to ask, and no page will come.
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
                    tracing::error!(%error, "a watcher's task ended badly");
                    Err(ApiError::internal("the stream ended by a fault of the service"))
                }
            },
        }
    }
}

/// Fetches a page whenever the reader comes for one.
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

/// An end after which the reader may go on where it was.
fn resumable_end(reason: &str) -> ApiError {
    ApiError::new(Code::Unavailable, format!("{reason}; watch again from after the last event to miss nothing"))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt;
    use holdfast_core::AccountId;

    use super::*;
    use crate::events::WatcherLimiter;

    /// Pages without end, each of no events; counts what was fetched.
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

    /// Why it ends, after whatever it still brings.
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
        // The task lets go of its source when it ends.
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
