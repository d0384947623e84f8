//! Tokens: issued for an API key, used in its place, and verified without a call to a shard.

use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, CreateToken, CreatedToken, Timestamp, validate};
use holdfast_auth::{
    AccountPrincipal, CredentialKind, MAX_TOKEN_BYTES, MAX_TOKEN_LIFETIME, Principal, Secret, SigningKeys,
};
use moka::sync::Cache;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::api_keys::parse_scopes;
use crate::auth::invalid_token;
use crate::{AuthContext, CallContext, Service};

/// A token's life when the caller sets none.
const DEFAULT_TTL: Duration = Duration::from_secs(15 * 60);
const MIN_TTL: Duration = Duration::from_secs(1);
/// How long a verified signature stays in the cache, at most until the token's own end.
const CACHE_TTL: Duration = Duration::from_secs(5 * 60);
/// Maximum size of the cache of verified tokens, in bytes.
const MAX_CACHE_BYTES: u64 = 32 * 1_024 * 1_024;
/// Bytes of a cached token besides the names in it.
const ENTRY_BYTES: usize = 300;

/// Verifies tokens. It verifies a signature once and caches the outcome for a while, by the hash of the whole token.
pub(crate) struct TokenIssuer {
    pub(crate) keys: SigningKeys,
    verified: Cache<[u8; 32], AccountPrincipal>,
}

impl TokenIssuer {
    pub(crate) fn new(keys: SigningKeys) -> Self {
        let weight = |_: &[u8; 32], principal: &AccountPrincipal| {
            let names: usize = principal.namespaces.iter().flat_map(|names| names.iter()).map(String::len).sum();
            u32::try_from(ENTRY_BYTES + names).unwrap_or(u32::MAX)
        };
        let verified = Cache::builder().max_capacity(MAX_CACHE_BYTES).weigher(weight).time_to_live(CACHE_TTL);
        Self { keys, verified: verified.build() }
    }

    /// Returns the principal of a token, by its signature and its times. Asks `may_verify` before it verifies a
    /// signature that is not in memory.
    pub(crate) fn verify(
        &self,
        token: &Secret,
        may_verify: impl FnOnce() -> ApiResult<()>,
    ) -> ApiResult<AccountPrincipal> {
        let now_ms = Timestamp::now().0;
        let hash: [u8; 32] = Sha256::digest(token.expose()).into();
        if let Some(principal) = self.verified.get(&hash) {
            // The signature was valid and stays so until the token ends.
            let is_alive = principal.expires_at_ms.is_some_and(|expires_at_ms| now_ms < expires_at_ms);
            return if is_alive { Ok(principal) } else { Err(invalid_token()) };
        }
        may_verify()?;
        let principal = self.keys.verify_token(token.expose(), now_ms).map_err(|error| {
            tracing::debug!(%error, "token rejected");
            invalid_token()
        })?;
        self.verified.insert(hash, principal.clone());
        Ok(principal)
    }
}

impl Service {
    /// Creates a token for the caller's key, with the same or fewer scopes and namespaces.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` for more scopes or namespaces than the key's, and for callers that did not present the key,
    /// besides those of every call.
    pub fn create_token(
        &self,
        caller: &AuthContext,
        context: &CallContext,
        request: CreateToken,
    ) -> ApiResult<CreatedToken> {
        let tenant = caller.tenant()?;
        if tenant.principal.credential_kind != CredentialKind::Key {
            return Err(ApiError::denied("only an API key can get a token; send the key itself"));
        }
        self.inner.rates.admit(tenant.account, context.body_bytes())?;
        self.inner.rates.admit_token(tenant.account)?;
        let (min, max) = (MIN_TTL.as_millis(), MAX_TOKEN_LIFETIME.as_millis());
        let life = request.ttl_ms.map_or(DEFAULT_TTL, Duration::from_millis);
        if !(MIN_TTL..=MAX_TOKEN_LIFETIME).contains(&life) {
            return Err(ApiError::invalid(
                "ttl_ms",
                format!("ttl_ms: must be {min} to {max}, is {}", life.as_millis()),
            ));
        }
        let mut allowed = tenant.principal.clone();
        if let Some(names) = request.scopes {
            allowed.scopes = parse_scopes(&names)?;
        }
        if let Some(names) = request.namespaces {
            allowed.namespaces = Some(validate::namespaces_of_key(names)?.into());
        }
        let own = Principal::Account(tenant.principal.clone());
        if !own.may_grant(allowed.scopes, allowed.namespaces.as_deref()) {
            return Err(ApiError::denied("a token may have no more scopes and namespaces than its API key"));
        }
        let (token, expires_at_ms) =
            self.inner.tokens.keys.issue_token(&allowed, life, Timestamp::now().0).map_err(signing_error)?;
        if token.expose().len() > MAX_TOKEN_BYTES {
            let detail = "namespaces: they make the token too long; name fewer of them";
            return Err(ApiError::invalid("namespaces", detail));
        }
        Ok(CreatedToken { token: token.expose().to_owned(), expires_at: Timestamp(expires_at_ms) })
    }

    /// Returns the public keys that verify tokens and signed grants: a JSON Web Key Set.
    ///
    /// # Errors
    /// `INTERNAL` when no key can be made.
    pub fn public_keys(&self) -> ApiResult<impl Serialize + use<>> {
        self.inner.tokens.keys.jwks(Timestamp::now().0).map_err(signing_error)
    }
}

/// The caller causes none of these errors.
pub(super) fn signing_error(error: holdfast_auth::SigningError) -> ApiError {
    tracing::error!(%error, "signing failed");
    ApiError::internal("the service cannot sign now")
}
