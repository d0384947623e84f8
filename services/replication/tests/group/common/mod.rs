//! Three nodes in one process. Each has a runtime of its own, so that killing it ends everything it does at once, and
//! every connection between two of them goes through a proxy that can be cut.

pub(crate) mod clocks;
pub(crate) mod journal;
pub(crate) mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use holdfast_replication::{
    Group, GroupOptions, KnownRules, Leadership, LogLimits, PeerConfig, ProposeError, Timing, testing,
};
use holdfast_storage::MemoryDisk;
use holdfast_testkit::TcpProxy;
pub(crate) use holdfast_testkit::{
    ProxyMode, eventually_some as eventually, eventually_some_within as eventually_within,
};
use tokio::time::{Instant, sleep};

use clocks::NodeClocks;
use journal::{Ballast, Reply};
use node::{Disk, Node, NodeIdentity, RULES};

/// How long a condition may take on a busy machine before the test gives up.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

/// One way through a slow proxy.
const DELAY: Duration = Duration::from_millis(20);

/// What a test may want to be different.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) nodes: usize,
    pub(crate) groups: usize,
    pub(crate) rocks: bool,
    pub(crate) snapshot_interval_entries: u64,
    pub(crate) retain_entries: u64,
    pub(crate) log_limits: LogLimits,
    /// Of every node, unless a test changes that of one before it starts.
    pub(crate) timing: Timing,
    pub(crate) ballast: Ballast,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: 3,
            groups: 1,
            rocks: false,
            snapshot_interval_entries: 100_000,
            retain_entries: 1_000,
            log_limits: LogLimits::default(),
            timing: Timing::default(),
            ballast: Ballast::default(),
        }
    }
}

pub(crate) struct Cluster {
    pub(crate) setup: Setup,
    pub(crate) nodes: Vec<Option<Node>>,
    pub(crate) disks: Vec<Disk>,
    /// Nodes whose replicas the configuration of the next starts gives new ids.
    pub(crate) renewed: BTreeSet<usize>,
    /// The timing of each node from its next start on.
    pub(crate) timings: Vec<Timing>,
    /// The clocks of each node's machine.
    pub(crate) clocks: Vec<NodeClocks>,
    /// The rules that nodes know from their next start on, where a test wants others than the usual ones.
    pub(crate) rules: BTreeMap<usize, KnownRules>,
    proxies: BTreeMap<(usize, usize), TcpProxy>,
}

pub(crate) const CLUSTER_ID: &str = "0123456789abcdef";

pub(crate) fn node_id(index: usize) -> String {
    format!("nd_{}", index + 1)
}

/// The replica of the first group on a node.
pub(crate) fn replica_id(index: usize) -> u64 {
    replica_of(0, index)
}

pub(crate) fn replica_of(group: usize, index: usize) -> u64 {
    (100 * group + 10 + index) as u64
}

