//! Signed grants: what an acquire answers on request, for resource servers that ask nobody.

use std::time::Duration;

use holdfast_api::{ApiResult, Holder, LockInfo, Timestamp, mode_name};
use holdfast_auth::{GrantOwner, UnsignedGrant};
use holdfast_core::{Owner, Path, Phase, Query, Response};

use super::tokens::signing_error;
use crate::auth::TenantContext;
use crate::shard_call::{ShardRequest, expect_answer};
use crate::view_builder::ViewBuilder;
use crate::{CallContext, Service};

/// Longest life of the signed grant of a session's hold: the session may be closed any time.
const MAX_SESSION_GRANT_TTL: Duration = Duration::from_secs(60);

impl Service {
    /// A signed grant for each of the locks that the owner holds, in their order. After a wait nobody knows how old what
    /// was said of them is, so each is asked about: a grant is not to outlive its hold.
    pub(super) async fn sign_grants(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        owner: &Owner,
        locks: &[LockInfo],
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
                        // It has ended by now, and there is nothing to be said for it.
                        None => continue,
                    }
                }
            };
            // That of a process has an end of its own.
            let Some(end) = hold.expires_at.or(session_end) else { continue };
            grants.push(self.sign_grant(tenant, lock, hold, end)?);
        }
        Ok(grants)
    }

    /// Until when a session lives whatever becomes of it, or for as long as a grant of its holds is good.
    async fn session_expiry(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        locks: &[LockInfo],
        session_id: &str,
    ) -> ApiResult<Timestamp> {
        let Some(lock) = locks.first() else { return Ok(Timestamp::now()) };
        let asked = Timestamp::now();
        let left_ms = self.read_session(tenant, context, &lock.namespace, session_id).await?.remaining_ms;
        let life_ms = u64::try_from(MAX_SESSION_GRANT_TTL.as_millis()).unwrap_or(u64::MAX);
        Ok(Timestamp(asked.0.saturating_add(left_ms.min(life_ms))))
    }

    /// The owner's hold of a path; also of a reader in a crowd: an acquire shows some of them only.
    async fn current_hold(
        &self,
        tenant: TenantContext<'_>,
        context: &CallContext,
        (namespace, path): (&str, &Path),
        owner: &Owner,
    ) -> ApiResult<Option<Holder>> {
        let make = |namespace| ShardRequest::from(Query::Lock { namespace, path: path.clone() });
        let asked = Timestamp::now();
        let reply = self.call_locks(tenant, namespace, context, make).await?;
        let shown = ViewBuilder::new(namespace, reply.clock_ms, asked);
        let whole = expect_answer!(reply.outcome?, Response::Lock(lock) => shown.lock(lock))?;
        Ok(hold_of(owner, &whole).cloned())
    }

    fn sign_grant(
        &self,
        tenant: TenantContext<'_>,
        lock: &LockInfo,
        hold: Holder,
        end: Timestamp,
    ) -> ApiResult<String> {
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

fn hold_of<'a>(owner: &Owner, lock: &'a LockInfo) -> Option<&'a Holder> {
    let mut holds = lock.write_lock_holder.iter().chain(&lock.read_lock_holders);
    holds.find(|hold| hold.phase == Phase::Held && is_held_by(owner, hold))
}

fn is_held_by(owner: &Owner, hold: &Holder) -> bool {
    match owner {
        Owner::Process(process_id) => hold.session_id.is_none() && hold.process_id == *process_id,
        Owner::Session { session_id, holder } => hold.session_id.as_ref() == Some(session_id) && hold.holder == *holder,
    }
}
