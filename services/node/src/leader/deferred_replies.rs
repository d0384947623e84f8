//! Replies about latches and barriers that are held back until the latch or barrier is settled. They are not
//! replicated: a gateway repeats its query at the next leader. It misses nothing, because a final outcome never
//! changes.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_core::limit::{
    Limit, MAX_QUESTIONS_OF_LATCH, MAX_QUESTIONS_OF_NAMESPACE, MAX_QUESTIONS_OF_SHARD, QUESTIONS_OF_LATCH,
    QUESTIONS_OF_NAMESPACE, QUESTIONS_OF_SHARD,
};
use holdfast_core::{Kind, LatchView, NamespaceRef, Path, Response};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_supervise::spawn_temporary;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::yield_now;

use super::NamespaceKey;

/// Number of callers of one namespace that get a reply at a time, once their latch or barrier is settled. Thousands at
/// once would delay the calls of all others in the process.
const MAX_REPLYING: usize = 64;
/// Number of callers that one signal wakes.
const WAKE_SIZE: usize = 64;
/// Number of callers that are woken before any other task runs.
const MAX_RELEASED_AT_ONCE: usize = 4 * WAKE_SIZE;

/// The held-back replies of a shard's leader. They end with it.
#[derive(Default)]
pub(crate) struct DeferredReplies {
    namespaces: HashMap<NamespaceKey, OfNamespace>,
    /// Each held question has a clone.
    count: Arc<()>,
}

struct OfNamespace {
    things: HashMap<(Kind, Path), OfThing>,
    count: Arc<()>,
    /// Has a permit for each caller that may be replied to now.
    turns: Arc<Semaphore>,
}

impl Default for OfNamespace {
    fn default() -> Self {
        Self { things: HashMap::new(), count: Arc::default(), turns: Arc::new(Semaphore::new(MAX_REPLYING)) }
    }
}

impl OfNamespace {
    fn released(self) -> impl Iterator<Item = Released> {
        self.things.into_values().flat_map(OfThing::released)
    }
}

/// The held-back replies about one latch or barrier.
#[derive(Default)]
struct OfThing {
    /// Each is of at most [`WAKE_SIZE`] callers. They are dropped when the latch or barrier is settled.
    signals: Vec<watch::Sender<()>>,
    count: Arc<()>,
}

/// A held-back reply. Dropping it ends it.
pub(crate) struct DeferredReply {
    settled: watch::Receiver<()>,
    turns: Arc<Semaphore>,
    _counts: [Arc<()>; 3],
}

/// Callers that wake once this is dropped: see [`release`].
pub(crate) struct Released {
    /// How many, about.
    callers: usize,
    _signal: Box<dyn Send>,
}

impl Released {
    /// Replies released at once: few callers, or the callers of a leader that no longer leads.
    pub(super) fn at_once(signal: impl Send + 'static) -> Self {
        Self { callers: 0, _signal: Box::new(signal) }
    }
}

/// The turn of one caller to be replied to. Dropping it lets the next one have it.
pub(crate) type ReplyPermit = OwnedSemaphorePermit;

/// Wakes callers, after the lock of the state is released. Very many are woken in turns with other tasks: waking ten
/// thousand at once would keep the thread that applies commands for tens of milliseconds.
pub(crate) fn release(mut released: Vec<Released>) {
    let mut callers = 0;
    let fits = |one: &&Released| {
        callers += one.callers;
        callers <= MAX_RELEASED_AT_ONCE
    };
    let now = released.iter().take_while(fits).count();
    if now == released.len() || Handle::try_current().is_err() {
        return;
    }
    let later = released.split_off(now);
    spawn_temporary("released_calls", async move {
        let mut woken = WAKE_SIZE;
        for one in later {
            if woken + one.callers > WAKE_SIZE {
                yield_now().await;
                woken = 0;
            }
            woken += one.callers;
        }
    });
}