impl Cluster {
    /// Opens the disks and the proxies; no node runs yet.
    pub(crate) async fn prepare(setup: Setup) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init();
        crate::mutations::enable_from_env();
        let mut proxies = BTreeMap::new();
        for from in 0..setup.nodes {
            for to in (0..setup.nodes).filter(|to| *to != from) {
                proxies.insert((from, to), TcpProxy::without_target());
            }
        }
        let disk = |_| if setup.rocks { Disk::rocks() } else { Disk::Memory(MemoryDisk::new()) };
        let disks = (0..setup.nodes).map(disk).collect();
        let nodes = (0..setup.nodes).map(|_| None).collect();
        let timings = vec![setup.timing; setup.nodes];
        let clocks = (0..setup.nodes).map(|_| NodeClocks::default()).collect();
        Self { setup, nodes, disks, renewed: BTreeSet::new(), timings, clocks, rules: BTreeMap::new(), proxies }
    }

    /// Starts every node and forms the group.
    pub(crate) async fn bootstrapped(setup: Setup) -> Self {
        let mut cluster = Self::prepare(setup).await;
        cluster.bootstrap().await;
        cluster
    }

    /// The same, of what is prepared.
    pub(crate) async fn bootstrap(&mut self) {
        for index in 0..self.setup.nodes {
            self.start(index).await;
        }
        let node = self.node(0);
        node.manager.bootstrap(&node.group).await.expect("the group forms");
    }

    /// The replica of a group on a node, as the configuration has it now.
    fn replica(&self, group: usize, index: usize) -> u64 {
        replica_of(group, index) + if self.renewed.contains(&index) { 50 } else { 0 }
    }

    pub(crate) fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().expect("the node runs")
    }

    pub(crate) fn group(&self, index: usize) -> &Group {
        &self.node(index).group
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(index, node)| node.as_ref().map(|node| (index, node)))
    }

    pub(crate) fn peers(&self, index: usize) -> Vec<PeerConfig> {
        let others = (0..self.setup.nodes).filter(|other| *other != index);
        others
            .map(|other| PeerConfig {
                node: node_id(other),
                address: self.proxies[&(index, other)].address().to_string(),
                replicas: (0..self.setup.groups).map(|group| self.replica(group, other)).collect(),
            })
            .collect()
    }

    /// The options of a node's replica in each group.
    pub(crate) fn group_options(&self, index: usize) -> Vec<GroupOptions> {
        let options = |group| GroupOptions {
            group: format!("g{group}"),
            replica: self.replica(group, index),
            members: (0..self.setup.nodes).map(|index| (self.replica(group, index), node_id(index))).collect(),
            snapshot_interval_entries: self.setup.snapshot_interval_entries,
            retain_entries: self.setup.retain_entries,
            log_limits: self.setup.log_limits,
            clocks: self.clocks[index].clocks(),
        };
        (0..self.setup.groups).map(options).collect()
    }

    /// Starts a node from its disk.
    pub(crate) async fn start(&mut self, index: usize) {
        let node = {
            let (disk, timing) = (&self.disks[index], self.timings[index]);
            let rules = self.rules.get(&index).copied().unwrap_or(RULES);
            let ballast = self.setup.ballast;
            let claims = NodeIdentity { timing, rules, ballast, ..NodeIdentity::honest(index) };
            Node::start_as(claims, disk, self.peers(index), self.group_options(index)).await
        };
        for other in (0..self.setup.nodes).filter(|other| *other != index) {
            self.proxies[&(other, index)].set_target(Some(node.address));
        }
        self.nodes[index] = Some(node);
    }

    /// Lets another process answer at a node's address.
    pub(crate) fn redirect(&self, index: usize, address: std::net::SocketAddr) {
        for other in (0..self.setup.nodes).filter(|other| *other != index) {
            self.proxies[&(other, index)].set_target(Some(address));
        }
    }

    /// Ends a node at once, as a power cut would.
    pub(crate) async fn kill(&mut self, index: usize) {
        for other in (0..self.setup.nodes).filter(|other| *other != index) {
            self.proxies[&(other, index)].set_target(None);
        }
        if let Some(node) = self.nodes[index].take() {
            node.kill(&self.disks[index]).await;
        }
    }

    /// Connections from one node to the other end, and new ones are refused; those from the other one stay.
    pub(crate) fn refuse(&self, from: usize, to: usize) {
        self.proxies[&(from, to)].refuse();
    }

    /// Connections from one node to the other are taken again after they were refused.
    pub(crate) fn listen_again(&mut self, from: usize, to: usize) {
        self.proxies.get_mut(&(from, to)).expect("there is one between any two").listen_again();
    }

    /// Ends the process of a node: its address refuses from then on.
    pub(crate) async fn terminate(&mut self, index: usize) {
        for other in (0..self.setup.nodes).filter(|other| *other != index) {
            self.refuse(other, index);
        }
        self.kill(index).await;
    }

    /// Lets so many bytes a second pass to a node.
    pub(crate) fn limit_rate_to(&self, index: usize, bytes_per_second: u64) {
        let to_node = self.proxies.iter().filter(|((_, to), _)| *to == index);
        to_node.for_each(|(_, proxy)| proxy.limit_rate(bytes_per_second));
    }

    /// The bytes that others have sent to a node over their connections.
    pub(crate) fn sent_to(&self, index: usize) -> u64 {
        self.proxies.iter().filter(|((_, to), _)| *to == index).map(|(_, proxy)| proxy.forwarded_bytes()).sum()
    }

    /// What happens to the connections that one node makes to another.
    pub(crate) fn cut(&self, from: usize, to: usize, mode: ProxyMode) {
        self.proxies[&(from, to)].set_mode(mode);
    }

    /// Lets each node lead once, and waits until all are connected with one another. One that was started just now may be
    /// reached by the others before it reaches them, and is not elected then; one that is elected has reached a majority.
    pub(crate) async fn all_have_led(&self) {
        for index in 0..self.setup.nodes {
            self.make_lead(index).await;
        }
        let is_connected = |(from, to): &(usize, usize)| testing::is_connected(self.group(*from), replica_id(*to));
        eventually("each node is connected with each other", || async {
            self.proxies.keys().all(is_connected).then_some(())
        })
        .await;
    }

    /// Cuts a node off from all others, both ways.
    pub(crate) fn cut_off(&self, index: usize, mode: ProxyMode) {
        self.proxies_of(index).for_each(|proxy| proxy.set_mode(mode));
    }

    /// Delays what a node says and hears.
    pub(crate) fn slow_down(&self, index: usize) {
        self.proxies_of(index).for_each(|proxy| proxy.set_delay(DELAY));
    }

    /// Those from and to a node.
    fn proxies_of(&self, index: usize) -> impl Iterator<Item = &TcpProxy> {
        let of_node = self.proxies.iter().filter(move |((from, to), _)| *from == index || *to == index);
        of_node.map(|(_, proxy)| proxy)
    }

    /// Waits until one running node leads, and is the only one that says so.
    pub(crate) async fn leader(&self) -> (usize, Leadership) {
        self.leader_except(&[]).await
    }

    /// Waits until a running node that is not among `others` leads.
    pub(crate) async fn leader_except(&self, others: &[usize]) -> (usize, Leadership) {
        eventually("a leader", || async {
            let mut leaders =
                self.running().filter(|(index, _)| !others.contains(index)).filter_map(|(index, node)| {
                    let leads = *node.group.subscribe_leadership().borrow();
                    leads.map(|leads| (index, leads))
                });
            let leader = leaders.next();
            leader.filter(|_| leaders.next().is_none())
        })
        .await
    }

    /// Hands leadership on until that node leads.
    pub(crate) async fn make_lead(&self, index: usize) {
        eventually("that one leads", || async {
            let (leader, _) = self.leader().await;
            if leader != index {
                let is_it = |replica| replica == replica_id(index);
                self.group(leader).transfer_leadership_among(is_it, Duration::from_secs(1)).await;
            }
            (leader == index).then_some(())
        })
        .await;
    }

    /// Proposes to whoever leads until it is answered. `None` when its outcome is unknown.
    pub(crate) async fn propose(&self, command: &Bytes) -> Option<Reply> {
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < MAX_WAIT, "never answered");
            let (leader, leads) = self.leader().await;
            match propose_to(self.group(leader), leads.term, command).await {
                Ok(reply) => return Some(reply),
                Err(ProposeError::Unknown(_)) => return None,
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Waits until every running replica has applied what the leader has.
    pub(crate) async fn all_applied(&self) -> u64 {
        eventually("the same applied index everywhere", || async {
            let mut applied: Vec<u64> = self.running().map(|(_, node)| node.group.status().applied_index).collect();
            let leader = self.running().find(|(_, node)| node.group.subscribe_leadership().borrow().is_some())?.1;
            applied.push(leader.group.status().last_log_index);
            applied.iter().all(|index| *index == applied[0]).then_some(applied[0])
        })
        .await
    }
}

/// Proposes with a deadline that a healthy group keeps.
pub(crate) async fn propose_to(group: &Group, term: u64, command: &Bytes) -> Result<Reply, ProposeError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    group.propose(0, term, command.clone(), deadline).await.map(|bytes| Reply::decode(&bytes))
}

pub(crate) fn command(text: impl Into<String>) -> Bytes {
    Bytes::from(text.into().into_bytes())
}
