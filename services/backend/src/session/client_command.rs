//! The commands of a client, and their effects on its requests.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use futures::future::{BoxFuture, MaybeDone, maybe_done, pending};
use holdfast_api::session_message::{
    AcquirePermits, Arrive, Await, CountDown, HeldPermits, InvalidRequest, Lock, LockInfo, Release, Signal,
};
use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{Path, Reply, ReportedHold, ReportedPermits};

/// One command of the client.
#[derive(Clone, Debug)]
pub(super) enum ClientCommand {
    Lock(Arc<Lock>),
    /// Queries the state of a waiting request at a new leader.
    Requery(String),
    Release(Release),
    AcquirePermits(Arc<AcquirePermits>),
    /// Queries the state of a waiting request for permits at a new leader.
    RequeryPermits(String),
    /// A request for what cannot be, which no shard needs to know.
    Invalid(InvalidRequest),
    CountDown(Arc<CountDown>),
    Arrive(Arc<Arrive>),
    /// Ends an arrival, or leaves a double barrier.
    Leave(Release),
    /// Queries what became of an arrival.
    RequeryArrival(String),
    Await(Arc<Await>),
    /// Queries the state of an await at a new leader.
    RequeryAwait(String),
    Signal(Arc<Signal>),
    ReleaseAll,
    /// Holds of permits in a `lock_info`; precede the rest of it.
    ReportPermits(Vec<HeldPermits>),
    /// A `lock_info`, or a part of one. So many of its holds of permits were reported before it.
    LockInfo {
        info: LockInfo,
        reported: usize,
    },
    /// Queries whether these holds still exist, after a change of leader.
    ReconcileHolds(Vec<ReportedHold>),
    /// Queries whether these holds of permits still exist, after a change of leader.
    ReconcilePermits(Vec<ReportedPermits>),
    Close,
    /// The client broke the protocol.
    Malformed(ApiError),
}

/// Client commands that one shard command executes, in their order.
pub(super) struct InFlightBatch {
    pub(super) commands: Vec<ClientCommand>,
    /// How often the batch was sent before and ignored by the shard.
    pub(super) attempts: u8,
    reply: MaybeDone<BoxFuture<'static, ApiResult<Reply>>>,
}

impl InFlightBatch {
    pub(super) fn new(commands: Vec<ClientCommand>, attempts: u8, reply: BoxFuture<'static, ApiResult<Reply>>) -> Self {
        Self { commands, attempts, reply: maybe_done(reply) }
    }

    /// Waits for the reply; returns it once. Cancel-safe.
    pub(super) async fn reply(&mut self) -> ApiResult<Reply> {
        (&mut self.reply).await;
        match Pin::new(&mut self.reply).take_output() {
            Some(reply) => reply,
            None => pending().await,
        }
    }

    /// Goes on with the call, and keeps its reply. Never returns.
    pub(super) async fn progress(&mut self) -> Infallible {
        (&mut self.reply).await;
        pending().await
    }

    /// Returns whether it acquires the request.
    pub(super) fn acquires(&self, request_id: &str) -> bool {
        self.commands.iter().any(|job| job.acquire_request_id() == Some(request_id))
    }

    /// Returns whether it leaves the barrier at which the request arrived.
    pub(super) fn leaves(&self, request_id: &str) -> bool {
        let is_its = |job: &ClientCommand| matches!(job, ClientCommand::Leave(leave) if leave.request_id == request_id);
        self.commands.iter().any(is_its)
    }

    /// Returns whether it asks for a lock.
    pub(super) fn asks_for(&self, path: &Path) -> bool {
        let claims = |lock: &Lock| lock.resources.iter().any(|resource| resource.path == path.0);
        self.commands.iter().any(|job| matches!(job, ClientCommand::Lock(lock) if claims(lock)))
    }

