//! The search: visits every state of a model once, breadth first, on all threads that it is given.
//!
//! It keeps 8 bytes of each state that was visited and the states of two levels. The number of states, the depth and
//! the length of a counter-example don't depend on the number of threads.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Rules as a step function.
pub trait Model: Sync {
    /// Everything that a later step can depend on.
    type State: Clone + Send + Sync;
    /// What happened between two states, for counter-examples.
    type Step: Clone + Debug + Send;
    /// What must hold in every state.
    type Invariant: Copy + Debug + Ord + Send;

    /// The state in which every history begins.
    fn initial(&self) -> Self::State;

    /// Appends all steps that can be taken in a state and the states that they lead to. Returns how many steps the
    /// bounds of the model left out.
    fn successors(&self, state: &Self::State, found: &mut Vec<(Self::Step, Self::State)>) -> u64;

    /// What stands for the state among those that were visited. States that differ only in names may share it.
    fn fingerprint(&self, state: &Self::State) -> u64;

    /// The invariant that does not hold in a state.
    fn broken(&self, state: &Self::State) -> Option<Self::Invariant>;
}

/// What a search found.
#[derive(Debug)]
pub struct Outcome<M: Model> {
    /// Distinct states that were visited.
    pub states: u64,
    /// Steps that were followed, those to states visited before included.
    pub steps: u64,
    /// Steps that the bounds of the model left out.
    pub left_out: u64,
    /// Steps from the first state to the last one that was visited.
    pub depth: usize,
    /// The search ended before it had visited everything, because of its limit of states.
    pub is_partial: bool,
    /// The first invariant that did not hold, and a shortest way to it.
    pub counterexample: Option<Counterexample<M>>,
}

/// How an invariant is broken.
#[derive(Debug)]
pub struct Counterexample<M: Model> {
    /// The name of the invariant.
    pub invariant: M::Invariant,
    /// All steps from the first state on; empty if the search kept no traces.
    pub trace: Vec<M::Step>,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that follow steps.
    pub threads: usize,
    /// The search ends after the level in which it has visited so many states.
    pub max_states: u64,
    /// Whether to remember from where each state was reached: a counter-example then has its steps.
    pub keeps_traces: bool,
}

/// A fingerprint is as good as any hash of it.
#[derive(Default)]
struct Unchanged(u64);

impl Hasher for Unchanged {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type ByFingerprint = BuildHasherDefault<Unchanged>;

/// Many locks, so that threads seldom wait for each other.
const PARTS: u64 = 256;

/// The states that were visited.
struct Visited {
    parts: Vec<Mutex<HashSet<u64, ByFingerprint>>>,
    /// From which state each was reached first.
    origins: Option<Mutex<HashMap<u64, u64, ByFingerprint>>>,
}

impl Visited {
    fn new(keeps_traces: bool) -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Self { parts, origins: keeps_traces.then(Mutex::default) }
    }

    /// Whether the state was not visited before.
    fn insert(&self, fingerprint: u64, origin: u64) -> bool {
        // The set takes the lowest and the highest bits, so the part is chosen by others.
        let part = usize::try_from((fingerprint >> 32) % PARTS).unwrap_or_default();
        let is_new = self.parts[part].lock().unwrap_or_else(PoisonError::into_inner).insert(fingerprint);
        if let (true, Some(origins)) = (is_new, &self.origins) {
            origins.lock().unwrap_or_else(PoisonError::into_inner).insert(fingerprint, origin);
        }
        is_new
    }

    /// The fingerprints on the way from the first state to this one.
    fn way_to(&self, last: u64) -> Vec<u64> {
        let Some(origins) = &self.origins else { return Vec::new() };
        let origins = origins.lock().unwrap_or_else(PoisonError::into_inner);
        let mut way = vec![last];
        while let Some(origin) = way.last().and_then(|at| origins.get(at)).filter(|origin| !way.contains(origin)) {
            way.push(*origin);
        }
        way.reverse();
        way
    }
}

/// What one thread found in one level.
struct Level<M: Model> {
    next: Vec<M::State>,
    steps: u64,
    left_out: u64,
    /// Each state in which an invariant does not hold.
    broken: Vec<(M::Invariant, u64)>,
}

fn expand<M: Model>(model: &M, visited: &Visited, states: &[M::State]) -> Level<M> {
    let mut level = Level { next: Vec::new(), steps: 0, left_out: 0, broken: Vec::new() };
    let mut found = Vec::new();
    for state in states {
        let origin = if visited.origins.is_some() { model.fingerprint(state) } else { 0 };
        level.left_out += model.successors(state, &mut found);
        for (_, next) in found.drain(..) {
            level.steps += 1;
            let fingerprint = model.fingerprint(&next);
            if visited.insert(fingerprint, origin) {
                level.broken.extend(model.broken(&next).map(|invariant| (invariant, fingerprint)));
                level.next.push(next);
            }
        }
    }
    level
}

