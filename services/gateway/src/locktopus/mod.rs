//! The frontend for Locktopus clients: WebSocket v1, so that they run unchanged.
//!
//! A connection is a session of a namespace. Its time to live is the client's abandon timeout, counted from the end of
//! the connection. While the connection is open, the gateway keeps the session alive with a longer time to live. So a
//! failover or a busy machine ends no lock that its client still holds.
//!
//! Locktopus has neither accounts nor keys: every client that reaches the port acts for the one configured account. Web
//! pages reach it too, through the browser of an authorized user; only pages of configured origins are admitted.

mod account;
mod cleanup;
mod connection;
mod message;
mod origin;
mod routes;

use std::future::Future;
use std::sync::Arc;

use holdfast_backend::Service;
use holdfast_tls::ServerTls;
use holdfast_types::AccountId;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;

use self::origin::AllowedOrigins;
use crate::server::serve_routes;

pub(crate) use account::LocktopusAccount;
pub(crate) use origin::LocktopusOrigin;

/// Options of the frontend for Locktopus clients.
#[derive(Clone, Debug)]
pub(crate) struct LocktopusOptions {
    /// The account of every client.
    pub(crate) account: LocktopusAccount,
    /// Origins of admitted web pages, besides those of the listener's own address.
    pub(crate) origins: Vec<LocktopusOrigin>,
}

/// Returns whether the bytes are a valid message of a client, for tests with damaged messages.
pub fn read_message(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| message::decode(text).is_ok())
}

/// The account's operations that this frontend needs. Clones are cheap.
#[derive(Clone)]
struct LocktopusServer {
    service: Service,
    account: LocktopusAccount,
    /// The account's id once it is known.
    cached_account_id: Arc<OnceCell<AccountId>>,
}

/// Serves Locktopus clients on a listener of their own until `shutdown` ends, encrypted if there is a certificate. Then
/// closes the connections, whose abandon timeouts begin, and returns.
pub(crate) async fn serve_locktopus(
    listener: TcpListener,
    tls: Option<ServerTls>,
    service: Service,
    options: LocktopusOptions,
    max_connections: usize,
    shutdown: impl Future<Output = ()>,
) {
    let locktopus =
        LocktopusServer { service: service.clone(), account: options.account, cached_account_id: Arc::default() };
    let origins = AllowedOrigins { allowed: options.origins, is_encrypted: tls.is_some() };
    serve_routes(listener, tls, routes::routes(locktopus, origins), service, max_connections, shutdown).await;
}
