//! Receipts of sessions: what a gateway told a client that it holds, or where it waits, proven to every gateway.
//!
//! The code is HMAC-SHA-256, whose first 16 bytes count, over everything that a receipt is about. Its key is derived
//! from the cluster secret, the generation and the period of the signing keys, and the period that the receipt names.

use holdfast_types::{AccountId, FencingToken, Incarnation, Mode, Receipt, SessionNumber, WaitId};
use subtle::ConstantTimeEq;

use crate::SigningKeys;

/// Bytes of the code that count.
const CODE_BYTES: usize = 16;

/// What a receipt is about: a request of a session, with what it was granted or the place that it had.
#[derive(Clone, Debug)]
pub struct Receipted<'a> {
    /// The account.
    pub account: AccountId,
    /// The incarnation of the namespace.
    pub incarnation: Incarnation,
    /// The number of the session.
    pub session: SessionNumber,
    /// The id of the request.
    pub request_id: &'a str,
    /// The thread of the session, if the request is not for the session as a whole.
    pub holder: Option<&'a str>,
    /// Its claims in order of path, each path once: what was asked for, and the token that was granted for it; 0 while
    /// it waits.
    pub claims: Vec<(&'a [String], Mode, FencingToken)>,
    /// Its place, if it waits.
    pub ticket: Option<WaitId>,
}

/// A receipt proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReceipt {
    /// It is of a period that has not begun.
    #[error("it is of a period that has not begun")]
    Early,
    /// It is of another session, request or grant, of other keys, or invented.
    #[error("it was not given for this request of this session, or the keys of the service have changed since")]
    Other,
}

impl SigningKeys {
    /// Returns the receipt of a request. `now_ms` is wall clock in milliseconds since 1970.
    pub fn receipt(&self, of: &Receipted<'_>, now_ms: u64) -> Receipt {
        let period = self.receipt_period(now_ms);
        Receipt::new(period, self.receipt_code(of, period))
    }

    /// Checks that this cluster gave the receipt for that request, in whichever period. Clocks of gateways may differ
    /// by one.
    ///
    /// # Errors
    /// When it did not.
    pub fn check_receipt(&self, receipt: &Receipt, of: &Receipted<'_>, now_ms: u64) -> Result<(), InvalidReceipt> {
        if receipt.period() > self.receipt_period(now_ms).saturating_add(1) {
            return Err(InvalidReceipt::Early);
        }
        let expected = Receipt::new(receipt.period(), self.receipt_code(of, receipt.period()));
        let is_equal: bool = expected.bytes().as_slice().ct_eq(receipt.bytes().as_slice()).into();
        if is_equal { Ok(()) } else { Err(InvalidReceipt::Other) }
    }

    fn receipt_period(&self, now_ms: u64) -> u32 {
        u32::try_from(now_ms / 1_000 / self.rotation().period_s()).unwrap_or(u32::MAX)
    }

    fn receipt_code(&self, of: &Receipted<'_>, period: u32) -> [u8; CODE_BYTES] {
        let rotation = self.rotation();
        let (generation, length) = (rotation.generation.to_be_bytes(), rotation.period_s().to_be_bytes());
        let key = self.secret().derived("receipt key", &[&generation, &length, &period.to_be_bytes()]);
        let numbers = [of.account.0, of.incarnation.0, of.session, of.ticket.map_or(0, |ticket| ticket.0)];
        let numbers = numbers.map(u64::to_be_bytes);
        let claims = of.claims.iter().map(|(path, mode, token)| {
            let length = u64::try_from(path.len()).unwrap_or(u64::MAX);
            let mode = match mode {
                Mode::Read => 0,
                Mode::Write => 1,
            };
            [mode, *token, length].map(u64::to_be_bytes)
        });
        let claims: Vec<[[u8; 8]; 3]> = claims.collect();
        let kinds = [u8::from(of.holder.is_some()), u8::from(of.ticket.is_some())];
        let mut parts: Vec<&[u8]> = vec![self.cluster_id().as_bytes(), &kinds];
        parts.extend(numbers.iter().map(<[u8; 8]>::as_slice));
        parts.extend([of.request_id.as_bytes(), of.holder.unwrap_or_default().as_bytes()]);
        for ((path, ..), numbers) in of.claims.iter().zip(&claims) {
            parts.extend(numbers.iter().map(<[u8; 8]>::as_slice));
            parts.extend(path.iter().map(String::as_bytes));
        }
        let code = key.derive("receipt", &parts);
        let mut first = [0; CODE_BYTES];
        first.copy_from_slice(&code[..CODE_BYTES]);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterSecret, KeyRotation};

    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    const NOW_MS: u64 = 20_000 * DAY_MS;

