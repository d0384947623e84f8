//! Going through the queue once to find out who waits for whom.
//!
//! In order of the queue each line of claims keeps who is told apart in it so far, and whom those others wait for that are
//! in it so far. A request of an owner that is told apart waits for all of these but those that wait for its owner. A
//! request of somebody else waits for all of them, and so for no less than the one before it with the same claims: it is
//! looked at only when what it reads has grown since that one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::awaited_holds::AwaitedHolds;
use super::bits::Bits;
use super::closure::Closure;
use super::evaluate::Evaluation;
use super::namespace::Namespace;
use super::owner::NOBODY;
use super::queue::{ClaimQueue, QueuePosition};
use super::tree::LineKey;
use super::waiting::Kind;

/// What was found out so far.
pub(super) struct ClosureBuilder<'a> {
    namespace: &'a Namespace,
    held: AwaitedHolds,
    closure: Closure,
    /// Nothing from here on matters.
    end: QueuePosition,
    lines: BTreeMap<LineKey, QueueSummary>,
    others: Vec<UntangledGroup<'a>>,
    known: BTreeSet<&'a Kind>,
    due: BTreeSet<(QueuePosition, Visit)>,
}

/// What is in a line so far.
#[derive(Default)]
struct QueueSummary {
    /// Who is told apart.
    owners: Bits,
    /// For whom each of the others waits.
    others: BTreeSet<Bits>,
    all: Bits,
    /// The others that may be behind it.
    readers: Vec<usize>,
}

/// Requests with the same claims, of owners that are not told apart.
struct UntangledGroup<'a> {
    kind: &'a Kind,
    places: &'a BTreeSet<QueuePosition>,
    next: QueuePosition,
    is_due: bool,
    ahead: Bits,
    reads: Vec<LineKey>,
    sets: Vec<(QueuePosition, Bits)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Visit {
    Owner(usize),
    Others(usize),
}

impl<'a> ClosureBuilder<'a> {
    pub(super) fn through(namespace: &'a Namespace, asked: Option<&'a Evaluation<'a>>) -> Closure {
        let owner = asked.map(|asked| asked.owner).filter(|owner| *owner != NOBODY);
        if namespace.tangled.is_empty() && owner.is_none() {
            return Closure::default();
        }
        let mut pass =
            Self::new(namespace, AwaitedHolds::of(namespace, namespace.tangled.iter().copied().chain(owner)));
        pass.find_lines(asked);
        while let Some((place, turn)) = pass.due.pop_first() {
            match turn {
                Visit::Owner(number) => pass.go_past(place, number),
                Visit::Others(index) => pass.go_past_others(place, index),
            }
        }
        let mut closure = pass.closure;
        closure.cost = pass.held.cost + closure.visits;
        namespace.spend(usize::try_from(closure.visits).unwrap_or(usize::MAX));
        for others in pass.others {
            if !others.sets.is_empty() {
                closure.others.insert(others.kind.clone(), others.sets);
            }
        }
        closure
    }

