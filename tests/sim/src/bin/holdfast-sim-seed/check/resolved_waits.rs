//! What becomes of requests that wait: the effects of slices, in the words of the calls that wait.

use std::time::Duration;

use holdfast_core::{Effect, NamespaceRef, Path, Reason, Woken};

use super::locks_replay::{LocksReplay, SessionEndRecord, SessionSpan};
use super::outcomes::{CommandOutcome, awaited, outcome_of};
use crate::history::ObservedLock;
use crate::things::ThingAnswer;

/// A wait that is over.
pub(super) struct ResolvedWait {
    calls: Vec<usize>,
    outcome: Result<u64, Reason>,
    namespace: NamespaceRef,
    paths: Vec<Path>,
    kind: WaitKind,
}

#[derive(Clone, Copy)]
pub(super) enum WaitKind {
    Locks,
    /// For a condition, and then for its lock if it was woken.
    Condition(Option<Woken>),
}

impl LocksReplay {
    /// Waiting requests are notified after the slice, with the locks as they are then.
    pub(super) fn record_resolved_waits(&mut self, at: usize) {
        for ResolvedWait { calls, outcome, namespace, paths, kind } in std::mem::take(&mut self.resolved) {
            let is_open =
                self.open_incarnation(at + 1, namespace.account, &namespace.name).as_ref() == Some(&namespace);
            let view =
                |path: &Path| if is_open { self.view(at + 1, &namespace, path) } else { self.free_lock(at + 1, path) };
            let locks: Vec<ObservedLock> = paths.iter().map(view).collect();
            for call in calls {
                let came = match (kind, locks.first()) {
                    (WaitKind::Condition(woken), Some(lock)) => awaited(outcome, woken, lock.clone()),
                    _ => CommandOutcome::Acquired { outcome, locks: locks.clone() },
                };
                self.acquires.entry(call).or_default().push((at, came));
            }
        }
    }

    pub(super) fn record_effect(&mut self, at: usize, applied_at: Duration, effect: &Effect) {
        match effect {
            Effect::WaitResolved { namespace, wait, outcome, locks, .. } => {
                let paths = locks.iter().map(|lock| lock.path.clone()).collect();
                let calls = self.waits.remove(wait).unwrap_or_default();
                self.resolved.push(ResolvedWait {
                    calls,
                    outcome: outcome_of(outcome),
                    namespace: namespace.clone(),
                    paths,
                    kind: WaitKind::Locks,
                });
            }
            Effect::AwaitWoken { from, wait, .. } => {
                let calls = self.waits.remove(from).unwrap_or_default();
                self.waits.entry(*wait).or_default().extend(calls);
            }
            Effect::AwaitResolved { namespace, wait, outcome, woken, lock, .. } => {
                self.resolved.push(ResolvedWait {
                    calls: self.waits.remove(wait).unwrap_or_default(),
                    outcome: outcome_of(outcome),
                    namespace: namespace.clone(),
                    paths: vec![lock.path.clone()],
                    kind: WaitKind::Condition(*woken),
                });
            }
            Effect::PermitsResolved { wait, outcome, members, .. } => {
                let (outcome, members) = (outcome_of(outcome), members.clone());
                let came = CommandOutcome::Thing(ThingAnswer::Acquired { outcome, members });
                for call in self.waits.remove(wait).unwrap_or_default() {
                    self.acquires.entry(call).or_default().push((at, came.clone()));
                }
            }
            Effect::SessionOpened { session_id, .. } => {
                let life = SessionSpan { opened: at, ended: None };
                self.sessions.entry(session_id.clone()).or_insert(life);
            }
            Effect::SessionEnded { session_id, reason, .. } => {
                if let Some(life) = self.sessions.get_mut(session_id) {
                    life.ended = Some(SessionEndRecord { slice: at, at: applied_at, reason: *reason });
                }
            }
            _ => {}
        }
    }
}
