//! Authenticated callers and their permissions.

use std::sync::Arc;

use holdfast_types::{AccountId, ApiKey, Scopes};

use crate::ApiKeySecret;

/// A caller whose credential was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// The cluster's operator: for accounts and cluster calls, without access inside an account.
    Operator,
    /// A tenant, by one of its keys or a token for it.
    Account(AccountPrincipal),
}

/// A tenant's caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountPrincipal {
    /// The account of the key.
    pub account: AccountId,
    /// The key.
    pub key_id: String,
    /// The scopes of the credential.
    pub scopes: Scopes,
    /// The namespaces that it covers; absent for all.
    pub namespaces: Option<Arc<[String]>>,
    /// The credential is rejected from then on; wall clock in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// The kind of credential.
    pub credential_kind: CredentialKind,
}

/// How a tenant's caller was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// By the key itself.
    Key,
    /// By a token for the key.
    Token {
        /// When it was issued; wall clock in milliseconds since 1970.
        issued_at_ms: u64,
    },
    /// Not authenticated: the process is configured to trust every caller that names the account.
    Trusted,
}

impl Principal {
    /// Returns the caller with this key, if it is the stored one and `now_ms` (wall clock in milliseconds since 1970)
    /// is before its expiry.
    pub fn from_api_key(presented: &ApiKeySecret, kept: &ApiKey, now_ms: u64) -> Option<Self> {
        let is_kept = presented.key_id() == kept.key_id && presented.matches(&kept.secret_hash);
        let is_alive = kept.expires_at_ms.is_none_or(|expires_at_ms| now_ms < expires_at_ms);
        (is_kept && is_alive).then(|| {
            Self::Account(AccountPrincipal {
                account: kept.account,
                key_id: kept.key_id.clone(),
                scopes: kept.scopes,
                namespaces: kept.namespaces.as_deref().map(Arc::from),
                expires_at_ms: kept.expires_at_ms,
                credential_kind: CredentialKind::Key,
            })
        })
    }

    /// Returns whether this is the operator.
    pub fn is_operator(&self) -> bool {
        matches!(self, Self::Operator)
    }

    /// Returns the tenant's caller, unless it is the operator.
    pub fn account(&self) -> Option<&AccountPrincipal> {
        match self {
            Self::Operator => None,
            Self::Account(principal) => Some(principal),
        }
    }

    /// Returns whether the caller may use the namespace of that name in its own account.
    pub fn allows_namespace(&self, name: &str) -> bool {
        self.account().is_some_and(|principal| principal.allows_namespace(name))
    }

    /// Returns the default scopes of a key that the caller creates: the caller's own, or all for the operator.
    pub fn default_scopes(&self) -> Scopes {
        self.account().map_or(Scopes::ALL, |principal| principal.scopes)
    }

    /// Returns whether the caller may create a key with these scopes and namespaces (absent for all). No caller except
    /// the operator may grant more than it has.
    pub fn may_grant(&self, scopes: Scopes, namespaces: Option<&[String]>) -> bool {
        let Some(own) = self.account() else { return true };
        let within = match (&own.namespaces, namespaces) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(_), Some(names)) => names.iter().all(|name| own.allows_namespace(name)),
        };
        within && own.scopes.contains(scopes)
    }
}

impl AccountPrincipal {
    /// Returns whether the key covers the namespace of that name.
    pub fn allows_namespace(&self, name: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.iter().any(|allowed| allowed == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterSecret;

    fn stored_key(secret: &ApiKeySecret) -> ApiKey {
        ApiKey {
            key_id: secret.key_id().to_owned(),
            account: AccountId(7),
            secret_hash: secret.hash(),
            description: "for tests".to_owned(),
            scopes: Scopes::LOCKS_READ.union(Scopes::LOCKS_WRITE),
            namespaces: Some(vec!["a".to_owned(), "b".to_owned()]),
            expires_at_ms: Some(1_000),
            created_at_ms: 0,
        }
    }

    fn principal() -> Principal {
        let secret = ApiKeySecret::generate(&ClusterSecret::generate().unwrap()).unwrap();
        Principal::from_api_key(&secret, &stored_key(&secret), 0).unwrap()
    }

    #[test]
    fn a_key_is_refused_from_its_expiry_on_and_with_another_secret() {
        let secret = ApiKeySecret::generate(&ClusterSecret::generate().unwrap()).unwrap();
        assert!(Principal::from_api_key(&secret, &stored_key(&secret), 999).is_some());
        assert!(Principal::from_api_key(&secret, &stored_key(&secret), 1_000).is_none());
        let mut other = stored_key(&secret);
        other.secret_hash[0] ^= 1;
        assert!(Principal::from_api_key(&secret, &other, 0).is_none());
        let forever = ApiKey { expires_at_ms: None, ..stored_key(&secret) };
        assert!(Principal::from_api_key(&secret, &forever, u64::MAX).is_some());
    }

    #[test]
    fn a_key_allows_its_scopes_and_namespaces_only() {
        let principal = principal();
        let account = principal.account().unwrap();
        assert!(account.scopes.contains(Scopes::LOCKS_READ));
        assert!(!account.scopes.contains(Scopes::LOCKS_FORCE));
        assert!(!account.scopes.contains(Scopes::LOCKS_READ.union(Scopes::ACCOUNT_ADMIN)));
        assert!(principal.allows_namespace("a"));
        assert!(!principal.allows_namespace("c"));
        assert_eq!(account.account, AccountId(7));
    }

    #[test]
    fn the_operator_has_nothing_inside_an_account() {
        assert!(Principal::Operator.is_operator());
        assert!(!Principal::Operator.allows_namespace("a"));
        assert_eq!(Principal::Operator.account(), None);
    }

    #[test]
    fn nobody_grants_more_than_they_have_except_the_operator() {
        let principal = principal();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(principal.may_grant(Scopes::LOCKS_READ, Some(&names(&["b"]))));
        assert!(!principal.may_grant(Scopes::LOCKS_FORCE, Some(&names(&["b"]))));
        assert!(!principal.may_grant(Scopes::LOCKS_READ, Some(&names(&["b", "c"]))));
        assert!(!principal.may_grant(Scopes::LOCKS_READ, None));
        assert!(Principal::Operator.may_grant(Scopes::ALL, None));
        assert_eq!(Principal::Operator.default_scopes(), Scopes::ALL);
        assert_eq!(principal.default_scopes(), Scopes::LOCKS_READ.union(Scopes::LOCKS_WRITE));
    }
}
