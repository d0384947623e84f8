//! Short texts without an allocation of their own.

use std::borrow::Borrow;

/// Maximum length in bytes of a text that is stored in place.
const MAX_SHORT: usize = 22;

/// A text of a path, an owner or a request, ordered by its bytes. Most are short: an allocation for each would take
/// more memory than the text, and a cache miss to compare it.
#[derive(Clone, Debug)]
pub(super) enum Name {
    Short { len: u8, bytes: [u8; MAX_SHORT] },
    Long(Box<str>),
}

impl Name {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Self::Long(text) => text.as_bytes(),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Short { .. } => std::str::from_utf8(self.as_bytes()).expect("it was copied from a text"),
            Self::Long(text) => text,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.as_bytes().len()
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        let mut bytes = [0; MAX_SHORT];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(prefix), Ok(len)) => {
                prefix.copy_from_slice(text.as_bytes());
                Self::Short { len, bytes }
            }
            _ => Self::Long(text.into()),
        }
    }
}

/// The empty name, the least of all.
impl Default for Name {
    fn default() -> Self {
        Self::Short { len: 0, bytes: [0; MAX_SHORT] }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

/// Bytes of UTF-8 have the order of the texts.
impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_length_are_kept_and_have_the_order_of_their_texts() {
        let texts = ["", "a", "lock-000001", "é", &"x".repeat(MAX_SHORT), &"x".repeat(MAX_SHORT + 1), "ü\0"];
        for one in texts {
            let name = Name::from(one);
            assert_eq!((name.as_str(), name.len()), (one, one.len()));
            assert_eq!(matches!(name, Name::Long(_)), one.len() > MAX_SHORT);
            assert!(texts.iter().all(|other| name.cmp(&Name::from(*other)) == one.cmp(other)));
        }
        assert_eq!(Name::default(), Name::from(""));
    }

    #[test]
    fn a_name_takes_no_more_than_a_text_elsewhere() {
        assert_eq!((size_of::<Name>(), size_of::<Option<Name>>()), (24, 24));
    }
}
