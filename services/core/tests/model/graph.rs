//! Who waits for whom, and who can be granted: straight from the definitions.

use std::collections::BTreeSet;

use holdfast_core::{Blocker, Claim, Mode, Path, Phase, Reason};

use crate::state::{Hold, Model, OwnerKey, Wait};

/// Pairs of owners: the first waits for the second.
pub(crate) type Graph = BTreeSet<(OwnerKey, OwnerKey)>;

pub(crate) fn reaches(graph: &Graph, from: &OwnerKey, to: &OwnerKey) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for (_, next) in graph.iter().filter(|(one, _)| one == at) {
            if next == to {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

/// A request as it is judged: one that waits, or one that comes now.
pub(crate) struct Evaluation<'a> {
    pub(crate) who: &'a OwnerKey,
    pub(crate) claims: &'a [Claim],
    pub(crate) position: (bool, u64),
}

impl Model {
    /// Everybody waits for the holds in their way, but for those that are only kept from them; and for the earlier
    /// requests in their way, unless these wait for them, which is decided in order of the queue.
    pub(crate) fn graph(&self) -> Graph {
        let mut graph = self.hold_edges();
        for (index, wait) in self.waits.iter().enumerate() {
            for before in &self.waits[..index] {
                let in_the_way = wait.claims.iter().any(|claim| before.conflicts(&wait.who, claim));
                if in_the_way && !reaches(&graph, &before.who, &wait.who) {
                    graph.insert((wait.who.clone(), before.who.clone()));
                }
            }
        }
        graph
    }

    pub(crate) fn hold_edges(&self) -> Graph {
        let mut graph = Graph::new();
        for wait in &self.waits {
            for claim in &wait.claims {
                let blockers = self.holds.iter().filter(|hold| hold.conflicts(&wait.who, claim) && !hold.is_kept);
                graph.extend(blockers.map(|hold| (wait.who.clone(), hold.who.clone())));
            }
        }
        graph
    }

    /// Whether an owner need not queue for a claim: it has the path or one above it, or it waits for nothing and takes
    /// again what is kept from others.
    pub(crate) fn is_covered(&self, asked: &Evaluation<'_>, claim: &Claim) -> bool {
        let is_new = asked.position.1 == u64::MAX && !self.waits.iter().any(|wait| wait.who == *asked.who);
        let covers = |hold: &&Hold| {
            let is_its = hold.path.is_prefix_of(&claim.path) && hold.mode >= claim.mode;
            is_its && (!hold.is_kept || (is_new && hold.path == claim.path))
        };
        self.holds.iter().filter(|hold| hold.who == *asked.who).any(|hold| covers(&hold))
    }

    /// The holds in the way of a claim, in the order in which they are shown: at the path, above it, under it.
    pub(crate) fn blocking_holds(&self, who: &OwnerKey, claim: &Claim) -> Vec<&Hold> {
        let mut holds: Vec<&Hold> = self.holds.iter().filter(|hold| hold.conflicts(who, claim)).collect();
        let nearness = |path: &Path| match path.0.len().cmp(&claim.path.0.len()) {
            std::cmp::Ordering::Equal => 0,
            std::cmp::Ordering::Less => 1,
            std::cmp::Ordering::Greater => 2,
        };
        holds.sort_by_key(|hold| (nearness(&hold.path), hold.path.clone()));
        holds
    }

    /// The earlier requests in the way of a claim that it may not overtake, in order of the queue; or, when nothing at
    /// all is in the way, those behind it that have to go first.
    pub(crate) fn blocking_waits(&self, asked: &Evaluation<'_>, claim: &Claim, graph: &Graph) -> Vec<&Wait> {
        let is_upgrade = self.own_of(asked.who, &claim.path).is_some_and(|own| own.mode != claim.mode);
        if self.is_covered(asked, claim) && !is_upgrade {
            return vec![];
        }
        let conflicting = self.waits.iter().filter(|wait| wait.conflicts(asked.who, claim));
        let before = conflicting.filter(|wait| wait.queue_position() < asked.position && !is_upgrade);
        // Who holds too much to wait overtakes nobody.
        let waits = self.waits.iter().any(|wait| wait.who == *asked.who);
        let overtakes = waits || self.hold_count(asked.who) as u64 <= self.max_holds_of_waiting_owner();
        before.filter(|wait| !overtakes || !reaches(graph, &wait.who, asked.who)).collect()
    }

    pub(crate) fn must_yield_to(&self, asked: &Evaluation<'_>, claim: &Claim, graph: &Graph) -> Vec<&Wait> {
        let own = self.own_of(asked.who, &claim.path);
        let is_upgrade = own.is_some_and(|own| own.mode == Mode::Read && claim.mode == Mode::Write);
        if own.is_some_and(|own| own.mode == Mode::Write) || (self.is_covered(asked, claim) && !is_upgrade) {
            return vec![];
        }
        let conflicting = self.waits.iter().filter(|wait| wait.conflicts(asked.who, claim));
        let behind = conflicting.filter(|wait| wait.queue_position() > asked.position);
        behind.filter(|wait| reaches(graph, asked.who, &wait.who)).collect()
    }

    /// The first claim that fails, why, and by whom.
    pub(crate) fn current_failure(
        &self,
        asked: &Evaluation<'_>,
        graph: &Graph,
    ) -> Option<(usize, Reason, Vec<Blocker>)> {
        for (index, claim) in asked.claims.iter().enumerate() {
            let own = self.hold_of(asked.who, &claim.path);
            if own.is_some_and(|own| self.is_over(own)) {
                return Some((index, Reason::NotHeld, vec![]));
            }
            let own = own.filter(|own| !self.is_relinquished(own)).map(|own| own.mode);
            if own == Some(claim.mode) || own == Some(Mode::Write) {
                continue;
            }
            let holds = self.blocking_holds(asked.who, claim);
            if let Some(first) = holds.first() {
                let reason = match first.path.0.len().cmp(&claim.path.0.len()) {
                    _ if holds.iter().all(|hold| self.appears_in_transition(hold, claim)) => Reason::Transition,
                    std::cmp::Ordering::Equal => Reason::Held,
                    std::cmp::Ordering::Less => Reason::Ancestor,
                    std::cmp::Ordering::Greater => Reason::Descendant,
                };
                let blocker =
                    |hold: &&Hold| Blocker { path: hold.path.clone(), waiting: false, holder: self.holder_view(hold) };
                return Some((
                    index,
                    reason,
                    holds.iter().take(self.bounds.max_blockers_in_reply).map(blocker).collect(),
                ));
            }
            let waits = self.blocking_waits(asked, claim, graph);
            if !waits.is_empty() {
                let blockers = waits
                    .iter()
                    .take(self.bounds.max_blockers_in_reply)
                    .map(|wait| self.waiting_blocker(wait, claim))
                    .collect();
                return Some((index, Reason::Queued, blockers));
            }
        }
        for (index, claim) in asked.claims.iter().enumerate() {
            if let Some(first) = self.must_yield_to(asked, claim, graph).first() {
                return Some((index, Reason::Queued, vec![self.waiting_blocker(first, claim)]));
            }
        }
        None
    }

    /// Whether nobody acts on a hold any more, as whoever claims that sees it: what is under a path is only counted, so
    /// that one whose time is over still counts there until it has ended.
    fn appears_in_transition(&self, hold: &Hold, claim: &Claim) -> bool {
        let phase = if hold.path.0.len() > claim.path.0.len() { hold.phase } else { self.phase_of(hold).0 };
        phase == Phase::Transition
    }

    /// The first in the queue that can be granted.
    pub(crate) fn first_grantable(&self) -> Option<usize> {
        let graph = self.graph();
        (0..self.waits.len()).find(|index| {
            let wait = &self.waits[*index];
            let asked = Evaluation { who: &wait.who, claims: &wait.claims, position: wait.queue_position() };
            self.current_failure(&asked, &graph).is_none()
        })
    }
}

impl Model {
    /// The holds, the queue and who waits for whom, in few words: for whoever looks into a failure.
    pub(crate) fn describe(&self) -> String {
        let name = |who: &OwnerKey| match &who.owner {
            holdfast_core::Owner::Process(process_id) => process_id.clone(),
            holdfast_core::Owner::Session { session_id, holder } => format!("{session_id}/{holder:?}"),
        };
        let claim = |claim: &Claim| format!("{:?}:{}", claim.mode, claim.path.0.join("/"));
        let mut lines = vec![];
        for hold in &self.holds {
            let (name, path) = (name(&hold.who), hold.path.0.join("/"));
            let kept = if hold.is_kept { " kept" } else { "" };
            lines.push(format!("{name} holds {:?}:{path} {:?}{kept}", hold.mode, hold.phase));
        }
        for wait in &self.waits {
            let claims: Vec<String> = wait.claims.iter().map(claim).collect();
            lines.push(format!("{} waits at {:?} for {}", name(&wait.who), wait.queue_position(), claims.join(", ")));
        }
        let graph = self.graph();
        lines.extend(graph.iter().map(|(one, other)| format!("{} -> {}", name(one), name(other))));
        lines.join("\n")
    }
}
