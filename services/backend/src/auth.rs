//! Authentication: checks the credential and looks up the account.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_api::{ApiError, ApiResult, Code, Timestamp, validate};
use holdfast_auth::{AccountPrincipal, Credential, CredentialKind, OperatorToken, PresentedApiKey, Principal};
use holdfast_types::{Account, AccountStatus, Limits, Scopes};
use tokio::time::Instant;

use crate::admission::{Share, Sharer};
use crate::{CallContext, Service};

/// Scopes of a caller of the dlocks frontend that is known by its account id only.
const TRUSTED_SCOPES: Scopes =
    Scopes(Scopes::LOCKS_READ.0 | Scopes::LOCKS_WRITE.0 | Scopes::LOCKS_FORCE.0 | Scopes::NAMESPACES_ADMIN.0);

/// A caller whose credential was checked. Valid for one call, because keys can be revoked and accounts suspended at any
/// time.
#[derive(Clone, Debug)]
pub struct AuthContext {
    principal: Arc<Principal>,
    /// Set for a tenant.
    account: Option<Arc<Account>>,
}

/// A caller inside an account.
#[derive(Clone, Copy, Debug)]
pub struct TenantContext<'a> {
    pub(crate) principal: &'a AccountPrincipal,
    pub(crate) account: &'a Account,
}

impl AuthContext {
    /// `account` is that of a tenant.
    pub(crate) fn new(principal: Principal, account: Option<Arc<Account>>) -> Self {
        Self { principal: Arc::new(principal), account }
    }

    /// The authenticated principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The account of a tenant.
    pub(crate) fn account(&self) -> Option<&Account> {
        self.account.as_deref()
    }

    /// The limits of a tenant's account.
    pub fn limits(&self) -> Option<&Limits> {
        self.account().map(|account| &account.limits)
    }

    /// Rejects every caller except the operator.
    pub(crate) fn require_operator(&self) -> ApiResult<()> {
        if self.principal.is_operator() { Ok(()) } else { Err(ApiError::denied("this call needs the operator token")) }
    }

    /// Returns the tenant, whatever scopes its key has.
    pub(crate) fn tenant(&self) -> ApiResult<TenantContext<'_>> {
        match (&*self.principal, &self.account) {
            (Principal::Account(principal), Some(account)) => Ok(TenantContext { principal, account }),
            _ => Err(ApiError::denied(
                "the operator token is for accounts and cluster calls; use an API key of the account",
            )),
        }
    }

    /// Returns in whose share the caller's calls are.
    pub(crate) fn share(&self) -> Share {
        self.account.as_deref().map_or_else(|| Share::of(Sharer::Operator), Share::from)
    }

    /// Returns the tenant if its key has at least one of these scopes.
    pub(crate) fn require_any(&self, scopes: &[Scopes]) -> ApiResult<TenantContext<'_>> {
        let tenant = self.tenant()?;
        if scopes.iter().any(|scope| tenant.principal.scopes.contains(*scope)) {
            return Ok(tenant);
        }
        let names: Vec<&str> = scopes.iter().flat_map(|scope| scope.names()).collect();
        Err(ApiError::denied(format!("the API key lacks the scope {}", names.join(" or ")))
            .with("scope", names.join(" ")))
    }

    /// Returns the tenant if its key has this scope.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` without the scope, and for the operator.
    pub fn require(&self, scope: Scopes) -> ApiResult<TenantContext<'_>> {
        self.require_any(&[scope])
    }
}

impl TenantContext<'_> {
    /// Rejects an invalid namespace name, and a namespace that the key does not cover.
    pub(crate) fn check_namespace(&self, field: &'static str, name: &str) -> ApiResult<()> {
        validate::name(field, name)?;
        if self.principal.allows_namespace(name) {
            return Ok(());
        }
        Err(ApiError::denied("the API key is not for this namespace").with("namespace", name))
    }

    /// The limits of its account.
    pub fn limits(&self) -> &Limits {
        &self.account.limits
    }
}