impl OfThing {
    /// Returns a receiver of the signal that it is settled.
    fn subscribe(&mut self) -> watch::Receiver<()> {
        if self.signals.last().is_none_or(|last| last.receiver_count() >= WAKE_SIZE) {
            // Once for so many callers, it forgets the signals of those that have left.
            self.signals.retain(|signal| signal.receiver_count() > 0);
            self.signals.push(watch::channel(()).0);
        }
        self.signals.last().map_or_else(forgotten, watch::Sender::subscribe)
    }

    fn released(self) -> impl Iterator<Item = Released> {
        let released =
            |signal: watch::Sender<()>| Released { callers: signal.receiver_count(), _signal: Box::new(signal) };
        self.signals.into_iter().filter(|signal| signal.receiver_count() > 0).map(released)
    }
}

impl DeferredReply {
    /// Waits until the latch or barrier is settled, or this replica no longer leads, and then for the turn of this
    /// caller among the callers of its namespace.
    pub(crate) async fn settled(&mut self) -> Option<ReplyPermit> {
        while self.settled.changed().await.is_ok() {}
        // They are never closed.
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }
}

impl DeferredReplies {
    /// Holds a reply about a latch or a barrier back.
    ///
    /// # Errors
    /// The limit, if as many are held.
    pub(crate) fn hold(
        &mut self,
        namespace: &NamespaceRef,
        kind: Kind,
        path: &Path,
    ) -> Result<DeferredReply, &'static Limit> {
        let thing = (kind, path.clone());
        let of_namespace = self.namespaces.entry(NamespaceKey::of(namespace)).or_default();
        let held = of_namespace.things.get(&thing).map_or(0, |of_thing| clones(&of_thing.count));
        if held >= MAX_QUESTIONS_OF_LATCH {
            return Err(&QUESTIONS_OF_LATCH);
        }
        if clones(&of_namespace.count) >= MAX_QUESTIONS_OF_NAMESPACE {
            return Err(&QUESTIONS_OF_NAMESPACE);
        }
        if clones(&self.count) >= MAX_QUESTIONS_OF_SHARD {
            return Err(&QUESTIONS_OF_SHARD);
        }
        let of_thing = of_namespace.things.entry(thing).or_default();
        let counts = [&self.count, &of_namespace.count, &of_thing.count].map(Arc::clone);
        let settled = if held > 0 && is_enabled(Mutation::LatchWakesOne) { forgotten() } else { of_thing.subscribe() };
        Ok(DeferredReply { settled, turns: Arc::clone(&of_namespace.turns), _counts: counts })
    }

    /// Adds to a response to a query about latches how many replies about each are held back: one look-up for each.
    pub(crate) fn complete(&self, namespace: &NamespaceRef, response: &mut Response) {
        let of_namespace = self.namespaces.get(&NamespaceKey::of(namespace));
        let held = |path: &Path| {
            let of_thing = of_namespace.and_then(|of_namespace| of_namespace.things.get(&(Kind::Latch, path.clone())));
            of_thing.map_or(0, |of_thing| clones(&of_thing.count))
        };
        let show = |latch: &mut LatchView| latch.waiters = Some(held(&latch.path));
        match response {
            Response::Latch(latch) | Response::LatchJobs { latch, .. } => show(latch),
            Response::Latches { latches, .. } => latches.iter_mut().for_each(show),
            _ => {}
        }
    }

    /// Lets all replies about a latch or a barrier go.
    pub(super) fn settled(&mut self, namespace: &NamespaceRef, kind: Kind, path: &Path) -> Vec<Released> {
        let key = NamespaceKey::of(namespace);
        let Some(of_namespace) = self.namespaces.get_mut(&key) else { return Vec::new() };
        let of_thing = of_namespace.things.remove(&(kind, path.clone()));
        if of_namespace.things.is_empty() {
            self.namespaces.remove(&key);
        }
        of_thing.into_iter().flat_map(OfThing::released).collect()
    }

    /// Lets all replies about a namespace go.
    pub(super) fn namespace_closed(&mut self, namespace: &NamespaceRef) -> Vec<Released> {
        let closed = self.namespaces.remove(&NamespaceKey::of(namespace));
        closed.into_iter().flat_map(OfNamespace::released).collect()
    }

    /// Lets all replies go, so that their callers find a leader that is not cut off.
    pub(super) fn redirect(&mut self) -> Vec<Released> {
        std::mem::take(self).namespaces.into_values().flat_map(OfNamespace::released).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        clones(&self.count) == 0
    }
}

