//! Connections to the gateways.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_clock::Clocks;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use holdfast_proto::v1::barriers_service_client::BarriersServiceClient;
use holdfast_proto::v1::latches_service_client::LatchesServiceClient;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use holdfast_proto::v1::pools_service_client::PoolsServiceClient;
use holdfast_proto::v1::semaphores_service_client::SemaphoresServiceClient;
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::channel::GatewayChannel;
use crate::error::{Error, Result};
use crate::gateway::{Gateway, channel_to_any};
use crate::latches::Latch;
use crate::leaders::Leaders;
use crate::session::SessionBuilder;
use crate::view::Path;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The channel of single calls.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// use holdfast_client::AuthChannel;
/// use holdfast_client::protocol::GetLockRequest;
/// use holdfast_client::protocol::locks_service_client::LocksServiceClient;
///
/// let mut locks: LocksServiceClient<AuthChannel> = client.locks();
/// let (namespace, name) = ("demo".to_owned(), Some("invoices".to_owned()));
/// let get = GetLockRequest { namespace, name, ..Default::default() };
/// let lock = locks.get_lock(get).await?.into_inner().lock.expect("every answer has it");
/// assert_eq!(lock.holders_total, 0);
/// # Ok(())
/// # }
/// ```
pub type AuthChannel = InterceptedService<GatewayChannel, Bearer>;

/// The gateways of a service and the API key for calls to them. Cheap to clone; connects on first use.
///
/// ```
/// use holdfast_client::Client;
///
/// let client = Client::builder()
///     .gateway("http://127.0.0.1:8080")
///     .gateway("http://127.0.0.1:8081")
///     .api_key("hf_key_secret")
///     .build()?;
/// let same_key_one_gateway = Client::new("http://127.0.0.1:8080", "hf_key_secret")?;
/// # Ok::<(), holdfast_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    gateways: Vec<Gateway>,
    bearer: Bearer,
    clocks: Clocks,
    /// Absent if only the configured gateways are used.
    leaders: Option<Arc<Leaders>>,
}

impl fmt::Debug for Client {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.inner.gateways.iter().map(|gateway| gateway.uri().to_string())).finish()
    }
}

impl Client {
    /// Creates a client for one gateway, by its URL, with an API key or token.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid URL or key.
    pub fn new(gateway: &str, api_key: &str) -> Result<Self> {
        Self::builder().gateway(gateway).api_key(api_key).build()
    }

    /// Returns a builder for several gateways or other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Opens a session in a namespace. It holds locks as long as it is kept alive.
    pub fn session(&self, namespace: impl Into<String>) -> SessionBuilder {
        SessionBuilder::new(self.clone(), namespace.into())
    }

    /// Returns the protocol's client of single lock calls. Calls go to the gateway at the leader of the namespace where
    /// an earlier response named it (see [`ClientBuilder::prefer_leader`]), and to any reachable one otherwise; set a
    /// deadline on each. Must be called within a tokio runtime, like all methods here.
    pub fn locks(&self) -> LocksServiceClient<AuthChannel> {
        LocksServiceClient::with_interceptor(self.channel(self.leaders()), self.inner.bearer.clone())
    }

    /// Returns a latch of a namespace, to create it or to use the one that is there.
    pub fn latch(&self, namespace: impl Into<String>, path: impl Into<Path>) -> Latch {
        Latch::new(self.clone(), namespace.into(), path.into())
    }

