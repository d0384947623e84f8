//! One interface for the three frontends.

pub(crate) mod dlocks;
pub(crate) mod grpc;
pub(crate) mod rest;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::Status;
use tonic_types::StatusExt;

use super::RestClient;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unlocked,
    ReadLocked,
    WriteLocked,
}

/// How long a hold is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expiry {
    Ttl(Duration),
    /// Nanoseconds since 1970.
    At(i64),
}

/// An acquire in the namespace `ns`.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) lock: String,
    pub(crate) process_id: String,
    pub(crate) mode: Mode,
    pub(crate) expiry: Expiry,
    pub(crate) transition_ms: u64,
    pub(crate) fencing_token: Option<u64>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) wait_ms: u64,
    pub(crate) poll_ms: Option<u64>,
    pub(crate) allow_upgrade: bool,
}

impl AcquireRequest {
    pub(crate) fn new(lock: &str, process_id: &str, mode: Mode) -> Self {
        Self {
            lock: lock.to_owned(),
            process_id: process_id.to_owned(),
            mode,
            expiry: Expiry::Ttl(Duration::from_secs(60)),
            transition_ms: 0,
            fencing_token: None,
            metadata: BTreeMap::new(),
            wait_ms: 0,
            poll_ms: None,
            allow_upgrade: false,
        }
    }

    pub(crate) fn write(lock: &str, process_id: &str) -> Self {
        Self::new(lock, process_id, Mode::Write)
    }

    pub(crate) fn read(lock: &str, process_id: &str) -> Self {
        Self::new(lock, process_id, Mode::Read)
    }

    pub(crate) fn ttl_ms(self, ttl_ms: u64) -> Self {
        Self { expiry: Expiry::Ttl(Duration::from_millis(ttl_ms)), ..self }
    }

    pub(crate) fn expires_at(self, instant_ns: i64) -> Self {
        Self { expiry: Expiry::At(instant_ns), ..self }
    }

    pub(crate) fn transition_ms(self, transition_ms: u64) -> Self {
        Self { transition_ms, ..self }
    }

    pub(crate) fn wait_ms(self, wait_ms: u64) -> Self {
        Self { wait_ms, ..self }
    }

    pub(crate) fn poll_ms(self, poll_ms: u64) -> Self {
        Self { poll_ms: Some(poll_ms), ..self }
    }

    /// May change the mode of the hold.
    pub(crate) fn allow_upgrade(self) -> Self {
        Self { allow_upgrade: true, ..self }
    }

    /// Only extends the hold of this token.
    pub(crate) fn fencing_token(self, fencing_token: u64) -> Self {
        Self { fencing_token: Some(fencing_token), ..self }
    }
}

/// One hold. Fields that a frontend does not have are absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) process_id: String,
    pub(crate) locked_at_ms: i64,
    pub(crate) expires_at_ms: i64,
    pub(crate) mode: Option<Mode>,
    pub(crate) fencing_token: Option<u64>,
    pub(crate) remaining_ms: Option<u64>,
    pub(crate) in_transition: Option<bool>,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) name: String,
    pub(crate) state: State,
    pub(crate) locked_at_ms: Option<i64>,
    pub(crate) writer: Option<Holder>,
    pub(crate) readers: Vec<Holder>,
    pub(crate) revision: Option<u64>,
    /// How many requests wait for it.
    pub(crate) waiting: Option<u64>,
}

impl Lock {
    /// Who reads, in the order shown.
    pub(crate) fn reader_ids(&self) -> Vec<&str> {
        self.readers.iter().map(|reader| reader.process_id.as_str()).collect()
    }

    /// The owner that writes; empty if there is none.
    pub(crate) fn writer_id(&self) -> &str {
        self.writer.as_ref().map_or("", |writer| writer.process_id.as_str())
    }

