//! Which shard a thing belongs to: the first four bytes, big-endian, of a SHA-256.

use sha2::{Digest, Sha256};

use crate::AccountId;

/// The key of every account: the accounts application has one shard.
pub const ACCOUNTS: u32 = 0;

/// Where the namespaces of an account are kept.
pub fn namespaces(account: AccountId) -> u32 {
    first_four(Sha256::new().chain_update(account.0.to_be_bytes()))
}

/// Where the locks of a namespace are kept.
pub fn locks(account: AccountId, namespace: &str) -> u32 {
    first_four(Sha256::new().chain_update(account.0.to_be_bytes()).chain_update(namespace))
}

fn first_four(hash: Sha256) -> u32 {
    let digest = hash.finalize();
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespaces_key_is_that_of_the_contract() {
        assert_eq!(format!("{:08x}", namespaces(AccountId(17_376_851_231_650_125_672))), "b207da9a");
    }

    #[test]
    fn the_locks_key_depends_on_the_account_and_on_the_name() {
        let key = locks(AccountId(1), "orders");
        assert_ne!(key, locks(AccountId(2), "orders"));
        assert_ne!(key, locks(AccountId(1), "invoices"));
        assert_eq!(locks(AccountId(1), ""), namespaces(AccountId(1)));
    }
}
