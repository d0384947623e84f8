//! Flags of the frontends.

use std::net::SocketAddr;

use clap::Args;

use crate::locktopus::{LocktopusAccount, LocktopusOptions, LocktopusOrigin};

/// Flags about clients: those without valid credentials, and those of dlocks and Locktopus.
#[derive(Debug, Clone, Args)]
pub struct FrontendArgs {
    /// Refused credentials a second from one address, twice as many at once, after which further ones from there are
    /// not checked for a moment; 0 for any number, for a gateway behind a proxy whose address all clients share.
    #[arg(long, env = "HOLDFAST_REFUSED_CREDENTIALS_PER_SECOND", default_value_t = 20, value_name = "NUMBER")]
    refused_credentials_per_second: u32,
    /// Let dlocks clients name their account in metadata `account-id` instead of sending an API key: every client that
    /// reaches the port is then trusted.
    #[arg(long, env = "HOLDFAST_DLOCKS_ACCOUNT_METADATA")]
    pub(crate) dlocks_account_metadata: bool,
    /// Address to listen on for Locktopus clients; without it there is no Locktopus frontend.
    #[arg(long, env = "HOLDFAST_LOCKTOPUS_LISTEN", value_name = "HOST:PORT", requires = "locktopus_account")]
    locktopus_listen: Option<SocketAddr>,
    /// The account for which every Locktopus client acts, since these clients send no key: an id (16 digits are hex,
    /// more are decimal), or `demo` for the account of the first start. Every client that reaches the port is trusted.
    #[arg(long, env = "HOLDFAST_LOCKTOPUS_ACCOUNT", value_name = "ID|demo", requires = "locktopus_listen")]
    locktopus_account: Option<LocktopusAccount>,
    /// Accept web pages of this origin on the port for Locktopus clients, besides those of its own address; may be
    /// repeated.
    #[arg(
        long,
        env = "HOLDFAST_LOCKTOPUS_ORIGIN",
        value_name = "SCHEME://HOST[:PORT]",
        value_delimiter = ',',
        requires = "locktopus_listen"
    )]
    locktopus_origin: Vec<LocktopusOrigin>,
}

impl FrontendArgs {
    /// Returns how many credentials from one address may be refused in a second; 0 for any number.
    pub fn refused_credentials_per_second(&self) -> u32 {
        self.refused_credentials_per_second
    }

    /// Returns where Locktopus clients connect, and the options of their frontend, if it is enabled.
    pub(crate) fn locktopus(&self) -> Option<(SocketAddr, LocktopusOptions)> {
        let options = LocktopusOptions { account: self.locktopus_account?, origins: self.locktopus_origin.clone() };
        Some((self.locktopus_listen?, options))
    }
}
