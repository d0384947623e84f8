//! Rotation of the keys that sign tokens and grants.

use std::time::Duration;

use clap::Args;
use holdfast_auth::KeyRotation;

/// Flags about the keys that sign tokens and grants. The keys are derived from the cluster secret, and must be the same
/// for every gateway of a cluster.
#[derive(Debug, Clone, Args)]
pub struct SigningArgs {
    /// Seconds for which a key signs tokens and grants; its signatures remain valid for as long again.
    #[arg(
        long,
        env = "HOLDFAST_SIGNING_KEY_SECONDS",
        default_value_t = 86_400,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=31_536_000)
    )]
    pub signing_key_seconds: u64,
    /// Another number makes other keys: all tokens and grants signed before become void at once.
    #[arg(long, env = "HOLDFAST_SIGNING_KEY_GENERATION", default_value_t = 0, value_name = "NUMBER")]
    pub signing_key_generation: u32,
}

impl SigningArgs {
    /// Returns the key rotation.
    pub fn rotation(&self) -> KeyRotation {
        KeyRotation { period: Duration::from_secs(self.signing_key_seconds), generation: self.signing_key_generation }
    }
}
