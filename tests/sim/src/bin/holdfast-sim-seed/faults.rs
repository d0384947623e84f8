//! Faults and their times, drawn from the seed.
//!
//! There are four kinds of faults, and one of each kind at a time: in the network, in processes, in disks, and in wall
//! clocks. Some runs also have scenarios, during which there are no other faults; others have injected panics, or
//! faults of leaders that have locks in their memory.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use turmoil::Sim;

use crate::plan::rng_of;
use crate::world::{World, gateway_name, node_name};

mod clocks;
mod disks;
mod links;
mod panics;
mod processes;
mod scenarios;
mod soft_leaders;

use clocks::Clocks;
use disks::Disks;
use links::Links;
use panics::Panics;
use processes::Processes;
use scenarios::Scenarios;
use soft_leaders::SoftLeaders;

/// Everything that goes wrong in a run.
pub(crate) struct Faults {
    world: Arc<World>,
    rng: StdRng,
    links: Links,
    processes: Processes,
    disks: Disks,
    clocks: Clocks,
    scenarios: Scenarios,
    panics: Panics,
    soft_leaders: SoftLeaders,
    /// When each kind is injected next; never before the chaos begins.
    next_due: Option<[Duration; 5]>,
    injected: usize,
}

impl Faults {
    pub(crate) fn new(world: &Arc<World>) -> Self {
        Self {
            rng: rng_of(world.plan.seed, "faults"),
            links: Links::new(world),
            processes: Processes::new(world),
            disks: Disks::new(world),
            clocks: Clocks::new(world),
            scenarios: Scenarios::new(world),
            panics: Panics::new(world),
            soft_leaders: SoftLeaders::new(world),
            world: Arc::clone(world),
            next_due: None,
            injected: 0,
        }
    }

    /// From now on things go wrong.
    pub(crate) fn start(&mut self, at: Duration) {
        if self.world.plan.faults {
            self.next_due = Some([0; 5].map(|_| at + random_delay(&mut self.rng, 2_000)));
            self.panics.start(at);
            self.soft_leaders.start(at);
        }
    }

    pub(crate) fn injected(&self) -> usize {
        self.injected
    }

    /// After every step of the simulation.
    pub(crate) fn step(&mut self, sim: &mut Sim<'_>, at: Duration) {
        self.processes.step(sim, at, &mut self.rng);
        self.injected += usize::from(self.panics.step(at));
        if self.scenarios.is_running() {
            if self.scenarios.step(sim, at, &mut self.processes) {
                self.links.heal(sim);
                self.disks.heal();
            }
            return;
        }
        let Some(next) = &mut self.next_due else { return };
        self.injected += usize::from(self.soft_leaders.step(sim, at, &mut self.processes));
        let rng = &mut self.rng;
        for (kind, due) in next.iter_mut().enumerate() {
            if *due > at {
                continue;
            }
            let (did, lasts) = match kind {
                0 => self.links.inject_or_heal(sim, at, rng),
                1 => self.processes.inject(sim, at, rng),
                2 => self.disks.inject_or_heal(at, rng),
                3 => self.clocks.inject(at, rng),
                _ if self.world.plan.scenarios => {
                    self.links.heal(sim);
                    self.disks.heal();
                    self.scenarios.start(at, rng)
                }
                _ => (false, Duration::MAX),
            };
            self.injected += usize::from(did);
            *due = at.saturating_add(lasts);
        }
    }

    /// Ends everything that goes wrong, and starts whatever is down.
    pub(crate) fn heal(&mut self, sim: &mut Sim<'_>, at: Duration) {
        self.next_due = None;
        self.scenarios.cancel();
        self.panics.stop();
        self.soft_leaders.stop();
        self.world.record_at(at, "everything is repaired");
        self.links.heal(sim);
        self.disks.heal();
        self.processes.restart_all(at);
    }
}

/// Up to so many milliseconds, short times more often than long ones.
fn random_delay(rng: &mut StdRng, most_ms: u64) -> Duration {
    let ceiling = rng.random_range(1..=most_ms);
    Duration::from_millis(rng.random_range(0..=ceiling))
}

fn hosts(world: &World) -> Vec<String> {
    let nodes = (0..world.plan.nodes).map(node_name);
    nodes.chain((0..world.plan.gateways).map(gateway_name)).collect()
}
