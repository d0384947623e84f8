//! Tokens: what a key's owner gets for a while, and gives to others in place of the key.
//!
//! A token is a JWT (EdDSA). It says everything that a gateway has to know of its caller, so that nothing has to be
//! looked up; whether its key was revoked since, is for the gateway to know.

use std::time::Duration;

use holdfast_core::{AccountId, Scopes};
use serde::{Deserialize, Serialize};

use crate::signing_keys::{ISSUER, SigningError, SigningKeys};
use crate::{AccountPrincipal, CredentialKind, Secret};

/// Longest life of a token.
pub const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Bytes of a token; longer texts are not looked into.
pub const MAX_TOKEN_BYTES: usize = 16 * 1_024;
/// The type in the head of an access token (RFC 9068), which no other signed text of the service has.
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

/// A token is not accepted. The reason is for logs: callers are told the same text for every one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is refused: {0}")]
pub struct InvalidToken(String);

impl SigningKeys {
    /// A token for what the principal may do, and when it ends: after `life`, at the end of the principal, or when its
    /// signature is no longer good, whichever comes first. Instants are wall clock in milliseconds since 1970.
    ///
    /// # Errors
    /// When it cannot be signed.
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

    /// Who presents a token, by its signature alone.
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

/// A scope that is not known would be dropped silently otherwise, and the token be taken for a smaller one.
fn parse_scopes(names: &str) -> Option<Scopes> {
    let mut names = names.split(' ').map(Scopes::from_name);
    names.try_fold(Scopes::NONE, |scopes, scope| Some(scopes.union(scope?)))
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
