//! Faults of the network, and paused processes, which look the same to others.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use turmoil::Sim;

use super::{hosts, random_delay};
use crate::host_clocks::Pause;
use crate::world::{World, node_name};

/// Longest fault.
const MAX_DURATION_MS: u64 = 6_000;
/// Longest quiet between two.
const MAX_INTERVAL_MS: u64 = 3_000;

pub(super) struct Links {
    world: Arc<World>,
    hosts: Vec<String>,
    is_active: bool,
}

impl Links {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self { hosts: hosts(world), world: Arc::clone(world), is_active: false }
    }

    /// Injects a fault. Returns whether it did, and how long the fault lasts.
    pub(super) fn inject_or_heal(&mut self, sim: &mut Sim<'_>, at: Duration, rng: &mut StdRng) -> (bool, Duration) {
        if self.is_active {
            self.end_fault(sim, self.world.plan.loss_rate);
            self.world.record_at(at, "network is mended");
            return (false, random_delay(rng, MAX_INTERVAL_MS) * self.world.plan.quiet_factor);
        }
        let lasts = random_delay(rng, MAX_DURATION_MS);
        let what = if rng.random_ratio(1, 8) { self.pause(sim, rng, lasts) } else { self.inject(sim, rng) };
        self.world.record_at(at, format!("network: {what} for {lasts:?}"));
        self.is_active = true;
        (true, lasts)
    }

    fn inject(&self, sim: &mut Sim<'_>, rng: &mut StdRng) -> String {
        let nodes = self.world.plan.nodes;
        let one = node_name(self.target_node(rng));
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

    /// Pauses a process. Messages to it wait, and arrive shortly before it resumes.
    fn pause(&self, sim: &mut Sim<'_>, rng: &mut StdRng, lasts: Duration) -> String {
        let number = self.target_node(rng);
        let one = node_name(number);
        self.hosts.iter().filter(|host| **host != one).for_each(|other| sim.hold(one.as_str(), other.as_str()));
        let longer = Duration::from_millis(rng.random_range(0..20));
        let pause_ms = u64::try_from((lasts + longer).as_millis()).unwrap_or(u64::MAX);
        *self.world.nodes[number].pause.lock() = Some((Pause::Suspended, pause_ms));
        format!("the process of {one} is paused, {pause_ms} ms, and nothing reaches it")
    }

    fn target_node(&self, rng: &mut StdRng) -> usize {
        if rng.random_bool(0.4) { self.node_with_most_leaders() } else { rng.random_range(0..self.world.plan.nodes) }
    }

    /// The node that leads most groups.
    fn node_with_most_leaders(&self) -> usize {
        let leads =
            |number: &usize| self.world.nodes[*number].node.lock().as_ref().map_or(0, |node| node.led_replicas().len());
        (0..self.world.nodes.len()).max_by_key(leads).unwrap_or_default()
    }

    /// Ends all faults, for good.
    pub(super) fn heal(&mut self, sim: &mut Sim<'_>) {
        self.end_fault(sim, 0.0);
    }

    /// Ends what was injected. From then on messages are lost at that rate.
    fn end_fault(&mut self, sim: &mut Sim<'_>, loss_rate: f64) {
        self.is_active = false;
        let latency = self.world.plan.max_latency;
        for (index, one) in self.hosts.iter().enumerate() {
            for other in &self.hosts[index + 1..] {
                let (one, other) = (one.as_str(), other.as_str());
                sim.set_link_fail_rate(one, other, loss_rate);
                sim.set_link_max_message_latency(one, other, latency);
                // Waiting messages are delivered; lost ones stay lost.
                sim.release(one, other);
                sim.repair(one, other);
            }
        }
    }
}
