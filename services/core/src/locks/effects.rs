//! Buffers the effects of an entry. They are turned into [`Effect`]s only when a caller takes them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_primitives::kit::ResolvedPermits;
use holdfast_primitives::reply_size::{reason_only, refused};

use super::conditions::CameFrom;
use super::namespace::Namespace;
use super::owner::NO_OWNER;
use super::purge::ClosedNamespace;
use super::waiting::WaitingRequest;
use super::{LocksState, NamespaceKey};
use crate::{
    AcquireOutcome, AskedHolds, BarrierAnswer, Claim, Effect, FencingToken, LockView, NamespaceRef, Owner, Path,
    PermitsView, Reason, ReportedPermits, Revision, RevokedReason, SessionEnd, SessionNumber, WaitId, Woken,
};

/// Effects since the buffer was last taken.
#[derive(Clone, Debug, Default)]
pub(super) struct EffectBuffer {
    pending: VecDeque<BufferedEffect>,
    /// The wait of the command being applied. Its reply contains the outcome.
    captured_wait: Option<WaitId>,
    captured_outcome: Option<Result<FencingToken, Reason>>,
    /// Why the await of the command being applied waits for its lock already.
    captured_woken: Option<Woken>,
    /// The first event of each namespace.
    events: BTreeMap<NamespaceKey, (Arc<NamespaceRef>, Revision)>,
}

#[derive(Clone, Debug)]
pub(super) enum BufferedEffect {
    WaitResolved {
        namespace: Arc<NamespaceRef>,
        wait: Box<ResolvedWait>,
    },
    Revoked {
        namespace: Arc<NamespaceRef>,
        session_id: Arc<str>,
        path: Path,
        token: FencingToken,
        reason: RevokedReason,
    },
    Opened {
        namespace: Arc<NamespaceRef>,
        number: SessionNumber,
        session_id: Arc<str>,
        epoch: u64,
        ttl_ms: u64,
    },
    Ended {
        namespace: Arc<NamespaceRef>,
        number: SessionNumber,
        session_id: Arc<str>,
        reason: SessionEnd,
    },
    ReleaseRequested {
        namespace: Arc<NamespaceRef>,
        session_id: Arc<str>,
        asked: Box<AskedHolds>,
    },
    LatchSettled {
        namespace: Arc<NamespaceRef>,
        path: Path,
    },
    PermitsResolved {
        namespace: Arc<NamespaceRef>,
        wait: Box<ResolvedPermits>,
    },
    PermitsRevoked {
        namespace: Arc<NamespaceRef>,
        session_id: Arc<str>,
        hold: ReportedPermits,
        reason: RevokedReason,
    },
    BarrierSettled {
        namespace: Arc<NamespaceRef>,
        path: Path,
    },
    MetAtBarrier {
        namespace: Arc<NamespaceRef>,
        session_id: Arc<str>,
        request_id: Arc<str>,
        answer: BarrierAnswer,
        inside: bool,
    },
    AwaitMoved {
        namespace: Arc<NamespaceRef>,
        moved: Box<MovedAwait>,
    },
    AwaitResolved {
        namespace: Arc<NamespaceRef>,
        resolved: Box<ResolvedAwait>,
    },
    Closed(ClosedNamespace),
}

/// A wait that ended.
#[derive(Clone, Debug)]
pub(super) struct ResolvedWait {
    pub(super) wait: WaitId,
    pub(super) attempt: u64,
    pub(super) owner: Owner,
    pub(super) request_id: Option<Box<str>>,
    pub(super) claims: Vec<Claim>,
    /// The fencing token, or why the request was not granted.
    pub(super) outcome: Result<FencingToken, Reason>,
    /// The hold that was given up to await a condition, if there was one.
    came_from: Option<Box<CameFrom>>,
}

/// An await that waits for its lock from now on.
#[derive(Clone, Debug)]
pub(super) struct MovedAwait {
    pub(super) from: WaitId,
    pub(super) wait: WaitId,
    pub(super) attempt: u64,
    pub(super) owner: Owner,
    pub(super) request_id: Option<Box<str>>,
    pub(super) woken: Woken,
}