/// Returns a signal that never fires: for a mutation.
fn forgotten() -> watch::Receiver<()> {
    let (sender, receiver) = watch::channel(());
    std::mem::forget(sender);
    receiver
}

/// Returns the number of clones besides the first one.
fn clones(count: &Arc<()>) -> u64 {
    Arc::strong_count(count) as u64 - 1
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use holdfast_core::{AccountId, Incarnation, LatchIds, LatchStatus, Metadata};

    use super::*;

    fn namespace(account: u64) -> NamespaceRef {
        NamespaceRef { account: AccountId(account), name: "n".into(), incarnation: Incarnation(2) }
    }

    fn is_settled(question: &mut DeferredReply) -> bool {
        question.settled().now_or_never().is_some()
    }

    fn latch(path: &str) -> LatchView {
        LatchView {
            path: Path::flat(path),
            id: 1,
            status: LatchStatus::Active,
            total: 1,
            done: 0,
            ids: LatchIds::Named,
            deadline_ms: 1,
            finished_at_ms: None,
            retain_ms: 60_000,
            description: String::new(),
            metadata: Metadata::new(),
            revision: 1,
            waiters: None,
        }
    }

    #[test]
    fn a_latch_shows_who_waits_for_it_now_and_for_nothing_else() {
        let mut all = DeferredReplies::default();
        let hold = |all: &mut DeferredReplies, account, kind, path| {
            all.hold(&namespace(account), kind, &Path::flat(path)).unwrap()
        };
        let mut its: Vec<_> = (0..3).map(|_| hold(&mut all, 1, Kind::Latch, "a")).collect();
        let _others = [hold(&mut all, 1, Kind::Barrier, "a"), hold(&mut all, 2, Kind::Latch, "a")];
        let shown = |all: &DeferredReplies| {
            let mut response = Response::Latches { latches: vec![latch("a"), latch("b")], more: false };
            all.complete(&namespace(1), &mut response);
            let Response::Latches { latches, .. } = response else { panic!("{response:?}") };
            latches.iter().map(|latch| latch.waiters).collect::<Vec<_>>()
        };
        assert_eq!(shown(&all), [Some(3), Some(0)]);
        its.pop();
        assert_eq!(shown(&all), [Some(2), Some(0)], "one gave up");
        let mut response = Response::Latch(latch("a"));
        all.complete(&namespace(1), &mut response);
        assert_eq!(response, Response::Latch(LatchView { waiters: Some(2), ..latch("a") }));
        all.settled(&namespace(1), Kind::Latch, &Path::flat("a"));
        assert_eq!(shown(&all), [Some(0), Some(0)], "it is settled");
    }

    #[test]
    fn all_replies_about_a_thing_go_when_it_is_settled_and_no_others() {
        let mut all = DeferredReplies::default();
        let hold = |all: &mut DeferredReplies, account, kind, path| {
            all.hold(&namespace(account), kind, &Path::flat(path)).unwrap()
        };
        let (latch, barrier) = (Kind::Latch, Kind::Barrier);
        let mut its: Vec<_> = (0..3).map(|_| hold(&mut all, 1, latch, "a")).collect();
        let mut others =
            [hold(&mut all, 1, latch, "b"), hold(&mut all, 1, barrier, "a"), hold(&mut all, 2, latch, "a")];
        all.settled(&namespace(1), latch, &Path::flat("a"));
        assert!(its.iter_mut().all(is_settled) && !others.iter_mut().any(is_settled));
        all.namespace_closed(&namespace(2));
        assert_eq!(others.each_mut().map(is_settled), [false, false, true]);
        all.redirect();
        assert!(others.iter_mut().all(is_settled));
        drop((its, others));
        assert!(all.is_empty());
    }

    #[tokio::test]
    async fn very_many_callers_are_woken_in_turns_with_other_tasks_and_those_who_left_take_no_room() {
        let mut all = DeferredReplies::default();
        let mut hold = || all.hold(&namespace(1), Kind::Latch, &Path::flat("a")).unwrap();
        for _ in 0..2_000 {
            drop(hold());
        }
        let its: Vec<_> = (0..20 * WAKE_SIZE).map(|_| hold().settled).collect();
        let released = all.settled(&namespace(1), Kind::Latch, &Path::flat("a"));
        assert_eq!(released.len(), 20);
        release(released);
        let woken = its.iter().filter(|signal| signal.has_changed().is_err()).count();
        assert_eq!(woken, MAX_RELEASED_AT_ONCE);
        for mut signal in its {
            assert!(signal.changed().await.is_err());
        }
    }

    #[test]
    fn so_many_callers_of_a_namespace_are_replied_to_at_a_time_whatever_the_others_do() {
        let mut all = DeferredReplies::default();
        let hold =
            |all: &mut DeferredReplies, account| all.hold(&namespace(account), Kind::Latch, &Path::flat("a")).unwrap();
        let mut its: Vec<_> = (0..2 * MAX_REPLYING).map(|_| hold(&mut all, 1)).collect();
        let mut of_another = hold(&mut all, 2);
        for account in [1, 2] {
            all.settled(&namespace(account), Kind::Latch, &Path::flat("a"));
        }
        let turns: Vec<ReplyPermit> =
            its.iter_mut().filter_map(|held| held.settled().now_or_never().flatten()).collect();
        assert_eq!(turns.len(), MAX_REPLYING);
        assert!(is_settled(&mut of_another), "another namespace has its own turns");
        drop(turns);
        assert!(its.iter_mut().all(is_settled));
    }

    #[test]
    fn no_more_are_held_than_the_limits_allow_and_other_things_and_shards_have_their_own() {
        let mut all = DeferredReplies::default();
        let mut held = Vec::new();
        let latches = MAX_QUESTIONS_OF_SHARD / MAX_QUESTIONS_OF_LATCH;
        let of_namespace = MAX_QUESTIONS_OF_NAMESPACE / MAX_QUESTIONS_OF_LATCH;
        let place = |latch: u64| (namespace(latch / of_namespace), Path::flat(format!("{latch}")));
        for latch in 0..latches {
            let (namespace, path) = place(latch);
            held.extend((0..MAX_QUESTIONS_OF_LATCH).map(|_| all.hold(&namespace, Kind::Latch, &path).unwrap()));
            assert_eq!(all.hold(&namespace, Kind::Latch, &path).err(), Some(&QUESTIONS_OF_LATCH));
        }
        assert_eq!(all.hold(&namespace(0), Kind::Barrier, &Path::flat("x")).err(), Some(&QUESTIONS_OF_NAMESPACE));
        assert_eq!(all.hold(&namespace(99), Kind::Barrier, &Path::flat("x")).err(), Some(&QUESTIONS_OF_SHARD));
        let mut of_other_shard = DeferredReplies::default();
        assert!(of_other_shard.hold(&namespace(0), Kind::Latch, &Path::flat("0")).is_ok());
        held.truncate(held.len() - 1);
        assert!(all.hold(&namespace(99), Kind::Barrier, &Path::flat("x")).is_ok());
    }
}
