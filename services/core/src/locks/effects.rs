//! What others have to be told of an entry, gathered as it happens and written out only for whoever asks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::acquire::refused;
use super::namespace::Namespace;
use super::shown::bare;
use super::{LocksCore, NamespaceKey};
use crate::{
    AcquireOutcome, Claim, Effect, FencingToken, LockView, NamespaceRef, Owner, Path, Reason, Revision, RevokedReason,
    SessionEnd, SessionNumber, WaitId,
};

/// What happened since it was last taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Notes {
    notes: Vec<Note>,
    /// The wait of whoever asks just now, who hears of its outcome in the reply.
    apart: Option<WaitId>,
    outcome_apart: Option<Result<FencingToken, Reason>>,
    /// The first event of each namespace.
    events: BTreeMap<NamespaceKey, (Arc<NamespaceRef>, Revision)>,
}

#[derive(Clone, Debug)]
enum Note {
    Settled {
        namespace: Arc<NamespaceRef>,
        settled: Box<Settled>,
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
    Closed {
        namespace: Arc<NamespaceRef>,
    },
}

/// A wait that is over.
#[derive(Clone, Debug)]
pub(super) struct Settled {
    pub(super) wait: WaitId,
    pub(super) attempt: u64,
    pub(super) owner: Owner,
    pub(super) request_id: Option<Box<str>>,
    pub(super) claims: Vec<Claim>,
    /// The token, or why there is none.
    pub(super) outcome: Result<FencingToken, Reason>,
}

impl Notes {
    pub(super) fn event(&mut self, namespace: &Arc<NamespaceRef>, revision: Revision) {
        let key = NamespaceKey { account: namespace.account, incarnation: namespace.incarnation };
        self.events.entry(key).or_insert_with(|| (Arc::clone(namespace), revision));
    }

    pub(super) fn settled(&mut self, namespace: &Arc<NamespaceRef>, settled: Settled) {
        if self.apart == Some(settled.wait) {
            self.outcome_apart = Some(settled.outcome);
            return;
        }
        self.notes.push(Note::Settled { namespace: Arc::clone(namespace), settled: Box::new(settled) });
    }

    /// From now on the outcome of that wait is not noted but kept for [`Self::take_apart`].
    pub(super) fn set_apart(&mut self, wait: WaitId) {
        self.apart = Some(wait);
    }

    /// The outcome of the wait that was set apart, if it is over.
    pub(super) fn take_apart(&mut self) -> Option<Result<FencingToken, Reason>> {
        self.apart = None;
        self.outcome_apart.take()
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
        self.notes.push(Note::Revoked { namespace, session_id, path, token, reason });
    }

    pub(super) fn opened(
        &mut self,
        namespace: &Arc<NamespaceRef>,
        session_id: &Arc<str>,
        (number, epoch, ttl_ms): (SessionNumber, u64, u64),
    ) {
        let (namespace, session_id) = (Arc::clone(namespace), Arc::clone(session_id));
        self.notes.push(Note::Opened { namespace, number, session_id, epoch, ttl_ms });
    }

    pub(super) fn ended(
        &mut self,
        namespace: &Arc<NamespaceRef>,
        session_id: &Arc<str>,
        number: SessionNumber,
        reason: SessionEnd,
    ) {
        let (namespace, session_id) = (Arc::clone(namespace), Arc::clone(session_id));
        self.notes.push(Note::Ended { namespace, number, session_id, reason });
    }

    /// The namespace is gone, and with it whoever could read its events.
    pub(super) fn closed(&mut self, namespace: &Arc<NamespaceRef>) {
        self.events.remove(&NamespaceKey { account: namespace.account, incarnation: namespace.incarnation });
        self.notes.push(Note::Closed { namespace: Arc::clone(namespace) });
    }
}

impl LocksCore {
    pub(crate) fn drop_effects(&mut self) {
        self.notes = Notes::default();
    }

    /// What was done to others than those who asked, in order; events last.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        let Notes { notes, events, .. } = std::mem::take(&mut self.notes);
        let events = events.into_values().map(|(namespace, from_revision)| Effect::Events {
            namespace: NamespaceRef::clone(&namespace),
            from_revision,
        });
        notes.into_iter().map(|note| self.effect(note)).chain(events).collect()
    }

    fn effect(&self, note: Note) -> Effect {
        match note {
            Note::Settled { namespace, settled } => self.settled(&namespace, *settled),
            Note::Revoked { namespace, session_id, path, token, reason } => Effect::Revoked {
                current_owner: self.find(&namespace).ok().and_then(|open| open.current_owner(&path)),
                namespace: NamespaceRef::clone(&namespace),
                session_id: session_id.to_string(),
                path,
                fencing_token: token,
                reason,
            },
            Note::Opened { namespace, number, session_id, epoch, ttl_ms } => Effect::SessionOpened {
                namespace: NamespaceRef::clone(&namespace),
                number,
                session_id: session_id.to_string(),
                epoch,
                ttl_ms,
            },
            Note::Ended { namespace, number, session_id, reason } => Effect::SessionEnded {
                namespace: NamespaceRef::clone(&namespace),
                number,
                session_id: session_id.to_string(),
                reason,
            },
            Note::Closed { namespace } => Effect::NamespaceClosed { namespace: NamespaceRef::clone(&namespace) },
        }
    }

    fn settled(&self, namespace: &NamespaceRef, settled: Settled) -> Effect {
        let open: Option<&Namespace> = self.find(namespace).ok();
        let mut paths: Vec<&Path> = settled.claims.iter().map(|claim| &claim.path).collect();
        paths.sort_unstable();
        let locks = match open {
            Some(open) => open.views(&paths, self.state.revision, false),
            None => paths.iter().map(|path| LockView::free(path, self.state.revision)).collect(),
        };
        let outcome = match settled.outcome {
            Ok(fencing_token) => AcquireOutcome::Granted { fencing_token },
            Err(reason) => refused(bare(reason)),
        };
        Effect::Settled {
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