/// An await that ended, or the wait for its lock.
#[derive(Clone, Debug)]
pub(super) struct ResolvedAwait {
    pub(super) wait: WaitId,
    pub(super) attempt: u64,
    pub(super) owner: Owner,
    pub(super) request_id: Option<Box<str>>,
    pub(super) path: Path,
    /// The token of the hold that was given up.
    pub(super) from_token: FencingToken,
    /// Absent if it did not wait for its lock yet.
    pub(super) woken: Option<Woken>,
    /// The fencing token, or why it does not have its lock.
    pub(super) outcome: Result<FencingToken, Reason>,
}

impl ResolvedWait {
    pub(super) fn new(
        wait: WaitId,
        owner: Owner,
        waiting: WaitingRequest,
        outcome: Result<FencingToken, Reason>,
    ) -> Self {
        let attempt = waiting.attempts.highest();
        let WaitingRequest { request_id, claims, came_from, .. } = waiting;
        Self { wait, attempt, owner, request_id, claims, outcome, came_from }
    }

    /// Returns it as a wait for a lock that was given up, or unchanged.
    pub(super) fn into_await(mut self) -> Result<ResolvedAwait, Box<Self>> {
        let Some(came_from) = self.came_from.take() else { return Err(Box::new(self)) };
        // It has one claim.
        let Some(claim) = self.claims.pop() else { return Err(Box::new(self)) };
        let Self { wait, attempt, owner, request_id, outcome, .. } = self;
        let (path, from_token, woken) = (claim.path, came_from.token, Some(came_from.woken));
        Ok(ResolvedAwait { wait, attempt, owner, request_id, path, from_token, woken, outcome })
    }
}

impl EffectBuffer {
    pub(super) fn event(&mut self, namespace: &Arc<NamespaceRef>, revision: Revision) {
        let key = NamespaceKey { account: namespace.account, incarnation: namespace.incarnation };
        self.events.entry(key).or_insert_with(|| (Arc::clone(namespace), revision));
    }

    pub(super) fn wait_resolved(&mut self, namespace: &Arc<NamespaceRef>, settled: Box<ResolvedWait>) {
        if self.captured_wait == Some(settled.wait) {
            self.captured_outcome = Some(settled.outcome);
            return;
        }
        self.pending.push_back(BufferedEffect::WaitResolved { namespace: Arc::clone(namespace), wait: settled });
    }

    /// Diverts the outcome of that wait from the buffer to [`Self::take_captured`].
    pub(super) fn capture(&mut self, wait: WaitId) {
        self.captured_wait = Some(wait);
    }

    /// Returns the outcome of the captured wait, if it ended.
    pub(super) fn take_captured(&mut self) -> Option<Result<FencingToken, Reason>> {
        self.captured_wait = None;
        self.captured_outcome.take()
    }

    /// Returns the wait that the captured one has become, why, and the outcome if it ended.
    pub(super) fn take_captured_await(&mut self) -> (WaitId, Option<Woken>, Option<Result<FencingToken, Reason>>) {
        let wait = self.captured_wait.take().unwrap_or(WaitId(0));
        (wait, self.captured_woken.take(), self.captured_outcome.take())
    }

    pub(super) fn await_moved(&mut self, namespace: &Arc<NamespaceRef>, moved: MovedAwait) {
        if self.captured_wait == Some(moved.from) {
            (self.captured_wait, self.captured_woken) = (Some(moved.wait), Some(moved.woken));
            return;
        }
        self.pending.push_back(BufferedEffect::AwaitMoved { namespace: Arc::clone(namespace), moved: Box::new(moved) });
    }

