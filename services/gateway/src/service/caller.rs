//! Who calls: the credential checked, the account looked up.

use std::sync::Arc;
use std::time::Duration;

use holdfast_auth::{AccountPrincipal, Credential, OperatorToken, Principal};
use holdfast_core::{Account, AccountStatus, Limits, Scopes};

use tokio::time::{Instant, sleep};

use super::{CallContext, Service, Timestamp};
use crate::error::{ApiError, ApiResult};
use crate::validate;

/// How often a caller that waits is looked at again: changes are heard of every 250 ms, and have to be felt within a
/// second.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long one look may take; most find everything in memory.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// What a caller of the dlocks door is allowed that is known by the number of its account only.
const TRUSTED_SCOPES: Scopes =
    Scopes(Scopes::LOCKS_READ.0 | Scopes::LOCKS_WRITE.0 | Scopes::LOCKS_FORCE.0 | Scopes::NAMESPACES_ADMIN.0);

/// A caller whose credential was checked. Good for one call: keys are revoked and accounts suspended at any time.
#[derive(Clone, Debug)]
pub struct Caller {
    principal: Principal,
    /// Of a tenant.
    account: Option<Arc<Account>>,
}

/// A caller inside an account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant<'a> {
    pub(crate) principal: &'a AccountPrincipal,
    pub(crate) account: &'a Account,
}

impl Caller {
    /// Who it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The operator, or a refusal.
    pub(crate) fn require_operator(&self) -> ApiResult<()> {
        if self.principal.is_operator() { Ok(()) } else { Err(ApiError::denied("this call needs the operator token")) }
    }

    /// The tenant, when its key has at least one of these scopes.
    pub(crate) fn require_any(&self, scopes: &[Scopes]) -> ApiResult<Tenant<'_>> {
        let (Principal::Account(principal), Some(account)) = (&self.principal, &self.account) else {
            return Err(ApiError::denied(
                "the operator token is for accounts and cluster calls; use an API key of the account",
            ));
        };
        if scopes.iter().any(|scope| principal.scopes.contains(*scope)) {
            return Ok(Tenant { principal, account });
        }
        let names: Vec<&str> = scopes.iter().flat_map(|scope| scope.names()).collect();
        Err(ApiError::denied(format!("the API key lacks the scope {}", names.join(" or ")))
            .with("scope", names.join(" ")))
    }

    /// The tenant, when its key has that scope.
    pub(crate) fn require(&self, scope: Scopes) -> ApiResult<Tenant<'_>> {
        self.require_any(&[scope])
    }
}

impl Tenant<'_> {
    /// Refuses a name that is no namespace name, and a namespace that the key is not for.
    pub(crate) fn check_namespace(&self, field: &'static str, name: &str) -> ApiResult<()> {
        validate::name(field, name)?;
        if self.principal.allows_namespace(name) {
            return Ok(());
        }
        Err(ApiError::denied("the API key is not for this namespace").with("namespace", name))
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.account.limits
    }
}

impl Service {
    /// Checks what follows `Bearer ` (absent when there is no such header).
    ///
    /// # Errors
    /// `UNAUTHENTICATED` for anything but a current key or the operator token, `PERMISSION_DENIED` for a suspended
    /// account, `UNAVAILABLE` when keys cannot be looked up.
    pub async fn authenticate(&self, bearer: Option<&str>, context: &CallContext) -> ApiResult<Caller> {
        let bearer = bearer.ok_or_else(|| {
            ApiError::unauthenticated(
                "no credential: send `Authorization: Bearer` with an API key or the operator token",
            )
        })?;
        let credential = Credential::parse(bearer)
            .map_err(|error| ApiError::unauthenticated(format!("the credential is {error}")))?;
        let presented = match credential {
            Credential::Operator(token) if self.inner.operator.accepts(&token) => {
                return Ok(Caller { principal: Principal::Operator, account: None });
            }
            Credential::Operator(_) => return Err(ApiError::unauthenticated("the operator token is not the one")),
            Credential::ApiKey(presented) => presented,
        };
        // One text for unknown, wrong, revoked and expired, so that nobody learns which key ids exist.
        let refused = || ApiError::unauthenticated("the API key is unknown, expired or revoked");
        let directory = &self.inner.directory;
        let kept = directory.api_key(presented.key_id(), context.deadline).await?.ok_or_else(refused)?;
        let principal = Principal::of_key(&presented, &kept, Timestamp::now().0).ok_or_else(refused)?;
        let account = directory.account(kept.account, context.deadline).await?.ok_or_else(refused)?;
        active(principal, account)
    }

    /// The caller of an account that is known by its id alone. Only for the dlocks door, and only when it is told to
    /// trust its callers.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is none, `ACCOUNT_NOT_FOUND`, `PERMISSION_DENIED` for a suspended account,
    /// `UNAVAILABLE`.
    pub async fn trust_account(&self, account_id: &str, context: &CallContext) -> ApiResult<Caller> {
        let id = validate::account_id("account-id", account_id)?;
        let account = self.inner.directory.account(id, context.deadline).await?;
        let account = account.ok_or(holdfast_core::Refusal::AccountNotFound(id))?;
        let principal = AccountPrincipal {
            account: id,
            key_id: String::new(),
            scopes: TRUSTED_SCOPES,
            namespaces: None,
            expires_at_ms: None,
        };
        active(Principal::Account(principal), account)
    }

    /// Ends when a tenant that was let in no longer would be: the key revoked or expired, the account suspended or gone.
    /// While nobody can say, the tenant stays.
    pub(super) async fn no_longer_let_in(&self, tenant: Tenant<'_>) -> ApiError {
        loop {
            sleep(LOOK_EVERY).await;
            if let Err(error) = self.look_again(tenant).await
                && !error.code.is_retryable()
            {
                return error;
            }
        }
    }

    async fn look_again(&self, tenant: Tenant<'_>) -> ApiResult<()> {
        let refused = || ApiError::unauthenticated("the API key is unknown, expired or revoked");
        let (principal, directory) = (tenant.principal, &self.inner.directory);
        let deadline = Instant::now() + LOOK_WITHIN;
        // A caller that is known by its account alone has no key.
        if !principal.key_id.is_empty() {
            let kept = directory.api_key(&principal.key_id, deadline).await?.ok_or_else(refused)?;
            if kept.expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms <= Timestamp::now().0) {
                return Err(refused());
            }
        }
        let account = directory.account(principal.account, deadline).await?.ok_or_else(refused)?;
        active(Principal::Account(principal.clone()), account).map(drop)
    }

    /// Whether what follows `Bearer ` is the operator token.
    pub fn is_operator_token(&self, bearer: Option<&str>) -> bool {
        let token = bearer.and_then(|text| OperatorToken::parse(text).ok());
        token.is_some_and(|token| self.inner.operator.accepts(&token))
    }
}

fn active(principal: Principal, account: Arc<Account>) -> ApiResult<Caller> {
    match account.status {
        AccountStatus::Active => Ok(Caller { principal, account: Some(account) }),
        AccountStatus::Suspended => {
            Err(ApiError::denied("the account is suspended").with("account", account.id.to_string()))
        }
    }
}