impl Service {
    /// Checks the text after `Bearer ` (absent without such a header).
    ///
    /// # Errors
    /// `UNAUTHENTICATED` for anything but a current key or the operator token, `PERMISSION_DENIED` for a suspended
    /// account, `UNAVAILABLE` when keys cannot be looked up, `RATE_LIMITED` when too many invalid ones came from the
    /// same address.
    pub async fn authenticate(&self, bearer: Option<&str>, context: &CallContext) -> ApiResult<AuthContext> {
        let bearer = bearer.ok_or_else(|| {
            ApiError::unauthenticated(
                "no credential: send `Authorization: Bearer` with an API key, a token or the operator token",
            )
        })?;
        if let Some(caller) = self.find_caller(bearer)? {
            return Ok(caller);
        }
        let checked = self.check_credential(bearer, context).await;
        if checked.as_ref().is_err_and(|error| error.code == Code::Unauthenticated) {
            self.inner.strangers.record_refusal(context.peer);
        }
        checked
    }

    /// Checks a credential that is not the key of a caller in memory.
    async fn check_credential(&self, bearer: &str, context: &CallContext) -> ApiResult<AuthContext> {
        let strangers = &self.inner.strangers;
        let credential = Credential::parse(bearer)
            .map_err(|error| ApiError::unauthenticated(format!("the credential is {error}")))?;
        let presented = match credential {
            Credential::Operator(token) if self.inner.operator.accepts(&token) => {
                return Ok(AuthContext::new(Principal::Operator, None));
            }
            Credential::Operator(_) => return Err(ApiError::unauthenticated("the operator token is wrong")),
            Credential::Token(token) => {
                let principal = self.inner.tokens.verify(&token, || strangers.check(context.peer))?;
                let account = self.validate(&principal, context.deadline).await?;
                return Ok(AuthContext::new(Principal::Account(principal), Some(account)));
            }
            Credential::ApiKey(presented) => presented,
        };
        strangers.check(context.peer)?;
        let directory = &self.inner.directory;
        let generation = directory.generation();
        // An id that looks invented is looked up only as often as strangers may have that done.
        let is_counted = AtomicBool::new(false);
        let may_look_up = || -> ApiResult<()> {
            if !presented.is_authentic(&self.inner.cluster_secret) {
                strangers.admit_unknown_key(context.peer)?;
                is_counted.store(true, Ordering::Relaxed);
            }
            Ok(())
        };
        let kept = directory.presented_api_key(presented.key_id(), may_look_up, context.deadline).await?;
        let kept = kept.ok_or_else(invalid_api_key)?;
        if is_counted.into_inner() {
            strangers.take_back_unknown_key(context.peer);
        }
        let now_ms = Timestamp::now().0;
        let principal = Principal::from_api_key(&presented, &kept, now_ms).ok_or_else(invalid_api_key)?;
        let account = directory.account(kept.account, context.deadline).await?.ok_or_else(invalid_api_key)?;
        directory.record_key_use(&kept.key_id);
        let caller = AuthContext::new(principal, Some(require_active(account)?));
        let of_account = directory.generation_of(kept.account);
        // Otherwise something changed meanwhile, perhaps this account, and the next call checks again.
        if directory.generation() == generation {
            self.inner.checked_callers.insert(of_account, &kept, caller.clone(), now_ms);
        }
        Ok(caller)
    }

    /// Returns the caller of an API key that was checked before, if its account and its key have not changed since.
    fn find_caller(&self, bearer: &str) -> ApiResult<Option<AuthContext>> {
        let Ok(presented) = PresentedApiKey::parse(bearer) else { return Ok(None) };
        let directory = &self.inner.directory;
        let found = self.inner.checked_callers.find(&presented, |account| directory.generation_of(account));
        let now_ms = Timestamp::now().0;
        let Some(found) = found.filter(|found| !found.is_expired(now_ms)) else { return Ok(None) };
        directory.require_fresh()?;
        directory.count_hits();
        if found.is_use_due(now_ms) {
            directory.record_key_use(presented.key_id());
        }
        Ok(Some(found.context().clone()))
    }