    fn path(text: &str) -> Vec<String> {
        text.split('/').map(str::to_owned).collect()
    }

    fn granted(path: &[String]) -> Receipted<'_> {
        Receipted {
            account: AccountId(7),
            incarnation: Incarnation(8),
            session: 9,
            request_id: "r1",
            holder: None,
            claims: vec![(path, Mode::Write, 10)],
            ticket: None,
        }
    }

    fn keys(secret: &ClusterSecret, generation: u32) -> SigningKeys {
        SigningKeys::new(secret, KeyRotation { generation, ..KeyRotation::default() }).unwrap()
    }

    #[test]
    fn a_receipt_is_good_for_what_it_was_given_for_and_nothing_else() {
        let keys = keys(&ClusterSecret::generate().unwrap(), 0);
        let (one, other, joined) = (path("a/b"), path("a/c"), path("ab"));
        let receipt = keys.receipt(&granted(&one), NOW_MS);
        assert_eq!(keys.check_receipt(&receipt, &granted(&one), NOW_MS), Ok(()));
        let of = || granted(&one);
        for wrong in [
            Receipted { account: AccountId(8), ..of() },
            Receipted { incarnation: Incarnation(7), ..of() },
            Receipted { session: 10, ..of() },
            Receipted { request_id: "r2", ..of() },
            Receipted { holder: Some("r1"), ..of() },
            Receipted { holder: Some(""), ..of() },
            Receipted { ticket: Some(WaitId(0)), ..of() },
            Receipted { claims: vec![(&other, Mode::Write, 10)], ..of() },
            Receipted { claims: vec![(&joined, Mode::Write, 10)], ..of() },
            Receipted { claims: vec![(&one, Mode::Read, 10)], ..of() },
            Receipted { claims: vec![(&one, Mode::Write, 11)], ..of() },
            Receipted { claims: Vec::new(), ..of() },
            Receipted { claims: vec![(&one, Mode::Write, 10), (&other, Mode::Write, 10)], ..of() },
        ] {
            assert_eq!(keys.check_receipt(&receipt, &wrong, NOW_MS), Err(InvalidReceipt::Other), "{wrong:?}");
        }
    }

    #[test]
    fn every_byte_of_a_receipt_counts() {
        let keys = keys(&ClusterSecret::generate().unwrap(), 0);
        let path = path("a");
        let receipt = keys.receipt(&granted(&path), NOW_MS);
        for at in 0..receipt.bytes().len() {
            let mut bytes = *receipt.bytes();
            bytes[at] ^= 1;
            let tampered = Receipt::try_from(bytes.as_slice()).unwrap();
            assert!(keys.check_receipt(&tampered, &granted(&path), NOW_MS).is_err(), "byte {at}");
        }
    }

    #[test]
    fn receipts_of_earlier_periods_stay_good_and_those_of_other_keys_never_are() {
        let secret = ClusterSecret::generate().unwrap();
        let (first, raised) = (keys(&secret, 0), keys(&secret, 1));
        let path = path("a");
        let receipt = first.receipt(&granted(&path), NOW_MS);
        assert_eq!(first.check_receipt(&receipt, &granted(&path), NOW_MS + 400 * DAY_MS), Ok(()));
        assert_eq!(first.check_receipt(&receipt, &granted(&path), NOW_MS - DAY_MS), Ok(()), "clocks differ");
        let early = first.check_receipt(&receipt, &granted(&path), NOW_MS - 2 * DAY_MS);
        assert_eq!(early, Err(InvalidReceipt::Early));
        let other = keys(&ClusterSecret::generate().unwrap(), 0);
        for keys in [raised, other] {
            assert_eq!(keys.check_receipt(&receipt, &granted(&path), NOW_MS), Err(InvalidReceipt::Other));
        }
    }
}
