//! Signed grants: an acquire returns them on request, and resource servers verify them offline.

use std::time::Duration;

use holdfast_api::{ApiResult, Holder, Lock, Timestamp, mode_name};
use holdfast_auth::{GrantOwner, UnsignedGrant};
use holdfast_types::{Owner, Path, Phase, Query, Response};

use super::tokens::signing_error;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::{CallContext, Service};

/// Maximum life of the signed grant of a session's hold, because the session may be closed at any time.
const MAX_SESSION_GRANT_TTL: Duration = Duration::from_secs(60);

impl Service {
    /// Signs a grant for each of these locks that the owner holds, in their order. After a wait the age of the shown
    /// locks is unknown, so this queries each of them: a grant must not outlive its hold.
    pub(super) async fn sign_grants(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        owner: &Owner,
        locks: &[Lock],
        waited: bool,
    ) -> ApiResult<Vec<String>> {
        let session_end = match owner {
            Owner::Process(_) => None,
            Owner::Session { session_id, .. } => Some(self.session_expiry(tenant, context, locks, session_id).await?),
        };
        let mut grants = Vec::with_capacity(locks.len());
        for lock in locks {
            let hold = match hold_of(owner, lock) {
                Some(hold) if !waited => hold.clone(),
                _ => {
                    match self.current_hold(tenant, context, (&lock.namespace, &Path(lock.path.clone())), owner).await?
                    {
                        Some(hold) => hold,
                        // The hold has ended, so there is nothing to sign.
                        None => continue,
                    }
                }
            };
            // A hold of a process has an end of its own.
            let Some(end) = hold.expires_at.or(session_end) else { continue };
            grants.push(self.sign_grant(tenant, lock, hold, end)?);
        }
        Ok(grants)
    }

    /// Returns until when a session lives in any case, or for as long as a grant of its holds may be valid.
    async fn session_expiry(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        locks: &[Lock],
        session_id: &str,
    ) -> ApiResult<Timestamp> {
        let Some(lock) = locks.first() else { return Ok(Timestamp::now()) };
        let asked = Timestamp::now();
        let left_ms = self.read_session(tenant, context, &lock.namespace, session_id).await?.remaining_ms;
        let life_ms = u64::try_from(MAX_SESSION_GRANT_TTL.as_millis()).unwrap_or(u64::MAX);
        Ok(Timestamp(asked.0.saturating_add(left_ms.min(life_ms))))
    }

    /// Returns the owner's hold of a path. Also finds one of many readers, because the response of an acquire shows
    /// only some of them.
    async fn current_hold(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        (namespace, path): (&str, &Path),
        owner: &Owner,
    ) -> ApiResult<Option<Holder>> {
        let make = |namespace| ShardRequest::from(Query::Lock { namespace, path: path.clone() });
        let (reply, shown) = self.call_and_view(tenant, context, namespace, make).await?;
        let whole = expect_answer!(reply.outcome?, Response::Lock(lock) => shown.lock(lock))?;
        Ok(hold_of(owner, &whole).cloned())
    }

    fn sign_grant(&self, tenant: TenantContext<'_>, lock: &Lock, hold: Holder, end: Timestamp) -> ApiResult<String> {
        let grant = UnsignedGrant {
            account: tenant.account.id,
            namespace: lock.namespace.clone(),
            path: lock.path.clone(),
            mode: mode_name(hold.mode),
            fencing_token: hold.fencing_token,
            expires_at_ms: end.0,
            owner: GrantOwner { process_id: hold.process_id, session_id: hold.session_id, holder: hold.holder },
        };
        self.inner.tokens.keys.sign_grant(grant, Timestamp::now().0).map_err(signing_error)
    }
}

fn hold_of<'a>(owner: &Owner, lock: &'a Lock) -> Option<&'a Holder> {
    let mut holds = lock.write_lock_holder.iter().chain(&lock.read_lock_holders);
    holds.find(|hold| hold.phase == Phase::Held && is_held_by(owner, hold))
}

fn is_held_by(owner: &Owner, hold: &Holder) -> bool {
    match owner {
        Owner::Process(process_id) => hold.session_id.is_none() && hold.process_id == *process_id,
        Owner::Session { session_id, holder } => hold.session_id.as_ref() == Some(session_id) && hold.holder == *holder,
    }
}
