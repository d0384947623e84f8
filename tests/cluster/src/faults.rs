//! Random faults of processes and of the network between them.

use futures::future::join_all;
use holdfast_testkit::{Cluster, Program};
use rand::Rng;
use rand::rngs::SmallRng;

/// Something that is done to a cluster, until [`Fault::heal_all`]. Places are the nodes and then the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill -9`.
    Kill(usize),
    /// `kill -9` of all nodes at once.
    KillAllNodes,
    /// SIGTERM, and waits for the end.
    Terminate(usize),
    /// SIGSTOP.
    Pause(usize),
    /// Nothing gets from the one to the other.
    CutOneWay(usize, usize),
    /// Nothing gets from the one to the other, nor back.
    CutBothWays(usize, usize),
    /// Nothing gets to it from any other process, nor out.
    Isolate(usize),
}

impl Fault {
    /// Draws a fault for a cluster.
    pub fn draw(random: &mut SmallRng, cluster: &Cluster) -> Self {
        let nodes = cluster.nodes.len();
        let places = nodes + cluster.gateways.len();
        let kinds = if cluster.has_network() { 20 } else { 12 };
        let (node, place) = (random.random_range(0..nodes), random.random_range(0..places));
        let gateway = random.random_range(nodes..places);
        let other = (place + random.random_range(1..places)) % places;
        match random.random_range(0..kinds) {
            0..=3 => Self::Kill(node),
            4 | 5 => Self::Kill(gateway),
            6..=8 => Self::Pause(node),
            9 => Self::Pause(gateway),
            10 => Self::Terminate(node),
            11 => Self::KillAllNodes,
            12..=14 => Self::CutOneWay(place, other),
            15..=17 => Self::CutBothWays(place, other),
            _ => Self::Isolate(place),
        }
    }

    /// Does it. Processes that are down or paused already are left alone.
    pub async fn inject(self, cluster: &mut Cluster) {
        let places = 0..cluster.nodes.len() + cluster.gateways.len();
        match self {
            Self::Kill(place) => kill(process(cluster, place)).await,
            Self::KillAllNodes => drop(join_all(cluster.nodes.iter_mut().map(kill)).await),
            Self::Terminate(place) => {
                let process = process(cluster, place);
                if process.is_started() && !process.is_paused() {
                    let status = process.terminate().await;
                    assert!(status.success(), "{} ended with {status}", process.name());
                }
            }
            Self::Pause(place) => {
                let process = process(cluster, place);
                if process.is_started() && !process.is_paused() {
                    process.pause();
                }
            }
            Self::CutOneWay(from, to) => cluster.network().cut(from, to),
            Self::CutBothWays(one, other) => cluster.network().cut_both_ways(&[one], &[other]),
            Self::Isolate(place) => {
                let others: Vec<usize> = places.filter(|other| *other != place).collect();
                cluster.network().cut_both_ways(&[place], &others);
            }
        }
    }

    /// Ends every fault: nothing is cut off, and every process runs.
    pub fn heal_all(cluster: &mut Cluster) {
        if cluster.has_network() {
            cluster.network().heal();
        }
        for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
            process.resume();
            if !process.is_started() {
                process.start();
            }
        }
    }
}

fn process(cluster: &mut Cluster, place: usize) -> &mut Program {
    let nodes = cluster.nodes.len();
    if place < nodes { &mut cluster.nodes[place] } else { &mut cluster.gateways[place - nodes] }
}

async fn kill(process: &mut Program) {
    if process.is_started() && !process.is_paused() {
        process.kill().await;
    }
}
