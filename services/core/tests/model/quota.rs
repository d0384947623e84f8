//! The limits of a namespace, in the model.

use holdfast_core::{Claim, CommandError, Mode, Path, Rules};

use crate::attempts::Attempts;
use crate::state::{Hold, Model, OwnerKey};

/// Owners that wait and are waited for; their awaited holds and their waiting claims; all their holds and these.
pub(crate) type Tangle = (u64, u64, u64);

pub(crate) fn quota_error(what: &str) -> CommandError {
    CommandError::QuotaExceeded { what: what.into(), max: 0, hint: String::new() }
}

/// Where the rules have no bound, an account has no limit.
fn effective_limit(bound: u64, of_account: u64) -> u64 {
    if bound == u64::MAX { u64::MAX } else { bound.min(of_account) }
}

impl Model {
    pub(crate) fn check_holds(&self, who: &OwnerKey, claims: &[Claim]) -> Result<(), CommandError> {
        let new: Vec<&Claim> = claims.iter().filter(|claim| self.hold_of(who, &claim.path).is_none()).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.check_counts(new.len(), claims)?;
        if self.waits.iter().any(|wait| wait.who == *who) {
            self.check_holds_of_waiting(who, new.len())?;
        }
        new.into_iter().try_for_each(|claim| self.check_readers(claim))
    }

    fn check_counts(&self, new: usize, claims: &[Claim]) -> Result<(), CommandError> {
        if claims.len() > self.limits.max_claims_per_request as usize
            || claims.iter().any(|claim| claim.path.0.len() > self.limits.max_path_depth as usize)
        {
            return Err(quota_error("claims"));
        }
        let waiting: usize = self.waits.iter().map(|wait| wait.claims.len()).sum();
        let all = (self.holds.len() + waiting + new) as u64;
        if all > self.limits.max_holds_per_namespace { Err(quota_error("holds")) } else { Ok(()) }
    }

    fn waiting_at(&self, path: &Path, mode: Option<Mode>) -> usize {
        let counts = |claim: &Claim| claim.path == *path && mode.is_none_or(|mode| mode == claim.mode);
        self.waits.iter().filter(|wait| wait.claims.iter().any(counts)).count()
    }

    fn check_readers(&self, claim: &Claim) -> Result<(), CommandError> {
        let reads = self.holds.iter().filter(|hold| hold.path == claim.path && hold.mode == Mode::Read).count();
        let all = reads + self.waiting_at(&claim.path, Some(Mode::Read));
        let is_full = claim.mode == Mode::Read && all >= self.limits.max_readers_per_lock as usize;
        if is_full { Err(quota_error("readers")) } else { Ok(()) }
    }

    /// Whether the owner may wait, and for that.
    pub(crate) fn check_may_wait(&self, who: &OwnerKey, claims: &[Claim]) -> Result<(), CommandError> {
        let max = effective_limit(self.bounds.waiting_of_owner, self.limits.max_waiting_per_owner);
        if self.waits.iter().filter(|wait| wait.who == *who).count() as u64 >= max {
            return Err(quota_error("requests of an owner"));
        }
        self.check_holds_of_waiting(who, 0)?;
        let waits = |hold: &&Hold| self.waits.iter().any(|wait| wait.who == hold.who);
        let holds = self.holds.iter().filter(waits).count() as u64;
        let is_above = |claim: &Claim| {
            let under = |hold: &&Hold| hold.path.0.len() > claim.path.0.len() && hold.conflicts(who, claim);
            self.holds.iter().any(|hold| under(&hold))
        };
        if holds > self.bounds.holds_of_waiting && claims.iter().any(is_above) {
            return Err(quota_error("above holds"));
        }
        Ok(())
    }

    fn check_holds_of_waiting(&self, who: &OwnerKey, more: usize) -> Result<(), CommandError> {
        let all = (self.hold_count(who) + more) as u64;
        if all > self.max_holds_of_waiting_owner() { Err(quota_error("holds of an owner that waits")) } else { Ok(()) }
    }

    pub(crate) fn max_holds_of_waiting_owner(&self) -> u64 {
        effective_limit(self.bounds.holds_of_waiting_owner, self.limits.max_holds_of_waiting_owner)
    }

    pub(crate) fn hold_count(&self, who: &OwnerKey) -> usize {
        self.holds.iter().filter(|hold| hold.who == *who).count()
    }

    pub(crate) fn check_queue_limits(&self, who: &OwnerKey, claims: &[Claim]) -> Result<(), CommandError> {
        self.check_counts(claims.len(), claims)?;
        if self.waits.len() as u64 >= self.limits.max_waiting_per_namespace {
            return Err(quota_error("waiting"));
        }
        for claim in claims {
            if self.waiting_at(&claim.path, None) as u64 >= self.limits.max_waiting_per_lock {
                return Err(quota_error("waiting for a lock"));
            }
            if self.hold_of(who, &claim.path).is_none() {
                self.check_readers(claim)?;
            }
        }
        Ok(())
    }

