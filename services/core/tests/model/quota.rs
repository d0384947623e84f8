//! The limits of a namespace, in the model.

use holdfast_core::{Claim, Mode, Path, Refusal};

use crate::state::{Model, Who};

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
}