/// The steps between states of which only fingerprints are known.
fn replay<M: Model>(model: &M, way: &[u64]) -> Vec<M::Step> {
    let (mut state, mut trace, mut found) = (model.initial(), Vec::new(), Vec::new());
    for fingerprint in way.iter().skip(1) {
        model.successors(&state, &mut found);
        let Some((step, next)) = found.drain(..).find(|(_, next)| model.fingerprint(next) == *fingerprint) else {
            return trace;
        };
        trace.push(step);
        state = next;
    }
    trace
}

/// Visits all states of a model, until one of them breaks an invariant or the limit is reached.
pub fn run<M: Model>(model: &M, options: Options) -> Outcome<M> {
    let visited = Visited::new(options.keeps_traces);
    let initial = model.initial();
    let first = model.fingerprint(&initial);
    visited.insert(first, first);
    let mut outcome = Outcome { states: 1, steps: 0, left_out: 0, depth: 0, is_partial: false, counterexample: None };
    if let Some(invariant) = model.broken(&initial) {
        outcome.counterexample = Some(Counterexample { invariant, trace: Vec::new() });
    }
    let mut frontier = vec![vec![initial]];
    while outcome.counterexample.is_none() && !frontier.is_empty() {
        if outcome.states >= options.max_states {
            outcome.is_partial = true;
            break;
        }
        let levels = expand_level(model, &visited, &frontier, options.threads);
        frontier.clear();
        let mut broken = Vec::new();
        for level in levels {
            outcome.states += u64::try_from(level.next.len()).unwrap_or(u64::MAX);
            outcome.steps += level.steps;
            outcome.left_out += level.left_out;
            broken.extend(level.broken);
            if !level.next.is_empty() {
                frontier.push(level.next);
            }
        }
        outcome.depth += usize::from(!frontier.is_empty());
        // The same of several whatever the threads did.
        if let Some((invariant, fingerprint)) = broken.into_iter().min() {
            let trace = replay(model, &visited.way_to(fingerprint));
            outcome.counterexample = Some(Counterexample { invariant, trace });
        }
    }
    outcome
}

/// States that a thread takes at a time.
const CHUNK: usize = 1 << 12;

fn expand_level<M: Model>(model: &M, visited: &Visited, frontier: &[Vec<M::State>], threads: usize) -> Vec<Level<M>> {
    let chunks = Mutex::new(frontier.iter().flat_map(|states| states.chunks(CHUNK)));
    let work = || {
        let mut levels = Vec::new();
        loop {
            let chunk = chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(chunk) = chunk else { return levels };
            levels.push(expand(model, visited, chunk));
        }
    };
    if threads <= 1 {
        return work();
    }
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker does not panic")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::{Model, Options, run};

    /// Two counters that rise by one up to 9; their sum stays below a limit.
    struct Counters {
        below: u64,
    }

    impl Model for Counters {
        type State = (u64, u64);
        type Step = char;
        type Invariant = &'static str;

        fn initial(&self) -> (u64, u64) {
            (0, 0)
        }

        fn successors(&self, (a, b): &(u64, u64), found: &mut Vec<(char, (u64, u64))>) -> u64 {
            found.extend([('a', (a + 1, *b)), ('b', (*a, b + 1))].into_iter().filter(|(_, (a, b))| a.max(b) < &10));
            u64::from(*a == 9) + u64::from(*b == 9)
        }

        fn fingerprint(&self, (a, b): &(u64, u64)) -> u64 {
            a * 10 + b
        }

        fn broken(&self, (a, b): &(u64, u64)) -> Option<&'static str> {
            (a + b >= self.below).then_some("below")
        }
    }

    const ONE_THREAD: Options = Options { threads: 1, max_states: u64::MAX, keeps_traces: true };

    #[test]
    fn every_state_is_visited_once() {
        let outcome = run(&Counters { below: 19 }, ONE_THREAD);
        assert_eq!((outcome.states, outcome.steps, outcome.left_out, outcome.depth), (100, 180, 20, 18));
        assert!(outcome.counterexample.is_none() && !outcome.is_partial);
    }

    #[test]
    fn a_counterexample_is_as_short_as_can_be() {
        let outcome = run(&Counters { below: 5 }, ONE_THREAD);
        assert_eq!(outcome.counterexample.map(|found| (found.invariant, found.trace.len())), Some(("below", 5)));
        let at_once = run(&Counters { below: 0 }, ONE_THREAD);
        assert_eq!(at_once.counterexample.map(|found| found.trace.len()), Some(0));
    }

    #[test]
    fn a_search_ends_at_its_limit() {
        let outcome = run(&Counters { below: 19 }, Options { max_states: 10, ..ONE_THREAD });
        assert!(outcome.is_partial && outcome.states < 100);
    }
}