    pub(super) fn await_resolved(&mut self, namespace: &Arc<NamespaceRef>, resolved: ResolvedAwait) {
        if self.captured_wait == Some(resolved.wait) {
            self.captured_outcome = Some(resolved.outcome);
            return;
        }
        let (namespace, resolved) = (Arc::clone(namespace), Box::new(resolved));
        self.pending.push_back(BufferedEffect::AwaitResolved { namespace, resolved });
    }

    pub(super) fn revoked(
        &mut self,
        namespace: &Arc<NamespaceRef>,
        session_id: &Arc<str>,
        path: Path,
        token: FencingToken,
        reason: RevokedReason,
    ) {
        let (namespace, session_id) = (Arc::clone(namespace), Arc::clone(session_id));
        self.pending.push_back(BufferedEffect::Revoked { namespace, session_id, path, token, reason });
    }

    pub(super) fn release_requested(&mut self, namespace: &Arc<NamespaceRef>, session_id: Arc<str>, asked: AskedHolds) {
        let (namespace, asked) = (Arc::clone(namespace), Box::new(asked));
        self.pending.push_back(BufferedEffect::ReleaseRequested { namespace, session_id, asked });
    }

    pub(super) fn permits_resolved(&mut self, namespace: &Arc<NamespaceRef>, wait: Box<ResolvedPermits>) {
        self.pending.push_back(BufferedEffect::PermitsResolved { namespace: Arc::clone(namespace), wait });
    }

    pub(super) fn permits_revoked(
        &mut self,
        namespace: &Arc<NamespaceRef>,
        session_id: Arc<str>,
        hold: ReportedPermits,
        reason: RevokedReason,
    ) {
        let namespace = Arc::clone(namespace);
        self.pending.push_back(BufferedEffect::PermitsRevoked { namespace, session_id, hold, reason });
    }

    pub(super) fn latch_settled(&mut self, namespace: &Arc<NamespaceRef>, path: Path) {
        self.pending.push_back(BufferedEffect::LatchSettled { namespace: Arc::clone(namespace), path });
    }

    pub(super) fn barrier_settled(&mut self, namespace: &Arc<NamespaceRef>, path: Path) {
        self.pending.push_back(BufferedEffect::BarrierSettled { namespace: Arc::clone(namespace), path });
    }

    pub(super) fn met_at_barrier(
        &mut self,
        namespace: &Arc<NamespaceRef>,
        session_id: Arc<str>,
        request_id: Arc<str>,
        (answer, inside): (BarrierAnswer, bool),
    ) {
        let namespace = Arc::clone(namespace);
        self.pending.push_back(BufferedEffect::MetAtBarrier { namespace, session_id, request_id, answer, inside });
    }

    pub(super) fn opened(
        &mut self,
        namespace: &Arc<NamespaceRef>,
        session_id: &Arc<str>,
        (number, epoch, ttl_ms): (SessionNumber, u64, u64),
    ) {
        let (namespace, session_id) = (Arc::clone(namespace), Arc::clone(session_id));
        self.pending.push_back(BufferedEffect::Opened { namespace, number, session_id, epoch, ttl_ms });
    }

    pub(super) fn ended(
        &mut self,
        namespace: &Arc<NamespaceRef>,
        session_id: &Arc<str>,
        number: SessionNumber,
        reason: SessionEnd,
    ) {
        let (namespace, session_id) = (Arc::clone(namespace), Arc::clone(session_id));
        self.pending.push_back(BufferedEffect::Ended { namespace, number, session_id, reason });
    }

    /// Records that the namespace is gone, and drops its events, because no reader remains.
    pub(super) fn closed(&mut self, closed: ClosedNamespace) {
        self.events.remove(&NamespaceKey::of(&closed.id()));
        self.pending.push_back(BufferedEffect::Closed(closed));
    }

    /// Returns the closed namespaces that still have effects to publish.
    pub(super) fn closed_namespaces(&self) -> impl Iterator<Item = &ClosedNamespace> {
        self.pending
            .iter()
            .filter_map(|note| if let BufferedEffect::Closed(closed) = note { Some(closed) } else { None })
    }
}

