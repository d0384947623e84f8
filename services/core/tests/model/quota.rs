//! The limits of a namespace, in the model.

use holdfast_core::{Claim, Mode, Path, Refusal};

use crate::callers::Callers;
use crate::state::{Hold, Model, Who};

/// Owners that wait and are waited for; their awaited holds and their waiting claims.
pub(crate) type Tangle = (u64, u64);

pub(crate) fn quota(what: &str) -> Refusal {
    Refusal::QuotaExceeded { what: what.into(), max: 0, hint: String::new() }
}

impl Model {
    pub(crate) fn check_holds(&self, who: &Who, claims: &[Claim]) -> Result<(), Refusal> {
        let new: Vec<&Claim> = claims.iter().filter(|claim| self.own(who, &claim.path).is_none()).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.check_counts(new.len(), claims)?;
        new.into_iter().try_for_each(|claim| self.check_readers(claim))
    }

    fn check_counts(&self, new: usize, claims: &[Claim]) -> Result<(), Refusal> {
        if claims.len() > self.limits.max_claims_per_request as usize
            || claims.iter().any(|claim| claim.path.0.len() > self.limits.max_path_depth as usize)
        {
            return Err(quota("claims"));
        }
        let waiting: usize = self.waits.iter().map(|wait| wait.claims.len()).sum();
        let all = (self.holds.len() + waiting + new) as u64;
        if all > self.limits.max_holds_per_namespace { Err(quota("holds")) } else { Ok(()) }
    }

    fn waiting_at(&self, path: &Path, mode: Option<Mode>) -> usize {
        let counts = |claim: &Claim| claim.path == *path && mode.is_none_or(|mode| mode == claim.mode);
        self.waits.iter().filter(|wait| wait.claims.iter().any(counts)).count()
    }

    fn check_readers(&self, claim: &Claim) -> Result<(), Refusal> {
        let reads = self.holds.iter().filter(|hold| hold.path == claim.path && hold.mode == Mode::Read).count();
        let all = reads + self.waiting_at(&claim.path, Some(Mode::Read));
        let is_full = claim.mode == Mode::Read && all >= self.limits.max_readers_per_lock as usize;
        if is_full { Err(quota("readers")) } else { Ok(()) }
    }

    pub(crate) fn check_room_to_wait(&self, who: &Who, claims: &[Claim]) -> Result<(), Refusal> {
        self.check_counts(claims.len(), claims)?;
        if self.waits.len() as u64 >= self.limits.max_waiting_per_namespace {
            return Err(quota("waiting"));
        }
        for claim in claims {
            if self.waiting_at(&claim.path, None) as u64 >= self.limits.max_waiting_per_lock {
                return Err(quota("waiting for a lock"));
            }
            if self.own(who, &claim.path).is_none() {
                self.check_readers(claim)?;
            }
        }
        Ok(())
    }

    pub(crate) fn tangle(&self) -> Tangle {
        let mut waiting: Vec<&Who> = self.waits.iter().map(|wait| &wait.who).collect();
        waiting.sort();
        waiting.dedup();
        let own = |who: &Who| {
            let requests: Vec<_> = self.waits.iter().filter(|wait| wait.who == *who).collect();
            let is_awaited = |hold: &&Hold| {
                let conflicts = |claim: &Claim, other: &Who| hold.conflicts(other, claim);
                self.waits.iter().any(|wait| wait.claims.iter().any(|claim| conflicts(claim, &wait.who)))
            };
            let awaited = self.holds.iter().filter(|hold| hold.who == *who).filter(is_awaited).count();
            let claims: usize = requests.iter().map(|wait| wait.claims.len()).sum();
            (awaited > 0 || requests.len() > 1).then_some((awaited + claims) as u64)
        };
        let tangled: Vec<u64> = waiting.into_iter().filter_map(own).collect();
        (tangled.len() as u64, tangled.iter().sum())
    }

    pub(crate) fn check_tangle(&self, before: Tangle, after: Tangle) -> Result<(), Refusal> {
        let is_more = |before: u64, after: u64, max: u64| after > max && after > before;
        let is_more = is_more(before.0, after.0, self.bounds.tangled_owners)
            || is_more(before.1, after.1, self.bounds.tangled_claims);
        if is_more { Err(quota("tangled")) } else { Ok(()) }
    }

    /// As if it had been granted; only for somebody who waits can that make a difference.
    pub(crate) fn check_tangled_grant(&self, who: &Who, claims: &[Claim]) -> Result<(), Refusal> {
        let before = self.tangle();
        let mut granted = self.clone();
        for claim in claims {
            let terms = crate::state::Terms {
                ttl_ms: None,
                transition_ms: 0,
                metadata: Default::default(),
                asked_expires_at_ns: None,
            };
            match granted.own_mut(who, &claim.path) {
                Some(own) => own.mode = own.mode.max(claim.mode),
                None => granted.holds.push(Hold {
                    path: claim.path.clone(),
                    who: who.clone(),
                    mode: claim.mode,
                    phase: holdfast_core::Phase::Held,
                    token: 0,
                    locked_at_ms: 0,
                    deadline_ms: None,
                    terms,
                    direct: true,
                    callers: Callers::of(0),
                    reader: None,
                }),
            }
        }
        self.check_tangle(before, granted.tangle())
    }
}
