//! API keys: of any account for the operator, of the own account with `account:admin`.

use std::collections::HashMap;

use holdfast_api::{ApiError, ApiKeyView, ApiResult, CreateApiKey, CreatedApiKey, Timestamp, validate, wall_now};
use holdfast_auth::ApiKeySecret;
use holdfast_types::{AccountId, AccountsCommand, ApiKey, Command, CommandError, Limits, Query, Response, Scopes};

use crate::shard_call::{check_repeat, expect_answer};
use crate::{AuthContext, CallContext, Service};

const MAX_ID_ATTEMPTS: usize = 3;

impl Service {
    /// Creates a key: of `account` for the operator, of the caller's own account when it is absent.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` for more scopes, more namespaces or a later end than the caller's own key,
    /// `ACCOUNT_NOT_FOUND`, `QUOTA_EXCEEDED`, besides those of every call.
    pub async fn create_api_key(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        account: Option<&str>,
        request: CreateApiKey,
    ) -> ApiResult<CreatedApiKey> {
        let account = self.account_of_keys(caller, context, account)?;
        let template = key_template(caller, account, request)?;
        self.admit_key_change(caller)?;
        for _ in 0..MAX_ID_ATTEMPTS {
            let secret = self.generate_key(caller, account, context)?;
            let key = ApiKey { key_id: secret.key_id().to_owned(), secret_hash: secret.hash(), ..template.clone() };
            let command = Command::Accounts(AccountsCommand::CreateApiKey { key });
            let routed = self.call_accounts(caller.share(), caller.audited(context, command), context).await?;
            match routed.reply.outcome {
                Err(CommandError::IdTaken) if context.idempotency_key.is_none() => {}
                outcome => {
                    let key = expect_answer!(outcome?, Response::ApiKey(key) => key)?;
                    self.inner.directory.invalidate_api_key(account, &key.key_id);
                    let as_asked = ApiKey {
                        key_id: key.key_id.clone(),
                        secret_hash: key.secret_hash,
                        created_at_ms: key.created_at_ms,
                        ..template
                    };
                    check_repeat(key == as_asked)?;
                    return Ok(CreatedApiKey { api_key: secret.reveal().expose().to_owned(), key: key.into() });
                }
            }
        }
        Err(ApiError::from(CommandError::IdTaken))
    }

    /// Lists the keys of an account, in order of creation, without their secrets.
    ///
    /// # Errors
    /// `ACCOUNT_NOT_FOUND`, besides those of every call.
    pub async fn list_api_keys(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        account: Option<&str>,
    ) -> ApiResult<Vec<ApiKeyView>> {
        let account = self.account_of_keys(caller, context, account)?;
        let routed = self.call_accounts(caller.share(), Query::ApiKeys { account }, context).await?;
        let keys = expect_answer!(routed.reply.outcome?, Response::ApiKeys(keys) => keys)?;
        let routed = self.call_accounts(caller.share(), Query::KeyUse { account }, context).await?;
        let used = expect_answer!(routed.reply.outcome?, Response::KeyUse(used) => used)?;
        let used: HashMap<String, u64> = used.into_iter().collect();
        let shown = keys.into_iter().map(|key| {
            let last_used_at = used.get(&key.key_id).copied().map(Timestamp);
            ApiKeyView { last_used_at, ..key.into() }
        });
        Ok(shown.collect())
    }

    /// Revokes a key: this gateway rejects it immediately, all others within a second.
    ///
    /// # Errors
    /// `API_KEY_NOT_FOUND`, also for another account's key, besides those of every call.
    pub async fn delete_api_key(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        account: Option<&str>,
        key_id: &str,
    ) -> ApiResult<()> {
        let account = self.account_of_keys(caller, context, account)?;
        validate::name("key_id", key_id)?;
        self.admit_key_change(caller)?;
        let command = AccountsCommand::DeleteApiKey { account, key_id: key_id.to_owned() };
        let routed =
            self.call_accounts(caller.share(), caller.audited(context, Command::Accounts(command)), context).await?;
        match routed.reply.outcome {
            // An earlier attempt of this call may have deleted it.
            Err(CommandError::ApiKeyNotFound) if routed.maybe_done_before => {}
            Err(refusal) => return Err(ApiError::from(refusal).with("key_id", key_id)),
            Ok(answer) => expect_answer!(answer, Response::Done => ())?,
        }
        self.inner.directory.invalidate_api_key(account, key_id);
        Ok(())
    }