impl LocksState {
    pub(crate) fn drop_effects(&mut self) {
        for note in std::mem::take(&mut self.effects).pending {
            if let BufferedEffect::Closed(closed) = note {
                self.closed.push(closed);
            }
        }
    }

    /// Takes effects on owners other than the caller, in order, with events last. Takes at most `at_most`, not counting
    /// events. The caller takes any further ones next.
    pub(crate) fn take_effects(&mut self, at_most: usize) -> Vec<Effect> {
        let mut effects = Vec::new();
        while effects.len() < at_most {
            let Some(note) = self.effects.pending.pop_front() else { break };
            effects.push(match note {
                BufferedEffect::Closed(closed) => self.next_closing_notice(closed),
                note => self.effect(note),
            });
        }
        if self.effects.pending.is_empty() {
            let events = std::mem::take(&mut self.effects.events).into_values();
            effects.extend(events.map(|(namespace, from_revision)| Effect::Events {
                namespace: NamespaceRef::clone(&namespace),
                from_revision,
            }));
        }
        effects
    }

    /// Returns the sessions that have ended, in order, of those effects that nobody has taken yet.
    pub(super) fn unreported_ends(&self) -> impl Iterator<Item = (SessionNumber, SessionEnd)> {
        self.effects.pending.iter().filter_map(|note| match note {
            BufferedEffect::Ended { number, reason, .. } => Some((*number, *reason)),
            _ => None,
        })
    }

    pub(crate) fn has_effects(&self) -> bool {
        !self.effects.pending.is_empty() || !self.effects.events.is_empty()
    }

    fn next_closing_notice(&mut self, mut closed: ClosedNamespace) -> Effect {
        let Some(notice) = closed.next_notice() else {
            let namespace = closed.id();
            self.closed.push(closed);
            return Effect::NamespaceClosed { namespace };
        };
        if let BufferedEffect::Ended { number, .. } = &notice {
            self.sessions.remove(number);
        }
        self.effects.pending.push_front(BufferedEffect::Closed(closed));
        self.effect(notice)
    }

    fn effect(&self, note: BufferedEffect) -> Effect {
        match note {
            BufferedEffect::WaitResolved { namespace, wait } => self.wait_resolved_effect(&namespace, *wait),
            BufferedEffect::Revoked { namespace, session_id, path, token, reason } => Effect::Revoked {
                current_owner: self.find(&namespace).ok().and_then(|open| open.current_owner(&path)),
                namespace: NamespaceRef::clone(&namespace),
                session_id: session_id.to_string(),
                path,
                fencing_token: token,
                reason,
            },
            BufferedEffect::Opened { namespace, number, session_id, epoch, ttl_ms } => Effect::SessionOpened {
                namespace: NamespaceRef::clone(&namespace),
                number,
                session_id: session_id.to_string(),
                epoch,
                ttl_ms,
            },
            BufferedEffect::Ended { namespace, number, session_id, reason } => Effect::SessionEnded {
                namespace: NamespaceRef::clone(&namespace),
                number,
                session_id: session_id.to_string(),
                reason,
            },
            BufferedEffect::PermitsResolved { namespace, wait } => self.permits_resolved_effect(&namespace, *wait),
            BufferedEffect::PermitsRevoked { namespace, session_id, hold, reason } => Effect::PermitsRevoked {
                namespace: NamespaceRef::clone(&namespace),
                session_id: session_id.to_string(),
                hold,
                reason,
            },
            BufferedEffect::ReleaseRequested { namespace, session_id, asked } => Effect::ReleaseRequested {
                namespace: NamespaceRef::clone(&namespace),
                session_id: session_id.to_string(),
                asked: *asked,
            },
            BufferedEffect::LatchSettled { namespace, path } => {
                Effect::LatchSettled { namespace: NamespaceRef::clone(&namespace), path }
            }
            BufferedEffect::BarrierSettled { namespace, path } => {
                Effect::BarrierSettled { namespace: NamespaceRef::clone(&namespace), path }
            }
            BufferedEffect::MetAtBarrier { namespace, session_id, request_id, answer, inside } => {
                Effect::MetAtBarrier {
                    namespace: NamespaceRef::clone(&namespace),
                    session_id: session_id.to_string(),
                    request_id: request_id.to_string(),
                    answer,
                    inside,
                }
            }
            BufferedEffect::AwaitMoved { namespace, moved } => self.await_woken_effect(&namespace, *moved),
            BufferedEffect::AwaitResolved { namespace, resolved } => self.await_resolved_effect(&namespace, *resolved),
            BufferedEffect::Closed(closed) => Effect::NamespaceClosed { namespace: closed.id() },
        }
    }

