//! Unary calls over gRPC, which count themselves.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_proto::v1;
use holdfast_proto::v1::latches_service_client::LatchesServiceClient;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use parking_lot::Mutex;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

/// No call is waited for any longer.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// What the calls of one account came to.
#[derive(Default)]
pub(crate) struct CallStats {
    made: AtomicU64,
    /// How many were refused, by code.
    refused: Mutex<BTreeMap<String, u64>>,
    /// The slowest of those that are measured, by what they are.
    slowest: Mutex<BTreeMap<&'static str, Duration>>,
}

impl CallStats {
    /// One more was made.
    pub(crate) fn record_call(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were made.
    pub(crate) fn total(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    /// One was refused.
    pub(crate) fn record_error(&self, code: &str) {
        *self.refused.lock().entry(code.to_owned()).or_default() += 1;
    }

    /// How many were refused, by code.
    pub(crate) fn errors(&self) -> BTreeMap<String, u64> {
        self.refused.lock().clone()
    }

    /// Notes how long something took.
    pub(crate) fn record_duration(&self, what: &'static str, time: Duration) {
        let mut slowest = self.slowest.lock();
        let known = slowest.entry(what).or_default();
        *known = time.max(*known);
    }

    /// The slowest of each kind.
    pub(crate) fn slowest(&self) -> BTreeMap<&'static str, Duration> {
        self.slowest.lock().clone()
    }
}

/// A connection to a gateway.
#[derive(Clone)]
pub(crate) struct GrpcClient {
    pub channel: Channel,
    key: MetadataValue<Ascii>,
    pub calls: Arc<CallStats>,
}

/// The code that a refusal names: that of this service, or else that of gRPC.
pub(crate) fn error_code(status: &Status) -> String {
    use tonic_types::StatusExt;
    status.get_details_error_info().map_or_else(|| format!("{:?}", status.code()), |info| info.reason)
}

/// The limit that a refusal names.
pub(crate) fn refused_limit(status: &Status) -> Option<String> {
    use tonic_types::StatusExt;
    status.get_details_error_info()?.metadata.remove("limit")
}

impl GrpcClient {
    /// Connects.
    pub(crate) async fn connect(gateway: SocketAddr, key: &str, calls: &Arc<CallStats>) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("http://{gateway}")).expect("an address makes a URL");
        let endpoint = endpoint.tcp_nodelay(true).connect_timeout(Duration::from_secs(5));
        let channel = endpoint.connect().await.map_err(|error| format!("can't connect: {error}"))?;
        let key = format!("Bearer {key}").parse().expect("a key is ASCII");
        Ok(Self { channel, key, calls: Arc::clone(calls) })
    }

    /// A connection to each gateway.
    pub(crate) async fn connect_to_all(gateways: &[SocketAddr], key: &str) -> Result<Vec<Self>, String> {
        let (mut frontends, calls) = (Vec::new(), Arc::<CallStats>::default());
        for gateway in gateways {
            frontends.push(Self::connect(*gateway, key, &calls).await?);
        }
        Ok(frontends)
    }

    /// A request with the key, which counts as made.
    pub(crate) fn signed<T>(&self, message: T) -> Request<T> {
        self.calls.record_call();
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.key.clone());
        request
    }

    fn count_errors<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<T, Status> {
        answer.map(tonic::Response::into_inner).inspect_err(|status| self.calls.record_error(&error_code(status)))
    }

    fn locks(&self) -> LocksServiceClient<Channel> {
        LocksServiceClient::new(self.channel.clone()).max_decoding_message_size(64 << 20)
    }

    fn sessions(&self) -> SessionsServiceClient<Channel> {
        SessionsServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn acquire(&self, message: v1::AcquireLockRequest) -> Result<v1::AcquireLockResponse, Status> {
        let answer = self.locks().acquire_lock(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn acquire_set(
        &self,
        message: v1::AcquireLocksRequest,
    ) -> Result<v1::AcquireLocksResponse, Status> {
        let answer = self.locks().acquire_locks(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn release(&self, message: v1::ReleaseLockRequest) -> Result<v1::ReleaseLockResponse, Status> {
        let answer = self.locks().release_lock(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn release_set(
        &self,
        message: v1::ReleaseLocksRequest,
    ) -> Result<v1::ReleaseLocksResponse, Status> {
        let answer = self.locks().release_locks(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn get(&self, message: v1::GetLockRequest) -> Result<v1::GetLockResponse, Status> {
        let answer = self.locks().get_lock(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn check(&self, message: v1::CheckLockRequest) -> Result<v1::CheckLockResponse, Status> {
        let answer = self.locks().check_lock(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn delete(&self, message: v1::DeleteLockRequest) -> Result<v1::DeleteLockResponse, Status> {
        let answer = self.locks().delete_lock(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn list(&self, message: v1::ListLocksRequest) -> Result<v1::ListLocksResponse, Status> {
        let answer = self.locks().list_locks(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn reset(&self, message: v1::ResetNamespaceRequest) -> Result<v1::ResetNamespaceResponse, Status> {
        let answer = self.locks().reset_namespace(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn watch(&self, message: v1::WatchRequest) -> Result<Streaming<v1::Event>, Status> {
        let answer = self.locks().watch(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn wait_for_latch(
        &self,
        message: v1::WaitForLatchRequest,
    ) -> Result<v1::WaitForLatchResponse, Status> {
        let answer = LatchesServiceClient::new(self.channel.clone()).wait_for_latch(self.signed(message)).await;
        self.count_errors(answer)
    }

    /// Makes a session that needs no connection; its id.
    pub(crate) async fn create_session(&self, namespace: &str, ttl: Duration) -> Result<String, Status> {
        let message = v1::CreateSessionRequest {
            namespace: namespace.to_owned(),
            process_id: "somebody".to_owned(),
            ttl_ms: ttl.as_millis() as u64,
            ..Default::default()
        };
        let answer = self.sessions().create_session(self.signed(message)).await;
        self.count_errors(answer).map(|session| session.session_id)
    }

    pub(crate) async fn keep_alive(&self, namespace: &str, session_id: &str) -> Result<v1::KeepAliveResponse, Status> {
        let message = v1::KeepAliveRequest { namespace: namespace.to_owned(), session_id: session_id.to_owned() };
        let answer = self.sessions().keep_alive(self.signed(message)).await;
        self.count_errors(answer)
    }

    pub(crate) async fn delete_session(&self, namespace: &str, session_id: &str) -> Result<(), Status> {
        let message = v1::DeleteSessionRequest { namespace: namespace.to_owned(), session_id: session_id.to_owned() };
        let answer = self.sessions().delete_session(self.signed(message)).await;
        self.count_errors(answer).map(drop)
    }

    pub(crate) async fn create_namespace(&self, name: &str) -> Result<(), Status> {
        let message = v1::CreateNamespaceRequest { name: name.to_owned(), ..Default::default() };
        let answer = NamespacesServiceClient::new(self.channel.clone()).create_namespace(self.signed(message)).await;
        self.count_errors(answer).map(drop)
    }

    pub(crate) async fn delete_namespace(&self, name: &str) -> Result<(), Status> {
        let message = v1::DeleteNamespaceRequest { name: name.to_owned(), ..Default::default() };
        let answer = NamespacesServiceClient::new(self.channel.clone()).delete_namespace(self.signed(message)).await;
        self.count_errors(answer).map(drop)
    }
}
