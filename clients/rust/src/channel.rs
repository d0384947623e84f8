//! The channel of single calls.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::iter::successors;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::uri::Authority;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use prost::Message;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, ConnectError, Status};
use tower::{BoxError, Service, ServiceExt};

use crate::leader_hint::{MAX_ADDRESSES, evict_if_full};
use crate::leaders::Leaders;

/// The metadata of a response that names the leader's gateway.
const LEADER_METADATA: &str = "holdfast-leader";
/// The only call with a stream of requests, whose messages do not exist yet when it begins.
const STREAMING_CALL: &str = "SessionsService/Connect";

/// Sends each call to a gateway. Calls about a namespace go to the gateway in the node of its leader, once a response
/// has named it, and to the configured gateways if that one can't be reached.
///
/// ```
/// // Nobody needs to make one: a `Client` does.
/// use holdfast_client::{AuthChannel, Client};
/// use holdfast_client::protocol::locks_service_client::LocksServiceClient;
///
/// fn locks(client: &Client) -> LocksServiceClient<AuthChannel> {
///     client.locks()
/// }
/// # let _ = locks;
/// ```
#[derive(Clone)]
pub struct GatewayChannel {
    configured: Channel,
    /// Absent if calls go to the configured gateways only.
    leaders: Option<Arc<Leaders>>,
    /// Channels to the gateways of leaders, for all clones. They belong to one runtime, so the client does not have
    /// them.
    channels: Arc<Mutex<HashMap<Authority, Channel>>>,
}

impl fmt::Debug for GatewayChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayChannel").finish_non_exhaustive()
    }
}

impl GatewayChannel {
    pub(crate) fn new(configured: Channel, leaders: Option<Arc<Leaders>>) -> Self {
        Self { configured, leaders, channels: Arc::default() }
    }

    async fn route(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let leaders = match &self.leaders {
            Some(leaders) if !request.uri().path().ends_with(STREAMING_CALL) => leaders,
            _ => return send(self.configured.clone(), request).await,
        };
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let copy = || Request::from_parts(parts.clone(), Body::new(Full::new(body.clone())));
        let Some(namespace) = namespace_of(&body) else { return send(self.configured.clone(), copy()).await };
        if let Some(leader) = leaders.leader(&namespace)
            && let Some(channel) = self.leader_channel(leaders, &leader)
        {
            match call_leader(leaders, channel, &namespace, copy()).await {
                // The call may go elsewhere: nothing of it was sent.
                Err(error) if is_connect_error(&*error) => leaders.avoid(&leader),
                result => return result,
            }
        }
        let response = send(self.configured.clone(), copy()).await?;
        learn(leaders, &namespace, &response);
        Ok(response)
    }

    fn leader_channel(&self, leaders: &Leaders, address: &Authority) -> Option<Channel> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Some(channel.clone());
        }
        let channel = leaders.gateway(address)?.channel();
        evict_if_full(&mut channels, MAX_ADDRESSES);
        channels.insert(address.clone(), channel.clone());
        Some(channel)
    }
}

impl Service<Request<Body>> for GatewayChannel {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    /// Always ready: the call itself waits for the channel that it goes to.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let channel = self.clone();
        Box::pin(async move { channel.route(request).await })
    }
}

async fn send(mut channel: Channel, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    Ok(channel.ready().await?.call(request).await?)
}

/// Calls the leader's gateway. The hint is forgotten unless that gateway answers.
async fn call_leader(
    leaders: &Leaders,
    channel: Channel,
    namespace: &str,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let mut hint = UsedHint { leaders, namespace, is_good: false };
    let response = send(channel, request).await?;
    hint.is_good = learn(leaders, namespace, &response);
    Ok(response)
}

/// The hint that a call follows. Dropped with the call, also when the caller does not wait any longer: a gateway that
/// accepts connections and never answers must not get the next call, too.
struct UsedHint<'a> {
    leaders: &'a Leaders,
    namespace: &'a str,
    is_good: bool,
}

impl Drop for UsedHint<'_> {
    fn drop(&mut self) {
        if !self.is_good {
            self.leaders.remove(self.namespace);
        }
    }
}

/// Learns the leader that a response names. Returns false if the gateway did not reach the shard: another one may.
fn learn(leaders: &Leaders, namespace: &str, response: &Response<Body>) -> bool {
    let code = Status::from_header_map(response.headers()).map(|status| status.code());
    if matches!(code, Some(Code::Unavailable | Code::DeadlineExceeded)) {
        return false;
    }
    if let Some(Ok(reported)) = response.headers().get(LEADER_METADATA).map(|value| value.to_str()) {
        leaders.learn(namespace, reported);
    }
    true
}

/// The field that all requests about a namespace have in common.
#[derive(Clone, PartialEq, Message)]
struct NamespaceField {
    #[prost(string, tag = "1")]
    namespace: String,
}

