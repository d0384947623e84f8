//! Invariants after every entry, checked on the views of the shard by rules of its own, without the core.

use std::collections::BTreeSet;

use holdfast_core::shard::ShardState;
use holdfast_core::{
    AcquireOutcome, Claim, Effect, Event, EventKind, LocksCommand, Mode, NamespaceRef, Owner, Phase, Reply, Response,
    SessionCommand, SessionRequest, WaitId, WaitView,
};

use super::shard_view::{Hold, ShardView, claim_of, conflict};

/// One entry.
pub(crate) struct Step<'a> {
    pub(crate) before: &'a ShardView,
    pub(crate) after: &'a ShardView,
    pub(crate) effects: &'a [Effect],
    /// Grants to requests that did not wait.
    pub(crate) granted: &'a [Grant],
    pub(crate) events: &'a [(NamespaceRef, Event)],
    /// The highest token that the shard had given before.
    pub(crate) highest_token: u64,
}

/// A grant.
pub(crate) struct Grant {
    pub(super) namespace: NamespaceRef,
    pub(super) owner: Owner,
    pub(super) claims: Vec<Claim>,
    pub(super) token: u64,
    /// Absent for a request that did not wait.
    pub(super) wait: Option<WaitId>,
    pub(super) allow_upgrade: bool,
}

/// A grant by the reply to an acquire, given the state after it.
pub(crate) fn direct_grant(core: &ShardState, command: &LocksCommand, reply: &Reply) -> Option<Grant> {
    let (Ok(Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token }, .. })
    | Ok(Response::Granted { fencing_token })) = &reply.outcome
    else {
        return None;
    };
    if let LocksCommand::Session(SessionCommand { session, request: SessionRequest::Acquire(acquire), .. }) = command {
        let session = core.sessions().find(|record| record.number == *session)?;
        return Some(Grant {
            namespace: session.namespace,
            owner: Owner::Session { session_id: session.session_id, holder: acquire.holder.clone() },
            claims: acquire.claims.clone(),
            token: *fencing_token,
            wait: None,
            allow_upgrade: acquire.allow_upgrade,
        });
    }
    let (acquire, _) = command.as_acquire()?;
    Some(Grant {
        namespace: acquire.namespace.clone(),
        owner: acquire.owner.clone(),
        claims: acquire.claims.clone(),
        token: *fencing_token,
        wait: None,
        allow_upgrade: acquire.allow_upgrade,
    })
}

/// After the clock has advanced, no request remains whose wait is over.
pub(crate) fn no_overdue_wait(look: &ShardView, clock_ms: u64, find: &mut dyn FnMut(String)) {
    for wait in look.namespaces.values().flat_map(|scene| &scene.waits) {
        if wait.ends_at_ms.is_some_and(|ends| ends <= clock_ms) {
            find(format!("[waits end] {wait:?} still waits at {clock_ms}"));
        }
    }
}

/// Everything that must hold after an entry.
pub(crate) fn check(step: &Step<'_>, clock_ms: u64, find: &mut dyn FnMut(String)) {
    for life in step.after.changed(step.before) {
        no_conflict(step.after, life, find);
        tokens_increase(step, life, find);
    }
    for (life, event) in step.events {
        no_early_expiry(step.before, life, event, clock_ms, find);
    }
    for effect in step.effects {
        if let Effect::WaitResolved { namespace, wait, owner, claims, outcome, .. } = effect
            && let AcquireOutcome::Granted { fencing_token } = outcome
        {
            let life = namespace.clone();
            let upgrade = step.before.waits(&life).iter().any(|known| known.wait == *wait && known.upgrade);
            let (owner, claims) = (owner.clone(), claims.clone());
            let grant = Grant {
                namespace: life,
                owner,
                claims,
                token: *fencing_token,
                wait: Some(*wait),
                allow_upgrade: upgrade,
            };
            fifo_order(step, &grant, find);
        }
        if let Effect::AwaitResolved { namespace, wait, owner, outcome, lock, .. } = effect
            && let AcquireOutcome::Granted { fencing_token } = outcome
        {
            let grant = Grant {
                namespace: namespace.clone(),
                owner: owner.clone(),
                claims: vec![Claim { path: lock.path.clone(), mode: Mode::Write }],
                token: *fencing_token,
                wait: Some(*wait),
                allow_upgrade: false,
            };
            fifo_order(step, &grant, find);
        }
    }
    for grant in step.granted {
        fifo_order(step, grant, find);
    }
}

/// No two owners hold what excludes one another.
fn no_conflict(look: &ShardView, life: &NamespaceRef, find: &mut dyn FnMut(String)) {
    let holds: Vec<Hold<'_>> = look.holds(life).collect();
    for (index, one) in holds.iter().enumerate() {
        for other in &holds[index + 1..] {
            if one.view.owner != other.view.owner && conflict(&claim_of(one), &claim_of(other)) {
                find(format!(
                    "[conflicting holds] {:?} {:?} and {:?} {:?}",
                    one.path, one.view, other.path, other.view
                ));
            }
        }
    }
}

/// A hold that is new has a token above all that the shard ever gave.
fn tokens_increase(step: &Step<'_>, life: &NamespaceRef, find: &mut dyn FnMut(String)) {
    let known: BTreeSet<u64> = step.before.holds(life).map(|hold| hold.view.fencing_token).collect();
    for hold in step.after.holds(life) {
        let token = hold.view.fencing_token;
        if token <= step.highest_token && !known.contains(&token) {
            find(format!("[tokens rise] token {token} is granted after {}", step.highest_token));
        }
    }
}

