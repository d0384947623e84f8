//! `https://`: a listener on this machine's loopback that encrypts connections and forwards them to the service.
//!
//! REST calls, event streams and WebSockets of the program use the listener like a service without TLS. The proxy adds
//! no credential, so it gives other local processes no access that they lack without it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use holdfast_supervise::spawn_temporary;
use reqwest::Url;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::BaseUrl;
use crate::output;

/// Returns the address for calls without TLS: the address itself or, for `https://`, that of a proxy that lives as long
/// as this process. Trusts the authorities in a file, or those of this machine.
///
/// # Errors
/// If the address has no valid host, no authority is trusted, or no port is free.
pub(crate) async fn plaintext_url(url: &BaseUrl, ca_file: Option<&Path>) -> Result<BaseUrl> {
    let parsed = Url::parse(&url.to_string()).context("the address of the service")?;
    if parsed.scheme() != "https" {
        return Ok(url.clone());
    }
    let host = parsed.host_str().context("the address of the service has no host")?;
    let bare_host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(bare_host).with_context(|| format!("{host} is no name of a host"))?;
    let address = format!("{host}:{}", parsed.port_or_known_default().unwrap_or(443));
    let connector = TlsConnector::from(Arc::new(tls_config(ca_file)?));
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.context("no port can be had")?;
    let local = listener.local_addr().context("the port can't be read")?;
    spawn_temporary("tls_proxy", async move {
        while let Ok((near, _)) = listener.accept().await {
            let (connector, name, address) = (connector.clone(), name.clone(), address.clone());
            spawn_temporary("tls_proxy_connection", async move {
                if let Err(error) = proxy_connection(near, &connector, name, &address).await {
                    output::info(format_args!("{address}: {error:#}"));
                }
            });
        }
    });
    let path = parsed.path().trim_end_matches('/');
    format!("http://{local}{path}").parse().context("the address of the TLS proxy")
}

/// Forwards one connection until either side closes it. Calls report broken connections themselves.
async fn proxy_connection(
    mut near: TcpStream,
    connector: &TlsConnector,
    name: ServerName<'static>,
    address: &str,
) -> Result<()> {
    let far = TcpStream::connect(address).await.context("cannot be reached")?;
    let mut far =
        connector.connect(name, far).await.context("no encrypted connection (is --ca-file the right one?)")?;
    let _ = copy_bidirectional(&mut near, &mut far).await;
    Ok(())
}

fn tls_config(ca_file: Option<&Path>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let shown = || format!("--ca-file {}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).with_context(shown)? {
                roots.add(certificate.with_context(shown)?).with_context(shown)?;
            }
            ensure!(!roots.is_empty(), "{}: holds no certificate in PEM", shown());
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            ensure!(!roots.is_empty(), "this machine trusts no authority; name one with --ca-file");
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().context("TLS can't be set up")?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