    #[track_caller]
    pub(crate) fn assert_free(&self) {
        let shown = (self.state, self.locked_at_ms, &self.writer, self.readers.len());
        assert_eq!(shown, (State::Unlocked, None, &None, 0));
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Acquired {
    pub(crate) success: bool,
    pub(crate) fencing_token: Option<u64>,
    pub(crate) reason: Option<String>,
    /// Who is in the way.
    pub(crate) blockers: Vec<String>,
    pub(crate) queue_position: Option<u64>,
    /// Of a deadlock: who waits for whom.
    pub(crate) cycle: Vec<String>,
    pub(crate) lock: Lock,
}

#[derive(Clone, Debug)]
pub(crate) struct Released {
    pub(crate) released: Option<bool>,
    pub(crate) lock: Lock,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Namespace {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) created_at_ms: i64,
    pub(crate) updated_at_ms: i64,
    pub(crate) id: Option<String>,
}

/// An error, as every frontend returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The public code.
    pub(crate) code: String,
    pub(crate) detail: String,
    /// The ids concerned.
    pub(crate) ids: BTreeMap<String, String>,
}

impl Failure {
    /// Of a gRPC call.
    pub(crate) fn from_status(status: Status) -> Self {
        let info = status.get_details_error_info().unwrap_or_else(|| panic!("no ErrorInfo in {status:?}"));
        assert_eq!(info.domain, "holdfast");
        Self { code: info.reason, detail: status.message().to_owned(), ids: info.metadata.into_iter().collect() }
    }

    pub(crate) fn code_and_detail(&self) -> (&str, &str) {
        (&self.code, &self.detail)
    }
}

/// The operations of every frontend.
pub(crate) trait LockClient: Sized {
    async fn connect(rest: &RestClient) -> Self;
    async fn acquire(&self, ask: AcquireRequest) -> Result<Acquired, Failure>;
    async fn release(&self, lock: &str, process_id: &str) -> Result<Released, Failure>;
    async fn get(&self, lock: &str) -> Result<Lock, Failure>;
    async fn delete(&self, lock: &str) -> Result<(), Failure>;
    async fn create_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure>;
    async fn get_namespace(&self, name: &str) -> Result<Namespace, Failure>;
    async fn update_namespace(&self, name: &str, description: &str) -> Result<Namespace, Failure>;
    async fn delete_namespace(&self, name: &str) -> Result<(), Failure>;
    /// All of them.
    async fn list_namespaces(&self) -> Result<Vec<Namespace>, Failure>;

    /// An acquire that is granted.
    async fn expect_granted(&self, ask: AcquireRequest) -> Acquired {
        let acquired = self.acquire(ask).await.unwrap();
        assert!(acquired.success && acquired.reason.is_none(), "{acquired:?}");
        acquired
    }

    /// An acquire that is refused, which is no error.
    async fn expect_refused(&self, ask: AcquireRequest) -> Acquired {
        let acquired = self.acquire(ask).await.unwrap();
        assert!(!acquired.success && acquired.fencing_token.is_none(), "{acquired:?}");
        acquired
    }
}

/// The operations of frontends with fencing tokens.
pub(crate) trait FencingLockClient: LockClient {
    async fn release_token(&self, lock: &str, process_id: &str, fencing_token: u64) -> Result<Released, Failure>;
    async fn check(&self, lock: &str, fencing_token: u64) -> Result<bool, Failure>;
    /// Names of the locks of a page, and the token of the next.
    async fn list_locks(
        &self,
        prefix: &[&str],
        page_size: u32,
        page_token: &str,
    ) -> Result<(Vec<String>, Option<String>), Failure>;
}

/// Nanoseconds since 1970, that far from now.
pub(crate) fn instant_ns(from_now: Duration) -> i64 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + from_now;
    i64::try_from(at.as_nanos()).unwrap()
}

/// Milliseconds since 1970 now.
pub(crate) fn now_ms() -> i64 {
    instant_ns(Duration::ZERO) / 1_000_000
}