/// The highest token that was given up to an entry.
pub(crate) fn highest_token(step: &Step<'_>) -> u64 {
    let shown = step.after.changed(step.before).flat_map(|life| {
        let permits = step.after.permit_holders(life).map(|holder| holder.fencing_token);
        step.after.holds(life).map(|hold| hold.view.fencing_token).chain(permits)
    });
    let settled = step.effects.iter().filter_map(|effect| match effect {
        Effect::WaitResolved { outcome: AcquireOutcome::Granted { fencing_token }, .. } => Some(*fencing_token),
        _ => None,
    });
    let direct = step.granted.iter().map(|grant| grant.token);
    shown.chain(settled).chain(direct).max().unwrap_or_default().max(step.highest_token)
}

/// What expired was due on the shard clock.
fn no_early_expiry(
    before: &ShardView,
    life: &NamespaceRef,
    event: &Event,
    clock_ms: u64,
    find: &mut dyn FnMut(String),
) {
    if event.kind != EventKind::Expired {
        return;
    }
    let token = event.fencing_token.unwrap_or_default();
    let holds = before.holds(life).filter(|hold| {
        let is_meant = event.claims.iter().any(|claim| claim.path == *hold.path);
        hold.view.fencing_token == token && is_meant
    });
    for hold in holds {
        // What a session holds may end with it at any time: the only deadline before that is of a request with force.
        let is_forced = hold.view.phase == Phase::Held && matches!(hold.view.owner, Owner::Session { .. });
        if !is_forced && hold.view.deadline_ms.is_some_and(|deadline| deadline > clock_ms) {
            find(format!("[nothing expires early] {:?} ended at {clock_ms}", hold.view));
        }
    }
}

/// No request is granted before an earlier one that conflicts with it and still waits, unless an owner would otherwise
/// wait for an owner that waits for it.
fn fifo_order(step: &Step<'_>, grant: &Grant, find: &mut dyn FnMut(String)) {
    let life = &grant.namespace;
    let waited_before = |wait: &&WaitView| step.before.waits(life).iter().any(|known| known.wait == wait.wait);
    let came_earlier = |wait: &&WaitView| match grant.wait {
        Some(own) => wait.wait < own && (wait.upgrade || !grant.allow_upgrade),
        None => true,
    };
    let still_waits = step.after.waits(life).iter().filter(waited_before).filter(came_earlier);
    for earlier in still_waits.filter(|wait| wait.owner != grant.owner) {
        let claims = grant.claims.iter().filter(|claim| !is_exempt(step, grant, claim));
        let is_passed_over = claims.into_iter().any(|claim| earlier.claims.iter().any(|own| conflict(own, claim)));
        if is_passed_over && !waits_for(step, grant, earlier) {
            find(format!(
                "[first come first served] {:?} was granted {:?} with token {} before {earlier:?}; all that came of the \
                 same command: {:?}; waiting before it: {:?}",
                grant.owner,
                grant.claims,
                grant.token,
                step.effects,
                step.before.waits(life)
            ));
        }
    }
}

/// Holds that the owner of a grant had before it.
fn earlier_holds<'a>(step: &'a Step<'_>, grant: &'a Grant) -> impl Iterator<Item = Hold<'a>> {
    let life = &grant.namespace;
    let both = step.before.holds(life).chain(step.after.holds(life));
    both.filter(|hold| hold.view.owner != grant.owner || hold.view.fencing_token != grant.token)
}

/// Claims that the owner holds already, and those that only change the mode of a hold.
fn is_exempt(step: &Step<'_>, grant: &Grant, claim: &Claim) -> bool {
    let mut own = step.before.holds(&grant.namespace).chain(step.after.holds(&grant.namespace)).filter(|hold| {
        let is_new = hold.view.fencing_token == grant.token
            && !step.before.holds(&grant.namespace).any(|known| known.view.fencing_token == grant.token);
        hold.view.owner == grant.owner && !is_new
    });
    own.any(|hold| {
        let covers =
            claim.path.0.starts_with(&hold.path.0) && (hold.view.mode == Mode::Write || claim.mode == Mode::Read);
        covers || (grant.allow_upgrade && *hold.path == claim.path)
    })
}

/// Whether the owner of a waiting request waits, directly or through others, for the owner of a grant: by that request
/// or by another one, since an owner is one thread of control.
fn waits_for(step: &Step<'_>, grant: &Grant, from: &WaitView) -> bool {
    let mut reached = BTreeSet::from([from.owner.clone()]);
    let waits: Vec<&WaitView> =
        step.before.waits(&grant.namespace).iter().chain(step.after.waits(&grant.namespace)).collect();
    let mut to_do: Vec<&WaitView> = waits.iter().copied().filter(|wait| wait.owner == from.owner).collect();
    while let Some(wait) = to_do.pop() {
        let blocks = |claim: &Claim| wait.claims.iter().any(|own| conflict(own, claim));
        let holders =
            earlier_holds(step, grant).filter(|hold| blocks(&claim_of(hold))).map(|hold| hold.view.owner.clone());
        let ahead = waits.iter().filter(|other| other.wait < wait.wait || other.upgrade);
        let ahead = ahead.filter(|other| other.claims.iter().any(blocks)).map(|other| other.owner.clone());
        let owners: Vec<Owner> = holders.chain(ahead).filter(|owner| *owner != wait.owner).collect();
        for owner in owners {
            if owner == grant.owner {
                return true;
            }
            if reached.insert(owner.clone()) {
                to_do.extend(waits.iter().copied().filter(|other| other.owner == owner));
            }
        }
    }
    false
}
