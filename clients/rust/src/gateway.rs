//! A gateway, and how to connect to it.

use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::error::{Error, Result};

/// Interval of keep-alive pings on a connection in use. A gateway that does not answer them is abandoned, even if
/// nothing else shows that it is gone.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    /// Its host and port.
    pub(crate) address: Authority,
    endpoint: Endpoint,
}

impl Gateway {
    /// Creates the gateway at `http://host:port` or `https://…`, without a connection. Trusts the CA certificate, in
    /// PEM, besides those that the system trusts.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the URL.
    pub(crate) fn new(url: &str, ca_certificate: Option<&str>, connect_timeout: Duration) -> Result<Self> {
        let invalid = |why: &str| Error::Invalid(format!("{url:?} is no URL of a gateway: {why}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| invalid(&error.to_string()))?;
        let endpoint = endpoint.connect_timeout(connect_timeout).tcp_nodelay(true);
        let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let endpoint = match endpoint.uri().scheme_str() {
            Some("http") => endpoint,
            Some("https") => {
                let tls = ClientTlsConfig::new().with_native_roots();
                let tls = match ca_certificate {
                    Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
                    None => tls,
                };
                endpoint.tls_config(tls).map_err(|error| invalid(&root_cause(&error)))?
            }
            _ => return Err(invalid("it begins with neither http:// nor https://")),
        };
        let address = address_of(endpoint.uri()).ok_or_else(|| invalid("it names no host"))?;
        Ok(Self { address, endpoint })
    }

    pub(crate) fn uri(&self) -> &Uri {
        self.endpoint.uri()
    }

    /// Opens a connection of its own.
    ///
    /// # Errors
    /// [`Error::Unreachable`], after `within` at the latest.
    pub(crate) async fn connect(&self, within: Duration) -> Result<Channel> {
        let unreachable = |why: String| Error::Unreachable(format!("{}: {why}", self.uri()));
        match tokio::time::timeout(within, self.endpoint.connect()).await {
            Ok(channel) => channel.map_err(|error| unreachable(root_cause(&error))),
            Err(_) => Err(unreachable(format!("no connection within {within:?}"))),
        }
    }

    /// Returns a channel that connects on first use.
    pub(crate) fn channel(&self) -> Channel {
        self.endpoint.connect_lazy()
    }
}

/// Returns a channel to any of the gateways that connects on first use.
pub(crate) fn channel_to_any(gateways: &[Gateway]) -> Channel {
    match gateways {
        [gateway] => gateway.channel(),
        gateways => Channel::balance_list(gateways.iter().map(|gateway| gateway.endpoint.clone())),
    }
}

/// Returns the host and the port, also where the port follows from the scheme.
fn address_of(uri: &Uri) -> Option<Authority> {
    let authority = uri.authority()?;
    if authority.port().is_some() {
        return Some(authority.clone());
    }
    let port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    format!("{}:{port}", authority.host()).parse().ok()
}

/// Returns the root cause of a transport error, whose own text says nothing specific.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_follows_from_the_scheme_if_there_is_none() {
        for (url, address) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://gateway.example", "gateway.example:80"),
            ("https://gateway.example/", "gateway.example:443"),
            ("https://[::1]", "[::1]:443"),
        ] {
            assert_eq!(address_of(&url.parse().unwrap()).unwrap(), address, "{url}");
        }
    }
}
