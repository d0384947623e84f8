//! Sequences of faults that chance puts together too seldom: each is made to hurt one rule of leaders, leases and votes.

use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::Application;
use holdfast_replication::ReadMode;
use rand::Rng;
use rand::rngs::StdRng;
use turmoil::Sim;

use super::processes::Processes;
use crate::host_clocks::Pause;
use crate::plan::rng_of;
use crate::world::{World, gateway_name, node_name};

/// Longest time between two traps.
const MAX_INTERVAL_MS: u64 = 4_000;
/// How long a disk takes for a sync in the trap for votes: they are under way for so long.
const SLOW_SYNC: Duration = Duration::from_millis(250);
/// How long the trap for votes waits for its leader.
const VOTE_TIMEOUT: Duration = Duration::from_secs(4);
/// The shortest pause of a leader, beyond the time after which others start an election.
const MIN_LEADER_PAUSE: Duration = Duration::from_secs(1);
/// Waiting messages arrive so long before the process resumes.
const RELEASE_LEAD_TIME: Duration = Duration::from_millis(15);

#[derive(Debug, Clone, Copy)]
enum Scenario {
    /// A leader is cut off from one follower until that one would start an election, then from both, while the other
    /// follower is restarted: it must not forget the lease that it granted.
    Lease,
    /// A follower votes while its disk is slow, loses power, and gets a request of another candidate: it must not vote
    /// twice.
    Vote,
    /// A leader is cut off from its followers only, for long: it must notice.
    Deposed,
    /// A leader is paused, or its machine is, until others lead, and resumes with the calls that arrived meanwhile: it
    /// must notice first. Where it can't, it must ask a quorum.
    Paused(Pause),
}

/// A step and its time.
struct Step {
    due: Duration,
    act: Action,
}

enum Action {
    Cut(usize, usize),
    Repair(usize, usize),
    /// From the gateways whose clients write: they find the next leader at once.
    CutFromGateways(usize),
    /// Ends it, loses what is not on its disk, and starts it again.
    Restart(usize),
    SlowDisk(usize),
    /// Pauses its process or machine for that time. Messages to it wait until they are delivered.
    Pause(Pause, usize, Duration),
    ReleasePackets(usize),
    /// Resumes as soon as that node leads a group in a later term than before, or the time is over.
    WaitUntilLeads(usize, u64, Duration),
    End,
}

pub(super) struct Scenarios {
    world: Arc<World>,
    /// The last one comes first.
    steps: Vec<Step>,
    /// For what is paused, so that it does not change the other draws.
    pause_rng: StdRng,
}

impl Scenarios {
    pub(super) fn new(world: &Arc<World>) -> Self {
        let pause_rng = rng_of(world.plan.seed, "pauses");
        Self { world: Arc::clone(world), steps: Vec::new(), pause_rng }
    }

