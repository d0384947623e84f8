//! Sequences of faults that chance puts together too seldom: each is made to hurt one rule of leaders, leases and votes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_cluster::Application;
use rand::Rng;
use rand::rngs::StdRng;
use turmoil::Sim;

use super::processes::Processes;
use crate::world::{World, gateway_name, node_name};

/// Longest time between two traps.
const LONGEST_QUIET_MS: u64 = 4_000;
/// How long a disk takes for a sync in the trap for votes: they are under way for so long.
const SLOW_SYNC: Duration = Duration::from_millis(250);
/// How long the trap for votes waits for its leader.
const VOTE_WITHIN: Duration = Duration::from_secs(4);
/// How long a leader is paused at least, beyond the time after which others want to stand.
const AWAY: Duration = Duration::from_secs(1);
/// What waited for a process arrives so long before it goes on.
const SHORTLY: Duration = Duration::from_millis(15);

#[derive(Debug, Clone, Copy)]
enum Trap {
    /// A leader is cut off from one follower until that one would stand, then from both, while the other follower is
    /// restarted: it must not forget the lease that it granted.
    Lease,
    /// A follower votes while its disk is slow, loses power, and is asked by another candidate: it must not vote twice.
    Vote,
    /// A leader is cut off from its followers and from nobody else, for long: it must notice.
    Deposed,
    /// A leader is paused until others lead, and goes on with what it was asked meanwhile: it must notice first.
    Paused,
}

/// What is to be done when.
struct Step {
    due: Duration,
    act: Act,
}

enum Act {
    Cut(usize, usize),
    Join(usize, usize),
    /// From the gateways whose clients do more than look: they find the next leader at once.
    CutFromGateways(usize),
    /// Ends it, with what is not on its disk lost, and starts it again.
    Restart(usize),
    SlowDisk(usize),
    /// Stops its process for that long. What is sent to it waits until it is let through.
    Pause(usize, Duration),
    LetThrough(usize),
    /// Goes on as soon as that node leads a shard in a later term than it was in, or the time is over.
    UntilLeads(usize, u64, Duration),
    End,
}

pub(super) struct Traps {
    world: Arc<World>,
    /// The last one comes first.
    steps: Vec<Step>,
}

