//! Receipts: by one, the client of a session proves what a request was granted, or which place it had.

use std::fmt;
use std::str::FromStr;

/// Bytes of a receipt: four of the period whose key made it, and 16 of the code.
pub const RECEIPT_BYTES: usize = 20;

/// A code of the service over what it granted, or over a place in the queue. Only its bytes are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Receipt([u8; RECEIPT_BYTES]);

/// The text or the bytes are no receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a receipt has 20 bytes, or 40 hex digits")]
pub struct MalformedReceipt;

impl Receipt {
    /// Returns the receipt of a period with this code.
    pub fn new(period: u32, code: [u8; 16]) -> Self {
        let mut bytes = [0; RECEIPT_BYTES];
        bytes[..4].copy_from_slice(&period.to_be_bytes());
        bytes[4..].copy_from_slice(&code);
        Self(bytes)
    }

    /// Returns the period whose key it names.
    pub fn period(&self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8; RECEIPT_BYTES] {
        &self.0
    }
}

impl TryFrom<&[u8]> for Receipt {
    type Error = MalformedReceipt;

    fn try_from(bytes: &[u8]) -> Result<Self, MalformedReceipt> {
        bytes.try_into().map(Self).map_err(|_| MalformedReceipt)
    }
}

impl FromStr for Receipt {
    type Err = MalformedReceipt;

    fn from_str(text: &str) -> Result<Self, MalformedReceipt> {
        let mut bytes = [0; RECEIPT_BYTES];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| MalformedReceipt)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receipt(of period {})", self.period())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_texts_read_back_and_other_lengths_are_refused() {
        let receipt = Receipt::new(7, [9; 16]);
        assert_eq!(receipt.period(), 7);
        assert_eq!(Receipt::try_from(receipt.bytes().as_slice()), Ok(receipt));
        assert_eq!(receipt.to_string().parse(), Ok(receipt));
        assert_eq!(receipt.to_string().len(), 2 * RECEIPT_BYTES);
        for bytes in [&[0_u8; RECEIPT_BYTES - 1][..], &[0; RECEIPT_BYTES + 1], &[]] {
            assert_eq!(Receipt::try_from(bytes), Err(MalformedReceipt));
            assert_eq!(hex::encode(bytes).parse::<Receipt>(), Err(MalformedReceipt));
        }
        assert_eq!("g".repeat(2 * RECEIPT_BYTES).parse::<Receipt>(), Err(MalformedReceipt));
    }
}
