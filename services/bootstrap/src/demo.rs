//! The demo account of a first start.

use holdfast_auth::OperatorToken;

use crate::error::BootstrapError;

/// The idempotency key of all creations: a first start that is repeated gets the responses of the one before.
pub const IDEMPOTENCY_KEY: &str = "first-start";
/// The account's e-mail address.
pub const DEMO_EMAIL: &str = "demo@example.com";
/// The account's name.
pub const DEMO_NAME: &str = "Demo";
/// The account's namespace.
pub const DEMO_NAMESPACE: &str = "demo";
/// The description of the account's API key.
pub const DEMO_KEY_DESCRIPTION: &str = "made at the first start";

/// The way to the service of a first start.
pub trait FirstStart {
    /// Creates the demo account without a limit of rate, an API key of it, and its namespace; returns the key. A repeat
    /// returns the same key.
    ///
    /// # Errors
    /// When the service refuses or can't be reached.
    fn create_demo(&self, operator: &OperatorToken) -> impl Future<Output = Result<String, BootstrapError>>;
}
