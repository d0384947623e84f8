//! Computes the key that selects a shard, from an account and a namespace.

use sha2::{Digest, Sha256};

use crate::Application;

/// Returns the shard key: the first 4 bytes, big-endian, of SHA-256 over the account id as 8 big-endian bytes, followed
/// for `Locks` by the namespace's name. All accounts share key 0, so that e-mails can be unique among them.
///
/// `account` and `namespace` are used only if the application is hashed by them.
pub fn shard_key(application: Application, account: u64, namespace: &str) -> u32 {
    let hasher = Sha256::new().chain_update(account.to_be_bytes());
    let digest: [u8; 32] = match application {
        Application::Accounts => return 0,
        Application::Namespaces => hasher.finalize(),
        Application::Locks => hasher.chain_update(namespace).finalize(),
    }
    .into();
    let [first, second, third, fourth, ..] = digest;
    u32::from_be_bytes([first, second, third, fourth])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNT: u64 = 17_376_851_231_650_125_672;

    #[test]
    fn namespaces_are_hashed_by_account() {
        assert_eq!(shard_key(Application::Namespaces, ACCOUNT, ""), 0xb207_da9a);
        assert_eq!(shard_key(Application::Namespaces, ACCOUNT, "ignored"), 0xb207_da9a);
    }

    #[test]
    fn locks_are_hashed_by_account_and_namespace() {
        let mut bytes = ACCOUNT.to_be_bytes().to_vec();
        bytes.extend_from_slice("my-namespace".as_bytes());
        let digest = Sha256::digest(&bytes);
        let expected = u32::from_be_bytes(digest[..4].try_into().unwrap());
        assert_eq!(shard_key(Application::Locks, ACCOUNT, "my-namespace"), expected);
        assert_ne!(shard_key(Application::Locks, ACCOUNT, "other"), expected);
    }

    #[test]
    fn all_accounts_share_one_key() {
        assert_eq!(shard_key(Application::Accounts, ACCOUNT, ""), 0);
    }
}