    /// Returns whether it may add holds that are not known yet: it acquires some, or lists those from before a resume.
    pub(super) fn may_add_holds(&self) -> bool {
        self.lists_holds() || self.commands.iter().any(|job| job.acquire_request_id().is_some())
    }

    /// Returns whether it lists holds from before a resume.
    pub(super) fn lists_holds(&self) -> bool {
        self.commands.iter().any(|job| matches!(job, ClientCommand::LockInfo { .. } | ClientCommand::ReportPermits(_)))
    }

    /// Returns whether it ends the request.
    pub(super) fn ends(&self, request_id: &str) -> bool {
        self.commands.iter().any(|job| job.ends(request_id))
    }
}

impl ClientCommand {
    /// Returns the request that the client makes with it.
    pub(super) fn made_request_id(&self) -> Option<&str> {
        match self {
            Self::Lock(lock) => Some(&lock.request_id),
            Self::AcquirePermits(acquire) => Some(&acquire.request_id),
            Self::Arrive(arrive) => Some(&arrive.request_id),
            Self::Await(awaits) => Some(&awaits.request_id),
            _ => None,
        }
    }

    /// Returns the request that it acquires, or queries again.
    pub(super) fn acquire_request_id(&self) -> Option<&str> {
        match self {
            Self::Requery(request_id) | Self::RequeryPermits(request_id) | Self::RequeryAwait(request_id) => {
                Some(request_id)
            }
            job => job.made_request_id(),
        }
    }

    /// Returns whether it ends the request.
    pub(super) fn ends(&self, request_id: &str) -> bool {
        match self {
            Self::Release(release) => release.request_id == request_id,
            Self::ReleaseAll | Self::Close => true,
            _ => false,
        }
    }

    /// Returns whether it is a part of a `lock_info` that has others, such as the holds of permits.
    pub(super) fn is_one_of_several_parts(&self) -> bool {
        match self {
            Self::ReportPermits(_) => true,
            Self::LockInfo { info, .. } => info.part.count > 1 || !info.permits.is_empty(),
            _ => false,
        }
    }

    /// Takes the next holds of permits out of a `lock_info`, at most so many.
    pub(super) fn next_permits(&mut self, max: usize) -> Option<Vec<HeldPermits>> {
        let Self::LockInfo { info, reported } = self else { return None };
        let held: Vec<HeldPermits> = info.permits.iter().skip(*reported).take(max).cloned().collect();
        *reported += held.len();
        (!held.is_empty()).then_some(held)
    }

    /// Returns whether it is about other kinds of things than locks, whose commands are of rules 2.
    pub(super) fn is_about_things(&self) -> bool {
        let of_conditions = matches!(self, Self::Await(_) | Self::RequeryAwait(_) | Self::Signal(_));
        let of_permits = matches!(self, Self::AcquirePermits(_) | Self::RequeryPermits(_));
        of_conditions || of_permits || matches!(self, Self::CountDown(_) | Self::Arrive(_))
    }

    /// Returns whether it must not be sent again once it may have been done: it would do more than once.
    pub(super) fn is_done_once(&self) -> bool {
        matches!(self, Self::Signal(signal) if signal.signal_id.is_none())
    }

    /// Returns whether its reply says more than that it was done.
    pub(super) fn needs_reply(&self) -> bool {
        !matches!(self, Self::Release(_) | Self::ReleaseAll)
    }

    /// Returns whether it queries what the client has at a new leader.
    pub(super) fn is_reconciliation(&self) -> bool {
        let of_permits = matches!(self, Self::RequeryPermits(_) | Self::ReconcilePermits(_) | Self::RequeryArrival(_));
        of_permits || matches!(self, Self::Requery(_) | Self::RequeryAwait(_) | Self::ReconcileHolds(_))
    }

