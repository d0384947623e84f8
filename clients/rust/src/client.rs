//! The way to the gateways.

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
/// A gateway that does not answer the pings of a connection in use is left, also where nothing else shows that it is
/// gone.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// What single calls go through.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
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

/// The gateways of a service and the key to call them with. Cheap to clone; nothing is connected before it is used.
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
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.inner.gateways.iter().map(|gateway| gateway.uri().to_string())).finish()
    }
}

impl Client {
    /// One gateway, by its URL, and an API key or token.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no URL or cannot be a key.
    pub fn new(gateway: &str, api_key: &str) -> Result<Self> {
        Self::builder().gateway(gateway).api_key(api_key).build()
    }

    /// Several gateways, or other settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Opens a session in a namespace: what holds locks for as long as it is kept alive.
    pub fn session(&self, namespace: impl Into<String>) -> SessionBuilder {
        SessionBuilder::new(self.clone(), namespace.into())
    }

    /// Single calls about locks, as the protocol has them. Calls go to any gateway that can be reached; set a deadline
    /// on each. Needs to be called within a tokio runtime, like all others here.
    pub fn locks(&self) -> LocksServiceClient<AuthChannel> {
        LocksServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// Single calls about sessions, as the protocol has them.
    pub fn sessions(&self) -> SessionsServiceClient<AuthChannel> {
        SessionsServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// Single calls about namespaces, as the protocol has them.
    pub fn namespaces(&self) -> NamespacesServiceClient<AuthChannel> {
        NamespacesServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// Single calls about accounts and API keys, as the protocol has them.
    pub fn accounts(&self) -> AccountsServiceClient<AuthChannel> {
        AccountsServiceClient::with_interceptor(self.channel(), self.inner.bearer.clone())
    }

    /// How many gateways there are to try.
    pub(crate) fn gateway_count(&self) -> usize {
        self.inner.gateways.len()
    }

    /// A connection of its own to the gateway of that number, counted around.
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

/// What lies below an error of the transport, which itself says only that it is one.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Puts the key into each call.
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
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.gateways).finish()
    }
}

impl ClientBuilder {
    /// Adds a gateway: `http://host:port`, or `https://…` for TLS. Any of them serves; the first that answers is used.
    pub fn gateway(mut self, url: impl Into<String>) -> Self {
        self.gateways.push(url.into());
        self
    }

    /// The API key, or a token made from one.
    pub fn api_key(mut self, api_key: impl Into<String>) -> Self {
        self.api_key = api_key.into();
        self
    }

    /// A certificate, in PEM, that the gateways' certificates are signed with, besides those that the system trusts.
    pub fn ca_certificate(mut self, pem: impl Into<String>) -> Self {
        self.ca_certificate = Some(pem.into());
        self
    }

    /// The client. Connects to nothing yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no gateway, one of them is no URL, or the key has characters that no key has.
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
