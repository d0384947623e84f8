//! The answers of a connection that its peer has not taken in, counted in bytes for the connection and its account.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult};
use holdfast_routing::{ByteBudget, Reservation};
use holdfast_types::limit::{self, CONNECTION_BYTES};
use metrics::counter;
use parking_lot::Mutex;
use tokio::time::sleep;

/// Bytes of answers that one connection has not sent.
pub(crate) const MAX_ANSWER_BYTES: u32 = 8 << 20;
/// How long a peer may take in nothing of an answer. It is checked at such intervals, so it has up to twice that.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The answers of one connection.
pub(super) struct UnsentAnswers {
    of_connection: ByteBudget,
    /// The budget of the connection's account, if it has one.
    of_account: Mutex<Option<ByteBudget>>,
    count: AtomicUsize,
    /// Rises whenever the peer takes in a part of one.
    progress: AtomicU64,
}

/// Bytes of an answer, counted until this is dropped.
pub(crate) struct AnswerReservation {
    answers: Arc<UnsentAnswers>,
    _of_connection: Reservation,
    _of_account: Option<Reservation>,
}

impl UnsentAnswers {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            of_connection: ByteBudget::new(MAX_ANSWER_BYTES),
            of_account: Mutex::default(),
            count: AtomicUsize::new(0),
            progress: AtomicU64::new(0),
        })
    }

    /// Counts further answers in this budget too.
    pub(super) fn set_account(&self, budget: Option<ByteBudget>) {
        *self.of_account.lock() = budget;
    }

    /// Counts the bytes of an answer.
    ///
    /// # Errors
    /// `RATE_LIMITED` if the connection or its account has too many of them.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize) -> ApiResult<AnswerReservation> {
        let of_connection = self.of_connection.try_reserve(bytes);
        let of_connection = of_connection.ok_or_else(|| unread(CONNECTION_BYTES, &self.of_connection))?;
        let budget = self.of_account.lock().clone();
        let of_account = budget.map(|budget| {
            let what = limit::BUFFERED_BYTES.what.first().copied().unwrap_or_default();
            budget.try_reserve(bytes).ok_or_else(|| unread(what, &budget))
        });
        let of_account = of_account.transpose()?;
        self.count.fetch_add(1, Ordering::Relaxed);
        let answers = Arc::clone(self);
        let reservation = AnswerReservation { answers, _of_connection: of_connection, _of_account: of_account };
        reservation.record_progress();
        Ok(reservation)
    }

    /// Returns once the peer has taken in nothing of an answer for [`STALL_TIMEOUT`].
    pub(super) async fn stalled(&self) {
        let mut seen = None;
        loop {
            sleep(STALL_TIMEOUT).await;
            let progress = self.progress.load(Ordering::Relaxed);
            if self.count.load(Ordering::Relaxed) > 0 && seen == Some(progress) {
                counter!("holdfast_connections_stalled_total").increment(1);
                return;
            }
            seen = Some(progress);
        }
    }
}

/// The error of a caller that does not read its answers.
fn unread(what: &'static str, budget: &ByteBudget) -> ApiError {
    ApiError::limited_to(&limit::BUFFERED_BYTES, what, budget.limit().into(), "read the answers to earlier calls first")
}

impl AnswerReservation {
    /// Notes that the peer takes in a part of the answer.
    pub(crate) fn record_progress(&self) {
        self.answers.progress.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for AnswerReservation {
    fn drop(&mut self) {
        self.answers.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    #[test]
    fn answers_of_an_account_count_together_and_harm_no_other() {
        let of_account = ByteBudget::new(100);
        let connections =
            [Some(of_account.clone()), Some(of_account), Some(ByteBudget::new(100)), None].map(|budget| {
                let answers = UnsentAnswers::new();
                answers.set_account(budget);
                answers
            });
        let unsent = connections[0].reserve(60).ok().unwrap();
        let refused = connections[1].reserve(60).err().unwrap();
        assert_eq!(refused.ids, [("limit", "max_buffered_bytes".to_owned()), ("max", "100".to_owned())]);
        assert!(connections[2].reserve(60).is_ok() && connections[3].reserve(60).is_ok());
        drop(unsent);
        assert!(connections[1].reserve(60).is_ok());
    }

    #[test]
    fn a_connection_has_so_many_bytes_whoever_it_belongs_to() {
        let answers = UnsentAnswers::new();
        let _unsent = answers.reserve(MAX_ANSWER_BYTES as usize).ok().unwrap();
        let refused = answers.reserve(1).err().unwrap();
        assert_eq!(refused.ids[1], ("max", "8388608".to_owned()));
        assert!(UnsentAnswers::new().reserve(1).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_in_nothing_is_noticed_and_a_slow_one_is_not() {
        let (deaf, slow) = (UnsentAnswers::new(), UnsentAnswers::new());
        let unread = deaf.reserve(1).ok().unwrap();
        let read = slow.reserve(1).ok().unwrap();
        let reading = async {
            for _ in 0..100 {
                sleep(STALL_TIMEOUT / 2).await;
                read.record_progress();
            }
        };
        let began = Instant::now();
        tokio::select! {
            () = deaf.stalled() => {}
            () = slow.stalled() => panic!("it reads"),
            () = reading => panic!("nobody was noticed"),
        }
        assert!(began.elapsed() < STALL_TIMEOUT * 3, "{:?}", began.elapsed());
        drop(unread);
        assert!(timeout(STALL_TIMEOUT * 10, deaf.stalled()).await.is_err(), "nothing is to be sent");
    }
}