    /// Returns whether the shard command may contain others like it.
    pub(super) fn is_batchable(&self) -> bool {
        let asks = matches!(self, Self::Lock(_) | Self::Requery(_) | Self::AcquirePermits(_) | Self::RequeryPermits(_));
        let of_conditions = matches!(self, Self::Await(_) | Self::RequeryAwait(_) | Self::Signal(_));
        asks || of_conditions
            || matches!(self, Self::Release(_) | Self::CountDown(_) | Self::Arrive(_) | Self::ReleaseAll)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use holdfast_types::{Kind, Path};
    use tokio::sync::oneshot;

    use super::*;

    fn lists(permits: u64) -> ClientCommand {
        let reported = |token| {
            let (kind, path) = (Kind::Semaphore, Path::flat("s"));
            ReportedPermits { kind, path, request_id: format!("r{token}"), fencing_token: token }
        };
        let permits = (0..permits).map(|token| HeldPermits { reported: reported(token), holder: None });
        ClientCommand::LockInfo { info: LockInfo { permits: permits.collect(), ..LockInfo::default() }, reported: 0 }
    }

    #[test]
    fn permits_are_reported_in_parts_and_what_lists_them_is_never_repeated_alone() {
        let mut info = lists(5);
        let mut parts = Vec::new();
        while let Some(part) = info.next_permits(2) {
            assert!(ClientCommand::ReportPermits(part.clone()).is_one_of_several_parts());
            parts.push(part.iter().map(|hold| hold.reported.fencing_token).collect::<Vec<_>>());
        }
        assert_eq!(parts, [vec![0, 1], vec![2, 3], vec![4]]);
        assert!(info.is_one_of_several_parts() && !lists(0).is_one_of_several_parts());
        assert!(ClientCommand::Close.next_permits(2).is_none());
    }

    #[test]
    fn a_signal_without_an_id_is_not_sent_again() {
        let signal = |signal_id: Option<&str>| {
            let (request_id, condition, signal_id) = ("r".into(), String::new(), signal_id.map(str::to_owned));
            ClientCommand::Signal(Arc::new(Signal { request_id, condition, all: false, signal_id }))
        };
        assert!(signal(None).is_done_once() && !signal(Some("1")).is_done_once());
        assert!(!ClientCommand::ReleaseAll.is_done_once());
    }

    #[test]
    fn what_later_rules_brought_is_not_sent_with_locks() {
        let awaits = Await { request_id: "a".into(), condition: String::new(), wait_ms: None, fencing_token: Some(1) };
        let signal = Signal { request_id: "a".into(), condition: String::new(), all: true, signal_id: None };
        let (path, holder) = (vec!["b".to_owned()], None);
        let arrive = Arrive { request_id: "b".into(), path, generation: None, parties: None, double: None, holder };
        for job in [
            ClientCommand::Await(Arc::new(awaits)),
            ClientCommand::RequeryAwait("a".into()),
            ClientCommand::Signal(Arc::new(signal)),
            ClientCommand::Arrive(Arc::new(arrive)),
        ] {
            assert!(job.is_batchable() && job.is_about_things(), "{job:?}");
        }
        for job in [ClientCommand::Requery("a".into()), ClientCommand::ReleaseAll] {
            assert!(job.is_batchable() && !job.is_about_things(), "{job:?}");
        }
    }

    #[tokio::test]
    async fn a_call_goes_on_while_its_reply_is_not_awaited_and_the_reply_is_kept() {
        let (sink, answered) = oneshot::channel();
        let (finished, is_finished) = oneshot::channel();
        let call = async move {
            let reply = answered.await.unwrap();
            finished.send(()).unwrap();
            Err(reply)
        };
        let mut batch = InFlightBatch::new(Vec::new(), 0, call.boxed());
        assert!(batch.progress().now_or_never().is_none());
        sink.send(ApiError::denied("no")).unwrap();
        assert!(batch.progress().now_or_never().is_none());
        is_finished.await.unwrap();
        assert!(batch.progress().now_or_never().is_none());
        assert_eq!(batch.reply().await.err(), Some(ApiError::denied("no")));
    }
}
