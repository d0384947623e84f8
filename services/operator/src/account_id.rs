//! Account ids in the notation of users: hexadecimal or decimal.

use std::fmt;
use std::str::FromStr;

/// Hex digits of an id in the responses of the service.
const HEX_DIGITS: usize = 16;

/// The id of an account. Displayed as the service does: 16 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountId(pub u64);

/// The reason why a text is no account id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedAccountId {
    /// It has fewer than 16 characters.
    #[error("an account id has 16 hex digits, or more than 16 decimal ones; this is shorter")]
    TooShort,
    /// It has 16 characters, and some are no hex digits.
    #[error("16 characters are an id in hex, and not all of these are hex digits")]
    NotHex,
    /// It has more than 16 characters, and some are no decimal digits.
    #[error("more than 16 characters are an id in decimal, and not all of these are decimal digits")]
    NotDecimal,
    /// It exceeds 64 bits.
    #[error("an id in decimal is at most {}", u64::MAX)]
    TooLarge,
}

impl FromStr for AccountId {
    type Err = MalformedAccountId;

    /// Parses 16 digits as hex and more as decimal. Rejects fewer: they could be decimal, or hex without its leading
    /// zeros, and a wrong guess would select another account.
    fn from_str(text: &str) -> Result<Self, MalformedAccountId> {
        match text.chars().count() {
            0..HEX_DIGITS => Err(MalformedAccountId::TooShort),
            HEX_DIGITS if text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                u64::from_str_radix(text, 16).map(Self).map_err(|_| MalformedAccountId::NotHex)
            }
            HEX_DIGITS => Err(MalformedAccountId::NotHex),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map(Self).map_err(|_| MalformedAccountId::TooLarge)
            }
            _ => Err(MalformedAccountId::NotDecimal),
        }
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_digits_are_hex_and_more_are_decimal() {
        assert_eq!("9fff3bf7d1f9561d".parse(), Ok(AccountId(0x9fff_3bf7_d1f9_561d)));
        assert_eq!("9FFF3BF7D1F9561D".parse(), Ok(AccountId(0x9fff_3bf7_d1f9_561d)));
        assert_eq!("1234567890123456".parse(), Ok(AccountId(0x1234_5678_9012_3456)));
        assert_eq!("17376851231650125672".parse(), Ok(AccountId(17_376_851_231_650_125_672)));
        assert_eq!("00000000000000001".parse(), Ok(AccountId(1)));
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        let refusal = |text: &str| text.parse::<AccountId>().unwrap_err();
        assert_eq!(refusal(""), MalformedAccountId::TooShort);
        assert_eq!(refusal("123456789012345"), MalformedAccountId::TooShort);
        assert_eq!(refusal("9fff3bf7d1f9561g"), MalformedAccountId::NotHex);
        assert_eq!(refusal("+fff3bf7d1f9561d"), MalformedAccountId::NotHex);
        assert_eq!(refusal("äöüäöüäöüäöüäöüä"), MalformedAccountId::NotHex);
        assert_eq!(refusal("0x9fff3bf7d1f9561d"), MalformedAccountId::NotDecimal);
        assert_eq!(refusal("+17376851231650125"), MalformedAccountId::NotDecimal);
        assert_eq!(refusal("18446744073709551616"), MalformedAccountId::TooLarge);
    }

    #[test]
    fn an_id_is_shown_as_the_service_shows_it() {
        assert_eq!(AccountId(0x1f).to_string(), "000000000000001f");
    }
}
