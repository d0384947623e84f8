//! Generated contender ids.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

static COUNTER: AtomicU64 = AtomicU64::new(0);
static HOST_ADDRESS: LazyLock<IpAddr> = LazyLock::new(host_address);

/// Generates unique ids for contenders.
///
/// ```
/// use holdfast_contention::ContenderIdGenerator;
///
/// let readable = ContenderIdGenerator::HOST.generate();
/// let (counter_and_pid, address) = readable.split_once('@').unwrap();
/// assert!(counter_and_pid.ends_with(&format!(":{}", std::process::id())));
/// assert!(address.parse::<std::net::IpAddr>().is_ok());
///
/// let unique = ContenderIdGenerator::UUID.generate();
/// assert!(unique.len() == 32 && unique.bytes().all(|byte| byte.is_ascii_hexdigit()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContenderIdGenerator(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    Uuid,
}

impl ContenderIdGenerator {
    /// `{counter}:{process id}@{address of this host}`, which identifies the process. If several machines or containers
    /// have the same address, use [`ContenderIdGenerator::UUID`].
    pub const HOST: Self = Self(Kind::Host);
    /// 32 lower-case hex digits, random.
    pub const UUID: Self = Self(Kind::Uuid);

    /// Generates the next id.
    pub fn generate(self) -> String {
        match self.0 {
            Kind::Host => {
                let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
                format!("{counter}:{}@{}", std::process::id(), *HOST_ADDRESS)
            }
            Kind::Uuid => Uuid::new_v4().simple().to_string(),
        }
    }
}

impl fmt::Display for ContenderIdGenerator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.0 {
            Kind::Host => "HOST",
            Kind::Uuid => "UUID",
        })
    }
}

/// Returns this host's outbound address, or the loopback address without a route. Connecting a datagram socket only
/// looks up the route: nothing is sent.
fn host_address() -> IpAddr {
    let way_out = |bind: IpAddr, towards: IpAddr| {
        let socket = UdpSocket::bind((bind, 0)).ok()?;
        socket.connect((towards, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    // Addresses reserved for documentation, so that they are never those of a real host.
    let v4 = way_out(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into());
    let v6 = || way_out(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into());
    v4.or_else(v6).unwrap_or(Ipv4Addr::LOCALHOST.into())
}