    /// Returns the account whose keys the call concerns.
    fn account_of_keys(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        account: Option<&str>,
    ) -> ApiResult<AccountId> {
        if let Some(account) = account {
            caller.require_operator()?;
            return validate::account_id("account_id", account);
        }
        let tenant = caller.require(Scopes::ACCOUNT_ADMIN)?;
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        Ok(tenant.account.id)
    }

    /// Counts a change of a tenant's keys.
    fn admit_key_change(&self, caller: &AuthContext) -> ApiResult<()> {
        match caller.tenant() {
            Ok(tenant) => self.inner.rates.admit_key_change(tenant.account),
            Err(_) => Ok(()),
        }
    }

    fn generate_key(&self, caller: &AuthContext, account: AccountId, context: &CallContext) -> ApiResult<ApiKeySecret> {
        let Some(key) = &context.idempotency_key else {
            return ApiKeySecret::generate(&self.inner.cluster_secret).map_err(|error| {
                tracing::error!(%error, "API key generation failed");
                ApiError::internal("no API key could be generated")
            });
        };
        validate::idempotency_key(key)?;
        // A caller that repeats the creation receives the secret, so the creator is part of its derivation.
        let maker = caller.principal().account().map_or("operator", |principal| &principal.key_id);
        Ok(ApiKeySecret::derive(&self.inner.cluster_secret, account, &format!("{maker}/{key}")))
    }
}

/// Returns the requested key without id and secret.
fn key_template(caller: &AuthContext, account: AccountId, request: CreateApiKey) -> ApiResult<ApiKey> {
    let principal = caller.principal();
    let own = principal.account();
    let description = request.description.unwrap_or_default();
    validate::description(&description, &Limits::default())?;
    let scopes = match request.scopes {
        None => principal.default_scopes(),
        Some(names) => parse_scopes(&names)?,
    };
    let own_namespaces = own.and_then(|own| own.namespaces.as_deref().map(<[String]>::to_vec));
    let namespaces = match request.namespaces {
        None => own_namespaces,
        Some(names) => Some(validate::namespaces_of_key(names)?),
    };
    if !principal.may_grant(scopes, namespaces.as_deref()) {
        return Err(ApiError::denied("a key may have no more scopes and namespaces than the key that creates it"));
    }
    let own_end = own.and_then(|own| own.expires_at_ms);
    let asked_end =
        request.expires_at.map(|at| validate::future_instant_ms("expires_at", at, wall_now())).transpose()?;
    let expires_at_ms = asked_end.or(own_end);
    if let (Some(end), Some(own_end)) = (expires_at_ms, own_end)
        && end > own_end
    {
        return Err(ApiError::denied("a key may not expire after the key that creates it").with("field", "expires_at"));
    }
    Ok(ApiKey {
        key_id: String::new(),
        account,
        secret_hash: [0; 32],
        description,
        scopes,
        namespaces,
        expires_at_ms,
        created_at_ms: 0,
    })
}

pub(super) fn parse_scopes(names: &[String]) -> ApiResult<Scopes> {
    let mut scopes = Scopes::NONE;
    for name in names {
        let scope = Scopes::from_name(name).ok_or_else(|| {
            let known = Scopes::ALL.names().join(", ");
            ApiError::invalid("scopes", format!("scopes: there is no scope {name:?}; known are {known}"))
        })?;
        scopes = scopes.union(scope);
    }
    if scopes == Scopes::NONE {
        return Err(ApiError::invalid("scopes", "scopes: must name at least one, or be absent to copy the caller's"));
    }
    Ok(scopes)
}