    /// Returns the caller of an account that is known by its id alone. Only for the dlocks frontend, and only when it
    /// is configured to trust its callers.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed id, `ACCOUNT_NOT_FOUND`, `PERMISSION_DENIED` for a suspended account,
    /// `UNAVAILABLE`.
    pub async fn authenticate_trusted(&self, account_id: &str, context: &CallContext) -> ApiResult<AuthContext> {
        let id = validate::account_id("account-id", account_id)?;
        let account = self.inner.directory.account(id, context.deadline).await?;
        let account = account.ok_or(holdfast_types::CommandError::AccountNotFound(id))?;
        let principal = AccountPrincipal {
            account: id,
            key_id: String::new(),
            scopes: TRUSTED_SCOPES,
            namespaces: None,
            expires_at_ms: None,
            credential_kind: CredentialKind::Trusted,
        };
        Ok(AuthContext::new(Principal::Account(principal), Some(require_active(account)?)))
    }

    /// Returns an authenticated caller in its current state. A key never changes its secret, scopes or namespaces, so
    /// only its end is checked.
    pub(crate) async fn revalidate(&self, caller: &AuthContext, deadline: Instant) -> ApiResult<AuthContext> {
        match &*caller.principal {
            Principal::Operator => Ok(caller.clone()),
            Principal::Account(principal) => {
                let account = self.validate(principal, deadline).await?;
                Ok(AuthContext { principal: Arc::clone(&caller.principal), account: Some(account) })
            }
        }
    }

    /// Returns the account of a checked principal, unless that ended since.
    async fn validate(&self, principal: &AccountPrincipal, deadline: Instant) -> ApiResult<Arc<Account>> {
        let directory = &self.inner.directory;
        let (is_good, refused): (bool, fn() -> ApiError) = match principal.credential_kind {
            CredentialKind::Key => (directory.api_key(&principal.key_id, deadline).await?.is_some(), invalid_api_key),
            CredentialKind::Token { issued_at_ms } => {
                let (account, key_id) = (principal.account, &principal.key_id);
                (directory.is_token_valid(account, key_id, issued_at_ms, deadline).await?, invalid_token)
            }
            CredentialKind::Trusted => (true, invalid_api_key),
        };
        let now_ms = Timestamp::now().0;
        if !is_good || principal.expires_at_ms.is_some_and(|expires_at_ms| expires_at_ms <= now_ms) {
            return Err(refused());
        }
        let account = directory.account(principal.account, deadline).await?.ok_or_else(refused)?;
        if matches!(principal.credential_kind, CredentialKind::Token { .. }) {
            directory.record_key_use(&principal.key_id);
        }
        require_active(account)
    }

    /// Returns whether the text after `Bearer ` is the operator token.
    pub fn is_operator_token(&self, bearer: Option<&str>) -> bool {
        let token = bearer.and_then(|text| OperatorToken::parse(text).ok());
        token.is_some_and(|token| self.inner.operator.accepts(&token))
    }
}

/// One text for unknown, wrong, revoked and expired keys, so that no caller learns which key ids exist.
fn invalid_api_key() -> ApiError {
    ApiError::unauthenticated("the API key is unknown, expired or revoked")
}

/// One text for every fault of a token.
pub(crate) fn invalid_token() -> ApiError {
    ApiError::unauthenticated("the token is malformed, expired or revoked; get another one at POST /v1/tokens")
}

fn require_active(account: Arc<Account>) -> ApiResult<Arc<Account>> {
    match account.status {
        AccountStatus::Active => Ok(account),
        AccountStatus::Suspended => {
            Err(ApiError::denied("the account is suspended").with("account", account.id.to_string()))
        }
    }
}
