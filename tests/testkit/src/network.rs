//! A network in which every process has an address of its own, and which can be cut between any two of them.
//!
//! Each process is in a namespace with one virtual cable to the hub, a namespace that forwards between all of them. A cut
//! is a rule of the hub that drops packets from one address to another silently.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::net_ns::{NetNs, NsKind, run_command};

/// A network of namespaces, each with a number.
pub struct Network {
    hub: NetNs,
    namespaces: Vec<Arc<NetNs>>,
    /// The two bytes of addresses after the 10.
    block: (u8, u8),
    cuts: Mutex<BTreeSet<(usize, usize)>>,
}

/// The test's own end of its cable.
fn cable_name() -> String {
    format!("hf{}", std::process::id())
}

impl Drop for Network {
    /// The kernel removes the cable some time after the hub has ended, and the next network needs its name.
    fn drop(&mut self) {
        // It fails only if the cable was never created.
        let _ = run_command(&["ip", "link", "del", &cable_name()].map(str::to_owned));
    }
}

impl Network {
    /// Creates so many namespaces, and cables between all of them and the test.
    pub(crate) fn create(namespaces: usize) -> Result<Self, String> {
        let hub = NetNs::create(NsKind::Network)?;
        // One network for each test process that may run at a time.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let mut network = Self { hub, namespaces: Vec::new(), block: (64 + high % 64, low), cuts: Mutex::default() };
        network.hub.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        network.connect_test_process()?;
        for number in 0..namespaces {
            let net_ns = network.connect_net_ns(number)?;
            network.namespaces.push(Arc::new(net_ns));
        }
        Ok(network)
    }

    /// The address of a namespace.
    pub(crate) fn address(&self, number: usize) -> Ipv4Addr {
        self.address_at(4 * (number + 1) + 2)
    }

    pub(crate) fn net_ns(&self, number: usize) -> Arc<NetNs> {
        Arc::clone(&self.namespaces[number])
    }

    /// Drops all packets from one namespace to another, but none in the other direction.
    pub fn cut(&self, from: usize, to: usize) {
        if self.cuts.lock().insert((from, to)) {
            self.set_drop_rule("add", from, to);
        }
    }

    /// Drops all packets between the namespaces of two sides.
    pub fn cut_both_ways(&self, these: &[usize], those: &[usize]) {
        for &one in these {
            for &other in those {
                self.cut(one, other);
                self.cut(other, one);
            }
        }
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        for (from, to) in std::mem::take(&mut *self.cuts.lock()) {
            self.set_drop_rule("del", from, to);
        }
    }

    /// Lets so many bits a second through to a namespace.
    ///
    /// # Panics
    /// If `tc` can't do so.
    pub fn limit_rate(&self, to: usize, bits_per_second: u64) {
        let (cable, rate) = (format!("ns{to}"), bits_per_second.to_string());
        let line =
            ["qdisc", "replace", "dev", &cable, "root", "tbf", "rate", &rate, "burst", "256kb", "latency", "200ms"];
        self.hub.run("tc", &line).expect("the rate of a cable can be limited");
    }

    fn set_drop_rule(&self, verb: &str, from: usize, to: usize) {
        let (from, to) = (self.address(from).to_string(), self.address(to).to_string());
        let rule = ["rule", verb, "pref", "100", "from", &from, "to", &to, "blackhole"];
        self.hub.run("ip", &rule).expect("a network that was created can be changed");
    }

    fn address_at(&self, number: usize) -> Ipv4Addr {
        let number = u8::try_from(number).expect("a test has few processes");
        Ipv4Addr::new(10, self.block.0, self.block.1, number)
    }

    /// The test process has a cable to the hub, so that it reaches all namespaces.
    fn connect_test_process(&self) -> Result<(), String> {
        let cable = cable_name();
        let outside = |line: &str| run_command(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let hub = self.hub.pid();
        outside(&format!("ip link add {cable} type veth peer name test netns {hub}"))?;
        outside(&format!("ip addr add {}/30 dev {cable}", self.address_at(2)))?;
        outside(&format!("ip link set dev {cable} up"))?;
        outside(&format!("ip route add {}/24 via {}", self.address_at(0), self.address_at(1)))?;
        self.run_ip(&self.hub, &format!("addr add {}/30 dev test", self.address_at(1)))?;
        self.run_ip(&self.hub, "link set dev test up")
    }

    fn connect_net_ns(&self, number: usize) -> Result<NetNs, String> {
        let net_ns = NetNs::create(NsKind::NetworkAndMounts)?;
        let (cable, pid) = (format!("ns{number}"), net_ns.pid());
        let (hub, own) = (self.address_at(4 * (number + 1) + 1), self.address(number));
        self.run_ip(&self.hub, &format!("link add {cable} type veth peer name eth0 netns {pid}"))?;
        self.run_ip(&self.hub, &format!("addr add {hub}/30 dev {cable}"))?;
        self.run_ip(&self.hub, &format!("link set dev {cable} up"))?;
        self.run_ip(&net_ns, &format!("addr add {own}/30 dev eth0"))?;
        self.run_ip(&net_ns, "link set dev eth0 up")?;
        self.run_ip(&net_ns, &format!("route add default via {hub}"))?;
        Ok(net_ns)
    }

    fn run_ip(&self, net_ns: &NetNs, line: &str) -> Result<(), String> {
        net_ns.run("ip", &line.split(' ').collect::<Vec<_>>()).map(|_| ())
    }
}
