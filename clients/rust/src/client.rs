//! Connections to the gateways.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

use crate::error::{Error, Result};
use crate::session::SessionBuilder;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keep-alive pings on a connection in use. A gateway that does not answer them is abandoned, even if
/// nothing else shows that it is gone.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

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
pub type AuthChannel = InterceptedService<Channel, Bearer>;

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
    gateways: Vec<Endpoint>,
    bearer: Bearer,
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

    /// Returns the protocol's client of single lock calls. Calls go to any reachable gateway; set a deadline on each.
    /// Must be called within a tokio runtime, like all methods here.
    pub fn locks(&self) -> LocksServiceClient<AuthChannel> {
        LocksServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single session calls.
    pub fn sessions(&self) -> SessionsServiceClient<AuthChannel> {
        SessionsServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single namespace calls.
    pub fn namespaces(&self) -> NamespacesServiceClient<AuthChannel> {
        NamespacesServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// Returns the protocol's client of single calls about accounts and API keys.
    pub fn accounts(&self) -> AccountsServiceClient<AuthChannel> {
        AccountsServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// Returns the number of gateways.
    pub(crate) fn gateway_count(&self) -> usize {
        self.inner.gateways.len()
    }

    /// Opens a separate connection to the gateway with this number, modulo the number of gateways.
    pub(crate) async fn connect(&self, number: usize, within: Duration) -> Result<SessionsServiceClient<AuthChannel>> {
        let gateway = &self.inner.gateways[number % self.inner.gateways.len()];
        let unreachable = |why: String| Error::Unreachable(format!("{}: {why}", gateway.uri()));
        let channel = match tokio::time::timeout(within, gateway.connect()).await {
            Ok(channel) => channel.map_err(|error| unreachable(root_cause(&error)))?,
            Err(_) => return Err(unreachable(format!("no connection within {within:?}"))),
        };
        Ok(SessionsServiceClient::with_interceptor(channel, self.inner.bearer.clone()))
    }

    fn channel(&self) -> Channel {
        match self.inner.gateways.as_slice() {
            [gateway] => gateway.connect_lazy(),
            gateways => Channel::balance_list(gateways.iter().cloned()),
        }
    }
}

/// Returns the root cause of a transport error, whose own text says nothing specific.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
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

    /// Creates the client. It does not connect yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no gateway, a URL is invalid, or the key contains invalid characters.
    pub fn build(self) -> Result<Client> {
        if self.gateways.is_empty() {
            return Err(Error::Invalid("no gateway: name at least one, like http://127.0.0.1:8080".to_owned()));
        }
        let gateways = self.gateways.iter().map(|url| self.endpoint(url)).collect::<Result<_>>()?;
        let bearer = format!("Bearer {}", self.api_key).parse::<MetadataValue<Ascii>>();
        let mut bearer = bearer.map_err(|_| Error::Invalid("the API key has characters that no key has".to_owned()))?;
        bearer.set_sensitive(true);
        Ok(Client { inner: Arc::new(Inner { gateways, bearer: Bearer(bearer) }) })
    }

    fn endpoint(&self, url: &str) -> Result<Endpoint> {
        let invalid = |why: &str| Error::Invalid(format!("{url:?} is no URL of a gateway: {why}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| invalid(&error.to_string()))?;
        let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        match endpoint.uri().scheme_str() {
            Some("http") => Ok(endpoint),
            Some("https") => {
                let tls = ClientTlsConfig::new().with_native_roots();
                let tls = match &self.ca_certificate {
                    Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
                    None => tls,
                };
                endpoint.tls_config(tls).map_err(|error| invalid(&root_cause(&error)))
            }
            _ => Err(invalid("it begins with neither http:// nor https://")),
        }
    }
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
