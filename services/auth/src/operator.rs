//! The operator token: `hfop_<secret>`.

use crate::Secret;
use crate::random::{self, RandomError, is_secret_text, secret_text};

const PREFIX: &str = "hfop_";

/// The token of the cluster's operator, for accounts and cluster calls.
#[derive(Clone, Debug)]
pub struct OperatorToken(Secret);

/// The text is not an operator token. The error does not repeat it, since it may be most of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operator token looks like hfop_<secret>")]
pub struct MalformedOperatorToken;

impl OperatorToken {
    /// Draws a new token.
    ///
    /// # Errors
    /// When the system provides no random bytes.
    pub fn generate() -> Result<Self, RandomError> {
        Ok(Self(Secret::new(format!("{PREFIX}{}", secret_text(&random::bytes()?)))))
    }

    /// Parses a token from a file or a request.
    ///
    /// # Errors
    /// When the text does not have the form of a token.
    pub fn parse(text: &str) -> Result<Self, MalformedOperatorToken> {
        match text.strip_prefix(PREFIX) {
            Some(secret) if is_secret_text(secret) => Ok(Self(Secret::new(text))),
            _ => Err(MalformedOperatorToken),
        }
    }

    /// The whole token, for its file.
    pub fn reveal(&self) -> &Secret {
        &self.0
    }
}

/// Verifies the operator token of this cluster by its hash.
#[derive(Clone, Debug)]
pub struct OperatorVerifier {
    hash: [u8; 32],
}

impl OperatorVerifier {
    /// Returns the verifier of this token.
    pub fn new(token: &OperatorToken) -> Self {
        Self { hash: crate::sha256(token.0.expose()) }
    }

    /// Returns whether the presented token is the operator token, in constant time.
    pub fn accepts(&self, presented: &OperatorToken) -> bool {
        crate::constant_time_eq(&crate::sha256(presented.0.expose()), &self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_accepted() {
        let token = OperatorToken::generate().unwrap();
        let verifier = OperatorVerifier::new(&token);
        assert_eq!(token.reveal().expose().len(), 5 + 43);
        assert!(verifier.accepts(&OperatorToken::parse(token.reveal().expose()).unwrap()));
        assert!(!verifier.accepts(&OperatorToken::generate().unwrap()));
    }

    #[test]
    fn other_texts_are_refused() {
        let token = OperatorToken::generate().unwrap();
        let text = token.reveal().expose();
        for bad in ["", "hfop_", "hfop_short", &text[1..], &format!("{text} "), &format!("{text}{text}{text}")] {
            assert_eq!(OperatorToken::parse(bad).unwrap_err(), MalformedOperatorToken);
        }
    }
}
