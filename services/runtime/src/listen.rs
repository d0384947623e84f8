//! Checks the listen address and binds it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::file_limit::raise_file_limit;

/// Connections that the system queues until they are accepted, or fewer if it allows no more. Beyond these a client
/// must retry, which takes a second; many clients that return after a failover exceed the usual 128 at once.
const BACKLOG: u32 = 4_096;

/// Why a process can't listen on its address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other machines can reach the address, and the traffic would be unencrypted.
    #[error(
        "{0} can be reached from other machines, and without TLS keys and tokens would travel in the clear: listen on \
         a loopback address such as 127.0.0.1, give it a certificate ({1}), or say --insecure when something in front of \
         it encrypts"
    )]
    NotEncrypted(SocketAddr, &'static str),
    /// Another process listens on the address.
    #[error(
        "{0} is already in use: stop the process that listens there, or choose another address (--listen, or \
         --gateway-listen for the gateway of a node; that of a node is in the cluster config)"
    )]
    InUse(SocketAddr),
    /// The system does not permit it.
    #[error("listening on {0} is not permitted: ports below 1024 need a privilege; choose another with --listen")]
    NotPermitted(SocketAddr),
    /// No interface of this machine has the address.
    #[error("{0} is not an address of this machine: choose another with --listen")]
    AddressNotAvailable(SocketAddr),
    /// Another I/O error.
    #[error("cannot listen on {0}: {1}")]
    Other(SocketAddr, io::Error),
}

/// Rejects an address that other machines can reach, unless it is encrypted or the operator allows it.
fn check_address(address: SocketAddr, tls_flag: &'static str, tls: bool, insecure: bool) -> Result<(), ListenError> {
    if tls || insecure || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(ListenError::NotEncrypted(address, tls_flag))
}

/// Listens on an address, unless other machines can reach it, nothing is encrypted, and the operator does not allow
/// that. `tls_flag` names the flag that enables encryption. Port 0 selects a free port. Every connection needs a file,
/// so this raises the open-file limit to the maximum that the system allows.
pub(crate) async fn bind(
    address: SocketAddr,
    tls_flag: &'static str,
    tls: bool,
    insecure: bool,
) -> Result<TcpListener, ListenError> {
    check_address(address, tls_flag, tls, insecure)?;
    raise_file_limit();
    listen(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ListenError::InUse(address),
        ErrorKind::PermissionDenied => ListenError::NotPermitted(address),
        ErrorKind::AddrNotAvailable => ListenError::AddressNotAvailable(address),
        _ => ListenError::Other(address, error),
    })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restarted process need not wait until the connections of its predecessor expire.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAG: &str = "--tls-cert-file";

    #[test]
    fn only_loopback_is_listened_on_in_the_clear_unless_told() {
        for loopback in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            assert!(check_address(loopback.parse().unwrap(), FLAG, false, false).is_ok());
        }
        for open in ["0.0.0.0:8080", "10.0.0.1:8080", "[::]:8080"] {
            let address = open.parse().unwrap();
            let refused = check_address(address, FLAG, false, false).unwrap_err().to_string();
            assert!([open, "--insecure", FLAG].iter().all(|part| refused.contains(part)), "{refused}");
            assert!(check_address(address, FLAG, true, false).is_ok());
            assert!(check_address(address, FLAG, false, true).is_ok());
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_what_to_do() {
        let first = bind("127.0.0.1:0".parse().unwrap(), FLAG, false, false).await.unwrap();
        let address = first.local_addr().unwrap();
        let refused = bind(address, FLAG, false, false).await.unwrap_err().to_string();
        assert!(refused.contains(&address.to_string()) && refused.contains("--listen"), "{refused}");
    }
}