impl Traps {
    pub(super) fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::clone(world), steps: Vec::new() }
    }

    /// Whether one is under way: other faults wait then.
    pub(super) fn is_set(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Gives the one that is under way up.
    pub(super) fn give_up(&mut self) {
        self.steps.clear();
    }

    /// Sets a trap when there is a leader to set it for. Answers whether it did, and how long it is quiet then.
    pub(super) fn set(&mut self, at: Duration, rng: &mut StdRng) -> (bool, Duration) {
        let quiet = super::soon(rng, LONGEST_QUIET_MS);
        let trap = [Trap::Lease, Trap::Vote, Trap::Deposed, Trap::Paused][rng.random_range(0..4)];
        let Some((leader, term)) = self.leader() else { return (false, Duration::from_millis(100)) };
        let mut others: Vec<usize> = (0..self.world.nodes.len()).filter(|node| *node != leader).collect();
        if rng.random_bool(0.5) {
            others.reverse();
        }
        let (one, other) = (others[0], others[1]);
        let ms = |rng: &mut StdRng, range: std::ops::Range<u64>| Duration::from_millis(rng.random_range(range));
        let (soon, long) = (ms(rng, 1_000..1_700), ms(rng, 3_000..8_000));
        let now = |act| (Duration::ZERO, act);
        let plan: Vec<(Duration, Act)> = match trap {
            Trap::Lease => vec![
                now(Act::CutFromGateways(leader)),
                now(Act::Cut(leader, one)),
                (soon, Act::Cut(leader, other)),
                now(Act::Restart(other)),
                (Duration::from_millis(2_500), Act::End),
            ],
            Trap::Vote => vec![
                // All have the same log then, so that anybody may vote for anybody.
                now(Act::CutFromGateways(leader)),
                (Duration::from_millis(200), Act::Cut(leader, one)),
                now(Act::Cut(leader, other)),
                now(Act::Cut(one, other)),
                now(Act::SlowDisk(leader)),
                (soon, Act::Join(leader, one)),
                now(Act::UntilLeads(one, term, VOTE_WITHIN)),
                now(Act::Cut(leader, one)),
                now(Act::Restart(leader)),
                now(Act::Join(leader, other)),
                (long + Duration::from_secs(2), Act::End),
            ],
            Trap::Deposed => vec![
                now(Act::CutFromGateways(leader)),
                now(Act::Cut(leader, one)),
                now(Act::Cut(leader, other)),
                (long, Act::End),
            ],
            Trap::Paused => vec![
                now(Act::Pause(leader, soon + AWAY + SHORTLY)),
                (soon + AWAY, Act::LetThrough(leader)),
                (Duration::from_secs(1), Act::End),
            ],
        };
        self.world.note_at(at, format!("trap {trap:?} for {}, which leads in term {term}", node_name(leader)));
        let mut due = at;
        let steps = plan.into_iter().map(|(after, act)| {
            due += after;
            Step { due, act }
        });
        self.steps = steps.collect();
        self.steps.reverse();
        (true, quiet)
    }

    /// Does what is due. True when a trap has come to its end and everything is to be mended.
    pub(super) fn step(&mut self, sim: &mut Sim<'_>, at: Duration, processes: &mut Processes) -> bool {
        while let Some(Step { due, act }) = self.steps.last_mut() {
            if *due > at {
                return false;
            }
            if let Act::UntilLeads(node, term, within) = act {
                let (planned, node, term, within) = (*due, *node, *term, *within);
                if !self.leads_later(node, term) && at < planned + within {
                    return false;
                }
                // What follows was planned without the wait.
                let waited = at.saturating_sub(planned);
                self.steps.iter_mut().for_each(|step| step.due += waited);
                self.steps.pop();
                self.world.note_at(at, format!("trap: {} has votes, or has none in time", node_name(node)));
                continue;
            }
            let Some(Step { act, .. }) = self.steps.pop() else { return false };
            if matches!(act, Act::End) {
                self.world.note_at(at, "the trap is over");
                return true;
            }
            self.act(sim, at, &act, processes);
        }
        false
    }

    fn act(&self, sim: &mut Sim<'_>, at: Duration, act: &Act, processes: &mut Processes) {
        match act {
            Act::Cut(one, other) => sim.partition(node_name(*one), node_name(*other)),
            Act::CutFromGateways(node) => {
                let onlookers = self.world.plan.onlookers;
                let gateways = (0..self.world.plan.gateways).filter(|number| Some(*number) != onlookers);
                gateways.for_each(|gateway| sim.partition(node_name(*node), gateway_name(gateway)));
            }
            Act::Join(one, other) => sim.repair(node_name(*one), node_name(*other)),
            Act::Pause(node, time) => {
                self.others(*node).iter().for_each(|other| sim.hold(node_name(*node), other.as_str()));
                let pause_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                self.world.nodes[*node].pause_ms.store(pause_ms, Ordering::Relaxed);
            }
            Act::LetThrough(node) => {
                self.others(*node).iter().for_each(|other| sim.release(node_name(*node), other.as_str()));
            }
            Act::Restart(node) => processes.restart(sim, *node, at),
            Act::SlowDisk(node) => self.world.nodes[*node].disk.set_sync_delay(SLOW_SYNC),
            Act::UntilLeads(..) | Act::End => {}
        }
    }

    fn others(&self, node: usize) -> Vec<String> {
        let name = node_name(node);
        super::hosts(&self.world).into_iter().filter(|host| *host != name).collect()
    }

    /// A node that leads a locks shard, and in which term.
    fn leader(&self) -> Option<(usize, u64)> {
        let is_of_locks = |replica: &u64| {
            self.world.map.replica(*replica).is_some_and(|place| place.application == Application::Locks)
        };
        self.world.nodes.iter().enumerate().find_map(|(number, slot)| {
            let leads = slot.node.lock().as_ref().map(|node| node.leads()).unwrap_or_default();
            leads.into_iter().find(|(replica, _)| is_of_locks(replica)).map(|(_, term)| (number, term))
        })
    }

    /// Whether a node leads a shard in a later term, though it may not serve yet.
    fn leads_later(&self, node: usize, term: u64) -> bool {
        let Some(node) = self.world.nodes[node].node.lock().clone() else { return false };
        node.elected().iter().any(|(_, _, elected)| *elected > term)
    }
}
