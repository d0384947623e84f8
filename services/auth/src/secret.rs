//! A text that must not be revealed by accident.

use std::fmt;

/// A text whose `Debug` and `Display` write a placeholder, so that it can be a field of any logged value. It has no
/// comparison, since that would not be in constant time; compare hashes instead.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself. Only for sending it, writing it to a secret file, or showing it to its new owner once.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_itself_only_when_exposed() {
        let secret = Secret::new("xyzzy");
        assert_eq!(secret.expose(), "xyzzy");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "[secret] [secret] Some([secret])");
    }
}
