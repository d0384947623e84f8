//! Faults of a leader that has locks in its memory, in runs with clients of them: it is killed, also together with the
//! gateway of some clients, or while the messages of a gateway wait; it is paused until another one leads; or what it
//! says to gateways comes after that.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use turmoil::Sim;

use super::processes::Processes;
use super::{hosts, random_delay};
use crate::client::SOFT_NAMESPACE;
use crate::host_clocks::Pause;
use crate::plan::rng_of;
use crate::world::{World, gateway_name, node_name};

/// Longest time between two: some rebuilds come to their end.
const MAX_INTERVAL_MS: u64 = 10_000;
/// Longest time that a killed process is away.
const MAX_DOWNTIME_MS: u64 = 3_000;
/// How long a leader is paused, or cut off from other nodes: longer than these wait for it.
const LOST_MS: std::ops::Range<u64> = 2_000..5_000;
/// Waiting messages arrive so long before the process resumes.
const RELEASE_LEAD_TIME: Duration = Duration::from_millis(15);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Killed,
    KilledWithGateway,
    /// Messages from and to a gateway wait until another one leads.
    KilledPastGateway,
    Paused,
    /// It is cut off from other nodes, and its messages to gateways wait meanwhile.
    Late,
}

const KINDS: [Kind; 5] = [Kind::Killed, Kind::KilledWithGateway, Kind::KilledPastGateway, Kind::Paused, Kind::Late];

pub(super) struct SoftLeaders {
    world: Arc<World>,
    /// Of its own, so that it does not change the other draws.
    rng: StdRng,
    next: Option<Duration>,
    /// A host from and to which messages wait, and until when.
    held: Option<(String, Duration)>,
}

impl SoftLeaders {
    pub(super) fn new(world: &Arc<World>) -> Self {
        let rng = rng_of(world.plan.seed, "soft leaders");
        Self { world: Arc::clone(world), rng, next: None, held: None }
    }

    pub(super) fn start(&mut self, at: Duration) {
        if self.world.plan.has_soft {
            self.next = Some(at + random_delay(&mut self.rng, MAX_INTERVAL_MS));
        }
    }

    /// Nothing more goes wrong. Links are mended by others.
    pub(super) fn stop(&mut self) {
        (self.next, self.held) = (None, None);
    }

    /// Ends what is over, and injects the next fault if that is due. Returns whether it did.
    pub(super) fn step(&mut self, sim: &mut Sim<'_>, at: Duration, processes: &mut Processes) -> bool {
        if self.held.as_ref().is_some_and(|(_, until)| *until > at) {
            return false;
        }
        if let Some((host, _)) = self.held.take() {
            self.end_fault(sim, &host, at);
        }
        if self.next.is_none_or(|next| next > at) {
            return false;
        }
        self.next = Some(at + random_delay(&mut self.rng, MAX_INTERVAL_MS));
        let Some(leader) = self.leader() else { return false };
        let kind = KINDS[self.rng.random_range(0..KINDS.len())];
        self.world.record_at(at, format!("{} has locks in its memory: {kind:?}", node_name(leader)));
        self.inject(sim, at, (leader, kind), processes);
        true
    }

    fn inject(&mut self, sim: &mut Sim<'_>, at: Duration, (leader, kind): (usize, Kind), processes: &mut Processes) {
        let lost = Duration::from_millis(self.rng.random_range(LOST_MS));
        let back = at + random_delay(&mut self.rng, MAX_DOWNTIME_MS);
        match kind {
            Kind::Killed => processes.kill(sim, leader, back, false),
            Kind::KilledWithGateway => {
                processes.kill(sim, leader, back, false);
                let gateway = self.rng.random_range(0..self.world.plan.gateways);
                self.world.soft_falls[gateway].fetch_add(1, Ordering::Relaxed);
            }
            Kind::KilledPastGateway => {
                let gateway = gateway_name(self.rng.random_range(0..self.world.plan.gateways));
                (0..self.world.plan.nodes).for_each(|node| sim.hold(gateway.as_str(), node_name(node)));
                processes.kill(sim, leader, back, false);
                self.held = Some((gateway, at + lost));
            }
            Kind::Paused => {
                let name = node_name(leader);
                self.others(&name).iter().for_each(|other| sim.hold(name.as_str(), other.as_str()));
                let pause_ms = u64::try_from((lost + RELEASE_LEAD_TIME).as_millis()).unwrap_or(u64::MAX);
                *self.world.nodes[leader].pause.lock() = Some((Pause::Suspended, pause_ms));
                self.held = Some((name, at + lost));
            }
            Kind::Late => {
                let others = (0..self.world.plan.nodes).filter(|node| *node != leader);
                others.for_each(|other| sim.partition(node_name(leader), node_name(other)));
                let gateways = 0..self.world.plan.gateways;
                gateways.for_each(|gateway| sim.hold(node_name(leader), gateway_name(gateway)));
                self.held = Some((node_name(leader), at + lost));
            }
        }
    }

    /// Waiting messages are delivered; lost ones stay lost.
    fn end_fault(&self, sim: &mut Sim<'_>, host: &str, at: Duration) {
        self.world.record_at(at, format!("messages of {host} arrive again"));
        for other in self.others(host) {
            sim.release(host, other.as_str());
            sim.repair(host, other.as_str());
        }
    }

    fn others(&self, name: &str) -> Vec<String> {
        hosts(&self.world).into_iter().filter(|host| host != name).collect()
    }

    /// The node that leads the shard of such clients.
    fn leader(&self) -> Option<usize> {
        let tenant = self.world.tenants().first().cloned()?;
        let shard = self.world.locks_shard(tenant.account, SOFT_NAMESPACE);
        let map = &self.world.map;
        let is_of_shard = |replica: u64| {
            let group = map.replica(replica).map(|place| &place.group.id);
            group.is_some_and(|group| map.shards_of_group(group).iter().any(|own| own.shard.id == shard))
        };
        (0..self.world.nodes.len()).find(|number| {
            let leads = self.world.nodes[*number].node.lock().as_ref().map(|node| node.led_replicas());
            leads.unwrap_or_default().into_iter().any(|(replica, _)| is_of_shard(replica))
        })
    }
}
