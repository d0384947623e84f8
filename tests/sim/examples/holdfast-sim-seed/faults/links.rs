//! Faults of the network.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use turmoil::Sim;

use super::{hosts, soon};
use crate::world::World;

/// Longest fault.
const LONGEST_MS: u64 = 6_000;
/// Longest quiet between two.
const LONGEST_QUIET_MS: u64 = 3_000;

pub(super) struct Links {
    world: Arc<World>,
    hosts: Vec<String>,
    is_struck: bool,
}

impl Links {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self { hosts: hosts(world), world: Arc::clone(world), is_struck: false }
    }

    /// Does the one or the other. Answers whether it struck, and how long it stays that way.
    pub(super) fn strike_or_mend(&mut self, sim: &mut Sim<'_>, at: Duration, rng: &mut StdRng) -> (bool, Duration) {
        if self.is_struck {
            self.mend(sim);
            self.world.note_at(at, "network is mended");
            return (false, soon(rng, LONGEST_QUIET_MS) * self.world.plan.quiet);
        }
        let what = self.strike(sim, rng);
        let lasts = soon(rng, LONGEST_MS);
        self.world.note_at(at, format!("network: {what} for {lasts:?}"));
        self.is_struck = true;
        (true, lasts)
    }

    fn strike(&self, sim: &mut Sim<'_>, rng: &mut StdRng) -> String {
        let nodes = self.world.plan.nodes;
        let struck = if rng.random_bool(0.4) { self.busiest() } else { rng.random_range(0..nodes) };
        let one = self.hosts[struck].clone();
        let others: Vec<&String> = self.hosts.iter().filter(|host| **host != one).collect();
        // Cut off from everybody, from nodes only, or from one other host.
        let (from, far): (&str, Vec<&String>) = match rng.random_range(0..4) {
            0 | 1 => ("all", others),
            2 => ("nodes", others.into_iter().take(nodes - 1).collect()),
            _ => ("one", vec![others[rng.random_range(0..others.len())]]),
        };
        let pairs = far.iter().map(|other| (one.as_str(), other.as_str()));
        let kind = match rng.random_range(0..12) {
            0..3 => {
                pairs.for_each(|(a, b)| sim.partition(a, b));
                "partition".to_owned()
            }
            3..5 => {
                pairs.for_each(|(a, b)| sim.partition_oneway(a, b));
                "one-way partition, nothing gets out,".to_owned()
            }
            5..7 => {
                pairs.for_each(|(a, b)| sim.partition_oneway(b, a));
                "one-way partition, nothing gets in,".to_owned()
            }
            7..9 => {
                pairs.for_each(|(a, b)| sim.hold(a, b));
                "packets wait".to_owned()
            }
            9..11 => {
                let latency = Duration::from_millis(rng.random_range(20..600));
                pairs.for_each(|(a, b)| sim.set_link_max_message_latency(a, b, latency));
                format!("latency up to {latency:?}")
            }
            _ => {
                let rate = rng.random_range(0.001..0.05);
                pairs.for_each(|(a, b)| sim.set_link_fail_rate(a, b, rate));
                format!("loss at a rate of {rate:.3}")
            }
        };
        let far: Vec<&str> = far.iter().map(|host| host.as_str()).collect();
        format!("{kind} between {one} and {from} ({})", far.join(" "))
    }

    /// The node that leads most shards.
    fn busiest(&self) -> usize {
        let leads =
            |number: &usize| self.world.nodes[*number].node.lock().as_ref().map_or(0, |node| node.leads().len());
        (0..self.world.nodes.len()).max_by_key(leads).unwrap_or_default()
    }

    /// Ends whatever is struck.
    pub(super) fn mend(&mut self, sim: &mut Sim<'_>) {
        self.is_struck = false;
        let latency = self.world.plan.max_latency;
        for (index, one) in self.hosts.iter().enumerate() {
            for other in &self.hosts[index + 1..] {
                let (one, other) = (one.as_str(), other.as_str());
                sim.set_link_fail_rate(one, other, 0.0);
                sim.set_link_max_message_latency(one, other, latency);
                // What waits is let go; what was lost stays lost.
                sim.release(one, other);
                sim.repair(one, other);
            }
        }
    }
}