    fn await_woken_effect(&self, namespace: &NamespaceRef, moved: MovedAwait) -> Effect {
        let MovedAwait { from, wait, attempt, owner, request_id, woken } = moved;
        // A caller that polls gets its place with its reply. A connected session has no reply that could say it.
        let open = self.find(namespace).ok().filter(|_| attempt == 0);
        let not_granted = open.and_then(|open| open.status_of_woken(wait)).map(Box::new);
        let (namespace, request_id) = (namespace.clone(), request_id.map(String::from));
        Effect::AwaitWoken { namespace, from, wait, attempt, owner, request_id, woken, not_granted }
    }

    fn await_resolved_effect(&self, namespace: &NamespaceRef, resolved: ResolvedAwait) -> Effect {
        let lock = match self.find(namespace) {
            Ok(open) => open.bounded_view(&resolved.path, self.common.revision),
            Err(_) => LockView::unlocked(&resolved.path, self.common.revision),
        };
        let outcome = match resolved.outcome {
            Ok(fencing_token) => AcquireOutcome::Granted { fencing_token },
            Err(reason) => refused(reason_only(reason)),
        };
        Effect::AwaitResolved {
            namespace: namespace.clone(),
            wait: resolved.wait,
            attempt: resolved.attempt,
            owner: resolved.owner,
            request_id: resolved.request_id.map(String::from),
            fencing_token: resolved.from_token,
            outcome,
            woken: resolved.woken,
            lock: Box::new(lock),
        }
    }

    fn permits_resolved_effect(&self, namespace: &NamespaceRef, settled: ResolvedPermits) -> Effect {
        let ResolvedPermits { wait, attempt, owner, request_id, kind, path, outcome, members } = settled;
        let view = match self.find(namespace) {
            Ok(open) => open.permits.view_at(kind, &path, self.common.revision),
            Err(_) => PermitsView::absent(kind, &path, self.common.revision),
        };
        let outcome = match outcome {
            Ok(fencing_token) => AcquireOutcome::Granted { fencing_token },
            Err(reason) => refused(reason_only(reason)),
        };
        let (namespace, members) = (namespace.clone(), members.iter().map(ToString::to_string).collect());
        Effect::PermitsResolved { namespace, wait, attempt, owner, request_id, outcome, members, view }
    }

    fn wait_resolved_effect(&self, namespace: &NamespaceRef, settled: ResolvedWait) -> Effect {
        let open: Option<&Namespace> = self.find(namespace).ok();
        let mut paths: Vec<&Path> = settled.claims.iter().map(|claim| &claim.path).collect();
        paths.sort_unstable();
        let locks = match open {
            Some(open) => open.views(&paths, NO_OWNER, self.common.revision, false),
            None => paths.iter().map(|path| LockView::unlocked(path, self.common.revision)).collect(),
        };
        let outcome = match settled.outcome {
            Ok(fencing_token) => AcquireOutcome::Granted { fencing_token },
            Err(reason) => refused(reason_only(reason)),
        };
        Effect::WaitResolved {
            namespace: namespace.clone(),
            wait: settled.wait,
            attempt: settled.attempt,
            owner: settled.owner,
            request_id: settled.request_id.map(String::from),
            outcome,
            locks,
            claims: settled.claims,
        }
    }
}