/// Returns the namespace in the body of a gRPC request, if there is one.
fn namespace_of(body: &[u8]) -> Option<String> {
    // The message follows a flag, which is 0 unless it is compressed, and its length.
    let [0, _, _, _, _, message @ ..] = body else { return None };
    let field = NamespaceField::decode(message).ok()?;
    (!field.namespace.is_empty()).then_some(field.namespace)
}

/// Returns true if there was no connection, so that nothing was sent.
fn is_connect_error(error: &(dyn StdError + 'static)) -> bool {
    successors(Some(error), |&error| error.source()).any(|error| error.is::<ConnectError>())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_proto::v1::locks_service_client::LocksServiceClient;
    use holdfast_proto::v1::{AcquireLocksRequest, GetLockRequest, ListSessionsRequest};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;
    use crate::gateway::Gateway;

    const NAMESPACE: &str = "demo";
    /// Nobody listens there.
    const NOWHERE: &str = "127.0.0.1:1";
    const MAX_WAIT: Duration = Duration::from_secs(30);

    fn frame(message: &impl Message) -> Vec<u8> {
        let length = u32::try_from(message.encoded_len()).unwrap();
        let mut frame = vec![0];
        frame.extend(length.to_be_bytes());
        frame.extend(message.encode_to_vec());
        frame
    }

    fn get_lock() -> GetLockRequest {
        GetLockRequest { namespace: NAMESPACE.to_owned(), name: Some("x".to_owned()), ..Default::default() }
    }

    /// A listener that answers nothing, and a client of it that was told of a leader.
    async fn client_of_silent_gateway(leader: &str) -> (TcpListener, LocksServiceClient<GatewayChannel>, Arc<Leaders>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let leaders = Arc::new(Leaders::new("http", None));
        leaders.learn(NAMESPACE, leader);
        let configured = Gateway::new(&url, None, MAX_WAIT).unwrap().channel();
        (listener, LocksServiceClient::new(GatewayChannel::new(configured, Some(Arc::clone(&leaders)))), leaders)
    }

    #[test]
    fn the_namespace_is_read_from_the_message() {
        let namespace = || NAMESPACE.to_owned();
        let bodies = [
            frame(&get_lock()),
            frame(&AcquireLocksRequest { namespace: namespace(), ..Default::default() }),
            frame(&ListSessionsRequest { namespace: namespace(), page_size: 7, ..Default::default() }),
        ];
        for body in &bodies {
            assert_eq!(namespace_of(body).as_deref(), Some(NAMESPACE));
        }
        let mut compressed = frame(&get_lock());
        compressed[0] = 1;
        let malformed = vec![0, 0, 0, 0, 2, 0xff, 0xff];
        for body in [compressed, malformed, frame(&GetLockRequest::default()), Vec::new(), vec![0; 4]] {
            assert_eq!(namespace_of(&body), None, "{body:?}");
        }
    }

    #[tokio::test]
    async fn a_call_that_does_not_reach_the_leader_goes_to_a_configured_gateway() {
        let (configured, mut locks, leaders) = client_of_silent_gateway(NOWHERE).await;
        let address = leaders.leader(NAMESPACE).unwrap();
        let call = tokio::spawn(async move { locks.get_lock(get_lock()).await });
        timeout(MAX_WAIT, configured.accept()).await.unwrap().unwrap();
        assert_eq!(leaders.leader(NAMESPACE), None);
        assert!(leaders.usable_at(&address) > tokio::time::Instant::now(), "it is not tried again at once");
        call.abort();
    }

    #[tokio::test]
    async fn a_leader_that_does_not_answer_gets_no_other_call() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_configured, mut locks, leaders) =
            client_of_silent_gateway(&silent.local_addr().unwrap().to_string()).await;
        tokio::select! {
            answer = locks.get_lock(get_lock()) => panic!("{answer:?}"),
            reached = timeout(MAX_WAIT, silent.accept()) => drop(reached.unwrap().unwrap()),
        }
        assert_eq!(leaders.leader(NAMESPACE), None);
    }

    #[test]
    fn a_response_brings_a_hint_unless_it_is_no_answer() {
        let leaders = Leaders::new("http", None);
        let response = |status: &str| {
            let response = Response::builder().header(LEADER_METADATA, NOWHERE).header("grpc-status", status);
            response.body(Body::empty()).unwrap()
        };
        for failure in ["14", "4"] {
            assert!(!learn(&leaders, NAMESPACE, &response(failure)));
        }
        assert_eq!(leaders.leader(NAMESPACE), None);
        assert!(learn(&leaders, NAMESPACE, &Response::new(Body::empty())), "a node without a gateway");
        assert_eq!(leaders.leader(NAMESPACE), None);
        // A lock that is not held is a refusal, and an answer of the leader.
        assert!(learn(&leaders, NAMESPACE, &response("9")));
        assert_eq!(leaders.leader(NAMESPACE).unwrap(), NOWHERE);
    }
}
