//! Decides which web pages may use the port.
//!
//! Every client that reaches the port acts for the account. So does any page that a user on this machine or in its
//! network has open, through the browser. Browsers send the origin of a page in `Origin`, and other clients send none.
//! A page can also map its own name to the address of this port (DNS rebinding), so a name proves nothing by itself.
//! Only addresses, `localhost`, the names in a certificate, and the operator's list count.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use holdfast_api::{ApiError, ApiResult, Code};

/// The origin of web pages, as browsers write it: `https://console.example` or `http://127.0.0.1:3000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocktopusOrigin {
    scheme: String,
    host: Host,
}

/// The text is no origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an origin is SCHEME://HOST[:PORT] without a path, like https://console.example")]
pub(crate) struct MalformedLocktopusOrigin;

/// A name or an address in lower case, and a port unless it is the default port of the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    fn from_authority(authority: &Authority, scheme: &str) -> Option<Self> {
        // Text before an `@` is not part of a host, and only an attacker makes it look like one.
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        let usual = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let port = authority.port_u16().filter(|port| Some(*port) != usual);
        Some(Self { name: authority.host().to_ascii_lowercase(), port })
    }

    /// Returns whether no name server decides where it leads.
    fn is_dns_independent(&self) -> bool {
        let address = self.name.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok() || self.name == "localhost" || self.name.ends_with(".localhost")
    }
}

impl FromStr for LocktopusOrigin {
    type Err = MalformedLocktopusOrigin;

    fn from_str(text: &str) -> Result<Self, MalformedLocktopusOrigin> {
        let uri: Uri = text.parse().map_err(|_| MalformedLocktopusOrigin)?;
        let scheme = uri.scheme_str().ok_or(MalformedLocktopusOrigin)?.to_ascii_lowercase();
        let host = uri.authority().and_then(|authority| Host::from_authority(authority, &scheme));
        let has_more = uri.path_and_query().is_some_and(|rest| rest.as_str() != "/");
        match host {
            Some(host) if !has_more => Ok(Self { scheme, host }),
            _ => Err(MalformedLocktopusOrigin),
        }
    }
}

/// The origins that one listener admits.
#[derive(Clone, Debug)]
pub(super) struct AllowedOrigins {
    /// Besides its own.
    pub(super) allowed: Vec<LocktopusOrigin>,
    pub(super) is_encrypted: bool,
}

impl AllowedOrigins {
    /// Checks the origin of a request.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, with what to do about it.
    pub(super) fn check(&self, uri: &Uri, headers: &HeaderMap, peer: SocketAddr) -> ApiResult<()> {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        let host = self.host(uri, headers, scheme);
        let vouched = host.filter(|host| self.is_trusted_host(host));
        // The host name exposes a page elsewhere that maps its name to this address. From other machines, clients use
        // whatever name the port has there.
        if vouched.is_none() && !self.is_encrypted && peer.ip().to_canonical().is_loopback() {
            return Err(denied(
                "Host: on a loopback address only addresses, localhost and hosts of --locktopus-origin are served",
            ));
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(()) };
        let origin: Option<LocktopusOrigin> = origin.to_str().ok().and_then(|origin| origin.parse().ok());
        let may_come = |origin: &LocktopusOrigin| {
            self.allowed.contains(origin) || (origin.scheme == scheme && Some(&origin.host) == vouched.as_ref())
        };
        match origin {
            Some(origin) if origins.next().is_none() && may_come(&origin) => Ok(()),
            _ => Err(denied(
                "Origin: pages from elsewhere are let in when the process lists them with --locktopus-origin",
            )),
        }
    }

    /// Returns the host that the caller addresses; none unless the caller names exactly one.
    fn host(&self, uri: &Uri, headers: &HeaderMap, scheme: &str) -> Option<Host> {
        let mut named = headers.get_all(HOST).iter();
        let of_header = match (named.next(), named.next()) {
            (Some(host), None) => Some(host.to_str().ok()?.parse::<Authority>().ok()?),
            (None, _) => None,
            (Some(_), Some(_)) => return None,
        };
        Host::from_authority(uri.authority().or(of_header.as_ref())?, scheme)
    }

    /// Returns whether a page of that host is one of this listener or of a listed origin, wherever its name leads.
    fn is_trusted_host(&self, host: &Host) -> bool {
        self.is_encrypted
            || host.is_dns_independent()
            || self.allowed.iter().any(|origin| origin.host.name == host.name)
    }
}

