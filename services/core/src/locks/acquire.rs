//! Acquiring: all claims of a request together, or none.

use super::conflict::{self, Judgement};
use super::hold::{Extras, Hold, HoldOwner};
use super::namespace::Namespace;
use super::{LocksCore, NamespaceKey};
use crate::{
    Acquire, Answer, Claim, Context, FencingToken, MAX_READERS_SHOWN, Mode, NotGranted, Owner, Path, Phase, Refusal,
};

/// A claim of an owner that has this hold already.
struct Extension<'a> {
    path: &'a Path,
    index: usize,
    token: FencingToken,
}

/// What a request comes to.
struct Plan<'a> {
    new: Vec<&'a Claim>,
    extended: Vec<Extension<'a>>,
}

impl LocksCore {
    pub(super) fn acquire(&mut self, context: &Context, request: &Acquire) -> Result<Answer, Refusal> {
        let (key, namespace) = self.find(&request.namespace)?;
        let ttl_ms = well_formed_ttl(request)?;
        let claims = distinct(&request.claims);
        let outcome = match plan(namespace, request, &claims) {
            Ok(plan) => {
                check_quotas(namespace, &plan.new)?;
                Ok(self.carry_out(context, key, request, ttl_ms, &plan))
            }
            Err(not_granted) => Err(not_granted),
        };
        let mut paths: Vec<&Path> = claims.iter().map(|claim| &claim.path).collect();
        paths.sort_unstable();
        let locks = paths.into_iter().map(|path| self.view(key, path, MAX_READERS_SHOWN)).collect();
        Ok(Answer::Acquired { outcome, locks })
    }

    /// One revision for all new holds of the request: that is their token.
    fn carry_out(
        &mut self,
        context: &Context,
        key: NamespaceKey,
        request: &Acquire,
        ttl_ms: u64,
        plan: &Plan<'_>,
    ) -> FencingToken {
        let deadline_ms = self.state.clock_ms.saturating_add(ttl_ms);
        let extras = Extras::of(&request.metadata, request.asked_expires_at_ns);
        for extension in &plan.extended {
            self.change(key, extension.path, extension.index, |hold| {
                hold.phase = Phase::Held;
                hold.deadline_ms = deadline_ms;
                hold.transition_ms = request.transition_ms;
                hold.extras.clone_from(&extras);
            });
        }
        if plan.new.is_empty() {
            return plan.extended.first().expect("a request has claims, and each is new or extended").token;
        }
        let token = self.state.next_revision();
        for claim in &plan.new {
            let hold = Hold {
                owner: HoldOwner::of(&request.owner),
                mode: claim.mode,
                phase: Phase::Held,
                token,
                locked_at_ms: context.wall_ms,
                deadline_ms,
                transition_ms: request.transition_ms,
                extras: extras.clone(),
            };
            self.grant(key, &claim.path, hold);
        }
        token
    }
}

/// Doors check requests as well; here it is certain that nothing is held for ever or for no time at all.
fn well_formed_ttl(request: &Acquire) -> Result<u64, Refusal> {
    if request.claims.is_empty() {
        return Err(Refusal::Malformed("a request has at least one claim".into()));
    }
    match (&request.owner, request.ttl_ms) {
        (Owner::Session { .. }, _) => Err(Refusal::Malformed("there are no sessions in this version".into())),
        (Owner::Process(_), Some(ttl_ms)) if ttl_ms > 0 => Ok(ttl_ms),
        (Owner::Process(_), _) => Err(Refusal::Malformed("a hold of a process has a time to live".into())),
    }
}

/// One claim for each path, in the strongest mode asked for it, in order of first mention.
fn distinct(claims: &[Claim]) -> Vec<Claim> {
    let mut by_path: Vec<(usize, &Claim)> = claims.iter().enumerate().collect();
    by_path.sort_unstable_by_key(|(place, claim)| (&claim.path, *place));
    let same_path = by_path.chunk_by(|(_, a), (_, b)| a.path == b.path);
    let strongest = same_path.filter_map(|same| {
        let (first, claim) = same.first()?;
        let mode = same.iter().map(|(_, claim)| claim.mode).max()?;
        Some((*first, Claim { path: claim.path.clone(), mode }))
    });
    let mut strongest: Vec<(usize, Claim)> = strongest.collect();
    strongest.sort_unstable_by_key(|(first, _)| *first);
    strongest.into_iter().map(|(_, claim)| claim).collect()
}

/// Judges the claims in order; the first that fails decides.
fn plan<'a>(namespace: &Namespace, request: &Acquire, claims: &'a [Claim]) -> Result<Plan<'a>, NotGranted> {
    let mut plan = Plan { new: Vec::new(), extended: Vec::new() };
    for claim in claims {
        match conflict::judge(namespace, &request.owner, claim, request.fencing_token) {
            Judgement::Grant => plan.new.push(claim),
            Judgement::Extend { index, token } => plan.extended.push(Extension { path: &claim.path, index, token }),
            Judgement::Refuse(not_granted) => return Err(not_granted),
        }
    }
    Ok(plan)
}

/// Limits are for new holds: what exists may always be extended.
fn check_quotas(namespace: &Namespace, new: &[&Claim]) -> Result<(), Refusal> {
    let limits = &namespace.limits;
    if !new.is_empty() && namespace.holds.saturating_add(new.len() as u64) > limits.max_holds_per_namespace {
        return Err(Refusal::QuotaExceeded {
            what: "the number of holds in a namespace".into(),
            max: limits.max_holds_per_namespace,
            hint: "release holds, shorten their time to live or have the limit raised".into(),
        });
    }
    let max_readers = u64::from(limits.max_readers_per_lock);
    let is_full = |claim: &&Claim| {
        let readers = namespace.locks.get(&claim.path).map_or(0, |lock| lock.holds.len() as u64);
        claim.mode == Mode::Read && readers >= max_readers
    };
    if new.iter().any(is_full) {
        return Err(Refusal::QuotaExceeded {
            what: "the number of readers of a lock".into(),
            max: max_readers,
            hint: "wait until a reader has left or have the limit raised".into(),
        });
    }
    Ok(())
}
