//! Who calls: the credential checked, the account looked up.

use std::sync::Arc;

use holdfast_api::{ApiError, ApiResult, Timestamp, validate};
use holdfast_auth::{AccountPrincipal, Credential, CredentialKind, OperatorToken, Principal};
use holdfast_core::{Account, AccountStatus, Limits, Scopes};
use tokio::time::Instant;

use crate::{CallContext, Service};

/// What a caller of the dlocks door is allowed that is known by the number of its account only.
const TRUSTED_SCOPES: Scopes =
    Scopes(Scopes::LOCKS_READ.0 | Scopes::LOCKS_WRITE.0 | Scopes::LOCKS_FORCE.0 | Scopes::NAMESPACES_ADMIN.0);

/// A caller whose credential was checked. Good for one call: keys are revoked and accounts suspended at any time.
#[derive(Clone, Debug)]
pub struct AuthContext {
    principal: Principal,
    /// Of a tenant.
    account: Option<Arc<Account>>,
}

/// A caller inside an account.
#[derive(Clone, Copy, Debug)]
pub struct TenantContext<'a> {
    pub(crate) principal: &'a AccountPrincipal,
    pub(crate) account: &'a Account,
}

impl AuthContext {
    /// Who it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The operator, or a refusal.
    pub(crate) fn require_operator(&self) -> ApiResult<()> {
        if self.principal.is_operator() { Ok(()) } else { Err(ApiError::denied("this call needs the operator token")) }
    }

    /// The tenant, whatever its key allows.
    pub(crate) fn tenant(&self) -> ApiResult<TenantContext<'_>> {
        match (&self.principal, &self.account) {
            (Principal::Account(principal), Some(account)) => Ok(TenantContext { principal, account }),
            _ => Err(ApiError::denied(
                "the operator token is for accounts and cluster calls; use an API key of the account",
            )),
        }
    }

    /// The tenant, when its key has at least one of these scopes.
    pub(crate) fn require_any(&self, scopes: &[Scopes]) -> ApiResult<TenantContext<'_>> {
        let tenant = self.tenant()?;
        if scopes.iter().any(|scope| tenant.principal.scopes.contains(*scope)) {
            return Ok(tenant);
        }
        let names: Vec<&str> = scopes.iter().flat_map(|scope| scope.names()).collect();
        Err(ApiError::denied(format!("the API key lacks the scope {}", names.join(" or ")))
            .with("scope", names.join(" ")))
    }

    /// The tenant, when its key has that scope.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` when it has not, and for the operator.
    pub fn require(&self, scope: Scopes) -> ApiResult<TenantContext<'_>> {
        self.require_any(&[scope])
    }
}

impl TenantContext<'_> {
    /// Refuses a name that is no namespace name, and a namespace that the key is not for.
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
    /// Checks what follows `Bearer ` (absent when there is no such header).
    ///
    /// # Errors
    /// `UNAUTHENTICATED` for anything but a current key or the operator token, `PERMISSION_DENIED` for a suspended
    /// account, `UNAVAILABLE` when keys cannot be looked up.
    pub async fn authenticate(&self, bearer: Option<&str>, context: &CallContext) -> ApiResult<AuthContext> {
        let bearer = bearer.ok_or_else(|| {
            ApiError::unauthenticated(
                "no credential: send `Authorization: Bearer` with an API key, a token or the operator token",
            )
        })?;
        let credential = Credential::parse(bearer)
            .map_err(|error| ApiError::unauthenticated(format!("the credential is {error}")))?;
        let presented = match credential {
            Credential::Operator(token) if self.inner.operator.accepts(&token) => {
                return Ok(AuthContext { principal: Principal::Operator, account: None });
            }
            Credential::Operator(_) => return Err(ApiError::unauthenticated("the operator token is not the one")),
            Credential::Token(token) => {
                let principal = self.inner.tokens.verify(&token)?;
                return self.validate(principal, context.deadline).await;
            }
            Credential::ApiKey(presented) => presented,
        };
        let directory = &self.inner.directory;
        let kept = directory.api_key(presented.key_id(), context.deadline).await?.ok_or_else(invalid_api_key)?;
        let principal = Principal::from_api_key(&presented, &kept, Timestamp::now().0).ok_or_else(invalid_api_key)?;
        let account = directory.account(kept.account, context.deadline).await?.ok_or_else(invalid_api_key)?;
        directory.record_key_use(&kept.key_id);
        require_active(principal, account)
    }

    /// The caller of an account that is known by its id alone. Only for the dlocks door, and only when it is told to
    /// trust its callers.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is none, `ACCOUNT_NOT_FOUND`, `PERMISSION_DENIED` for a suspended account,
    /// `UNAVAILABLE`.
    pub async fn authenticate_trusted(&self, account_id: &str, context: &CallContext) -> ApiResult<AuthContext> {
        let id = validate::account_id("account-id", account_id)?;
        let account = self.inner.directory.account(id, context.deadline).await?;
        let account = account.ok_or(holdfast_core::CommandError::AccountNotFound(id))?;
        let principal = AccountPrincipal {
            account: id,
            key_id: String::new(),
            scopes: TRUSTED_SCOPES,
            namespaces: None,
            expires_at_ms: None,
            credential_kind: CredentialKind::Trusted,
        };
        require_active(Principal::Account(principal), account)
    }

    /// The caller as it now is, after it was let in: a key keeps its secret, scopes and namespaces for life, so that
    /// nothing but its end has to be looked at.
    pub(crate) async fn revalidate(&self, caller: &AuthContext, deadline: Instant) -> ApiResult<AuthContext> {
        match &caller.principal {
            Principal::Operator => Ok(caller.clone()),
            Principal::Account(principal) => self.validate(principal.clone(), deadline).await,
        }
    }

    /// The caller of a principal that was checked, unless it ended since.
    async fn validate(&self, principal: AccountPrincipal, deadline: Instant) -> ApiResult<AuthContext> {
        let directory = &self.inner.directory;
        let (is_good, refused): (bool, fn() -> ApiError) = match principal.credential_kind {
            CredentialKind::Key => (directory.api_key(&principal.key_id, deadline).await?.is_some(), invalid_api_key),
            CredentialKind::Token { issued_at_ms } => {
                (directory.is_token_valid(&principal.key_id, issued_at_ms, deadline).await?, invalid_token)
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
        require_active(Principal::Account(principal), account)
    }

    /// Whether what follows `Bearer ` is the operator token.
    pub fn is_operator_token(&self, bearer: Option<&str>) -> bool {
        let token = bearer.and_then(|text| OperatorToken::parse(text).ok());
        token.is_some_and(|token| self.inner.operator.accepts(&token))
    }
}

/// One text for unknown, wrong, revoked and expired, so that nobody learns which key ids exist.
fn invalid_api_key() -> ApiError {
    ApiError::unauthenticated("the API key is unknown, expired or revoked")
}

/// One text for whatever is wrong with a token.
pub(crate) fn invalid_token() -> ApiError {
    ApiError::unauthenticated("the token is malformed, expired or revoked; get another one at POST /v1/tokens")
}

fn require_active(principal: Principal, account: Arc<Account>) -> ApiResult<AuthContext> {
    match account.status {
        AccountStatus::Active => Ok(AuthContext { principal, account: Some(account) }),
        AccountStatus::Suspended => {
            Err(ApiError::denied("the account is suspended").with("account", account.id.to_string()))
        }
    }
}