    /// Holders of a session, and its requests with an id: all of them, and those that claim one hold.
    pub(crate) fn check_session_limits(
        &self,
        who: &OwnerKey,
        claims: &[Claim],
        request_id: Option<&str>,
    ) -> Result<(), CommandError> {
        if who.number == 0 || self.rules == Rules::ONE {
            return Ok(());
        }
        let of_session = |other: &&OwnerKey| other.number == who.number;
        let holding = self.holds.iter().map(|hold| &hold.who).filter(of_session);
        let mut owners: Vec<&OwnerKey> =
            holding.chain(self.waits.iter().map(|wait| &wait.who).filter(of_session)).collect();
        owners.sort();
        owners.dedup();
        if !owners.contains(&who) && owners.len() as u64 >= self.limits.max_owners_per_session {
            return Err(quota_error("holders"));
        }
        if request_id.is_none() {
            return Ok(());
        }
        let waiting = self.waits.iter().filter(|wait| of_session(&&wait.who) && wait.request_id.is_some()).count();
        let granted = self.granted.iter().filter(|granted| of_session(&&granted.who)).count();
        if (waiting + granted) as u64 >= self.limits.max_requests_per_session {
            return Err(quota_error("requests"));
        }
        let claiming = |claim: &Claim| {
            let granted = self.granted.iter().filter(|it| it.who == *who && it.live.contains(&claim.path)).count();
            let claims = |wait: &&crate::state::Wait| wait.claims.iter().any(|other| other.path == claim.path);
            granted + self.waits.iter().filter(|wait| wait.who == *who).filter(claims).count()
        };
        let is_full = claims.iter().any(|claim| claiming(claim) as u64 >= self.limits.max_requests_per_hold);
        if is_full { Err(quota_error("requests of a hold")) } else { Ok(()) }
    }

    pub(crate) fn tangle(&self) -> Tangle {
        let mut waiting: Vec<&OwnerKey> = self.waits.iter().map(|wait| &wait.who).collect();
        waiting.sort();
        waiting.dedup();
        let own = |who: &OwnerKey| {
            let requests: Vec<_> = self.waits.iter().filter(|wait| wait.who == *who).collect();
            let is_awaited = |hold: &&Hold| {
                let conflicts = |claim: &Claim, other: &OwnerKey| hold.conflicts(other, claim);
                self.waits.iter().any(|wait| wait.claims.iter().any(|claim| conflicts(claim, &wait.who)))
            };
            let of_owner = self.holds.iter().filter(|hold| hold.who == *who && !hold.is_kept);
            let awaited = of_owner.filter(is_awaited).count();
            let claims: usize = requests.iter().map(|wait| wait.claims.len()).sum();
            let holds = self.holds.iter().filter(|hold| hold.who == *who).count();
            (awaited > 0 || requests.len() > 1).then_some(((awaited + claims) as u64, (holds + claims) as u64))
        };
        let tangled: Vec<(u64, u64)> = waiting.into_iter().filter_map(own).collect();
        let (claims, holds) = (tangled.iter().map(|of| of.0).sum(), tangled.iter().map(|of| of.1).sum());
        (tangled.len() as u64, claims, holds)
    }

    pub(crate) fn check_tangle(&self, before: Tangle, after: Tangle) -> Result<(), CommandError> {
        let is_more = |before: u64, after: u64, max: u64| after > max && after > before;
        let max_owners = effective_limit(self.bounds.tangled_owners, self.limits.max_tangle);
        let max_claims = effective_limit(self.bounds.tangled_claims, 16 * self.limits.max_tangle);
        let is_more = is_more(before.0, after.0, max_owners)
            || is_more(before.1, after.1, max_claims)
            || is_more(before.2, after.2, self.bounds.tangled_holds);
        if is_more { Err(quota_error("tangled")) } else { Ok(()) }
    }

    /// As if it had been granted; only for somebody who waits can that make a difference.
    pub(crate) fn check_tangled_grant(&self, who: &OwnerKey, claims: &[Claim]) -> Result<(), CommandError> {
        let before = self.tangle();
        let mut granted = self.clone();
        for claim in claims {
            let terms = crate::state::Terms {
                ttl_ms: None,
                transition_ms: 0,
                metadata: Default::default(),
                asked_expires_at_ns: None,
                at_least_ms: 0,
            };
            match granted.hold_of_mut(who, &claim.path) {
                Some(own) if own.is_kept => (own.mode, own.is_kept) = (claim.mode, false),
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
                    attempts: Attempts::of(0),
                    reader_attempts: None,
                    kept_from_ms: 0,
                    kept_until_ms: 0,
                    is_kept: false,
                    latest_ask: None,
                    forced_at_ms: None,
                }),
            }
        }
        self.check_tangle(before, granted.tangle())
    }
}