fn denied(detail: &str) -> ApiError {
    ApiError::new(Code::PermissionDenied, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "127.0.0.1:5000";
    const ELSEWHERE: &str = "192.0.2.7:5000";

    fn origins(listed: &[&str], is_encrypted: bool) -> AllowedOrigins {
        AllowedOrigins { allowed: listed.iter().map(|origin| origin.parse().unwrap()).collect(), is_encrypted }
    }

    /// Returns whether a request of a peer with this host and these origins is admitted.
    fn is_allowed(origins: &AllowedOrigins, peer: &str, host: &str, from: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        for origin in from {
            headers.append(ORIGIN, origin.parse().unwrap());
        }
        let checked = origins.check(&Uri::from_static("/v1"), &headers, peer.parse().unwrap());
        checked.as_ref().err().is_none_or(|error| {
            assert_eq!(error.code, Code::PermissionDenied);
            false
        })
    }

    #[test]
    fn pages_of_the_listener_itself_and_clients_that_are_no_browsers_are_let_in() {
        let none = origins(&[], false);
        for host in ["127.0.0.1:9009", "[::1]:9009", "localhost:9009", "LOCALHOST:9009", "locks.localhost"] {
            assert!(is_allowed(&none, HERE, host, &[]), "{host}");
            assert!(is_allowed(&none, HERE, host, &[&format!("http://{host}")]), "{host}");
        }
        assert!(is_allowed(&none, HERE, "127.0.0.1:80", &["http://127.0.0.1"]), "80 is the usual port");
        assert!(is_allowed(&none, ELSEWHERE, "192.0.2.1:9009", &["http://192.0.2.1:9009"]));
        assert!(is_allowed(&none, ELSEWHERE, "locks.example:9009", &[]), "no browser, by a name");
        let encrypted = origins(&[], true);
        assert!(
            is_allowed(&encrypted, HERE, "locks.example:9009", &["https://locks.example:9009"]),
            "by the certificate"
        );
    }

    #[test]
    fn pages_from_elsewhere_are_refused() {
        let none = origins(&[], false);
        let foreign = [
            "http://evil.example",
            "null",
            "",
            "file://",
            "https://127.0.0.1:9009",
            "http://127.0.0.1:9010",
            "http://127.0.0.1",
            "http://localhost:9009",
            "http://evil@127.0.0.1:9009",
            "http://127.0.0.1:9009.evil.example",
        ];
        for origin in foreign {
            for peer in [HERE, ELSEWHERE] {
                assert!(!is_allowed(&none, peer, "127.0.0.1:9009", &[origin]), "{origin} {peer}");
            }
        }
        let own = "http://127.0.0.1:9009";
        assert!(!is_allowed(&none, HERE, "127.0.0.1:9009", &[own, "http://evil.example"]), "one of two is own");
    }

    #[test]
    fn a_name_that_was_made_to_lead_here_is_seen_through() {
        let none = origins(&[], false);
        for host in ["evil.example:9009", "evil-localhost:9009", "127.0.0.1.evil.example:9009", "x@127.0.0.1:9009"] {
            for from in [&[][..], &[&*format!("http://{host}")]] {
                assert!(!is_allowed(&none, HERE, host, from), "{host} {from:?}");
                assert!(!is_allowed(&none, "[::ffff:127.0.0.1]:5000", host, from), "{host} {from:?}");
            }
            assert!(!is_allowed(&none, ELSEWHERE, host, &[&format!("http://{host}")]), "{host}");
        }
        let nothing = none.check(&Uri::from_static("/"), &HeaderMap::new(), HERE.parse().unwrap());
        assert!(nothing.is_err(), "a browser always names the host");
    }

    #[test]
    fn listed_pages_are_let_in_and_their_host_may_be_a_name_of_this_machine() {
        let listed = origins(&["https://console.example", "http://Front.example:3000/"], false);
        assert!(is_allowed(&listed, HERE, "127.0.0.1:9009", &["https://console.example"]));
        assert!(is_allowed(&listed, ELSEWHERE, "locks.example:9009", &["http://front.example:3000"]));
        assert!(!is_allowed(&listed, HERE, "127.0.0.1:9009", &["http://console.example"]), "another scheme");
        // Behind a proxy that forwards the host.
        assert!(is_allowed(&listed, HERE, "console.example", &["https://console.example"]));
        assert!(is_allowed(&listed, HERE, "console.example", &[]));
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        let parse = |text: &str| text.parse::<LocktopusOrigin>();
        assert_eq!(parse("HTTP://A.example:80"), parse("http://a.example"));
        assert_ne!(parse("http://a.example:8080"), parse("http://a.example"));
        for wrong in ["", "null", "*", "a.example", "a.example:80", "http://", "http://a.example/x", "http://a@b", "/x"]
        {
            assert_eq!(parse(wrong), Err(MalformedLocktopusOrigin), "{wrong}");
        }
    }
}
