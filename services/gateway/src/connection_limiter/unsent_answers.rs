//! The answers of a connection that its peer has not taken in, counted in bytes for the connection and the account of
//! each caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult};
use holdfast_routing::{ByteBudget, Reservation};
use holdfast_types::limit::{self, CONNECTION_BYTES};
use metrics::counter;
use tokio::time::sleep;

/// Bytes of answers that one connection has not sent.
pub(crate) const MAX_ANSWER_BYTES: u32 = 8 << 20;
/// How long a peer may take in nothing of an answer. It is checked at such intervals, so it has up to twice that.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The answers of one connection.
pub(super) struct UnsentAnswers {
    of_connection: ByteBudget,
    /// Whether callers of several accounts share the connection. Then none of them may use up the room of the others.
    is_shared: AtomicBool,
    count: AtomicUsize,
    /// Rises whenever the peer takes in a part of one.
    progress: AtomicU64,
}

/// Bytes of an answer, counted until this is dropped.
pub(crate) struct AnswerReservation {
    answers: Arc<UnsentAnswers>,
    /// Absent for a connection that is shared.
    _of_connection: Option<Reservation>,
    _of_account: Option<Reservation>,
}

impl UnsentAnswers {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            of_connection: ByteBudget::new(MAX_ANSWER_BYTES),
            is_shared: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            progress: AtomicU64::new(0),
        })
    }

    /// From now on, callers of several accounts share the connection.
    pub(super) fn set_shared(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
    }

    /// Returns whether callers of several accounts share the connection.
    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Counts the bytes of an answer, for the account of its caller too, if it has one.
    ///
    /// # Errors
    /// `RATE_LIMITED` if the connection, unless it is shared, or the account has too many of them.
    pub(super) fn reserve(
        self: &Arc<Self>,
        bytes: usize,
        of_account: Option<&ByteBudget>,
    ) -> ApiResult<AnswerReservation> {
        let reserve = |budget: &ByteBudget, what| budget.try_reserve(bytes).ok_or_else(|| unread(what, budget));
        let own = (!self.is_shared()).then_some(&self.of_connection);
        let of_connection = own.map(|budget| reserve(budget, CONNECTION_BYTES)).transpose()?;
        let what = limit::BUFFERED_BYTES.what.first().copied().unwrap_or_default();
        let of_account = of_account.map(|budget| reserve(budget, what)).transpose()?;
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
        let (of_account, of_another) = (ByteBudget::new(100), ByteBudget::new(100));
        let reserve = |of_account| UnsentAnswers::new().reserve(60, of_account);
        let unsent = reserve(Some(&of_account)).ok().unwrap();
        let refused = reserve(Some(&of_account)).err().unwrap();
        assert_eq!(refused.ids, [("limit", "max_buffered_bytes".to_owned()), ("max", "100".to_owned())]);
        assert!(reserve(Some(&of_another)).is_ok() && reserve(None).is_ok());
        drop(unsent);
        assert!(reserve(Some(&of_account)).is_ok());
    }

    #[test]
    fn a_connection_has_so_many_bytes_whoever_it_belongs_to() {
        let answers = UnsentAnswers::new();
        let _unsent = answers.reserve(MAX_ANSWER_BYTES as usize, None).ok().unwrap();
        let refused = answers.reserve(1, None).err().unwrap();
        assert_eq!(refused.ids[1], ("max", "8388608".to_owned()));
        assert!(UnsentAnswers::new().reserve(1, None).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_in_nothing_is_noticed_and_a_slow_one_is_not() {
        let (deaf, slow) = (UnsentAnswers::new(), UnsentAnswers::new());
        let unread = deaf.reserve(1, None).ok().unwrap();
        let read = slow.reserve(1, None).ok().unwrap();
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