    /// Whether one is under way: other faults wait then.
    pub(super) fn is_running(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Gives the one that is under way up.
    pub(super) fn cancel(&mut self) {
        self.steps.clear();
    }

    /// Sets a trap when there is a leader to set it for. Answers whether it did, and how long it is quiet then.
    pub(super) fn start(&mut self, at: Duration, rng: &mut StdRng) -> (bool, Duration) {
        let quiet = super::random_delay(rng, MAX_INTERVAL_MS);
        let paused = Scenario::Paused(self.draw_pause());
        let trap = [Scenario::Lease, Scenario::Vote, Scenario::Deposed, paused][rng.random_range(0..4)];
        let Some((leader, term)) = self.leader() else { return (false, Duration::from_millis(100)) };
        let mut others: Vec<usize> = (0..self.world.nodes.len()).filter(|node| *node != leader).collect();
        if rng.random_bool(0.5) {
            others.reverse();
        }
        let (one, other) = (others[0], others[1]);
        let ms = |rng: &mut StdRng, range: std::ops::Range<u64>| Duration::from_millis(rng.random_range(range));
        let (soon, long) = (ms(rng, 1_000..1_700), ms(rng, 3_000..8_000));
        let now = |act| (Duration::ZERO, act);
        let plan: Vec<(Duration, Action)> = match trap {
            Scenario::Lease => vec![
                now(Action::CutFromGateways(leader)),
                now(Action::Cut(leader, one)),
                (soon, Action::Cut(leader, other)),
                now(Action::Restart(other)),
                (Duration::from_millis(2_500), Action::End),
            ],
            Scenario::Vote => vec![
                // All have the same log then, so that anybody may vote for anybody.
                now(Action::CutFromGateways(leader)),
                (Duration::from_millis(200), Action::Cut(leader, one)),
                now(Action::Cut(leader, other)),
                now(Action::Cut(one, other)),
                now(Action::SlowDisk(leader)),
                (soon, Action::Repair(leader, one)),
                now(Action::WaitUntilLeads(one, term, VOTE_TIMEOUT)),
                now(Action::Cut(leader, one)),
                now(Action::Restart(leader)),
                now(Action::Repair(leader, other)),
                (long + Duration::from_secs(2), Action::End),
            ],
            Scenario::Deposed => vec![
                now(Action::CutFromGateways(leader)),
                now(Action::Cut(leader, one)),
                now(Action::Cut(leader, other)),
                (long, Action::End),
            ],
            Scenario::Paused(pause) => vec![
                now(Action::Pause(pause, leader, soon + MIN_LEADER_PAUSE + RELEASE_LEAD_TIME)),
                (soon + MIN_LEADER_PAUSE, Action::ReleasePackets(leader)),
                (Duration::from_secs(1), Action::End),
            ],
        };
        self.world.record_at(at, format!("trap {trap:?} for {}, which leads in term {term}", node_name(leader)));
        let mut due = at;
        let steps = plan.into_iter().map(|(after, act)| {
            due += after;
            Step { due, act }
        });
        self.steps = steps.collect();
        self.steps.reverse();
        (true, quiet)
    }

    /// Leases are not made for a pause that nothing in the machine can notice.
    fn draw_pause(&mut self) -> Pause {
        let seen = [Pause::Suspended, Pause::WallClockSet];
        let all = [Pause::Suspended, Pause::WallClockSet, Pause::Unseen];
        let choices = if self.world.plan.reads == ReadMode::Quorum { &all[..] } else { &seen[..] };
        choices[self.pause_rng.random_range(0..choices.len())]
    }

    /// Runs the steps that are due. Returns true if a scenario has ended and everything is to be repaired.
    pub(super) fn step(&mut self, sim: &mut Sim<'_>, at: Duration, processes: &mut Processes) -> bool {
        while let Some(Step { due, act }) = self.steps.last_mut() {
            if *due > at {
                return false;
            }
            if let Action::WaitUntilLeads(node, term, within) = act {
                let (planned, node, term, within) = (*due, *node, *term, *within);
                if !self.leads_in_later_term(node, term) && at < planned + within {
                    return false;
                }
                // What follows was planned without the wait.
                let waited = at.saturating_sub(planned);
                self.steps.iter_mut().for_each(|step| step.due += waited);
                self.steps.pop();
                self.world.record_at(at, format!("trap: {} has votes, or has none in time", node_name(node)));
                continue;
            }
            let Some(Step { act, .. }) = self.steps.pop() else { return false };
            if matches!(act, Action::End) {
                self.world.record_at(at, "the trap is over");
                return true;
            }
            self.execute(sim, at, &act, processes);
        }
        false
    }

    fn execute(&self, sim: &mut Sim<'_>, at: Duration, act: &Action, processes: &mut Processes) {
        match act {
            Action::Cut(one, other) => sim.partition(node_name(*one), node_name(*other)),
            Action::CutFromGateways(node) => {
                let onlookers = self.world.plan.read_only_gateway;
                let gateways = (0..self.world.plan.gateways).filter(|number| Some(*number) != onlookers);
                gateways.for_each(|gateway| sim.partition(node_name(*node), gateway_name(gateway)));
            }
            Action::Repair(one, other) => sim.repair(node_name(*one), node_name(*other)),
            Action::Pause(pause, node, time) => {
                self.others(*node).iter().for_each(|other| sim.hold(node_name(*node), other.as_str()));
                let pause_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                *self.world.nodes[*node].pause.lock() = Some((*pause, pause_ms));
            }
            Action::ReleasePackets(node) => {
                self.others(*node).iter().for_each(|other| sim.release(node_name(*node), other.as_str()));
            }
            Action::Restart(node) => processes.restart(sim, *node, at),
            Action::SlowDisk(node) => self.world.nodes[*node].disk.set_sync_delay(SLOW_SYNC),
            Action::WaitUntilLeads(..) | Action::End => {}
        }
    }

    fn others(&self, node: usize) -> Vec<String> {
        let name = node_name(node);
        super::hosts(&self.world).into_iter().filter(|host| *host != name).collect()
    }

    /// A node that leads a group with a locks shard, and in which term.
    fn leader(&self) -> Option<(usize, u64)> {
        let map = &self.world.map;
        let has_locks = |replica: &u64| {
            let shards = map.replica(*replica).map(|place| map.shards_of_group(&place.group.id));
            shards.is_some_and(|shards| shards.iter().any(|shard| shard.application == Application::Locks))
        };
        self.world.nodes.iter().enumerate().find_map(|(number, slot)| {
            let leads = slot.node.lock().as_ref().map(|node| node.led_replicas()).unwrap_or_default();
            leads.into_iter().find(|(replica, _)| has_locks(replica)).map(|(_, term)| (number, term))
        })
    }

    /// Whether a node leads a group in a later term, though it may not serve yet.
    fn leads_in_later_term(&self, node: usize, term: u64) -> bool {
        let Some(node) = self.world.nodes[node].node.lock().clone() else { return false };
        node.elected().iter().any(|(_, _, elected)| *elected > term)
    }
}
