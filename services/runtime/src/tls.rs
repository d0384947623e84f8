//! The TLS files of a process, and the ports that they protect.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use holdfast_tls::{ClientAuth, ClientTls, IdentityFiles, ServerTls, TlsError};
use tokio::net::TcpListener;

use crate::listen::{ListenError, bind};

/// Flags about TLS for clients.
#[derive(Debug, Clone, Default, Args)]
pub struct TlsArgs {
    /// Certificate in PEM, with the intermediate certificates up to its authority: clients then use https. The process
    /// reloads it when it changes.
    #[arg(long, env = "HOLDFAST_TLS_CERT_FILE", value_name = "FILE", requires = "tls_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key of the certificate, in PEM.
    #[arg(long, env = "HOLDFAST_TLS_KEY_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub tls_key_file: Option<PathBuf>,
    /// Authorities in PEM: only clients with a certificate signed by one of them may connect. They still need a key or
    /// token.
    #[arg(long, env = "HOLDFAST_TLS_CLIENT_CA_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub tls_client_ca_file: Option<PathBuf>,
}

/// Flags about TLS between the processes of a cluster. All of them use it, or none.
#[derive(Debug, Clone, Default, Args)]
pub struct ClusterTlsArgs {
    /// Certificate of this process in PEM, for the host that the cluster config names: nodes and gateways then
    /// authenticate each other. The process reloads it when it changes.
    #[arg(
        long,
        env = "HOLDFAST_CLUSTER_TLS_CERT_FILE",
        value_name = "FILE",
        requires_all = ["cluster_tls_key_file", "cluster_tls_ca_file"]
    )]
    pub cluster_tls_cert_file: Option<PathBuf>,
    /// Private key of that certificate, in PEM.
    #[arg(long, env = "HOLDFAST_CLUSTER_TLS_KEY_FILE", value_name = "FILE", requires = "cluster_tls_cert_file")]
    pub cluster_tls_key_file: Option<PathBuf>,
    /// Authorities in PEM, one of which signed the certificate of every process of the cluster.
    #[arg(long, env = "HOLDFAST_CLUSTER_TLS_CA_FILE", value_name = "FILE", requires = "cluster_tls_cert_file")]
    pub cluster_tls_ca_file: Option<PathBuf>,
}

impl TlsArgs {
    /// Returns the server's TLS configuration, if enabled. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the files can't be used.
    pub fn load(&self) -> Result<Option<ServerTls>, TlsError> {
        let Some(identity) = identity(&self.tls_cert_file, &self.tls_key_file) else { return Ok(None) };
        let clients = match &self.tls_client_ca_file {
            Some(path) => ClientAuth::Required(path.clone()),
            None => ClientAuth::Disabled,
        };
        ServerTls::load(identity, clients).map(Some)
    }

    /// Binds a port for clients; port 0 selects a free one. Without these files, only an address that other machines
    /// can't reach is accepted, unless `insecure` is set. Raises the open-file limit to what the system allows.
    ///
    /// # Errors
    /// Each names the address and a remedy.
    pub async fn bind(&self, address: SocketAddr, insecure: bool) -> Result<TcpListener, ListenError> {
        bind(address, "--tls-cert-file", self.tls_cert_file.is_some(), insecure).await
    }
}

impl ClusterTlsArgs {
    /// Returns the TLS configuration for connections to nodes, if enabled. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the files can't be used.
    pub fn load_client(&self) -> Result<Option<ClientTls>, TlsError> {
        let identity = identity(&self.cluster_tls_cert_file, &self.cluster_tls_key_file);
        let (Some(identity), Some(ca_file)) = (identity, &self.cluster_tls_ca_file) else { return Ok(None) };
        ClientTls::load(ca_file.clone(), identity).map(Some)
    }

    /// Returns the TLS configuration of a node's listener, if enabled. Clients without a certificate can only check
    /// whether the node is up. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the files can't be used.
    pub fn load_server(&self) -> Result<Option<ServerTls>, TlsError> {
        let identity = identity(&self.cluster_tls_cert_file, &self.cluster_tls_key_file);
        let (Some(identity), Some(ca_file)) = (identity, &self.cluster_tls_ca_file) else { return Ok(None) };
        ServerTls::load(identity, ClientAuth::Optional(ca_file.clone())).map(Some)
    }

    /// Binds a node's port as [`TlsArgs::bind`] does, with the files of the cluster.
    ///
    /// # Errors
    /// Each names the address and a remedy.
    pub async fn bind(&self, address: SocketAddr, insecure: bool) -> Result<TcpListener, ListenError> {
        bind(address, "--cluster-tls-cert-file", self.cluster_tls_cert_file.is_some(), insecure).await
    }
}

fn identity(cert_file: &Option<PathBuf>, key_file: &Option<PathBuf>) -> Option<IdentityFiles> {
    let (cert_file, key_file) = (cert_file.clone()?, key_file.clone()?);
    Some(IdentityFiles { cert_file, key_file })
}
