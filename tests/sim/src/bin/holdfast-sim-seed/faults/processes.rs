//! Faults of processes: they are killed, lose power, or are stopped, and started again.

use std::sync::Arc;
use std::time::Duration;

use holdfast_storage::CrashPoint;
use rand::Rng;
use rand::rngs::StdRng;
use turmoil::Sim;

use super::{hosts, random_delay};
use crate::host_state::HostState;
use crate::world::{World, gateway_name, node_name};

/// Longest time that a process is away.
const MAX_DOWNTIME_MS: u64 = 5_000;
/// Longest time between two faults.
const MAX_INTERVAL_MS: u64 = 6_000;
/// Writes to a disk within which a planned crash happens.
const MAX_WRITES_BEFORE_CRASH: u64 = 40;

pub(super) struct Processes {
    world: Arc<World>,
    hosts: Vec<String>,
    /// When each node, and each gateway, is started again.
    nodes: Vec<Option<Duration>>,
    gateways: Vec<Option<Duration>>,
}

impl Processes {
    pub(super) fn new(world: &Arc<World>) -> Self {
        let (nodes, gateways) = (vec![None; world.plan.nodes], vec![None; world.plan.gateways]);
        Self { hosts: hosts(world), world: Arc::clone(world), nodes, gateways }
    }

    /// Removes processes that ended by themselves, and starts those that were down for long enough.
    pub(super) fn step(&mut self, sim: &mut Sim<'_>, at: Duration, rng: &mut StdRng) {
        for number in 0..self.nodes.len() {
            let exited = self.world.nodes[number].exited.lock().take();
            if let Some(reason) = exited {
                self.world.record_at(at, format!("{} ended: {reason}", node_name(number)));
                let back = at + random_delay(rng, MAX_DOWNTIME_MS);
                self.stop_node(sim, number, back);
            }
            if self.nodes[number].is_some_and(|due| due <= at) {
                self.nodes[number] = None;
                sim.bounce(node_name(number));
            }
        }
        for number in 0..self.gateways.len() {
            if self.gateways[number].is_some_and(|due| due <= at) {
                self.gateways[number] = None;
                sim.bounce(gateway_name(number));
            }
        }
    }

    /// Whatever is down comes up now.
    pub(super) fn restart_all(&mut self, at: Duration) {
        for due in self.nodes.iter_mut().chain(&mut self.gateways).flatten() {
            *due = at;
        }
    }

    /// Injects a fault. Returns true, and the time until the next one.
    pub(super) fn inject(&mut self, sim: &mut Sim<'_>, at: Duration, rng: &mut StdRng) -> (bool, Duration) {
        let number = rng.random_range(0..self.nodes.len());
        let back = at + random_delay(rng, MAX_DOWNTIME_MS);
        let what = match rng.random_range(0..20) {
            0..6 => {
                self.kill(sim, number, back, false);
                format!("{} is killed", node_name(number))
            }
            6..10 => {
                self.kill(sim, number, back, true);
                format!("{} loses power", node_name(number))
            }
            10..13 => {
                let point = if rng.random_bool(0.5) { CrashPoint::BeforeSync } else { CrashPoint::AfterSync };
                let nth = rng.random_range(1..=MAX_WRITES_BEFORE_CRASH);
                self.world.nodes[number].disk.crash_at_write(nth, point);
                format!("{} crashes at write {nth} from now, {point:?}", node_name(number))
            }
            13..16 => {
                *self.world.nodes[number].stop.lock() = true;
                format!("{} is asked to stop", node_name(number))
            }
            16..18 => {
                let number = rng.random_range(0..self.gateways.len());
                self.kill_gateway(sim, number, back);
                format!("{} is killed", gateway_name(number))
            }
            _ => {
                let cut = rng.random_bool(0.5);
                for number in 0..self.nodes.len() {
                    let back = at + random_delay(rng, MAX_DOWNTIME_MS);
                    self.kill(sim, number, back, cut);
                }
                "every node is killed".to_owned()
            }
        };
        self.world.record_at(at, what);
        (true, random_delay(rng, MAX_INTERVAL_MS) * self.world.plan.quiet_factor)
    }

    /// Ends a process. If the host loses power, its peers get no message about it.
    pub(super) fn kill(&mut self, sim: &mut Sim<'_>, number: usize, back: Duration, power_lost: bool) {
        if self.nodes[number].is_some() {
            return;
        }
        let name = node_name(number);
        let others: Vec<String> = self.hosts.iter().filter(|host| **host != name).cloned().collect();
        if power_lost {
            others.iter().for_each(|other| sim.partition(name.as_str(), other.as_str()));
        }
        self.stop_node(sim, number, back);
        if power_lost {
            self.world.hosts.set(&name, HostState::Unreachable);
            others.iter().for_each(|other| sim.repair(name.as_str(), other.as_str()));
        }
    }

    /// Kills a node and starts it again at once.
    pub(super) fn restart(&mut self, sim: &mut Sim<'_>, number: usize, at: Duration) {
        self.world.record_at(at, format!("{} is killed and started again", node_name(number)));
        self.kill(sim, number, at, false);
    }

    fn stop_node(&mut self, sim: &mut Sim<'_>, number: usize, back: Duration) {
        let (name, slot) = (node_name(number), &self.world.nodes[number]);
        slot.disk.crash();
        self.world.hosts.set(&name, HostState::ConnectionRefused);
        let node = slot.node.lock().take();
        sim.crash(name.as_str());
        drop(node);
        *slot.exited.lock() = None;
        *slot.stop.lock() = false;
        *slot.pause.lock() = None;
        self.nodes[number] = Some(back);
    }

    fn kill_gateway(&mut self, sim: &mut Sim<'_>, number: usize, back: Duration) {
        if self.gateways[number].is_some() {
            return;
        }
        let name = gateway_name(number);
        self.world.hosts.set(&name, HostState::ConnectionRefused);
        sim.crash(name.as_str());
        self.gateways[number] = Some(back);
    }
}
