//! The credential that a caller presents after `Bearer`.

use crate::{ApiKeySecret, OperatorToken, Secret};

/// A well-formed credential, not verified yet.
#[derive(Clone, Debug)]
pub enum Credential {
    /// An API key of an account.
    ApiKey(ApiKeySecret),
    /// An operator token.
    Operator(OperatorToken),
    /// A text with the form of a token for a key.
    Token(Secret),
}

/// The text is no credential known to this service. The error does not repeat it, since it may be most of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither an API key (hf_<key id>_<secret>) nor a token (a JWT) nor an operator token (hfop_<secret>)")]
pub struct MalformedCredential;

impl Credential {
    /// Parses the text after `Bearer `.
    ///
    /// # Errors
    /// When it does not have the form of any credential.
    pub fn parse(text: &str) -> Result<Self, MalformedCredential> {
        ApiKeySecret::parse(text)
            .map(Self::ApiKey)
            .or_else(|_| OperatorToken::parse(text).map(Self::Operator))
            .or_else(|_| if is_jwt(text) { Ok(Self::Token(Secret::new(text))) } else { Err(MalformedCredential) })
    }
}

/// Returns whether a text has the form of a JWT: three parts of URL-safe letters.
fn is_jwt(text: &str) -> bool {
    let is_part = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let mut parts = text.split('.');
    parts.by_ref().take(3).filter(|part| is_part(part)).count() == 3 && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterSecret;

    #[test]
    fn each_kind_of_credential_is_told_apart() {
        let key = ApiKeySecret::generate(&ClusterSecret::generate().unwrap()).unwrap();
        let token = OperatorToken::generate().unwrap();
        assert!(matches!(Credential::parse(key.reveal().expose()), Ok(Credential::ApiKey(_))));
        assert!(matches!(Credential::parse(token.reveal().expose()), Ok(Credential::Operator(_))));
        assert!(matches!(Credential::parse("e30.e30.c2ln"), Ok(Credential::Token(_))));
        assert!(matches!(Credential::parse("e30.e30."), Ok(Credential::Token(_))));
        for text in ["", "e30", "e30.e30", "e30.e30.c2ln.c2ln", "e30.e30.c2 n", "e30.e30.c2l="] {
            assert_eq!(Credential::parse(text).unwrap_err(), MalformedCredential, "{text}");
        }
        assert_eq!(Credential::parse("hf_x").unwrap_err(), MalformedCredential);
    }
}