    /// As far as what is held tells.
    fn new(namespace: &'a Namespace, held: AwaitedHolds) -> Self {
        let alone: Vec<Bits> = (0..held.owners.len()).map(Bits::of).collect();
        let closure = Closure {
            owners: held.owners.clone(),
            ahead: alone.clone(),
            behind: alone,
            visits: held.awaited,
            ..Closure::default()
        };
        let (lines, others, known, due) = (BTreeMap::new(), Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut pass = Self { namespace, held, closure, end: QueuePosition::FIRST, lines, others, known, due };
        let owners: Vec<_> = pass.held.owners.iter().map(|(owner, number)| (*owner, *number)).collect();
        for (owner, number) in owners {
            let ahead = pass.held.ahead_of(namespace, owner);
            pass.wait_for(number, &ahead);
            let places = namespace.owners.get(owner).places();
            pass.due.extend(places.map(|place| (place, Visit::Owner(number))));
        }
        pass.end = pass.due.last().map_or(QueuePosition::FIRST, |(place, _)| *place);
        pass
    }

    /// The owner waits for these, and for all for whom they wait; and so does whoever waits for it.
    fn wait_for(&mut self, number: usize, others: &Bits) {
        // Whoever is known to be ahead has all for whom it waits ahead, too.
        if others.is_within(&self.closure.ahead[number]) {
            return;
        }
        let mut ahead = Bits::default();
        for other in others.iter() {
            ahead.add(&self.closure.ahead[other]);
        }
        if ahead.is_within(&self.closure.ahead[number]) {
            return;
        }
        let behind = self.closure.behind[number].clone();
        for other in behind.iter() {
            self.closure.ahead[other].add(&ahead);
        }
        for other in ahead.iter() {
            self.closure.behind[other].add(&behind);
        }
    }

    /// Finds the lines in which owners that are told apart may be behind somebody, and all who matter there.
    fn find_lines(&mut self, asked: Option<&'a Evaluation<'a>>) {
        let (namespace, mut kinds) = (self.namespace, BTreeSet::new());
        for (place, _) in &self.due {
            kinds.insert(&namespace.waiting(*place).kind);
        }
        if let Some(asked) = asked {
            self.end = QueuePosition::LAST;
            for (claim, spot) in asked.claims.iter().zip(&asked.spots) {
                self.open(namespace.tree.lines(spot.ancestry.iter().copied(), spot.node(), claim.mode));
            }
        }
        kinds.into_iter().for_each(|kind| self.open_lines_of(kind));
        let mut index = 0;
        while let Some(others) = self.others.get(index) {
            self.open_lines_of(others.kind);
            index += 1;
        }
        for index in 0..self.others.len() {
            let others = &mut self.others[index];
            for (node, mode) in others.kind.iter() {
                others.reads.extend(namespace.tree.conflicting_lines(*node, *mode));
            }
            others.reads.retain(|key| self.lines.contains_key(key));
            others.reads.sort_unstable();
            others.reads.dedup();
            for key in &others.reads {
                self.lines.entry(*key).or_default().readers.push(index);
            }
            self.held.add_in_the_way(namespace, others.kind.iter(), &mut others.ahead);
            if !others.ahead.is_empty() {
                others.is_due = true;
                self.due.insert((others.next, Visit::Others(index)));
            }
        }
    }

    fn open_lines_of(&mut self, kind: &'a Kind) {
        let tree = &self.namespace.tree;
        self.closure.visits += kind.len() as u64;
        for (node, mode) in kind.iter() {
            self.open(tree.lines(tree.upward(*node), Some(*node), *mode));
        }
    }

    fn open(&mut self, lines: impl Iterator<Item = (LineKey, &'a ClaimQueue)>) {
        for (key, line) in lines {
            if self.lines.contains_key(&key) {
                continue;
            }
            self.lines.insert(key, QueueSummary::default());
            for first in line.kinds(self.end) {
                self.closure.visits += 1;
                let kind = &self.namespace.waiting(first).kind;
                if !self.known.insert(kind) {
                    continue;
                }
                let places = &self.namespace.kinds[kind];
                let is_other = |place: &&QueuePosition| self.closure.is_other(self.namespace, **place);
                if let Some(next) = places.range(..self.end).find(is_other).copied() {
                    let (ahead, reads, sets) = (Bits::default(), Vec::new(), Vec::new());
                    self.others.push(UntangledGroup { kind, places, next, is_due: false, ahead, reads, sets });
                }
            }
        }
    }

    /// What the request of an owner that is told apart waits for.
    fn go_past(&mut self, place: QueuePosition, number: usize) {
        let (namespace, mut ahead) = (self.namespace, Bits::default());
        let kind = &namespace.waiting(place).kind;
        let is_cut = namespace.bounds.search_falls_back_after.is_some_and(|max| self.closure.visits > max);
        let behind = if is_cut { Bits::default() } else { self.closure.behind[number].clone() };
        for (node, mode) in kind.iter() {
            for key in namespace.tree.conflicting_lines(*node, *mode) {
                let Some(line) = self.lines.get(&key) else { continue };
                self.closure.visits += 1 + line.others.len() as u64;
                ahead.add_others(&line.owners, &behind);
                for other in line.others.iter().filter(|other| !other.meets(&behind)) {
                    ahead.add(other);
                }
            }
        }
        self.wait_for(number, &ahead);
        for key in own_lines(namespace, kind) {
            let Some(line) = self.lines.get_mut(&key) else { continue };
            line.owners.insert(number);
            let grew = line.all.insert(number);
            self.closure.lines.entry(key).or_default().push((place, number));
            if grew {
                self.wake_readers(key, place);
            }
        }
    }

    /// What a request of somebody else waits for.
    fn go_past_others(&mut self, place: QueuePosition, index: usize) {
        let others = &mut self.others[index];
        others.is_due = false;
        self.closure.visits += 1 + others.reads.len() as u64;
        for key in &others.reads {
            if let Some(line) = self.lines.get(key) {
                others.ahead.add(&line.all);
            }
        }
        let (kind, ahead) = (others.kind, others.ahead.clone());
        others.sets.push((place, ahead.clone()));
        for key in own_lines(self.namespace, kind) {
            let Some(line) = self.lines.get_mut(&key) else { continue };
            line.others.insert(ahead.clone());
            if line.all.add(&ahead) {
                self.wake_readers(key, place);
            }
        }
    }

    /// Whoever is behind what has grown in a line has to be looked at, where it comes next.
    fn wake_readers(&mut self, key: LineKey, after: QueuePosition) {
        let Some(line) = self.lines.get(&key) else { return };
        for index in &line.readers {
            self.closure.visits += 1;
            let others = &mut self.others[*index];
            if others.is_due || line.all.is_within(&others.ahead) {
                continue;
            }
            if others.next <= after {
                let mut later = others.places.range((Bound::Excluded(after), Bound::Unbounded));
                let next = later.find(|place| self.closure.is_other(self.namespace, **place));
                others.next = next.copied().unwrap_or(QueuePosition::LAST);
            }
            if others.next < self.end {
                others.is_due = true;
                self.due.insert((others.next, Visit::Others(*index)));
            }
        }
    }
}

/// The lines in which requests with these claims are, each once.
fn own_lines(namespace: &Namespace, kind: &Kind) -> BTreeSet<LineKey> {
    kind.iter().flat_map(|(node, mode)| namespace.tree.own_lines(*node, *mode)).collect()
}
