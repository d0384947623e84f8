//! Tokens: a key's owner gets them for a limited time, and presents them to other services in place of the key.
//!
//! A token is a JWT (EdDSA). It contains all that a gateway must know of its caller, so that no lookup is necessary.
//! The gateway itself tracks whether the key was revoked since.

use std::time::Duration;

use holdfast_types::{AccountId, Scopes};
use serde::{Deserialize, Serialize};

use crate::signing_keys::{ISSUER, SigningError, SigningKeys};
use crate::{AccountPrincipal, CredentialKind, Secret};

/// Longest life of a token.
pub const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Maximum bytes of a token; longer texts are not parsed.
pub const MAX_TOKEN_BYTES: usize = 16 * 1_024;
/// The type in the header of an access token (RFC 9068), which no other signed text of the service has.
const TOKEN_TYPE: &str = "at+jwt";

#[derive(Clone, Serialize, Deserialize)]
struct Claims {
    iss: String,
    /// The cluster id.
    aud: String,
    /// The account: 16 hex digits.
    sub: String,
    key_id: String,
    /// Names of scopes with a space between.
    scope: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<Vec<String>>,
    /// Seconds since 1970.
    iat: u64,
    /// Seconds since 1970.
    exp: u64,
}

/// A token is rejected. The reason is for logs: callers receive the same text in every case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is refused: {0}")]
pub struct InvalidToken(String);

impl SigningKeys {
    /// Returns a token with the permissions of the principal, and when it ends: after `life`, at the end of the
    /// principal, or when its signature becomes invalid, whichever comes first. Instants are wall clock in milliseconds
    /// since 1970.
    ///
    /// # Errors
    /// When signing fails.
    pub fn issue_token(
        &self,
        principal: &AccountPrincipal,
        life: Duration,
        now_ms: u64,
    ) -> Result<(Secret, u64), SigningError> {
        let life = life.min(MAX_TOKEN_LIFETIME).min(self.overlap());
        let end_ms = now_ms.saturating_add(u64::try_from(life.as_millis()).unwrap_or(u64::MAX));
        let exp = principal.expires_at_ms.map_or(end_ms, |own_end| own_end.min(end_ms)) / 1_000;
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: self.cluster_id().to_owned(),
            sub: principal.account.to_string(),
            key_id: principal.key_id.clone(),
            scope: principal.scopes.names().join(" "),
            namespaces: principal.namespaces.as_deref().map(<[String]>::to_vec),
            iat: now_ms / 1_000,
            exp,
        };
        Ok((Secret::new(self.sign(TOKEN_TYPE, &claims, now_ms)?), exp * 1_000))
    }

    /// Returns the principal of a token, by its signature alone.
    ///
    /// # Errors
    /// When it is malformed, too long, expired, or signed for another purpose, by another cluster or before the last
    /// rotation but one.
    pub fn verify_token(&self, text: &str, now_ms: u64) -> Result<AccountPrincipal, InvalidToken> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(InvalidToken("it is too long".to_owned()));
        }
        let claims: Claims = self.verify(TOKEN_TYPE, self.cluster_id(), text, now_ms).map_err(InvalidToken)?;
        let expires_at_ms = claims.exp.saturating_mul(1_000);
        if expires_at_ms <= now_ms {
            return Err(InvalidToken("it has expired".to_owned()));
        }
        let unreadable = || InvalidToken("it says what this version does not understand".to_owned());
        let account = claims.sub.parse::<AccountId>().map_err(|_| unreadable())?;
        let scopes = parse_scopes(&claims.scope).ok_or_else(unreadable)?;
        Ok(AccountPrincipal {
            account,
            key_id: claims.key_id,
            scopes,
            namespaces: claims.namespaces.map(Into::into),
            expires_at_ms: Some(expires_at_ms),
            credential_kind: CredentialKind::Token { issued_at_ms: claims.iat.saturating_mul(1_000) },
        })
    }
}

/// Rejects unknown scopes: otherwise they would be dropped silently, and the token would appear to have fewer scopes.
fn parse_scopes(names: &str) -> Option<Scopes> {
    let mut names = names.split(' ').map(Scopes::from_name);
    names.try_fold(Scopes::NONE, |scopes, scope| Some(scopes.union(scope?)))
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
