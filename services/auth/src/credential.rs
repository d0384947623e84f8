//! What a caller presents after `Bearer`.

use crate::{ApiKeySecret, OperatorToken};

/// A well-formed credential, not yet compared with anything.
#[derive(Clone, Debug)]
pub enum Credential {
    /// An API key of an account.
    ApiKey(ApiKeySecret),
    /// An operator token.
    Operator(OperatorToken),
}

/// The text is no credential that this service knows. It is not repeated here, since it may be most of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither an API key (hf_<key id>_<secret>) nor an operator token (hfop_<secret>)")]
pub struct MalformedCredential;

impl Credential {
    /// Reads what follows `Bearer `.
    ///
    /// # Errors
    /// When it has not the form of any credential.
    pub fn parse(text: &str) -> Result<Self, MalformedCredential> {
        ApiKeySecret::parse(text)
            .map(Self::ApiKey)
            .or_else(|_| OperatorToken::parse(text).map(Self::Operator))
            .map_err(|_| MalformedCredential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_credential_is_told_apart() {
        let key = ApiKeySecret::generate().unwrap();
        let token = OperatorToken::generate().unwrap();
        assert!(matches!(Credential::parse(key.reveal().expose()), Ok(Credential::ApiKey(_))));
        assert!(matches!(Credential::parse(token.reveal().expose()), Ok(Credential::Operator(_))));
        assert_eq!(Credential::parse("hf_x").unwrap_err(), MalformedCredential);
    }
}
