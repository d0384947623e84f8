//! What stands in the way of a claim.

use super::hold::Hold;
use super::namespace::Namespace;
use crate::{Blocker, Claim, FencingToken, MAX_BLOCKERS_SHOWN, Mode, NotGranted, Owner, Path, Reason};

/// What becomes of one claim.
pub(super) enum Judgement {
    /// A new hold.
    Grant,
    /// The owner's hold of that place and token goes on.
    Extend {
        index: usize,
        token: FencingToken,
    },
    Refuse(NotGranted),
}

/// Judges one claim. With a `token` it may only extend that very hold.
pub(super) fn judge(namespace: &Namespace, owner: &Owner, claim: &Claim, token: Option<FencingToken>) -> Judgement {
    let own = namespace.locks.get(&claim.path).and_then(|lock| {
        let index = lock.position_of(owner)?;
        Some((index, &lock.holds[index]))
    });
    match own {
        Some((_, hold)) if token.is_some_and(|token| token != hold.token) => refuse(Reason::NotHeld, []),
        Some((index, hold)) if hold.mode == claim.mode => Judgement::Extend { index, token: hold.token },
        Some((_, hold)) => refuse(Reason::Upgrade, [(&claim.path, hold)]),
        None if token.is_some() => refuse(Reason::NotHeld, []),
        None => judge_new(namespace, owner, claim),
    }
}

fn judge_new(namespace: &Namespace, owner: &Owner, claim: &Claim) -> Judgement {
    let blocking = || in_the_way(namespace, owner, claim);
    if blocking().next().is_none() {
        return Judgement::Grant;
    }
    let is_on_its_way_out = blocking().all(|(_, hold)| !hold.is_held());
    refuse(if is_on_its_way_out { Reason::Transition } else { Reason::Held }, blocking())
}

/// The holds of other owners that a claim conflicts with. The one place that knows which paths concern one another:
/// so far only equal ones do.
fn in_the_way<'a>(
    namespace: &'a Namespace,
    owner: &'a Owner,
    claim: &'a Claim,
) -> impl Iterator<Item = (&'a Path, &'a Hold)> {
    let holds = namespace.locks.get(&claim.path).map_or(&[][..], |lock| &lock.holds);
    holds
        .iter()
        .filter(move |hold| !hold.owner.is(owner) && (hold.mode == Mode::Write || claim.mode == Mode::Write))
        .map(|hold| (&claim.path, hold))
}

fn refuse<'a>(reason: Reason, blockers: impl IntoIterator<Item = (&'a Path, &'a Hold)>) -> Judgement {
    let blockers = blockers.into_iter().take(MAX_BLOCKERS_SHOWN);
    let blockers =
        blockers.map(|(path, hold)| Blocker { path: path.clone(), waiting: false, holder: hold.view() }).collect();
    Judgement::Refuse(NotGranted { reason, blockers, queue_position: None })
}