    /// Returns the protocol's client of single latch calls. They go where those of [`Client::locks`] go.
    pub fn latches(&self) -> LatchesServiceClient<AuthChannel> {
        LatchesServiceClient::with_interceptor(self.channel(self.leaders()), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single barrier calls. They go where those of [`Client::locks`] go. On a
    /// [`Session`](crate::Session), barriers need no generations.
    pub fn barriers(&self) -> BarriersServiceClient<AuthChannel> {
        BarriersServiceClient::with_interceptor(self.channel(self.leaders()), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single pool calls. They go where those of [`Client::locks`] go. A
    /// [`Session`](crate::Session) has leases as guards.
    pub fn pools(&self) -> PoolsServiceClient<AuthChannel> {
        PoolsServiceClient::with_interceptor(self.channel(self.leaders()), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single semaphore calls. They go where those of [`Client::locks`] go. A
    /// [`Session`](crate::Session) has permits as guards.
    pub fn semaphores(&self) -> SemaphoresServiceClient<AuthChannel> {
        SemaphoresServiceClient::with_interceptor(self.channel(self.leaders()), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single session calls. They go where those of [`Client::locks`] go.
    pub fn sessions(&self) -> SessionsServiceClient<AuthChannel> {
        SessionsServiceClient::with_interceptor(self.channel(self.leaders()), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single namespace calls.
    pub fn namespaces(&self) -> NamespacesServiceClient<AuthChannel> {
        NamespacesServiceClient::with_interceptor(self.channel(None), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single calls about accounts and API keys.
    pub fn accounts(&self) -> AccountsServiceClient<AuthChannel> {
        AccountsServiceClient::with_interceptor(self.channel(None), self.inner.bearer.clone())
    }

    /// Returns the number of configured gateways.
    pub(crate) fn gateway_count(&self) -> usize {
        self.inner.gateways.len()
    }

    /// Returns the configured gateway with this number, modulo the number of gateways.
    pub(crate) fn gateway(&self, number: usize) -> &Gateway {
        &self.inner.gateways[number % self.inner.gateways.len()]
    }

    /// Returns the gateways at leaders, unless only the configured ones are used.
    pub(crate) fn leaders(&self) -> Option<&Arc<Leaders>> {
        self.inner.leaders.as_ref()
    }

    /// Returns the clocks by which sessions end.
    pub(crate) fn clocks(&self) -> &Clocks {
        &self.inner.clocks
    }

    /// Opens a separate connection to a gateway.
    pub(crate) async fn connect(
        &self,
        gateway: &Gateway,
        within: Duration,
    ) -> Result<SessionsServiceClient<InterceptedService<Channel, Bearer>>> {
        let channel = gateway.connect(within).await?;
        Ok(SessionsServiceClient::with_interceptor(channel, self.inner.bearer.clone()))
    }

    fn channel(&self, leaders: Option<&Arc<Leaders>>) -> GatewayChannel {
        GatewayChannel::new(channel_to_any(&self.inner.gateways), leaders.cloned())
    }
}

/// Adds the key to each call.
///
/// ```
/// // Nobody needs to make one: a `Client` does, and what is in it is shown nowhere.
/// fn shown(bearer: &holdfast_client::Bearer) -> String {
///     format!("{bearer:?}")
/// }
/// # let _ = shown;
/// ```
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(…)")
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// Settings of a [`Client`].
///
/// ```
/// use holdfast_client::{Client, Error};
///
/// let builder = Client::builder().gateway("http://127.0.0.1:8080").api_key("hf_key_secret");
/// assert!(builder.clone().build().is_ok());
/// let refused = builder.gateway("127.0.0.1:8081").build().unwrap_err();
/// assert!(matches!(refused, Error::Invalid(_)), "a scheme is missing");
/// ```
#[derive(Clone, Default)]
pub struct ClientBuilder {
    gateways: Vec<String>,
    api_key: String,
    ca_certificate: Option<String>,
    ignores_leaders: bool,
    clocks: Clocks,
}

impl fmt::Debug for ClientBuilder {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.gateways).finish()
    }
}

impl ClientBuilder {
    /// Adds a gateway: `http://host:port`, or `https://…` for TLS. The first gateway that responds is used.
    pub fn gateway(mut self, url: impl Into<String>) -> Self {
        self.gateways.push(url.into());
        self
    }

    /// Sets the API key, or a token made from one.
    pub fn api_key(mut self, api_key: impl Into<String>) -> Self {
        self.api_key = api_key.into();
        self
    }

    /// Adds a CA certificate, in PEM, for the gateways' certificates, besides those that the system trusts.
    pub fn ca_certificate(mut self, pem: impl Into<String>) -> Self {
        self.ca_certificate = Some(pem.into());
        self
    }

    /// Sets whether to prefer the gateway in the node of a namespace's leader, which saves a hop; defaults to true. The
    /// service names its address: sessions move there, and single calls about the namespace go there. It gets the same
    /// API key and the same TLS settings as the configured gateways, with `https` if one of these has it; its
    /// certificate must be valid for that address. While it can't be reached, the configured gateways serve.
    ///
    /// Set it to false if clients reach the service only through its configured addresses, for example those of a load
    /// balancer: a session would else try in vain to move, every 30 s.
    ///
    /// ```
    /// use holdfast_client::Client;
    ///
    /// let builder = Client::builder().gateway("http://locks.example:8080").api_key("hf_key_secret");
    /// let through_load_balancer = builder.prefer_leader(false).build()?;
    /// # Ok::<(), holdfast_client::Error>(())
    /// ```
    pub fn prefer_leader(mut self, prefer: bool) -> Self {
        self.ignores_leaders = !prefer;
        self
    }

    /// Sets the clocks by which sessions end, for tests; defaults to the machine's.
    pub fn clocks(mut self, clocks: Clocks) -> Self {
        self.clocks = clocks;
        self
    }

    /// Creates the client. It does not connect yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no gateway, a URL is invalid, or the key contains invalid characters.
    pub fn build(self) -> Result<Client> {
        if self.gateways.is_empty() {
            return Err(Error::Invalid("no gateway: name at least one, like http://127.0.0.1:8080".to_owned()));
        }
        let gateway = |url: &String| Gateway::new(url, self.ca_certificate.as_deref(), CONNECT_TIMEOUT);
        let gateways = self.gateways.iter().map(gateway).collect::<Result<Vec<_>>>()?;
        let bearer = format!("Bearer {}", self.api_key).parse::<MetadataValue<Ascii>>();
        let mut bearer = bearer.map_err(|_| Error::Invalid("the API key has characters that no key has".to_owned()))?;
        bearer.set_sensitive(true);
        let scheme = leader_scheme(gateways.iter().map(Gateway::uri));
        let leaders = (!self.ignores_leaders).then(|| Arc::new(Leaders::new(scheme, self.ca_certificate.clone())));
        Ok(Client { inner: Arc::new(Inner { gateways, bearer: Bearer(bearer), clocks: self.clocks, leaders }) })
    }
}

/// Returns the scheme for the gateways of leaders. Where one of the configured gateways has TLS, the key goes nowhere
/// else without it.
fn leader_scheme<'a>(mut configured: impl Iterator<Item = &'a Uri>) -> &'static str {
    if configured.any(|uri| uri.scheme_str() == Some("https")) { "https" } else { "http" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_gateway_is_refused_with_its_name() {
        for url in ["", "127.0.0.1:8080", "ftp://127.0.0.1", "http://"] {
            let error = Client::new(url, "key").unwrap_err();
            assert!(matches!(&error, Error::Invalid(text) if text.contains(&format!("{url:?}"))), "{url}: {error}");
        }
        assert!(matches!(Client::builder().api_key("key").build(), Err(Error::Invalid(_))));
    }

    #[test]
    fn a_leaders_gateway_has_tls_if_a_configured_one_has() {
        let (plain, tls) = (Uri::from_static("http://127.0.0.1:1"), Uri::from_static("https://127.0.0.1:2"));
        assert_eq!(leader_scheme([&plain, &plain].into_iter()), "http");
        assert_eq!(leader_scheme([&plain, &tls].into_iter()), "https");
    }

    #[test]
    fn leaders_are_preferred_unless_that_is_switched_off() {
        let builder = Client::builder().gateway("http://127.0.0.1:1").api_key("key");
        let address = crate::leader_hint::parse_address("node-1.example:8080").unwrap();
        let client = builder.clone().build().unwrap();
        let gateway = client.leaders().unwrap().gateway(&address).unwrap();
        assert_eq!(gateway.address, address);
        assert_eq!(gateway.uri(), "http://node-1.example:8080/");
        assert!(builder.prefer_leader(false).build().unwrap().leaders().is_none());
    }

    #[test]
    fn the_key_is_shown_nowhere() {
        let client = Client::new("http://127.0.0.1:1", "hf_secret").unwrap();
        let bearer = client.inner.bearer.clone();
        let builder = Client::builder().gateway("http://127.0.0.1:1").api_key("hf_secret");
        for shown in [format!("{client:?}"), format!("{bearer:?}"), format!("{builder:?}")] {
            assert!(!shown.contains("hf_secret"), "{shown}");
        }
        assert!(matches!(Client::new("http://127.0.0.1:1", "line\nbreak"), Err(Error::Invalid(_))));
    }
}
